"""Error messages for a wrong configuration, with the name that was meant. Imports no torch."""

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from itertools import zip_longest
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from models import former
from runtime.errors import ConfigError
from runtime.registry import UNKNOWN_PART, sections_in
from runtime.schema import Schema
from runtime.text import shown

SchemaT = TypeVar("SchemaT", bound=Schema)
_MAX_FAULTS = 5
# Settings by the names that other trainers give them.
_ELSEWHERE = {"learning_rate": "lr", "batch_size": "global_batch_size"}


def validate(schema: type[SchemaT], composed: Mapping[str, Any]) -> SchemaT:
    """Turn a composed configuration into `schema`.

    Raises:
        ConfigError: for each fault the path, its value, the accepted values, the nearest name.
    """
    try:
        return schema.model_validate(composed)
    except ValidationError as error:
        faults = dict.fromkeys(_describe(schema, fault) for fault in error.errors())
        raise ConfigError("; ".join([*faults][:_MAX_FAULTS])) from None


def unknown_key(
    schema: type[BaseModel], path: str, value: object = None, groups: Iterable[str] = ()
) -> str:
    """Return the message that `path` is no setting and no group, with the nearest name."""
    named = shown(path, 100)
    said = named if value is None else f"{named}={shown(value)}"
    if now := former.present_name(path):
        return f"{said}: this setting was renamed; write {now}"
    return f"unknown setting {said}{did_you_mean(path, [*setting_paths(schema), *groups])}"


def did_you_mean(path: str, candidates: Iterable[str], key: str = "") -> str:
    """Return "; did you mean NAME?" with the candidate nearest to `path`, or "" if none is near. A
    `*` in a candidate stands for any name.
    """
    first, leaf = path.partition(".")[0], path.rpartition(".")[2]
    known = [n for n in candidates if "*" not in n or get_close_matches(n.split(".")[0], [first])]
    named = dict.fromkeys(_with_free_names(each, path) for each in known)
    by_leaf = {each.rpartition(".")[2]: each for each in known if "*" not in each}
    elsewhere = _ELSEWHERE.get(path)
    near = [elsewhere] if elsewhere in named else get_close_matches(path, named, n=1)
    near = near or [by_leaf[each] for each in get_close_matches(leaf, by_leaf, n=1)]
    return f"; did you mean {key}{near[0]}?" if near else ""


def is_setting(path: str, schema: type[BaseModel]) -> bool:
    """Return whether `path` names a setting or a section of `schema`."""
    return any(_with_free_names(known, path) == path for known in setting_paths(schema))


def setting_paths(schema: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the dotted paths of all settings and sections of `schema`; `*` stands for any name."""
    for name, field in schema.model_fields.items():
        yield f"{prefix}{name}"
        for nested, inside in sections_in(field.annotation, *field.metadata):
            yield f"{prefix}{name}{inside}"
            yield from setting_paths(nested, f"{prefix}{name}{inside}.")


def _with_free_names(candidate: str, path: str) -> str:
    parts = zip_longest(candidate.split("."), path.split("."))
    return ".".join(given if known == "*" and given else known for known, given in parts if known)


def _describe(schema: type[BaseModel], fault: Any) -> str:
    # Leave out the types of a union.
    parts = [str(part) for part in fault["loc"]]
    path = ".".join(part for part in parts if not part.startswith(("literal[", "constrained-")))
    kind, value, said = fault["type"], fault.get("input"), fault["msg"]
    if kind == "extra_forbidden":
        if is_setting(path, schema):
            section = path.rpartition(".")[0]
            return f"{path}={shown(value)}: the chosen {section} has no such setting"
        return unknown_key(schema, path, value)
    if kind == UNKNOWN_PART:
        name, known = str(fault["ctx"]["name"]), fault["ctx"]["names"].split(", ")
        key = path if parts[-1].isdigit() else f"{path}.name"
        return f"{key}={shown(name)}: {said}{did_you_mean(name, known)}"
    if kind == "value_error":
        return f"{path}: {fault['ctx']['error']}".removeprefix(": ")
    if kind == "missing":
        return f"{path} is not set"
    return f"{path}={shown(value)}: {said[0].lower()}{said[1:]}"
