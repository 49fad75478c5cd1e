"""Say of settings what they do, what they accept and what they are, from the schemas."""

import ast
import functools
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from textwrap import fill
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from runtime.registry import NameOf, Registry, named_in
from runtime.schema import Schema
from runtime.text import shown

_WIDTH = 100
_BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


class Setting:
    """A setting: its path, the schema that declares it, and its value, as composed."""

    def __init__(self, path: str, schema: type[Schema], value: Any) -> None:
        self.path, self.schema, self.value = path, schema, value

    def __str__(self) -> str:
        name = self.path.rpartition(".")[2]
        field = self.schema.model_fields[name]
        annotations = field.annotation, *field.metadata
        range_of = " and ".join(dict.fromkeys(_bounds(*annotations)))
        words = list(dict.fromkeys(accepted(*annotations)))
        said = [
            description(self.schema, name),
            range_of,
            f"one of {', '.join(words)}" if len(words) > 1 else "",
        ]
        text = "; ".join(filter(None, said))
        value = shown(json.dumps(self.value), _WIDTH)
        indent = "    "
        told = fill(text, _WIDTH, initial_indent=indent, subsequent_indent=indent)
        return f"{self.path}={value}" + (f"\n{told}" if text else "")


def settings_of(
    schema: type[Schema], values: Mapping[str, Any], prefix: str = ""
) -> Iterator[Setting]:
    """Yield the settings of a composed configuration, those of sections in place of these."""
    for name, field in schema.model_fields.items():
        if name not in values:
            continue
        path, value = f"{prefix}{name}", values[name]
        inner = _section(value, *(one for one, _ in named_in(field.annotation, *field.metadata)))
        if inner is None:
            yield Setting(path, schema, value)
        else:
            yield from settings_of(inner, value, f"{path}.")


def declared(schema: type[Schema], prefix: str = "") -> Iterator[Setting]:
    """Yield the settings that there are with their defaults, those of parts that are left out, too;
    of parts that are chosen by name those of the usual one.
    """
    for name, field in schema.model_fields.items():
        path, named = f"{prefix}{name}", named_in(field.annotation, *field.metadata)
        section = next((one for one, inside in named if not inside), None)
        if isinstance(section, Registry):
            section = section[section.default].schema if section.default else None
        if section is None:
            # "???": it must be given, as Hydra says it.
            default = "???" if field.is_required() else field.get_default(call_default_factory=True)
            yield Setting(path, schema, to_jsonable_python(default))
        else:
            yield from declared(section, f"{path}.")


def about(settings: Sequence[Setting], topic: str) -> list[Setting]:
    """Return the settings that a topic names: a path, a section or a group, a setting's name."""
    inside = [one for one in settings if f"{one.path}.".startswith(f"{topic}.")]
    return inside or [one for one in settings if topic in one.path.split(".")]


def _section(value: Any, *named: type[Schema] | Registry) -> type[Schema] | None:
    if not isinstance(value, dict):
        return None
    for one in named:
        if not isinstance(one, Registry):
            return one if value.keys() <= one.model_fields.keys() else None
        if (name := value.get("name", one.default)) in one:
            return one[name].schema
    return None


def _bounds(*annotations: Any) -> Iterator[str]:
    for annotation in annotations:
        if isinstance(annotation, FieldInfo):
            yield from _bounds(*annotation.metadata)
        for key, words in _BOUNDS.items():
            if (bound := getattr(annotation, key, None)) is not None and not callable(bound):
                yield f"{words} {bound}"
        if (inner := getattr(annotation, "__metadata__", None)) is not None:
            yield from _bounds(*inner)
        yield from _bounds(*get_args(annotation)[:1] if inner else get_args(annotation))


def description(schema: type[Schema], name: str) -> str:
    """Return what a setting does: the string below its field, or what the parts are whose names it
    takes.
    """
    field = schema.model_fields[name]
    described = [_descriptions(owner).get(name) for owner in schema.__mro__]
    texts = [names.text for names in field.metadata if isinstance(names, NameOf)]
    return next(filter(None, [*described, *texts, field.description]), "")


def accepted(*annotations: Any) -> list[str]:
    """List the words of the literals, and the names of the registries, in annotations."""
    words = []
    for annotation in annotations:
        if isinstance(annotation, Registry | NameOf) or get_origin(annotation) is Literal:
            words += map(str, get_args(annotation) or annotation)
        else:
            words += accepted(*get_args(annotation))
    return words


@functools.cache
def _descriptions(owner: type) -> dict[str, str]:
    """Return the string below each field that a schema declares itself, read when asked for only
    (pydantic's `use_attribute_docstrings` reads them at each import).
    """
    if not issubclass(owner, Schema):
        return {}
    (definition,) = ast.parse(inspect.getsource(owner)).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for field, below in pairwise(definition.body):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
            found[ast.unparse(field.target)] = " ".join(ast.literal_eval(below.value).split())
    return found
