"""Where a configuration is composed from: the file that Hydra begins with, and its search path."""

import argparse
import functools
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from hydra import version
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.types import RunMode
from omegaconf import OmegaConf

from runtime.errors import ConfigError
from runtime.plugins import added_parts, import_plugins
from runtime.registry import CONFIG_FOLDERS
from runtime.text import shown

CONFIG_DIR = Path(__file__).resolve().parents[2] / "config"
# Of Hydra's own settings those that choose and steer launchers and searches. The others name
# classes that Hydra would build, or places where it would write; here the run's folder has them.
HYDRA_GROUPS = ("hydra/launcher", "hydra/sweeper", "hydra/sweeper/sampler")
HYDRA_KEYS = re.compile(r"hydra\.(launcher|sweeper)\.(?!.*_target_)[\w.]+|hydra\.sweep\.dir")
# What stands for Hydra's own choices, unless the file that Hydra begins with says otherwise.
_USUAL = {"hydra/launcher": "serial", "hydra/sweeper": "grid", "hydra.sweep.dir": "multirun"}
HYDRA_REFUSED = (
    "of Hydra's own settings these can be changed: "
    f"{', '.join(HYDRA_GROUPS)}, hydra.launcher.*, hydra.sweeper.*, hydra.sweep.dir"
)
TOO_LATE = (
    "comes too late here: give it on the command line, or in the file of --config-name itself"
)


class Source(NamedTuple):
    """Where a configuration is composed from.

    Attributes:
        config_name: the file that Hydra begins with, without its ending.
        folders: in which the groups are; the first is ours, or that of `--config-path`. No file
            name is in two of them.
        registered: choices of plug-ins without a file, by group and name.
    """

    config_name: str
    folders: tuple[Path, ...] = (CONFIG_DIR,)
    registered: tuple[tuple[str, str], ...] = ()

    def find(self, name: str) -> Path | None:
        """Return the file of a configuration, such as `experiment/mine`, None if there is none."""
        files = (folder / f"{name.removesuffix('.yaml')}.yaml" for folder in self.folders)
        return next((file for file in files if file.is_file()), None)

    def choices(self, group: str) -> list[str]:
        """List the choices of a group, such as `arch`."""
        files = {file.stem for each in self.folders for file in (each / group).glob("*.yaml")}
        return sorted(files.union(name for known, name in self.registered if known == group))

    def has(self, name: str, path: Sequence[str]) -> bool:
        """Return whether a configuration sets what is at a path."""
        node: Any = None
        if file := self.find(name):
            node = read_yaml(file)
        elif tuple(name.split("/")) in self.registered:
            node = OmegaConf.to_container(ConfigStore.instance().load(f"{name}.yaml").node)
        for part in path:
            if not isinstance(node, dict) or part not in node:
                return False
            node = node[part]
        return True

    @contextmanager
    def hydra(self) -> Iterator[Hydra]:
        """Yield Hydra with these folders as its search path."""
        version.setbase("1.3")
        path = create_config_search_path(f"file://{self.folders[0]}")
        for folder in self.folders[1:]:
            anchor = SearchPathQuery(provider="schema")
            path.prepend("command-line", f"file://{folder}", anchor=anchor)
        GlobalHydra.instance().clear()
        try:
            yield Hydra.create_main_hydra2(self.config_name, path)
        finally:
            GlobalHydra.instance().clear()

    def usual_lines(self) -> list[str]:
        """Return overrides for what the file that Hydra begins with leaves to Hydra itself."""
        content = _first_file(self)
        said = {*_paths(content, ""), *(_group(name) for name, _ in _defaults(content))}
        return [
            f"{key}={usual}"
            for key, usual in _USUAL.items()
            if key not in said and ("/" not in key or usual in self.choices(key))
        ]

    def require_harmless(self, hydra: Hydra, overrides: Sequence[str]) -> None:
        """Raise ConfigError for a file of the user's that changes what it must not of Hydra's."""
        if self.folders == (CONFIG_DIR,):
            return
        loader = hydra.config_loader
        used = loader.compute_defaults_list(self.config_name, list(overrides), RunMode.RUN)
        for default in used.defaults:
            file = self.find(str(default.config_path))
            if file and default.config_path != self.config_name:
                places = _hydra_places(file, read_yaml(file), str(default.package))
                if places and not str(default.config_path).startswith(HYDRA_GROUPS):
                    raise ConfigError(f"{file}: {places[0]} {TOO_LATE}")


def source_of(config_name: str, args: argparse.Namespace) -> Source:
    """Return where the flags say that a configuration is, `config_name` if they name no other.

    Raises:
        ConfigError: a folder or the file is missing, a file is in two folders, or the file changes
            what it must not of Hydra's own settings.
    """
    folders, own = [CONFIG_DIR], []
    if args.config_path is not None:
        # As Hydra has it: absolute, or where the entry points are.
        folders = [_folder("--config-path", CONFIG_DIR.parent / args.config_path)]
    if args.config_dir is not None:
        own = [_folder("--config-dir", Path(args.config_dir))]
    name = (args.config_name or config_name).removesuffix(".yaml")
    Plugins.instance()  # Hydra looks for its own before a folder of the user's is looked into.
    import_plugins(_plugins(Source(name, (*folders, *own)), args.overrides))
    folders = list(dict.fromkeys((*folders, *CONFIG_FOLDERS, *own)))
    for earlier, later in combinations(folders, 2):
        for file in earlier.rglob("*.yaml"):
            if (other := later / file.relative_to(earlier)).exists():
                raise ConfigError(f"{other}: {file} has the same name; give yours another one")
    source = _with_registered(Source(name, tuple(folders)))
    file = source.find(name)
    if file is None:
        places = " nor in ".join(map(str, folders))
        raise ConfigError(f"--config-name {shown(name)}: there is no {name}.yaml in {places}")
    # Before Hydra reads it, which would import packages that its searchpath names.
    _hydra_places(file, _first_file(source), "")
    return source


