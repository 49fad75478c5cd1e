"""Say what is wrong with a configuration, and which name was meant. Imports no torch."""

import difflib
import os
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from models.config import ARCHITECTURES
from runtime.errors import ConfigError
from runtime.registry import Registry, named_in, sections_in
from runtime.schema import Schema
from runtime.text import shown

SchemaT = TypeVar("SchemaT", bound=Schema)


def validate(schema: type[SchemaT], composed: Mapping[str, Any]) -> SchemaT:
    """Turn a composed configuration into `schema`.

    Raises:
        ConfigError: for each fault the path, the value, what is accepted, the nearest valid name.
    """
    try:
        return schema.model_validate(composed)
    except ValidationError as error:
        faults = [_describe(schema, fault) for fault in _of_one_arch(schema, error.errors())]
        raise ConfigError("; ".join(dict.fromkeys(faults))) from None


def _of_one_arch(schema: type[BaseModel], faults: list[Any]) -> list[Any]:
    """Put the settings that belong to another architecture than `arch.name` into one fault."""
    foreign = [
        fault
        for fault in faults
        if fault["type"] == "extra_forbidden"
        and fault["loc"][0] == "arch"
        and is_setting(".".join(("arch", *map(str, fault["loc"][2:]))), schema)
    ]
    if len(foreign) < 2:
        return faults
    name = foreign[0]["loc"][1]
    keys = ", ".join(str(fault["loc"][-1]) for fault in foreign)
    message = f"{name} has no {keys}: choose an architecture with its settings, arch={name}"
    merged = {"loc": ("arch", "name"), "type": "value_error", "ctx": {"error": message}}
    return [merged, *(fault for fault in faults if fault not in foreign)]


def unknown_key(
    schema: type[BaseModel], path: str, value: object = None, groups: Iterable[str] = ()
) -> str:
    """Say that `path` is no setting, nor one of the `groups`, and which name comes nearest."""
    named = shown(path, 100)
    said = named if value is None else f"{named}={shown(value)}"
    hint = suggest(path, [*setting_paths(schema), *groups])
    return f"unknown setting {said}" + (f"; did you mean {hint}?" if hint else "")


def suggest(path: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate nearest to `path`: one (or "a or b") that is a single slip of the finger
    away; else one of the same section, else anywhere. A `*` in a candidate stands for a free name.
    """
    candidates = list(dict.fromkeys(_with_free_names(known, path) for known in candidates))
    slips = [candidate for candidate in candidates if _is_one_edit(path, candidate)]
    if slips:
        return " or ".join(slips)
    section, _, leaf = path.rpartition(".")
    siblings = {c.rpartition(".")[2]: c for c in candidates if c.rpartition(".")[0] == section}
    leaves = {c.rpartition(".")[2]: c for c in reversed(candidates)}
    for wanted, pool in ((leaf, siblings), (path, {c: c for c in candidates}), (leaf, leaves)):
        if near := difflib.get_close_matches(wanted, pool, n=1, cutoff=0.6):
            return pool[near[0]]
    # `hiden` is far from `hidden_size` by ratio but nearly its first word.
    first_words = {name.split("_")[0]: full for name, full in reversed(siblings.items())}
    near = difflib.get_close_matches(leaf, first_words, n=1, cutoff=0.7)
    return first_words[near[0]] if near else None


def _is_one_edit(a: str, b: str) -> bool:
    """Return whether one inserted, missing, wrong or transposed character makes `a` of `b`."""
    start = len(os.path.commonprefix([a, b]))
    a, b = a[start:], b[start:]
    end = len(os.path.commonprefix([a[::-1], b[::-1]]))
    a, b = a[: len(a) - end], b[: len(b) - end]
    return max(len(a), len(b)) <= 1 or (len(a) == 2 and a == b[::-1])


def is_setting(path: str, schema: type[BaseModel]) -> bool:
    """Return whether `path` names a setting or a section of `schema`."""
    return any(_with_free_names(known, path) == path for known in setting_paths(schema))


def setting_paths(schema: type[BaseModel], prefix: str = "") -> list[str]:
    """List the dotted paths of all settings of `schema`, sections included; `*` is a free name."""
    paths: list[str] = []
    for name, field in schema.model_fields.items():
        paths.append(f"{prefix}{name}")
        for nested, inside in sections_in(field.annotation, *field.metadata):
            paths.append(f"{prefix}{name}{inside}")
            paths += setting_paths(nested, f"{prefix}{name}{inside}.")
    return list(dict.fromkeys(paths))


def registries_by_path(schema: type[BaseModel], prefix: str = "") -> dict[str, Registry]:
    """Return where a configuration names parts of a registry, by path; `*` is any place."""
    found: dict[str, Registry] = {}
    for name, field in schema.model_fields.items():
        path = f"{prefix}{name}"
        annotations = field.annotation, *field.metadata
        found |= {f"{path}{i}": r for r, i in named_in(*annotations) if isinstance(r, Registry)}
        for nested, inside in sections_in(*annotations):
            found |= registries_by_path(nested, f"{path}{inside}.")
    return found


def _with_free_names(candidate: str, path: str) -> str:
    parts = zip_longest(candidate.split("."), path.split("."))
    return ".".join(given if known == "*" and given else known for known, given in parts if known)


def _describe(schema: type[BaseModel], fault: Any) -> str:
    registries = registries_by_path(schema)
    path, chosen = _without_tags(fault["loc"], registries)
    kind, value = fault["type"], fault.get("input")
    if kind == "extra_forbidden":
        if chosen and is_setting(path, schema):
            return f"{path}={shown(value)}: {chosen} has no such setting"
        return unknown_key(schema, path, value)
    if kind == "union_tag_invalid":
        registry = next(
            r for known, r in registries.items() if _with_free_names(known, path) == path
        )
        accepted = ", ".join(registry)
        if registry is ARCHITECTURES:
            accepted += ", or a published class name"
        tag = str(fault["ctx"]["tag"])
        hint = f"; did you mean {near}?" if (near := suggest(tag, registry)) else ""
        key = path if path.rpartition(".")[2].isdigit() else f"{path}.name"
        wrong = f"{key}={shown(tag)}: there is no such {registry.kind}"
        return f"{wrong}; accepted: {accepted}{hint}"
    if kind == "value_error":
        message = str(fault["ctx"]["error"])
        return f"{path}: {message}" if path else message
    if kind == "missing":
        return f"{path} is not set"
    return f"{path}={shown(value)}: {fault['msg'][0].lower()}{fault['msg'][1:]}"


def _without_tags(
    location: tuple[str | int, ...], registries: Mapping[str, Registry]
) -> tuple[str, str]:
    """Return the path of a fault, and the innermost choice on it, such as "arch.name=trm".

    Pydantic's location also holds the tags of unions, which are no part of the path.
    """
    path = chosen = tagged = ""
    for part in map(str, location):
        if any(part in registry for registry in _at(registries, path)) and path != tagged:
            tagged = path
            chosen = f"{path}.name={part}"
        elif not part.startswith(("literal[", "constrained-")):
            path = f"{path}.{part}" if path else part
    return path, chosen


def _at(registries: Mapping[str, Registry], path: str) -> list[Registry]:
    return [found for known, found in registries.items() if _with_free_names(known, path) == path]
