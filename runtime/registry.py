"""The parts that a configuration chooses by name: architectures, techniques, heads, token heads,
attention biases, losses, optimizers, evaluators, builders of data sets, kinds of puzzles.

Ours and those of plug-ins are registered alike: a name, a schema of its settings, and a function
that imports what stands behind it, so that a configuration is checked before torch is loaded.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, get_args, get_origin

from pydantic import GetCoreSchemaHandler
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from runtime.errors import ConfigError
from runtime.schema import Schema, further_field
from runtime.text import shown


class Part(NamedTuple):
    """What is registered under a name.

    Attributes:
        schema: of its settings, a subclass of the registry's `base`.
        load: imports and returns what stands behind the name.
        text: what it is, in a few words, for the settings' comments.
    """

    schema: type[Any]
    load: Callable[[], Any]
    text: str


UNKNOWN_PART = "unknown_part"
"""Pydantic's type of the fault that a setting names no part."""


class Registry:
    """The parts of one kind, by name, in the order of their registration. In an annotation,
    `Annotated[Schema, REGISTRY]`, it lets a setting be any of the schemas, told apart by `name`.

    Args:
        kind: what messages call such a part.
        base: of the schemas.
        default: the name that settings without `name` have; None: there must be one.
        group: of Hydra, whose choices the names are; None: they are no choices.
        package: where Hydra puts what a choice holds; None: at the group's own name.
        key: of what a choice holds, below which the settings are; NAME is the part's name.
    """

    all: ClassVar[list["Registry"]] = []

    def __init__(
        self,
        kind: str,
        base: type[Schema],
        default: str | None = None,
        group: str | None = None,
        package: str | None = None,
        key: str | None = None,
    ) -> None:
        self.kind, self.base, self.default = kind, base, default
        self.group, self.package, self.key = group, package, key
        self._parts: dict[str, Part] = {}
        self.all.append(self)

    def add(
        self, name: str, schema: type[Schema], load: Callable[[], Any] | None = None, text: str = ""
    ) -> None:
        """Register a part; without `load` the schema itself is what stands behind the name.

        Raises:
            ConfigError: the name is taken, or the schema is not one of such a part.
        """
        if name in self._parts:
            raise ConfigError(f"the {self.kind} {name!r} is registered already")
        if not issubclass(schema, self.base):
            expected = f"expected one of {self.base.__name__}"
            raise ConfigError(f"the {self.kind} {name!r} has a {schema.__name__}, {expected}")
        field = schema.model_fields.get("name")
        if field and field.annotation is not str and name not in get_args(field.annotation):
            raise ConfigError(f'{schema.__name__} needs name: Literal["{name}"] = "{name}"')
        self._parts[name] = Part(schema, load or (lambda: schema), text)

    def load(self, name: str) -> Any:
        """Import and return what stands behind a name.

        Raises:
            ConfigError: it cannot be imported.
        """
        try:
            return self._parts[name].load()
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"the {self.kind} {name!r} cannot be imported: {error}") from error

    def optional_fields(self) -> dict[str, FieldInfo]:
        """Return a field for each part by its name, for a section that leaves out what it does not
        name.
        """
        parts = self._parts.items()
        return {name: further_field(part.schema | None, None, part.text) for name, part in parts}

    def chosen(self, section: Schema) -> dict[str, Any]:
        """Return by name the settings of the parts that a section with `optional_fields` names."""
        found = {name: getattr(section, name) for name in self._parts}
        return {name: settings for name, settings in found.items() if settings is not None}

    def __getitem__(self, name: str) -> Part:
        return self._parts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._validated)

    def _validated(self, value: Any) -> Schema:
        # Not pydantic's own union: it puts the names into the paths of faults.
        if isinstance(value, dict):
            value = {"name": self.default} | value
        name = str(value["name"] if isinstance(value, dict) else getattr(value, "name", value))
        if name not in self._parts:
            told = "there is no such {kind}; accepted: {names}"
            known = {"kind": self.kind, "names": ", ".join(self), "name": name}
            raise PydanticCustomError(UNKNOWN_PART, told, known)
        return self._parts[name].schema.model_validate(value)


