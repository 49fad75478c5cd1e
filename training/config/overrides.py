"""Read a command line in Hydra's grammar, and check its overrides against schema and files."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from runtime.errors import ConfigError
from runtime.schema import Schema
from runtime.text import shown
from training.config.explain import did_you_mean, is_setting, unknown_key
from training.config.source import HYDRA_GROUPS, HYDRA_KEYS, HYDRA_REFUSED, Source, quoted_value

# Groups that take several choices at once, with the default choice; "" if none is needed.
_PARTS = {"heads": "standard", "logger": "jsonl", "techniques": ""}


def flags_parser() -> argparse.ArgumentParser:
    """Return the parser of `overrides` and of the flags that we take over from Hydra."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.error, add = _refuse, parser.add_argument
    add("overrides", nargs="*", help=argparse.SUPPRESS)
    add("-h", "--help", action="store_true")
    add("-c", "--cfg", choices=["job"], help="print the configuration and exit")
    add("-m", "--multirun", action="store_true", help="one run for each combination of values")
    add("-cd", "--config-dir", help="a folder with more configuration files")
    add("-cn", "--config-name", help="the main configuration file")
    return parser


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse a command line: flags and `overrides`.

    Raises:
        ConfigError: a flag is unknown or has a wrong value.
    """
    return flags_parser().parse_intermixed_args(arguments)


def with_checkpoint(schema: type[Schema], arguments: Sequence[str]) -> list[str]:
    """Return the command line with a bare RUN written as `checkpoint=RUN`, if `schema` has that.

    Raises:
        ConfigError: there are two bare words, or a bare word and `checkpoint=`.
    """
    overrides = parse_arguments(arguments).overrides
    bare = [word for word in overrides if _is_bare(word)]
    if "checkpoint" not in schema.model_fields or not bare:
        return list(arguments)
    if len(bare) > 1 or any(word.startswith("checkpoint=") for word in overrides):
        raise ConfigError(
            f"{shown(bare[-1])}: name one run, as RUN or checkpoint=RUN; all else is KEY=VALUE"
        )
    named = f"checkpoint={quoted_value(bare[0])}"
    return [named if word == bare[0] else word for word in arguments]


def _is_bare(word: str) -> bool:
    """Return whether a word is a path and no override. A folder's name may contain a `=`."""
    key, equals, _ = word.partition("=")
    return not equals or ("/" in key and not key.startswith("hydra/") and Path(word).exists())


def _refuse(message: str) -> NoReturn:
    raise ConfigError(f"{shown(message, 200)}: write settings as key=value; see --help")


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """Parse overrides. Raise ConfigError for the first one that cannot be parsed."""
    parser = OverridesParser.create()
    parsed: list[Override] = []
    for override in overrides:
        try:
            parsed += parser.parse_overrides([override])
        except HydraException as error:
            said, detail = shown(repr(override)), shown(str(error).splitlines()[0], 200)
            if detail.startswith("LexerNoViableAlt"):
                detail = "a character needs quotes"
            key, _, value = override.partition("=")
            if value[:1] not in ("[", "{") and re.search(r"[^\w.,+-]", value, re.ASCII):
                detail += f"""; quote the value: "{shown(f"{key}={quoted_value(value)}", 200)}\""""
            message = f"cannot read the override {said} (expected key=value): {detail}"
            raise ConfigError(message) from None
    return parsed


def is_of_hydra(override: Override) -> bool:
    """Return whether an override changes one of Hydra's own settings."""
    return re.match(r"hydra\b", override.key_or_group) is not None


def require_known(schema: type[Schema], source: Source, override: Override) -> None:
    """Raise ConfigError if an override names no setting and no choice, or a class that Hydra would
    build.
    """
    key, line, groups = override.key_or_group, shown(override.input_line), source.groups
    if override.is_delete():
        # The default would take its place, and may mean the opposite.
        raise ConfigError(f"{line}: cannot delete a setting; {key}=null turns off an optional one")
    if override.is_sweep_override():
        said, given = "a setting takes one value", shown(str(override.input_line).partition("=")[2])
        if "sweep_name" in schema.model_fields:
            said = "several values need -m, which makes one run for each"
        if "(" not in given:
            said += f"""; one list is '{key}=[{given}]', one text "{key}='{given}'\""""
        raise ConfigError(f"{line}: {said}")
    if override.package is not None:
        raise ConfigError(f"{line}: the place of a group cannot be changed")
    if is_of_hydra(override) and key not in HYDRA_GROUPS:
        if not HYDRA_KEYS.fullmatch(key) or "_target_" in str(override.input_line):
            raise ConfigError(f"{line}: {HYDRA_REFUSED}")
    elif key in groups:
        _require_choice(source, override)
    elif source.folders[1:] and "." not in key and source.choices(key):
        hint = f"change single settings, or add `- {key}: NAME` to its defaults list"
        raise ConfigError(f"{line}: {source.find(source.config_name)} chooses no {key}; {hint}")
    elif not is_setting(schema.aliases().get(key, key), schema):
        raise ConfigError(unknown_key(schema, key, override.get_value_string(), groups))


def _require_choice(source: Source, override: Override) -> None:
    key, chosen = override.key_or_group, _choices(override)
    known = source.groups[key]
    unknown = [choice for choice in chosen if choice not in known]
    if unknown or not (chosen or _PARTS.get(key) == ""):
        hint = did_you_mean(unknown[0], known, f"{key}=") if unknown else ""
        said = f"no such choice{hint}{' Accepted' if hint else '; accepted'}: {', '.join(known)}"
        raise ConfigError(f"{shown(override.input_line)}: {said}")


def hydra_line(source: Source, override: Override) -> str:
    """Return an override as a line for Hydra, or "" for a group that is left out.

    In a group that takes several choices, exactly one is the main one (the token head, the first
    logger). It comes first; if none is named, it is the default of `_PARTS`.
    """
    group = override.key_or_group
    if group in source.groups and override.get_value_string() == "null":
        return ""
    if group not in _PARTS:
        return str(override.input_line)
    parts = _choices(override)
    contents = {part: source.content(f"{group}/{part}") for part in parts}
    first = [part for part in parts if "name" in contents[part].get("lm", contents[part])]
    if len(first) > 1:
        line = shown(override.input_line)
        raise ConfigError(f"{line}: {' and '.join(first)} exclude each other; choose one")
    others = [part for part in parts if part not in first]
    return f"{group}=[{','.join(filter(None, [*(first or [_PARTS[group]]), *others]))}]"


def _choices(override: Override) -> list[str]:
    """Return the choices that an override of a group names."""
    value = override.value()
    if override.key_or_group in _PARTS and isinstance(value, list):
        return list(dict.fromkeys(map(str, value)))
    return [override.get_value_string()]
