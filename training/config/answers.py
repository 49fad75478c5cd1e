"""Answer `--help` and `--cfg`: what settings do, accept and are, from schemas and files."""

import argparse
import ast
import functools
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from textwrap import fill
from typing import Any, Literal, NamedTuple, get_args, get_origin

from omegaconf import OmegaConf
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from runtime.errors import ConfigError
from runtime.registry import NameOf, Registry, named_in
from runtime.schema import Schema
from runtime.text import shown
from training.config.composition import compose_runs, plain
from training.config.explain import unknown_key
from training.config.overrides import flags_parser
from training.config.source import Source, source_of

_WIDTH = 100
_INDENT = "    "


def answer(
    schema: type[Schema], config_name: str, args: argparse.Namespace, usage: str
) -> str | None:
    """Return the answer to `--help` or `--cfg`; None where neither is given.

    Raises:
        ConfigError: an override, a flag's value, or a file is wrong.
    """
    if not (args.help or args.cfg):
        return None
    source = source_of(config_name, args)
    (config,) = compose_runs(schema, source, [args.overrides])
    if args.topics:
        known = list(settings_of(schema, plain(config)))
        return "".join(_told(topic, source, schema, known) for topic in args.topics)
    return (_help(usage, source) if args.help else "") + OmegaConf.to_yaml(config)


def _help(usage: str, source: Source) -> str:
    """Return the beginning of `--help`."""
    flags = flags_parser().format_help().partition("options:\n")[2]
    groups = [f"  {name}: {', '.join(all)}" for name, all in sorted(source.groups.items())]
    listed = "\n".join(fill(line, _WIDTH, subsequent_indent="      ") for line in groups)
    return (
        f"{usage.rstrip()}\n\nFlags:\n{flags}\n"
        f"Groups and their choices, as GROUP=CHOICE:\n{listed}\n\n"
        "Settings and their defaults, as KEY=VALUE. What they do is told by --help KEY\n"
        "and --help GROUP, such as --help lr, --help arch.\n\n"
    )


def _told(topic: str, source: Source, schema: type[Schema], known: Sequence["Setting"]) -> str:
    """Return what `--help` tells of a setting (its path or name), a section or a group."""
    inside = [one for one in known if f"{one.path}.".startswith(f"{topic}.")]
    found = inside or [one for one in known if topic in one.path.split(".")]
    choices = source.groups.get(topic)
    if not (found or choices):
        raise ConfigError(unknown_key(schema, topic, groups=source.groups))
    listed = f"{topic}: {', '.join(choices or ())}"
    head = f"{fill(listed, _WIDTH, subsequent_indent=_INDENT)}\n" if choices else ""
    return head + "".join(map(str, found))


class Setting(NamedTuple):
    """A setting: its path, the schema that declares it, and its value."""

    path: str
    schema: type[Schema]
    value: Any

    def __str__(self) -> str:
        name = self.path.rpartition(".")[2]
        field = self.schema.model_fields[name]
        words = list(dict.fromkeys(accepted(field.annotation, *field.metadata)))
        said = [
            description(self.schema, name),
            f"one of {', '.join(words)}" if len(words) > 1 else "",
        ]
        text = "; ".join(filter(None, said))
        told = fill(text, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT)
        value = shown(json.dumps(self.value), _WIDTH)
        return f"{self.path}={value}\n" + (f"{told}\n" if text else "")


def settings_of(
    schema: type[Schema], values: Mapping[str, Any], prefix: str = ""
) -> Iterator[Setting]:
    """Yield the settings of a composed configuration, sections as the settings in them; those that
    it leaves out have their defaults.
    """
    for name, field in schema.model_fields.items():
        default = "???" if field.is_required() else field.get_default(call_default_factory=True)
        value = to_jsonable_python(values.get(name, default))
        inner = value if isinstance(value, dict) else {}
        section = _section(field, inner)
        if section is None or value is not inner:
            yield Setting(f"{prefix}{name}", schema, value)
        if section is not None:
            yield from settings_of(section, inner, f"{prefix}{name}.")


def _section(field: FieldInfo, value: Mapping[str, Any]) -> type[Schema] | None:
    """Return the schema of the settings below a field; None if there are none."""
    named = named_in(field.annotation, *field.metadata)
    found = next((one for one, inside in named if not inside), None)
    if not isinstance(found, Registry):
        return found
    name = value.get("name", found.default)
    return found[name].schema if name in found else None


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
