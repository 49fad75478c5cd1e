"""Compose a configuration with Hydra: choices of groups and overrides become one schema."""

import copy
import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import yaml
from hydra import compose
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from runtime.errors import ConfigError
from runtime.plugins import IMPORTED
from runtime.schema import Schema
from runtime.text import shown
from training.config.explain import SchemaT, validate
from training.config.overrides import (
    hydra_line,
    is_of_hydra,
    parse_arguments,
    parse_overrides,
    require_known,
    text_of,
)
from training.config.source import Source, source_of

# What Hydra raises; from AssertionError on for defaults lists that are none, and for no YAML.
_OF_HYDRA = (
    *(HydraException, OmegaConfBaseException),
    *(AssertionError, OSError, RecursionError, ValueError, yaml.YAMLError),
)


def load_config(schema: type[SchemaT], config_name: str, arguments: Sequence[str]) -> SchemaT:
    """Compose `config/CONFIG_NAME.yaml` with a command line (Hydra's grammar) and validate it.

    Raises:
        ConfigError: one line; the override or path, the value, what is accepted, the nearest name.
    """
    return validate(schema, compose_config(schema, config_name, arguments))


def load_configs(
    schema: type[SchemaT], config_name: str, flags: Sequence[str], runs: Sequence[Sequence[str]]
) -> list[SchemaT]:
    """`load_config` for the overrides of many runs, in order."""
    source = source_of(config_name, parse_arguments(flags))
    return [validate(schema, composed) for composed in _composed(schema, source, runs)]


def compose_config(
    schema: type[Schema], config_name: str, arguments: Sequence[str]
) -> dict[str, Any]:
    """Return the composed, resolved configuration as plain containers."""
    args = parse_arguments(arguments)
    (composed,) = _composed(schema, source_of(config_name, args), [args.overrides])
    return composed


def _composed(
    schema: type[Schema], source: Source, runs: Sequence[Sequence[str]]
) -> Iterator[dict[str, Any]]:
    """Yield the configuration of each run. What is slow is done once: files are read for each
    choice of groups, an override is parsed and checked for all that have it.
    """

    @functools.cache
    def parsed(line: str) -> Override:
        (override,) = parse_overrides([line])
        require_known(schema, source, override)
        return override

    @functools.cache
    def of_files(*choices: str) -> DictConfig:
        with opened_hydra(schema, source, [parsed(line) for line in choices]) as (_, lines):
            return compose(source.config_name, lines)

    groups = source.groups
    for run in runs:
        overrides = [parsed(line) for line in run]
        is_choice = [o.key_or_group in groups or is_of_hydra(o) for o in overrides]
        choices = [line for line, chooses in zip(run, is_choice, strict=True) if chooses]
        with _explained():
            config = copy.deepcopy(of_files(*choices))
            for override, chooses in zip(overrides, is_choice, strict=True):
                if not chooses:
                    _set(config, override, source)
            yield _plain(config)


def _set(config: DictConfig, override: Override, source: Source) -> None:
    """Change one setting, which must be there unless the override begins with a plus."""
    key = override.key_or_group
    section, _, name = key.rpartition(".")
    try:
        if override.is_delete():
            with open_dict(config):
                del OmegaConf.select(config, section)[name]
        else:
            adds = override.is_add() or override.is_force_add()
            OmegaConf.update(config, key, override.value(), force_add=adds)
    except (ConfigAttributeError, ConfigKeyError, TypeError):
        in_groups = key.startswith("optimizer.groups.")
        having = ["optimizer=grouped"] if in_groups else _choices_with(key, source)
        remedy = f"choose {' or '.join(having[:4])}, or write" if having else "write"
        said = f"{key}={shown(text_of(override))}: the chosen files have no {key}"
        raise ConfigError(f"{said}; {remedy} +{key}") from None


def _choices_with(key: str, source: Source) -> list[str]:
    """Return the choices of a group, such as arch=trm, whose files have a setting."""
    group, *path = key.split(".")
    if group == "arch" and path[0] in source.groups:
        group, *path = path
    having = []
    for choice in source.choices(group):
        node: Any = source.content(f"{group}/{choice}")
        if all(isinstance(node, dict) and part in node and [node := node[part]] for part in path):
            having.append(f"{group}={choice}")
    return having


def hydra_settings(
    schema: type[Schema], source: Source, overrides: Sequence[Override]
) -> dict[str, Any]:
    """Return what is composed of Hydra's own settings: launcher, sweeper, sweep_dir."""
    own = [override for override in overrides if is_of_hydra(override)]
    with opened_hydra(schema, source, own) as (_, lines):
        lines = [*source.usual_lines(), *lines]
        composed = compose(source.config_name, lines, return_hydra_config=True).hydra
        kept = {key: composed[key] for key in ("launcher", "sweeper")}
        # What is missing stays "???", which the schemas name with its setting.
        plain: Any = OmegaConf.to_container(OmegaConf.create(kept), resolve=True)
        return plain | {"sweep_dir": composed.sweep.dir}


def _plain(config: DictConfig) -> dict[str, Any]:
    """Return a configuration that is complete as plain containers, its references resolved; raises
    ConfigError when it names plug-ins that have not been imported.
    """
    plain: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    if not_imported := [name for name in plain.get("plugins") or () if name not in IMPORTED]:
        raise ConfigError(
            f"plugins={shown(not_imported)}: name them on the command line, in the file of "
            "experiment= or in that of --config-name: elsewhere it is too late"
        )
    return plain


@contextmanager
def opened_hydra(
    schema: type[Schema], source: Source, overrides: Sequence[Override]
) -> Iterator[tuple[Any, list[str]]]:
    """Yield Hydra, and the overrides as it takes them, when all of these and the files have been
    checked. What it complains of in the block becomes a ConfigError of one line.
    """
    for override in overrides:
        require_known(schema, source, override)
    lines = [line for override in overrides if (line := hydra_line(source, override))]
    with _explained(), source.hydra() as hydra:
        source.require_harmless(hydra, lines)
        yield hydra, lines


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except ConfigError:
        raise
    except _OF_HYDRA as error:
        reason = " ".join(str(error).split()) or "a defaults list names something that is no text"
        raise ConfigError(shown(reason, 300)) from None
