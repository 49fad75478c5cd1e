"""Compose a configuration with Hydra: choices of groups and overrides become one schema."""

import copy
import functools
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import yaml
from hydra import compose
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.hydra import Hydra
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runtime.errors import ConfigError
from runtime.plugins import plugins_imported
from runtime.schema import Schema
from runtime.text import shown
from training.config.explain import SchemaT, validate
from training.config.overrides import (
    hydra_lines,
    is_of_hydra,
    parse_arguments,
    parse_overrides,
    text_of,
)
from training.config.source import TOO_LATE, Source, groups_of, source_of


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
        with opened_hydra(schema, source, list(map(parsed, choices))) as (_, lines):
            return compose(source.config_name, lines)

    groups, configs = groups_of(source), []
    for run in runs:
        overrides = [parsed(line) for line in run]
        choices = [str(o.input_line) for o in overrides if o.key_or_group in groups]
        config = copy.deepcopy(composed(*choices))
        with _explained(source, overrides):
            settings = [o for o in overrides if o.key_or_group not in groups]
            ConfigLoaderImpl._apply_overrides_to_config(settings, config)
            plain = _plain(config)
        configs.append(validate(schema, plain))
    return configs


def compose_config(
    schema: type[Schema], config_name: str, arguments: Sequence[str]
) -> dict[str, Any]:
    """Return the composed, resolved configuration as plain containers."""
    args = parse_arguments(arguments)
    source = source_of(config_name, args)
    with opened_hydra(schema, source, parse_overrides(args.overrides)) as (_, lines):
        return _plain(compose(source.config_name, lines))


def hydra_settings(
    schema: type[Schema], source: Source, overrides: Sequence[Override]
) -> dict[str, Any]:
    """Return what is composed of Hydra's own settings: launcher, sweeper, sweep_dir."""
    own = [override for override in overrides if is_of_hydra(override)]
    with opened_hydra(schema, source, own) as (hydra, lines):
        lines = [*source.usual_lines(), *lines]
        composed = hydra.compose_config(source.config_name, lines, RunMode.MULTIRUN).hydra
        kept = {"launcher": composed.launcher, "sweeper": composed.sweeper}
        kept["sweep_dir"] = composed.sweep.dir
        # What is missing stays "???", which the schemas name with its setting.
        return _containers(OmegaConf.create(kept))


def _containers(config: DictConfig, *, throw_on_missing: bool = False) -> dict[str, Any]:
    """Return a configuration as plain containers, its references resolved."""
    plain = OmegaConf.to_container(config, resolve=True, throw_on_missing=throw_on_missing)
    assert isinstance(plain, dict)
    return {str(name): value for name, value in plain.items()}


def _plain(config: DictConfig) -> dict[str, Any]:
    """Return a configuration that is complete; raises ConfigError when it names plug-ins that have
    not been imported.
    """
    plain = _containers(config, throw_on_missing=True)
    named, known = plain.get("plugins") or (), plugins_imported()
    if not_imported := [name for name in named if name not in known]:
        raise ConfigError(
            f"plugins={shown(not_imported)}: name them on the command line, in the file of "
            "experiment= or in that of --config-name: elsewhere it is too late"
        )
    return plain


@contextmanager
def opened_hydra(
    schema: type[Schema], source: Source, overrides: Sequence[Override]
) -> Iterator[tuple[Hydra, list[str]]]:
    """Yield Hydra, and the overrides as it takes them, when all of these and the files have been
    checked. What it complains of in the block becomes a ConfigError of one line.
    """
    lines = hydra_lines(schema, source, overrides)
    with _explained(source, overrides), source.hydra() as hydra:
        source.require_harmless(hydra, lines)
        yield hydra, lines


@contextmanager
def _explained(source: Source, overrides: Sequence[Override]) -> Iterator[None]:
    try:
        yield
    except ConfigError:
        raise
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_explain(source, overrides, error)) from None
    except AssertionError:
        raise ConfigError("a defaults list names something that is no text") from None
    except (OSError, RecursionError, ValueError, yaml.YAMLError) as error:
        # So Hydra answers defaults lists that are none, and files that are no YAML.
        raise ConfigError(_one_line(error)) from None


def _explain(source: Source, overrides: Sequence[Override], error: Exception) -> str:
    if late := re.match(r"In '(.*)': Could not override '.*\b(hydra/\w+)", str(error)):
        return f"{source.find(late[1])}: {late[2]} {TOO_LATE}"
    for override in overrides:
        key, value = override.key_or_group, text_of(override)
        if key.startswith("optimizer.groups.") and f"'{key}'" in str(error):
            group = ".".join(key.split(".")[:3])
            return (
                f"{key}={shown(value)}: {group} is not in this configuration; optimizer=grouped "
                f"has a group for each head, and +{group}.params=[PATTERN] adds one"
            )
        if f"Could not override '{key}'" in str(error):
            return f"{key}={shown(value)}: {_where_it_is(source, key, overrides)}"
    return _one_line(error)


def _one_line(error: Exception) -> str:
    # Hydra's own message, without its advice on where to put a plus sign.
    return shown(re.sub(r"\s+", " ", str(error)).strip(), 300)


def _where_it_is(source: Source, key: str, overrides: Sequence[Override]) -> str:
    """Say which choices of the group at that place have a setting."""
    group, *path = key.replace("hydra.", "hydra/", 1).split(".")
    if group == "arch" and path[0] in ("heads", "loss", "techniques"):
        group, *path = path
    if not path:
        return f"write +{key}, for {source.find(source.config_name)} does not have it"
    section = key.rpartition(".")[0]
    if any(override.key_or_group == f"{section}.name" for override in overrides):
        return f"write +{key}, for it is not in the file whose {section}.name is changed"
    choices = source.choices(group)
    having = [f"{group}={choice}" for choice in choices if source.has(f"{group}/{choice}", path)]
    others = f", but of {', '.join(having[:4])}{', ...' * (len(having) > 4)}" if having else ""
    if source.has(f"{group}/base/{path[0]}", path):
        others = f", which leave {section} out"
    return f"not a setting of the chosen {group}{others}"
