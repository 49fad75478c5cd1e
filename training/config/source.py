"""Where a configuration is composed from: the file that Hydra begins with, and its search path."""

import argparse
import functools
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import DictConfig

from runtime.errors import ConfigError
from runtime.registry import PLUGIN_PARTS, import_plugins
from runtime.text import shown
from training.config.schema import flatten

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
# Names that recipes had before they were named after method and data.
_FORMER_RECIPES = {
    "arc_demo": "trm_arc_demo",
    "lattice_demo": "lattice_sudoku_hard",
    "maze_30x30_hard_1k_trm": "trm_maze_30x30_hard_1k_held_out",
    "sudoku_demo": "dec_sudoku_demo",
    "sudoku_demo_mixer": "trm_sudoku_easy",
    "sudoku_extreme_1k_cpu": "dec_sudoku_extreme_1k_cpu",
    "sudoku_extreme_1k_dec": "dec_sudoku_extreme_1k",
    "sudoku_extreme_1k_sic": "sic_sudoku_extreme_1k",
    "sudoku_extreme_1k_trm": "trm_sudoku_extreme_1k_held_out",
}
# Choices of plug-ins without a file: their settings by group and name.
_REGISTERED: dict[str, dict[str, Any]] = {}


class Source:
    """Where a configuration is composed from.

    Attributes:
        config_name: the file that Hydra begins with, without its ending.
        folders: in which the groups are; the first is ours. No file name is in two of them.
    """

    def __init__(self, config_name: str, folders: Sequence[Path]) -> None:
        self.config_name, self.folders = config_name, list(folders)

    def find(self, name: str) -> Path | None:
        """Return the file of a configuration, such as `experiment/mine`, None if there is none."""
        files = (folder / f"{name.removesuffix('.yaml')}.yaml" for folder in self.folders)
        return next((file for file in files if file.is_file()), None)

    def present_name(self, group: str, choice: str) -> str:
        """Return what a choice is called now, if it is a recipe under its former name."""
        former = group == "experiment" and self.find(f"{group}/{choice}") is None
        return _FORMER_RECIPES.get(choice, choice) if former else choice

    def content(self, name: str) -> dict[str, Any]:
        """Return what a configuration sets."""
        group, _, part = name.rpartition("/")
        file = self.find(name)
        found = read_yaml(file) if file else _REGISTERED.get(group, {}).get(part)
        return found if isinstance(found, dict) else {}

    def choices(self, group: str) -> list[str]:
        """List the choices of a group, such as `arch`."""
        files = {file.stem for each in self.folders for file in (each / group).glob("*.yaml")}
        return sorted(files.union(_REGISTERED.get(group, ())))

    @functools.cached_property
    def groups(self) -> dict[str, list[str]]:
        """The choices of each group of the configuration; null where that is the default."""
        groups = {group: self.choices(group) for group in HYDRA_GROUPS}
        for group, choice in self._defaults(self.config_name):
            if group not in groups and (choices := self.choices(group)):
                groups[group] = choices + (["null"] if choice is None else [])
        return groups

    def _defaults(self, name: str) -> Iterator[tuple[str, Any]]:
        """Yield the groups that a file chooses, and those of files that it includes."""
        for entry, choice in _defaults(self.content(name)):
            if choice is None and entry != name:
                yield from self._defaults(entry)
            yield entry, choice

    def compose(self, lines: Sequence[str], **options: bool) -> DictConfig:
        """Compose with Hydra, when the files of the user's have been checked."""
        GlobalHydra.instance().clear()
        begun = f"{self.config_name}.yaml"
        home, *others = sorted(self.folders, key=lambda folder: not (folder / begun).is_file())
        with initialize_config_dir(str(home), version_base="1.3"):
            for other in others:
                lines = [f"hydra.searchpath=[{quoted_value(f'file://{other}')}]", *lines]
                self._require_harmless(lines)
            return compose(self.config_name, list(lines), **options)

    def usual_lines(self) -> list[str]:
        """Return overrides for what the file that Hydra begins with leaves to Hydra itself."""
        said = _places(self.content(self.config_name), "")
        return [f"{key}={usual}" for key, usual in _USUAL.items() if key not in said]

    def _require_harmless(self, lines: Sequence[str]) -> None:
        """Raise ConfigError for a file of the user's that changes what it must not of Hydra's."""
        defaults_of = GlobalHydra.instance().config_loader().compute_defaults_list
        for default in defaults_of(self.config_name, list(lines), RunMode.RUN).defaults:
            name = str(default.config_path)
            file = self.find(name)
            if file and name != self.config_name:
                places = _hydra_places(file, read_yaml(file), str(default.package))
                if places and not name.startswith(HYDRA_GROUPS):
                    where = "on the command line, or in the file of --config-name itself"
                    raise ConfigError(f"{file}: {places[0]} comes too late here: give it {where}")


