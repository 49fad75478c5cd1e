"""Compose a configuration with Hydra: choices of groups and overrides become one schema."""

import argparse
import copy
import functools
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import yaml
from hydra import compose, version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path, get_args_parser
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runtime.errors import ConfigError
from runtime.schema import Schema
from runtime.text import shown
from training.config.explain import SchemaT, is_setting, suggest, unknown_key, validate

CONFIG_DIR = Path(__file__).resolve().parents[2] / "config"
# Of Hydra's own settings those that choose and steer launchers and searches. The others name
# classes that Hydra would build, or places where it would write; here the run's folder has them.
_HYDRA_GROUPS = ("hydra/launcher", "hydra/sweeper", "hydra/sweeper/sampler")
_HYDRA_KEYS = re.compile(
    r"hydra\.(launcher|sweeper)\.(?!.*_target_)[\w.]+|hydra\.(sweep\.dir|mode)"
)


# Groups whose choices are put together, with the part that is usual and what marks such a part.
_PARTS = {"heads": ("standard", ["lm", "name"]), "logger": ("jsonl", ["name"])}


class Source(NamedTuple):
    """Where a configuration is composed from.

    Attributes:
        config_name: the file that Hydra begins with, without its ending.
        folder: of the groups; ours, or that of `--config-path`.
        extra: `--config-dir`, whose files stand beside them.
    """

    config_name: str
    folder: Path = CONFIG_DIR
    extra: Path | None = None

    def find(self, name: str) -> Path | None:
        """Return the file of a configuration, such as `experiment/mine`, None if there is none."""
        files = (folder / f"{name}.yaml" for folder in (self.folder, self.extra) if folder)
        return next((file for file in files if file.exists()), None)

    def choices(self, group: str) -> list[str]:
        """List the choices of a group, such as `arch`."""
        folders = [folder / group for folder in (self.folder, self.extra) if folder]
        return sorted({file.stem for folder in folders for file in folder.glob("*.yaml")})

    @contextmanager
    def hydra(self) -> Iterator[Hydra]:
        """Yield Hydra with these folders as its search path."""
        version.setbase("1.3")
        path = create_config_search_path(f"file://{self.folder}")
        if self.extra:
            anchor = SearchPathQuery(provider="schema")
            path.prepend("command-line", f"file://{self.extra}", anchor=anchor)
        GlobalHydra.instance().clear()
        try:
            yield Hydra.create_main_hydra2(self.config_name, path)
        finally:
            GlobalHydra.instance().clear()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{shown(message, 200)}; see --help")


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse a command line as Hydra does: its flags, and `overrides`.

    Raises:
        ConfigError: a flag is unknown or has a wrong value.
    """
    parser = get_args_parser()
    parser.__class__ = _Parser
    return parser.parse_intermixed_args(arguments)


def _folder(flag: str, path: str) -> Path:
    folder = Path(path).resolve()
    if not folder.is_dir():
        raise ConfigError(f"{flag} {shown(path)}: is not a folder")
    return folder


def source_of(config_name: str, args: argparse.Namespace) -> Source:
    """Return where the flags say that a configuration is, `config_name` if they name no other.

    Raises:
        ConfigError: a folder is missing, or a file is in both.
    """
    folder, extra = CONFIG_DIR, None
    if args.config_path is not None:
        folder = _folder("--config-path", args.config_path)
    if args.config_dir is not None:
        extra = _folder("--config-dir", args.config_dir)
        extra = None if extra == folder else extra
    for file in folder.rglob("*.yaml") if extra else ():
        own = Path(str(extra)) / file.relative_to(folder)
        if own.exists():
            raise ConfigError(f"{own}: {file} has the same name; give yours another one")
    name = (args.config_name or config_name).removesuffix(".yaml")
    source = Source(name, folder, extra)
    if source.find(name) is None:
        places = " nor in ".join(str(place) for place in (folder, extra) if place)
        raise ConfigError(
            f"--config-name {shown(name)}: there is no {shown(name)}.yaml in {places}"
        )
    return source


def load_config(schema: type[SchemaT], config_name: str, arguments: Sequence[str]) -> SchemaT:
    """Compose `config/CONFIG_NAME.yaml` with a command line (Hydra's grammar) and validate it.

    Raises:
        ConfigError: one line; the override or path, the value, what is accepted, the nearest name.
    """
    return validate(schema, compose_config(schema, config_name, arguments))


def load_configs(
    schema: type[SchemaT], config_name: str, flags: Sequence[str], runs: Sequence[Sequence[str]]
) -> list[SchemaT]:
    """`load_config` for the overrides of many runs, in order. What is slow is done once: files are
    read for each choice of groups, an override is parsed and checked for all that have it.
    """
    source = source_of(config_name, parse_arguments(flags))

    @functools.cache
    def parsed(line: str) -> Override:
        (override,) = parse_overrides([line])
        hydra_lines(schema, source, [override])
        return override

    @functools.cache
    def composed(*choices: str) -> DictConfig:
        return _compose(schema, config_name, [*flags, *choices])

    groups, configs = _groups(source), []
    for run in runs:
        overrides = [parsed(line) for line in run]
        choices = [o.input_line for o in overrides if o.key_or_group in groups]
        config = copy.deepcopy(composed(*choices))
        with explained(source, overrides):
            settings = [o for o in overrides if o.key_or_group not in groups]
            ConfigLoaderImpl._apply_overrides_to_config(settings, config)
            plain = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
        assert isinstance(plain, dict)
        configs.append(validate(schema, {str(key): value for key, value in plain.items()}))
    return configs


def compose_config(
    schema: type[Schema], config_name: str, arguments: Sequence[str]
) -> dict[str, Any]:
    """Return the composed, resolved configuration as plain containers."""
    composed = _compose(schema, config_name, arguments)
    with explained(Source(config_name)):
        plain = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def composed_yaml(schema: type[Schema], config_name: str, arguments: Sequence[str]) -> str:
    """Return the composed configuration as YAML, its references to other settings not resolved."""
    return OmegaConf.to_yaml(_compose(schema, config_name, arguments))


def _compose(schema: type[Schema], config_name: str, arguments: Sequence[str]) -> DictConfig:
    args = parse_arguments(arguments)
    source = source_of(config_name, args)
    overrides = parse_overrides(args.overrides)
    lines = hydra_lines(schema, source, overrides)
    with explained(source, overrides), source.hydra():
        return compose(source.config_name, lines)


@contextmanager
def explained(source: Source, overrides: Sequence[Override] = ()) -> Iterator[None]:
    """Turn what Hydra and OmegaConf complain of in the block into a ConfigError of one line."""
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_explain(source, overrides, error)) from None


def hydra_settings(
    schema: type[Schema], source: Source, overrides: Sequence[Override]
) -> dict[str, Any]:
    """Return what is composed of Hydra's own settings: launcher, sweeper, mode, sweep_dir."""
    own = [override for override in overrides if override.key_or_group.startswith("hydra")]
    lines = hydra_lines(schema, source, own)
    with explained(source, own), source.hydra() as hydra:
        composed = hydra.compose_config(source.config_name, lines, RunMode.MULTIRUN).hydra
        kept = {name: composed[name] for name in ("launcher", "sweeper", "mode")}
        kept["sweep_dir"] = composed.sweep.dir
        plain = OmegaConf.to_container(OmegaConf.create(kept), resolve=True, enum_to_str=True)
    assert isinstance(plain, dict)
    return {str(name): value for name, value in plain.items()}


def hydra_lines(schema: type[Schema], source: Source, overrides: Sequence[Override]) -> list[str]:
    """Check overrides, and return them as Hydra takes them.

    Raises:
        ConfigError: one names no setting and no choice, or something that Hydra would build.
    """
    groups = _groups(source)
    _require_known(schema, source, overrides)
    for override in overrides:
        if override.key_or_group == "experiment":
            _require_no_launcher(source, _text(override))
    # Hydra takes no null for a group, not even where that is the default.
    left = [o for o in overrides if o.key_or_group not in groups or _text(o) != "null"]
    return [_with_first_part(source, o) if o.key_or_group in _PARTS else o.input_line for o in left]


def _require_no_launcher(source: Source, experiment: str) -> None:
    file = source.find(f"experiment/{experiment}")
    content = yaml.safe_load(file.read_bytes()) if file else None
    if isinstance(content, dict) and (
        "hydra" in content or "hydra/" in str(content.get("defaults"))
    ):
        raise ConfigError(
            f"{file}: has settings of Hydra itself, which Hydra ignores in an experiment: give "
            "them on the command line, as hydra/launcher=pool"
        )


def _with_first_part(source: Source, override: Override) -> str:
    """Write an override of a group whose choices are parts that Hydra puts together: the one of
    which there must be one comes first, the usual one where none is named.
    """
    group, parts = override.key_or_group, _choices(override)
    usual, key = _PARTS[group]
    first = [part for part in parts if _has(source.find(f"{group}/{part}"), key)]
    if len(first) > 1:
        what = "token heads" if group == "heads" else "kinds of the same place"
        raise ConfigError(
            f"{shown(override.input_line)}: {' and '.join(first)} are {what}; choose one"
        )
    others = [part for part in parts if part not in first]
    return f"{group}=[{','.join([*(first or [usual]), *others])}]"


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """Parse overrides; raises ConfigError for the first that is none."""
    parser = OverridesParser.create()
    parsed: list[Override] = []
    for override in overrides:
        try:
            parsed += parser.parse_overrides([override])
        except HydraException as error:
            said, detail = shown(repr(override)), shown(str(error).splitlines()[0], 200)
            message = f"cannot read the override {said} (expected key=value): {detail}"
            raise ConfigError(message) from None
    return parsed


def _require_known(schema: type[Schema], source: Source, overrides: Sequence[Override]) -> None:
    """Raise ConfigError for the first override that names no setting and no file of a group."""
    groups = _groups(source)
    for override in overrides:
        key, value = override.key_or_group, _text(override)
        if override.is_sweep_override():
            raise ConfigError(f"{shown(override.input_line)}: several values need -m, a run each")
        if key.split("/")[0].split(".")[0] == "hydra":
            _require_harmless(override, groups)
        elif key in groups and override.package is None:
            _require_choice(override, groups[key])
        elif not is_setting(key, schema):
            raise ConfigError(unknown_key(schema, key, value, groups))
        elif override.is_delete() and not re.fullmatch(r"optimizer\.groups\.\w+", key):
            # Its default would stand in, which may be the very opposite.
            hint = f"{key}=null leaves out what can be left out"
            raise ConfigError(f"~{key}: a setting cannot be taken out; {hint}")


def _require_choice(override: Override, known: Sequence[str]) -> None:
    key, chosen = override.key_or_group, _choices(override)
    unknown = [choice for choice in chosen if choice not in known]
    if unknown or not chosen or override.is_delete():
        near = suggest(unknown[0], known) if unknown else None
        hint = f"; did you mean {key}={near}?" if near else ""
        accepted = f"there is no such choice; accepted: {', '.join(known)}"
        raise ConfigError(f"{shown(override.input_line)}: {accepted}{hint}")


def _require_harmless(override: Override, groups: dict[str, list[str]]) -> None:
    """Accept of Hydra's own settings those of launchers and searches; the other ones name classes
    that Hydra would build, or places where a run would write.
    """
    key = override.key_or_group
    if key in _HYDRA_GROUPS and override.package is None:
        _require_choice(override, groups[key])
    elif not _HYDRA_KEYS.fullmatch(key) or override.is_delete():
        raise ConfigError(
            f"{shown(override.input_line)}: of Hydra's own settings these can be changed: "
            f"{', '.join(_HYDRA_GROUPS)}, hydra.launcher.*, hydra.sweeper.*, hydra.sweep.dir, "
            "hydra.mode"
        )


def _text(override: Override) -> str:
    return "" if override.value() is None and override.is_delete() else override.get_value_string()


def _choices(override: Override) -> list[str]:
    """The choices that an override of a group names: several parts, or one file."""
    value = None if override.is_delete() else override.value()
    if override.key_or_group in _PARTS and isinstance(value, list):
        return list(dict.fromkeys(map(str, value)))
    return [_text(override)]


@functools.cache
def _groups(source: Source) -> dict[str, list[str]]:
    """Return the choices of each group of a configuration; null where that is the default."""
    groups: dict[str, list[str]] = {group: source.choices(group) for group in _HYDRA_GROUPS}
    file = source.find(source.config_name)
    content = yaml.safe_load(file.read_bytes()) if file else None
    for entry in content.get("defaults", []) if isinstance(content, dict) else []:
        if isinstance(entry, str) and source.find(entry) and entry != source.config_name:
            groups |= _groups(source._replace(config_name=entry))
        for group, choice in entry.items() if isinstance(entry, dict) else ():
            name = group.split()[-1].lstrip("/")
            if name not in groups:
                groups[name] = source.choices(name) + ([] if choice else ["null"])
    return groups


def _explain(source: Source, overrides: Sequence[Override], error: Exception) -> str:
    for override in overrides:
        key, value = override.key_or_group, _text(override)
        if key.startswith("optimizer.groups.") and f"'{key}'" in str(error):
            group = ".".join(key.split(".")[:3])
            return (
                f"{key}={shown(value)}: {group} is not in this configuration; optimizer=grouped "
                f"has a group for each head, and +{group}.params=[PATTERN] adds one"
            )
        if f"Could not override '{key}'" in str(error):
            return f"{key}={shown(value)}: {_where_it_is(source, key, overrides)}"
    # Hydra's own message, without its advice on where to put a plus sign.
    return shown(re.sub(r"\s+", " ", str(error)).strip(), 300)


def _where_it_is(source: Source, key: str, overrides: Sequence[Override]) -> str:
    """Say which choices of the group at that place have a setting."""
    group, *path = key.split(".")
    if group == "arch" and path[0] in ("heads", "loss"):
        group, *path = path
    section = key.rpartition(".")[0]
    if any(override.key_or_group == f"{section}.name" for override in overrides):
        return f"write +{key}, for it is not in the file whose {section}.name is changed"
    files = {choice: source.find(f"{group}/{choice}") for choice in source.choices(group)}
    having = [f"{group}={choice}" for choice, file in files.items() if _has(file, path)]
    others = f", but of {', '.join(having[:4])}{', ...' * (len(having) > 4)}" if having else ""
    if _has(source.find(f"{group}/base/{path[0]}"), path):
        others = f", which leave {section} out"
    return f"not a setting of the chosen {group}{others}"


def _has(file: Path | None, path: Sequence[str]) -> bool:
    node = yaml.safe_load(file.read_bytes()) if file else None
    for part in path:
        if not isinstance(node, dict) or part not in node:
            return False
        node = node[part]
    return True
