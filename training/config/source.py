"""The files of a configuration: the main file, and the folders with the groups."""

import argparse
import functools
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
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
from training.config.schema import ROOT, flatten

CONFIG_DIR = ROOT / "config"
# The settings of Hydra's own that may be changed: those of launchers and sweepers. The others name
# classes that Hydra would build, or places outside the run's folder where it would write.
HYDRA_GROUPS = ("hydra/launcher", "hydra/sweeper", "hydra/sweeper/sampler")
HYDRA_KEYS = re.compile(r"hydra\.(launcher|sweeper)\.(?!.*_target_)[\w.]+|hydra\.sweep\.dir")
# Our defaults in place of Hydra's own, unless the main file sets them.
_OUR_DEFAULTS = {"hydra/launcher": "serial", "hydra/sweeper": "grid", "hydra.sweep.dir": "multirun"}
HYDRA_REFUSED = (
    "of Hydra's own settings these can be changed: "
    f"{', '.join(HYDRA_GROUPS)}, hydra.launcher.*, hydra.sweeper.*, hydra.sweep.dir"
)
# Former names of recipes, still accepted. Recipes are now named after method and data.
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
# The settings of plug-ins' choices that have no file, by group and name.
_REGISTERED: dict[str, dict[str, Any]] = {}


class Source:
    """The files that a configuration is composed from.

    Attributes:
        config_name: the main file, without `.yaml`.
        folders: hold the files of the groups. The first is ours; no file is in two of them.
    """

    def __init__(self, config_name: str, folders: Sequence[Path]) -> None:
        self.config_name, self.folders = config_name, list(folders)

    def find(self, name: str) -> Path | None:
        """Return the file of a configuration (`experiment/mine`), or None."""
        files = (folder / f"{name.removesuffix('.yaml')}.yaml" for folder in self.folders)
        return next((file for file in files if file.is_file()), None)

    def in_present_terms(self, line: str) -> str:
        """Return an override with a recipe's former name replaced, unless a file has that name."""
        key, _, name = line.partition("=")
        is_former = key == "experiment" and not self.find(f"{key}/{name}")
        return f"{key}={_FORMER_RECIPES.get(name, name)}" if is_former else line

    def content(self, name: str) -> dict[str, Any]:
        """Return the content of a configuration file, or the settings of a plug-in's choice."""
        group, _, part = name.rpartition("/")
        file = self.find(name)
        found = read_yaml(file) if file else _REGISTERED.get(group, {}).get(part)
        return found if isinstance(found, dict) else {}

    def choices(self, group: str) -> list[str]:
        """Return the choices of a group, sorted."""
        files = {file.stem for each in self.folders for file in (each / group).glob("*.yaml")}
        return sorted(files.union(_REGISTERED.get(group, ())))

    @functools.cached_property
    def groups(self) -> dict[str, list[str]]:
        """The choices of each group in the configuration; `null` is one if it is the default."""
        groups = {group: self.choices(group) for group in HYDRA_GROUPS}
        for group, choice in self._chosen(self.config_name):
            if group not in groups and (choices := self.choices(group)):
                groups[group] = choices + (["null"] if choice is None else [])
        return groups

    def _chosen(self, name: str) -> Iterator[tuple[str, Any]]:
        """Yield (group, choice) for the groups that a file and the files it includes choose."""
        for entry, choice in _defaults(self.content(name)):
            if choice is None and entry != name:
                yield from self._chosen(entry)
            yield entry, choice

    def compose(self, lines: Sequence[str], **options: bool) -> DictConfig:
        """Check the user's files, then compose with Hydra. Leave Hydra's own state as it was."""
        begun = f"{self.config_name}.yaml"
        home, *others = sorted(self.folders, key=lambda folder: not (folder / begun).is_file())
        with _cleared_hydra(), initialize_config_dir(str(home), version_base="1.3"):
            for other in others:
                lines = [f"hydra.searchpath=[{quoted_value(f'file://{other}')}]", *lines]
                self._require_harmless(lines)
            return compose(self.config_name, list(lines), **options)

    def hydra_defaults(self) -> list[str]:
        """Return overrides with our defaults for Hydra's settings that the main file leaves out."""
        given = _places(self.content(self.config_name), "")
        return [f"{key}={value}" for key, value in _OUR_DEFAULTS.items() if key not in given]

    def _require_harmless(self, lines: Sequence[str]) -> None:
        """Raise ConfigError if a user's file changes a protected setting of Hydra's."""
        defaults_of = GlobalHydra.instance().config_loader().compute_defaults_list
        for default in defaults_of(self.config_name, list(lines), RunMode.RUN).defaults:
            name = str(default.config_path)
            file = self.find(name)
            if file and name != self.config_name:
                places = _hydra_places(file, read_yaml(file), str(default.package))
                if places and not name.startswith(HYDRA_GROUPS):
                    where = "on the command line or in the file of --config-name"
                    raise ConfigError(f"{file}: {places[0]} comes too late here: set it {where}")


