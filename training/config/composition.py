"""Compose a configuration with Hydra: choices of groups and overrides become one schema."""

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runtime.errors import ConfigError
from runtime.schema import Schema
from runtime.text import shown
from training.config.explain import SchemaT, is_setting, suggest, unknown_key, validate

CONFIG_DIR = Path(__file__).resolve().parents[2] / "config"


def load_config(schema: type[SchemaT], config_name: str, overrides: Sequence[str]) -> SchemaT:
    """Compose `config/CONFIG_NAME.yaml` with `overrides` (Hydra's grammar) and validate it.

    Raises:
        ConfigError: one line; the override or path, the value, what is accepted, the nearest name.
    """
    return validate(schema, compose_config(schema, config_name, overrides))


def compose_config(
    schema: type[Schema], config_name: str, overrides: Sequence[str]
) -> dict[str, Any]:
    """Return the composed, resolved configuration as plain containers."""
    composed = _compose(schema, config_name, overrides)
    try:
        plain = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise ConfigError(_explain([], error)) from None
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def composed_yaml(schema: type[Schema], config_name: str, overrides: Sequence[str]) -> str:
    """Return the composed configuration as YAML, its references to other settings not resolved."""
    return OmegaConf.to_yaml(_compose(schema, config_name, overrides))


def _compose(schema: type[Schema], config_name: str, overrides: Sequence[str]) -> DictConfig:
    parsed = _parse(overrides)
    _require_known(schema, config_name, parsed)
    # Hydra takes no null for a group, not even where that is the default.
    groups = _groups(config_name)
    left = [o for o in parsed if o.key_or_group not in groups or _text(o) != "null"]
    lines = [_with_token_head(o) if o.key_or_group == "heads" else o.input_line for o in left]
    try:
        with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
            return compose(config_name, lines)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_explain(parsed, error)) from None


def _with_token_head(override: Any) -> str:
    """Put the token head, by default the standard one, before the other parts of `heads=`."""
    parts = _choices(override)
    tokens = [part for part in parts if _has(CONFIG_DIR / "heads" / f"{part}.yaml", ["lm", "name"])]
    if len(tokens) > 1:
        names = " and ".join(tokens)
        raise ConfigError(f"{shown(override.input_line)}: {names} are token heads; choose one")
    others = [part for part in parts if part not in tokens]
    return f"heads=[{','.join([*(tokens or ['standard']), *others])}]"


def _parse(overrides: Sequence[str]) -> list[Any]:
    parser = OverridesParser.create()
    parsed = []
    for override in overrides:
        try:
            parsed += parser.parse_overrides([override])
        except HydraException as error:
            said, detail = shown(repr(override)), shown(str(error).splitlines()[0], 200)
            message = f"cannot read the override {said} (expected key=value): {detail}"
            raise ConfigError(message) from None
    return parsed


def _require_known(schema: type[Schema], config_name: str, overrides: list[Any]) -> None:
    """Raise ConfigError for the first override that names no setting and no file of a group."""
    groups = _groups(config_name)
    for override in overrides:
        key, value = override.key_or_group, _text(override)
        if override.is_sweep_override():
            hint = "one run takes one value; start a run for each"
            raise ConfigError(f"{shown(key)}={shown(value)}: {hint}")
        if key in groups and override.package is None:
            known, chosen = groups[key], _choices(override)
            unknown = [choice for choice in chosen if choice not in known]
            if unknown or not chosen or override.is_delete():
                near = suggest(unknown[0], known) if unknown else None
                hint = f"; did you mean {key}={near}?" if near else ""
                accepted = f"there is no such choice; accepted: {', '.join(known)}"
                raise ConfigError(f"{shown(override.input_line)}: {accepted}{hint}")
        elif not is_setting(key, schema):
            raise ConfigError(unknown_key(schema, key, value, groups))
        elif override.is_delete() and not re.fullmatch(r"optimizer\.groups\.\w+", key):
            # Its default would stand in, which may be the very opposite.
            hint = f"{key}=null leaves out what can be left out"
            raise ConfigError(f"~{key}: a setting cannot be taken out; {hint}")


def _text(override: Any) -> str:
    return "" if override.value() is None and override.is_delete() else override.get_value_string()


def _choices(override: Any) -> list[str]:
    """The choices that an override of a group names: several parts, or one file."""
    value = None if override.is_delete() else override.value()
    if override.key_or_group == "heads" and isinstance(value, list):
        return list(dict.fromkeys(map(str, value)))
    return [_text(override)]


@functools.cache
def _groups(config_name: str) -> dict[str, list[str]]:
    """Return the choices of each group of a configuration; null where that is the default."""
    defaults = yaml.safe_load((CONFIG_DIR / f"{config_name}.yaml").read_bytes()).get("defaults", [])
    groups = {}
    for entry in defaults:
        for group, choice in entry.items() if isinstance(entry, dict) else ():
            files = sorted(path.stem for path in (CONFIG_DIR / group).glob("*.yaml"))
            groups[group] = files + ([] if choice else ["null"])
    return groups


def _explain(overrides: list[Any], error: Exception) -> str:
    for override in overrides:
        key, value = override.key_or_group, _text(override)
        if key.startswith("optimizer.groups.") and f"'{key}'" in str(error):
            group = ".".join(key.split(".")[:3])
            return (
                f"{key}={shown(value)}: {group} is not in this configuration; optimizer=grouped "
                f"has a group for each head, and +{group}.params=[PATTERN] adds one"
            )
        if f"Could not override '{key}'" in str(error):
            return f"{key}={shown(value)}: {_where_it_is(key, overrides)}"
    # Hydra's own message, without its advice on where to put a plus sign.
    return shown(re.sub(r"\s+", " ", str(error)).strip(), 300)


def _where_it_is(key: str, overrides: list[Any]) -> str:
    """Say which choices of the group at that place have a setting."""
    group, *path = key.split(".")
    if group == "arch" and path[0] in ("heads", "loss"):
        group, *path = path
    section = key.rpartition(".")[0]
    if any(override.key_or_group == f"{section}.name" for override in overrides):
        return f"write +{key}, for it is not in the file whose {section}.name is changed"
    files = sorted((CONFIG_DIR / group).glob("*.yaml"))
    having = [f"{group}={file.stem}" for file in files if _has(file, path)]
    others = f", but of {', '.join(having[:4])}{', ...' * (len(having) > 4)}" if having else ""
    if _has(CONFIG_DIR / group / "base" / f"{path[0]}.yaml", path):
        others = f", which leave {section} out"
    return f"not a setting of the chosen {group}{others}"


def _has(file: Path, path: Sequence[str]) -> bool:
    node = yaml.safe_load(file.read_bytes()) if file.exists() else None
    for part in path:
        if not isinstance(node, dict) or part not in node:
            return False
        node = node[part]
    return True
