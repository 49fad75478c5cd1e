"""Read a command line as Hydra does, and check its overrides against the schema and the files."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from runtime.errors import ConfigError
from runtime.schema import Schema
from runtime.text import shown
from training.config.explain import did_you_mean, is_setting, unknown_key
from training.config.source import HYDRA_GROUPS, HYDRA_KEYS, HYDRA_REFUSED, Source

# Groups whose choices are put together, with the part that is usual; "" where there may be none.
_PARTS = {"heads": "standard", "logger": "jsonl", "techniques": ""}
# Flags of which there may be one.
_COMMANDS = ("run", "multirun", "cfg", "info", "shell_completion")
_HELP = {
    "shell_completion": 'the Tab key: eval "$(python %(prog)s -sc install=bash)", uninstall=bash',
    "config_path": "Takes this folder in place of config/: absolute, or relative to pretrain.py",
    "config_name": "Takes this file of it in place of the usual one",
    "experimental_rerun": argparse.SUPPRESS,
}


def hydra_parser() -> argparse.ArgumentParser:
    """Return Hydra's parser of its flags, with help that argparse can print."""
    parser = get_args_parser()
    for action in parser._actions:
        action.help = _HELP.get(action.dest, action.help)
    parser.error = _refuse
    return parser


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse a command line as Hydra does: its flags, and `overrides`.

    Raises:
        ConfigError: a flag is unknown, has a wrong value, or does not go with another one.
    """
    args, unknown = hydra_parser().parse_known_intermixed_args(arguments)
    if unknown:
        raise ConfigError(
            f"unknown option {shown(unknown[0])}: settings are given as key=value; see --help"
        )
    if args.experimental_rerun:
        raise ConfigError("--experimental-rerun reads a pickle, which may run anything: refused")
    asked = [name for name in _COMMANDS if getattr(args, name)]
    if len(asked) > 1:
        raise ConfigError(f"{' and '.join(map(_flag, asked))} do not go together")
    alone = [name for name in ("resolve", "package") if getattr(args, name) and not args.cfg]
    if alone and not args.help:
        raise ConfigError(f"{_flag(alone[0])} goes with --cfg")
    args.topics = [word for word in args.overrides if args.help and "=" not in word]
    args.overrides = [word for word in args.overrides if word not in args.topics]
    args.multirun |= "hydra.mode=MULTIRUN" in args.overrides
    return args


def with_checkpoint(schema: type[Schema], arguments: Sequence[str]) -> list[str]:
    """Return a command line on which a bare RUN stands as `checkpoint=RUN`, where `schema` has this
    setting.

    Raises:
        ConfigError: there are several bare words, a checkpoint is named beside one, or the command
            is to train.
    """
    overrides = parse_arguments(arguments).overrides
    bare = [word for word in overrides if _is_bare(word)]
    if "checkpoint_path" in schema.model_fields and any(Path(word).is_dir() for word in bare):
        resumes = "checkpoint_path=RUN resumes it, load_checkpoint=RUN starts from its weights"
        raise ConfigError(f"{shown(bare[0])}: a run is named with a key here: {resumes}")
    if "checkpoint" not in schema.model_fields or not bare:
        return list(arguments)
    if len(bare) > 1 or any(word.startswith("checkpoint=") for word in overrides):
        raise ConfigError(
            f"{shown(bare[-1])}: name one run, RUN or checkpoint=RUN; all else is KEY=VALUE"
        )
    named = f"checkpoint={quoted_value(bare[0])}"
    return [named if word == bare[0] else word for word in arguments]


def _is_bare(word: str) -> bool:
    """Return whether a word is no override but a path, which may have a `=` in a folder's name."""
    key, equals, _ = word.partition("=")
    if not equals:
        return not word.startswith("~")
    return "/" in key and not key.startswith("hydra/") and Path(word).exists()


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _refuse(message: str) -> NoReturn:
    raise ConfigError(f"{shown(message, 200)}; see --help")


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