@contextmanager
def _cleared_hydra() -> Iterator[None]:
    """Clear Hydra's global state in the block, and restore it afterwards."""
    before, GlobalHydra.instance().hydra = GlobalHydra.instance().hydra, None
    try:
        yield
    finally:
        GlobalHydra.instance().hydra = before


def source_of(config_name: str, args: argparse.Namespace) -> Source:
    """Return the files that the flags name; the main file is `config_name` unless they name one.

    Raises:
        ConfigError: a folder or the main file is missing, a file is in two folders, or the main
            file changes a protected setting of Hydra's.
    """
    own = [] if args.config_dir is None else [Path(args.config_dir).resolve()]
    for folder in own:
        if not folder.is_dir():
            raise ConfigError(f"--config-dir {shown(args.config_dir, 200)}: no such folder")
        for file in CONFIG_DIR.rglob("*.yaml"):
            if (other := folder / file.relative_to(CONFIG_DIR)).exists():
                raise ConfigError(f"{other}: {file} has the same name; rename your file")
    name = (args.config_name or config_name).removesuffix(".yaml")
    source = Source(name, [CONFIG_DIR, *own])
    import_plugins(_plugins(source, args.overrides))
    _register_parts(source)
    file = source.find(name)
    if file is None:
        places = " nor in ".join(map(str, source.folders))
        raise ConfigError(f"--config-name {shown(name)}: there is no {name}.yaml in {places}")
    # Checked before Hydra reads the file, because Hydra imports packages that its searchpath names.
    _hydra_places(file, read_yaml(file), "")
    return source


def quoted_value(text: object) -> str:
    """Quote a value for Hydra's grammar."""
    # Hydra keeps backslashes as they are, except in front of a quote, the closing one included.
    escaped = re.sub(r"(\\+)(?='|\Z)", r"\1\1", str(text)).replace("'", "\\'")
    return f"'{escaped}'"


def _plugins(source: Source, overrides: Sequence[str]) -> list[str]:
    """Return the plug-ins named on the command line, or else those of the recipe and main file."""
    settings = [override.lstrip("+").partition("=") for override in overrides]
    given = {key: value for key, _, value in settings}
    if "plugins" in given:
        return _modules(given["plugins"])
    # A sweep over recipes needs the plug-ins of all. Recipes with a former name have none.
    names = [f"experiment/{name}" for name in given.get("experiment", "").split(",")]
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
            raise ConfigError(f"a plug-in's {registry.kind} {name!r} has the same name as {file}")
        if group is None or file:
            continue
        section = registry[name].schema.model_construct(name=name)
        # These parts of an architecture are groups of their own.
        apart = {"heads", "loss", "techniques"}
        node = section.model_dump(mode="json", exclude=apart, warnings=False)
        if registry.key:
            node = {registry.key.replace("NAME", name): node}
        ConfigStore.instance().store(name, node, group, package=registry.package)
        _REGISTERED.setdefault(group, {})[name] = node


@functools.cache
def read_yaml(file: Path) -> Any:
    """Read a YAML file, once in a process. Raise ConfigError if it is no YAML."""
    try:
        return yaml.safe_load(file.read_bytes())
    except (OSError, yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{file}: cannot be read: {shown(reason, 300)}") from None


def _defaults(content: Any) -> Iterator[tuple[str, Any]]:
    """Yield the entries of a defaults list: (group, choice), or (file, None). `override /arch` is
    the group `arch`.
    """
    entries = content.get("defaults") if isinstance(content, dict) else None
    for entry in entries if isinstance(entries, list) else ():
        items = entry.items() if isinstance(entry, dict) else [(entry, None)]
        yield from ((str(name).rpartition(" ")[2].lstrip("/"), choice) for name, choice in items)


def _hydra_places(file: Path, content: Any, package: str) -> list[str]:
    """Return settings and groups of Hydra that a file sets. Raise ConfigError if protected."""
    places = _places(content, package)
    places = [shown(place) for place in places if re.search(r"^hydra\b|@hydra\b", place)]
    for place in places:
        if place not in HYDRA_GROUPS and not HYDRA_KEYS.fullmatch(place):
            raise ConfigError(f"{file}: {place}: {HYDRA_REFUSED}")
    return places


def _places(content: Any, package: str) -> list[str]:
    """Return the dotted paths of the settings in a file, and the groups that it chooses."""
    settings = flatten(content, package and f"{package}.") if isinstance(content, dict) else ()
    return [*(path for path, _ in settings), *(name for name, _ in _defaults(content))]