NONE = "none"


class NameOf:
    """In an annotation, `Annotated[str, NameOf(REGISTRY)]`: the name of a part, or `none`."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry

    def __iter__(self) -> Iterator[str]:
        yield NONE
        yield from self.registry

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.literal_schema(list(self))


def imported(module: str, name: str) -> Callable[[], Any]:
    """Return a function that imports a module and returns what it calls `name`."""
    return lambda: getattr(importlib.import_module(module), name)


def import_all(package: str, files: str) -> None:
    """Import the modules of a package whose files fit a pattern; they register what is in them. A
    package that is not there has none.
    """
    spec = importlib.util.find_spec(package)
    for folder in (spec and spec.submodule_search_locations) or ():
        for file in sorted(Path(folder).glob(files)):
            module = file.relative_to(folder).with_suffix("")
            importlib.import_module(".".join((package, *module.parts)))


def rebuild_schemas(
    schemas: Iterable[type[Schema]] = (), done: set[type[Schema]] | None = None
) -> None:
    """Let schemas, and first the sections in them, take in what has been registered since they were
    made; without arguments all that there are.
    """
    done = set() if done is None else done
    for schema in schemas or _subclasses(Schema):
        if schema in done:
            continue
        done.add(schema)
        fields, further = schema.model_fields, schema.further_fields()
        if taken := further.keys() & schema.__annotations__.keys():
            named = ", ".join(taken)
            raise ConfigError(f"{schema.__name__} has {named} already: give yours another name")
        fields.update({name: further[name] for name in further if name not in fields})
        for field in fields.values():
            for section, _ in sections_in(field.annotation, *field.metadata):
                rebuild_schemas([section], done)
        schema.model_rebuild(force=True)


def _subclasses(schema: type[Schema]) -> list[type[Schema]]:
    own = schema.__subclasses__()
    return [*own, *(below for each in own for below in _subclasses(each))]


def sections_in(*annotations: Any, inside: str = "") -> Iterator[tuple[type[Schema], str]]:
    """Yield the schemas that annotations name, with `.*` where they stand in a dict or a list. The
    schema beside a registry is the base of those that it stands for.
    """
    is_chosen = any(isinstance(annotation, Registry) for annotation in annotations)
    for annotation in annotations:
        if isinstance(annotation, Registry):
            schemas = dict.fromkeys(annotation[name].schema for name in annotation)
            yield from ((schema, inside) for schema in schemas)
        elif isinstance(annotation, type) and issubclass(annotation, Schema) and not is_chosen:
            yield annotation, inside
        within = ".*" if get_origin(annotation) in (dict, list) else inside
        yield from sections_in(*get_args(annotation), inside=within)


# Plug-ins: modules of the user. Only a command line or the user's own configuration names them,
# never a checkpoint or a data set.

IMPORTED: list[str] = []
"""Names of the plug-ins imported so far."""
ADDED: list[tuple[Registry, str]] = []
"""What they have registered."""


def import_plugins(names: Sequence[str]) -> None:
    """Import modules, found as Python finds them or in the current folder, and let all schemas
    know what they register.

    Raises:
        ConfigError: a module cannot be imported, or registers what is there already.
    """
    new = [name for name in names if name not in IMPORTED]
    if not new:
        return
    before = _all_parts()
    for name in new:
        try:
            if importlib.util.find_spec(name.partition(".")[0]) is None:
                sys.path.append(str(Path.cwd()))
            importlib.import_module(name)
        except (Exception, SystemExit) as error:
            reason = f"{type(error).__name__}: {error}"
            raise ConfigError(f"plugins=[{shown(name)}]: {shown(reason, 300)}") from error
        IMPORTED.append(name)
    ADDED.extend(part for part in _all_parts() if part not in before)
    rebuild_schemas()


def _all_parts() -> list[tuple[Registry, str]]:
    return [(registry, name) for registry in Registry.all for name in registry]