def _plugins(source: Source, overrides: Sequence[str]) -> list[str]:
    """Return the plug-ins that the command line names, otherwise those of the user's files."""
    settings = [override.lstrip("+").partition("=") for override in overrides]
    given = {key: value for key, _, value in settings if key in ("plugins", "experiment")}
    if "plugins" in given:
        return _modules(given["plugins"])
    # Of a sweep over experiments those of all.
    names = [f"experiment/{name}" for name in given.get("experiment", "").split(",")]
    files = [source.find(name) for name in (*names, source.config_name)]
    contents = [read_yaml(file) for file in files if file]
    found = [_modules(content.get("plugins")) for content in contents if isinstance(content, dict)]
    return list(dict.fromkeys(module for modules in found for module in modules))


def _modules(named: Any) -> list[str]:
    with suppress(yaml.YAMLError):
        named = yaml.safe_load(named) if isinstance(named, str) else named
    if named is None:
        return []
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        raise ConfigError(f"plugins={shown(named)}: expected a list of modules, [my_parts.plugin]")
    return named


def _with_registered(source: Source) -> Source:
    """Add the choices of plug-ins that have no file, with the defaults of their schemas."""
    registered = []
    for registry, name in added_parts():
        group = registry.group
        file = group and source.find(f"{group}/{name}")
        if file and file.is_relative_to(CONFIG_DIR):
            raise ConfigError(f"the {registry.kind} {name!r} of a plug-in is called as {file}")
        if group is None or file:
            continue
        section = registry[name].schema.model_construct(name=name)
        # Heads, loss and techniques of an architecture are groups of their own.
        node = section.model_dump(
            mode="json", exclude={"heads", "loss", "techniques"}, warnings=False
        )
        if registry.key:
            node = {registry.key.replace("NAME", name): node}
        ConfigStore.instance().store(name, node, group, package=registry.package)
        registered.append((group, name))
    return source._replace(registered=tuple(registered))


@functools.cache
def groups_of(source: Source) -> dict[str, list[str]]:
    """Return the choices of each group of a configuration; null where that is the default."""
    groups: dict[str, list[str]] = {group: source.choices(group) for group in HYDRA_GROUPS}
    for name, choice in _defaults(_first_file(source)):
        if choice is None and name != source.config_name and source.find(name):
            groups |= groups_of(source._replace(config_name=name))
        group = _group(name)
        if group not in groups and source.choices(group):
            groups[group] = source.choices(group) + (["null"] if choice is None else [])
    return groups


@functools.cache
def read_yaml(file: Path) -> Any:
    """Read a YAML file, a process each file once; raises ConfigError if it is none."""
    try:
        with file.open("rb") as stream:
            return yaml.safe_load(stream)
    except (OSError, yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{file}: cannot be read: {shown(reason, 300)}") from None


def _first_file(source: Source) -> Any:
    file = source.find(source.config_name)
    return read_yaml(file) if file else None


def _defaults(content: Any) -> Iterator[tuple[str, Any]]:
    """Yield the entries of a defaults list: of a group with the choice, of a file with None."""
    entries = content.get("defaults") if isinstance(content, dict) else None
    for entry in entries if isinstance(entries, list) else ():
        items = entry.items() if isinstance(entry, dict) else [(entry, None)]
        yield from ((str(name), choice) for name, choice in items)


def _folder(flag: str, path: Path) -> Path:
    if not path.is_dir():
        raise ConfigError(f"{flag} {shown(path, 200)}: is not a folder")
    return path.resolve()


def _group(entry: object) -> str:
    """Return the group that an entry of a defaults list names: `override /arch` is of `arch`."""
    return str(entry).rpartition(" ")[2].lstrip("/")


def _hydra_places(file: Path, content: Any, package: str) -> list[str]:
    """Return which of Hydra's own settings and groups a file sets; raises ConfigError for one that
    must not be changed.
    """
    places = [*_paths(content, package), *(_group(name) for name, _ in _defaults(content))]
    places = [shown(place) for place in places if re.search(r"^hydra\b|@hydra\b", place)]
    for place in places:
        if place not in HYDRA_GROUPS and not HYDRA_KEYS.fullmatch(place):
            raise ConfigError(f"{file}: {place}: {HYDRA_REFUSED}")
    return places


def _paths(node: Any, path: str) -> Iterator[str]:
    """Yield the dotted paths of what is set."""
    if not isinstance(node, dict):
        yield path
        return
    for key, value in node.items():
        yield from _paths(value, f"{path}.{key}".removeprefix("."))
