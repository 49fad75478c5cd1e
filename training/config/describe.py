"""Say of settings what they do, what they accept and what they are, from the schemas."""

import ast
import functools
import inspect
import json
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from textwrap import fill
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic_core import to_jsonable_python

from runtime.registry import NameOf, Registry, named_in
from runtime.schema import Schema
from runtime.text import shown

_WIDTH = 100
_INDENT = "    "
_BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


class Setting(NamedTuple):
    """A setting: its path, the schema that declares it, and its value."""

    path: str
    schema: type[Schema]
    value: Any

    def __str__(self) -> str:
        name = self.path.rpartition(".")[2]
        field = self.schema.model_fields[name]
        words = list(dict.fromkeys(accepted(field.annotation, *field.metadata)))
        # As pydantic shows them, whatever they are nested in.
        bounds = dict.fromkeys(re.findall(r"\b(ge|gt|le|lt)=([\d.e+-]+)", repr(field)))
        said = [
            description(self.schema, name),
            " and ".join(f"{_BOUNDS[bound]} {number}" for bound, number in bounds),
            f"one of {', '.join(words)}" if len(words) > 1 else "",
        ]
        text = "; ".join(filter(None, said))
        value = shown(json.dumps(self.value), _WIDTH)
        told = fill(text, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT)
        return f"{self.path}={value}" + (f"\n{told}" if text else "")


def settings_of(
    schema: type[Schema], values: Mapping[str, Any] | None, prefix: str = ""
) -> Iterator[Setting]:
    """Yield the settings of a composed configuration, sections as the settings in them. Without
    values: all that there are, with their defaults; of parts that are chosen by name the usual one.
    """
    for name, field in schema.model_fields.items():
        if values is not None and name not in values:
            continue
        default = "???" if field.is_required() else field.get_default(call_default_factory=True)
        value = default if values is None else values[name]
        inner = value if values is not None and isinstance(value, Mapping) else None
        section = None
        if values is None or inner is not None:
            named = named_in(field.annotation, *field.metadata)
            section = _section(next((one for one, inside in named if not inside), None), inner)
        if section is None:
            yield Setting(f"{prefix}{name}", schema, to_jsonable_python(value))
        else:
            yield from settings_of(section, inner, f"{prefix}{name}.")


def _section(
    named: type[Schema] | Registry | None, value: Mapping[str, Any] | None
) -> type[Schema] | None:
    if not isinstance(named, Registry):
        return named
    name = (value or {}).get("name", named.default)
    return named[name].schema if name in named else None


def about(settings: Iterator[Setting], topic: str) -> list[Setting]:
    """Return the settings that a topic names: a path, a section or a group, a setting's name."""
    known = list(settings)
    inside = [one for one in known if f"{one.path}.".startswith(f"{topic}.")]
    return inside or [one for one in known if topic in one.path.split(".")]


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