def source_of(config_name: str, args: argparse.Namespace) -> Source:
    """Return where the flags say that a configuration is, `config_name` if they name no other.

    Raises:
        ConfigError: a folder or the file is missing, a file is in two folders, or the file changes
            what it must not of Hydra's own settings.
    """
    own = [] if args.config_dir is None else [Path(args.config_dir).resolve()]
    for folder in own:
        if not folder.is_dir():
            raise ConfigError(f"--config-dir {shown(args.config_dir, 200)}: is not a folder")
        for file in CONFIG_DIR.rglob("*.yaml"):
            if (other := folder / file.relative_to(CONFIG_DIR)).exists():
                raise ConfigError(f"{other}: {file} has the same name; give yours another one")
    name = (args.config_name or config_name).removesuffix(".yaml")
    source = Source(name, [CONFIG_DIR, *own])
    import_plugins(_plugins(source, args.overrides))
    _register_parts(source)
    file = source.find(name)
    if file is None:
        places = " nor in ".join(map(str, source.folders))
        raise ConfigError(f"--config-name {shown(name)}: there is no {name}.yaml in {places}")
    # Before Hydra reads it, which would import packages that its searchpath names.
    _hydra_places(file, read_yaml(file), "")
    return source


def quoted_value(text: object) -> str:
    """Quote a value that Hydra's grammar would take apart."""
    # Hydra reads backslashes as themselves except in front of a quote, the closing one included.
    escaped = re.sub(r"(\\+)(?='|\Z)", r"\1\1", str(text)).replace("'", "\\'")
    return f"'{escaped}'"


def _plugins(source: Source, overrides: Sequence[str]) -> list[str]:
    """Return the plug-ins that the command line names, otherwise those of the user's files."""
    settings = [override.lstrip("+").partition("=") for override in overrides]
    given = {key: value for key, _, value in settings}
    if "plugins" in given:
        return _modules(given["plugins"])
    # Of a sweep over experiments those of all.
    recipes = given.get("experiment", "").split(",")
    names = [f"experiment/{source.present_name('experiment', name)}" for name in recipes]
    found = [source.content(name).get("plugins") for name in (*names, source.config_name)]
    return list(dict.fromkeys(module for named in found for module in _modules(named)))


def _modules(named: Any) -> list[str]:
    with suppress(yaml.YAMLError):
        named = yaml.safe_load(named) if isinstance(named, str) else named
    if named is None:
        return []
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        raise ConfigError(f"plugins={shown(named)}: expected a list of modules, [my_parts.plugin]")
    return named


def _register_parts(source: Source) -> None:
    """Add the choices of plug-ins that have no file, with the defaults of their schemas."""
    for registry, name in PLUGIN_PARTS:
        group = registry.group
        file = group and source.find(f"{group}/{name}")
        if file and file.is_relative_to(CONFIG_DIR):
            raise ConfigError(f"the {registry.kind} {name!r} of a plug-in is called as {file}")
        if group is None or file:
            continue
        section = registry[name].schema.model_construct(name=name)
        # Heads, loss and techniques of an architecture are groups of their own.
        apart = {"heads", "loss", "techniques"}
        node = section.model_dump(mode="json", exclude=apart, warnings=False)
        if registry.key:
            node = {registry.key.replace("NAME", name): node}
        ConfigStore.instance().store(name, node, group, package=registry.package)
        _REGISTERED.setdefault(group, {})[name] = node


@functools.cache
def read_yaml(file: Path) -> Any:
    """Read a YAML file, a process each file once; raises ConfigError if it is none."""
    try:
        return yaml.safe_load(file.read_bytes())
    except (OSError, yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{file}: cannot be read: {shown(reason, 300)}") from None


def _defaults(content: Any) -> Iterator[tuple[str, Any]]:
    """Yield the entries of a defaults list: of a group (`override /arch` is of `arch`) with the
    choice, of a file with None.
    """
    entries = content.get("defaults") if isinstance(content, dict) else None
    for entry in entries if isinstance(entries, list) else ():
        items = entry.items() if isinstance(entry, dict) else [(entry, None)]
        yield from ((str(name).rpartition(" ")[2].lstrip("/"), choice) for name, choice in items)


def _hydra_places(file: Path, content: Any, package: str) -> list[str]:
    """Return which of Hydra's own settings and groups a file sets; raises ConfigError for one that
    must not be changed.
    """
    places = _places(content, package)
    places = [shown(place) for place in places if re.search(r"^hydra\b|@hydra\b", place)]
    for place in places:
        if place not in HYDRA_GROUPS and not HYDRA_KEYS.fullmatch(place):
            raise ConfigError(f"{file}: {place}: {HYDRA_REFUSED}")
    return places


def _places(content: Any, package: str) -> list[str]:
    """Return the dotted paths of what a file sets, and the groups that it chooses."""
    settings = flatten(content, package and f"{package}.") if isinstance(content, dict) else ()
    return [*(path for path, _ in settings), *(name for name, _ in _defaults(content))]
