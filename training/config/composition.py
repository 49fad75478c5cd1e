"""Compose a configuration with Hydra, from config files and overrides, and validate it."""

import copy
import functools
from collections.abc import Container, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any, get_args

import yaml
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from runtime.errors import ConfigError
from runtime.registry import PLUGINS
from runtime.schema import FolderName, Schema
from runtime.text import shown
from training.config.explain import SchemaT, validate
from training.config.overrides import (
    hydra_line,
    is_of_hydra,
    parse_arguments,
    parse_overrides,
    require_known,
)
from training.config.source import Source, source_of

# The errors that Hydra raises. Those in the second line come from broken YAML or defaults lists.
_OF_HYDRA = (
    *(HydraException, OmegaConfBaseException),
    *(AssertionError, OSError, RecursionError, ValueError, yaml.YAMLError),
)


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except ConfigError:
        raise
    except _OF_HYDRA as error:
        reason = " ".join(str(error).split()) or "an entry of a defaults list is no text"
        raise ConfigError(shown(reason, 300)) from None


def load_config(schema: type[SchemaT], config_name: str, arguments: Sequence[str]) -> SchemaT:
    """Compose `config/CONFIG_NAME.yaml` with a command line (Hydra's grammar) and validate it.

    Raises:
        ConfigError: one line with the override, its value, the accepted values, the nearest name.
    """
    given = parse_arguments(arguments)
    if given.help or given.cfg or given.multirun:
        raise ConfigError("--help, --cfg and -m belong on the command line of a script")
    runs = [given.overrides]
    return load_configs(schema, config_name, arguments, runs)[0]


def load_configs(
    schema: type[SchemaT], config_name: str, flags: Sequence[str], runs: Sequence[Sequence[str]]
) -> list[SchemaT]:
    """Return the validated configuration of each run; `flags` is the command line of all."""
    source = source_of(config_name, parse_arguments(flags))
    return [validate(schema, plain(composed)) for composed in compose_runs(schema, source, runs)]


def compose_runs(
    schema: type[Schema], source: Source, runs: Sequence[Sequence[str]]
) -> list[DictConfig]:
    """Return the configuration of each run. Runs that choose the same files or share an override
    share the slow work: reading the files, and parsing and checking the override.
    """

    @functools.cache
    def parsed(line: str) -> Override:
        (override,) = parse_overrides([source.in_present_terms(line)])
        require_known(schema, source, override)
        return override

    @functools.cache
    def of_files(*choices: str) -> DictConfig:
        config = _by_hydra(source, [parsed(line) for line in choices])
        with open_dict(config):
            _rename(schema, config)
        return config

    composed, groups = [], source.groups
    for run in runs:
        overrides = [parsed(line) for line in run]
        settings = [o for o in overrides if not (o.key_or_group in groups or is_of_hydra(o))]
        choices = [str(o.input_line) for o in overrides if o not in settings]
        config = copy.deepcopy(of_files(*choices))
        _rename(schema, {o.key_or_group: o.get_value_string() for o in settings})
        for override in settings:
            _set(config, override, groups, schema)
        composed.append(config)
    return composed


@_explained()
def _by_hydra(
    source: Source, overrides: Sequence[Override], defaults: Sequence[str] = (), **options: bool
) -> DictConfig:
    """Compose with overrides that have been checked. The lines `defaults` come before them."""
    lines = [line for override in overrides if (line := hydra_line(source, override))]
    return source.compose([*defaults, *lines], **options)


@_explained()
def _rename(schema: type[Schema], settings: MutableMapping[str, Any]) -> None:
    """Give settings their present names. Raise ConfigError if one has two values, neither of them
    the default.
    """
    for former, name in schema.aliases().items():
        if former in settings:
            value, default = settings.pop(former), schema.model_fields[name].default
            other = settings.get(name, default)
            if default not in (value, other) and value != other:
                both = f"{former}={shown(value)} and {name}={shown(other)} are the same setting"
                raise ConfigError(f"{both} ({former} is its former name); set {name} only")
            settings[name] = other if value == default else value


@_explained()
def _set(
    config: DictConfig, override: Override, groups: Container[str], schema: type[Schema]
) -> None:
    """Change one setting. It must exist, unless the override begins with a plus."""
    key = schema.aliases().get(override.key_or_group, override.key_or_group)
    adds, value = override.is_add() or override.is_force_add(), override.value()
    field = schema.model_fields.get(key)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and field and FolderName in get_args(field.annotation):
        value = override.get_value_string()  # Not 20240601 for run_name=2024_06_01.
    try:
        OmegaConf.update(config, key, value, force_add=adds)
    except (ConfigAttributeError, ConfigKeyError, TypeError):
        said = f"{key}={shown(override.get_value_string())}: the chosen files have no {key}"
        group = key.removeprefix("arch.").partition(".")[0]
        remedy = f"another {group}= may have it, or " if group in groups else ""
        raise ConfigError(f"{said}; {remedy}write +{key}") from None


@_explained()
def hydra_settings(
    schema: type[Schema], source: Source, overrides: Sequence[Override]
) -> dict[str, Any]:
    """Return Hydra's own settings as composed: launcher, sweeper, sweep_dir."""
    own = [*filter(is_of_hydra, overrides)]
    for override in own:
        require_known(schema, source, override)
    composed = _by_hydra(source, own, source.hydra_defaults(), return_hydra_config=True).hydra
    kept = {key: composed[key] for key in ("launcher", "sweeper")}
    # A missing value stays "???"; the schema's error then names its setting.
    content: Any = OmegaConf.to_container(OmegaConf.create(kept), resolve=True)
    return content | {"sweep_dir": composed.sweep.dir}


@_explained()
def plain(config: DictConfig) -> dict[str, Any]:
    """Return a configuration as plain containers, with all references resolved.

    Raises:
        ConfigError: a value is missing, or the configuration names plug-ins that were not imported.
    """
    content: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    if not_imported := [name for name in content.get("plugins") or () if name not in PLUGINS]:
        raise ConfigError(
            f"plugins={shown(not_imported)}: it is too late for them here; name them on the "
            "command line, in the file of experiment= or in the file of --config-name"
        )
    return content