def quoted_value(text: object) -> str:
    """Quote a value that Hydra's grammar would take apart."""
    # Hydra reads backslashes as themselves except in front of a quote, the closing one included.
    escaped = re.sub(r"(\\+)(?='|\Z)", r"\1\1", str(text)).replace("'", "\\'")
    return f"'{escaped}'"


def is_of_hydra(override: Override) -> bool:
    """Return whether an override is of Hydra's own settings."""
    return re.match(r"hydra\b", override.key_or_group) is not None


def require_known(schema: type[Schema], source: Source, override: Override) -> None:
    """Raise ConfigError for an override that names no setting and no choice, or something that
    Hydra would build.
    """
    key, line, groups = override.key_or_group, shown(override.input_line), source.groups
    if override.is_sweep_override():
        raise ConfigError(f"{line}: several values need -m, a run each")
    if override.package is not None:
        raise ConfigError(f"{line}: the place of a group cannot be changed")
    if is_of_hydra(override) and key not in HYDRA_GROUPS:
        _require_harmless(override)
    elif key in groups:
        _require_choice(override, groups[key])
    elif not source.is_ours and "." not in key and source.choices(key):
        hint = f"change single settings, or add `- {key}: NAME` to its defaults list"
        raise ConfigError(f"{line}: {source.find(source.config_name)} chooses no {key}; {hint}")
    elif not is_setting(key, schema):
        raise ConfigError(unknown_key(schema, key, text_of(override), groups))
    elif override.is_delete() and not re.fullmatch(r"optimizer\.groups\.\w+", key):
        # Its default would stand in, which may be the very opposite.
        hint = f"{key}=null leaves out what can be left out"
        raise ConfigError(f"~{key}: a setting cannot be taken out; {hint}")


def _require_harmless(override: Override) -> None:
    line = str(override.input_line)
    is_known = HYDRA_KEYS.fullmatch(override.key_or_group) and "_target_" not in line
    is_mode = line in ("hydra.mode=RUN", "hydra.mode=MULTIRUN")
    if not (is_known or is_mode) or override.is_delete():
        raise ConfigError(f"{shown(line)}: {HYDRA_REFUSED}, hydra.mode=MULTIRUN")


def _require_choice(override: Override, known: Sequence[str]) -> None:
    key, chosen = override.key_or_group, _choices(override)
    unknown = [choice for choice in chosen if choice not in known]
    if unknown or not (chosen or _PARTS.get(key) == "") or override.is_delete():
        hint = did_you_mean(unknown[0], known, f"{key}=") if unknown else ""
        accepted = f"there is no such choice; accepted: {', '.join(known)}"
        raise ConfigError(f"{shown(override.input_line)}: {accepted}{hint}")


def hydra_line(source: Source, override: Override) -> str:
    """Return an override as Hydra takes it; "" for a group that is left out as by default.

    Of a group whose choices are parts that Hydra puts together, the one of which there must be one
    comes first: the usual one where none is named.
    """
    group = override.key_or_group
    if group in source.groups and text_of(override) == "null":
        return ""
    if group not in _PARTS:
        return str(override.input_line)
    parts = _choices(override)
    contents = {part: source.content(f"{group}/{part}") for part in parts}
    first = [part for part in parts if "name" in contents[part].get("lm", contents[part])]
    if len(first) > 1:
        line = shown(override.input_line)
        raise ConfigError(f"{line}: {' and '.join(first)} stand at the same place; choose one")
    others = [part for part in parts if part not in first]
    return f"{group}=[{','.join(filter(None, [*(first or [_PARTS[group]]), *others]))}]"


def text_of(override: Override) -> str:
    """Return the value as it is written on the command line."""
    return "" if override.value() is None and override.is_delete() else override.get_value_string()


def _choices(override: Override) -> list[str]:
    """The choices that an override of a group names: several parts, or one file."""
    value = None if override.is_delete() else override.value()
    if override.key_or_group in _PARTS and isinstance(value, list):
        return list(dict.fromkeys(map(str, value)))
    return [text_of(override)]
