"""Registries of the parts that a configuration chooses by name: architectures, techniques, heads,
token heads, attention biases, losses, optimizers, evaluators, builders of data sets, puzzle kinds.

A part, ours or a plug-in's, is registered with its name, the schema of its settings, and a function
that imports its code, so that a configuration can be checked before torch is loaded.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, get_args, get_origin

from pydantic import BeforeValidator, GetCoreSchemaHandler
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from runtime.errors import ConfigError
from runtime.schema import Schema, further_field
from runtime.text import shown


class Part(NamedTuple):
    """A registered part.

    Attributes:
        schema: the schema of its settings, a subclass of the registry's `base`.
        load: imports and returns its code, a class or function.
        text: a few words about it, for the settings' comments.
        module: the name of the module that registered it.
    """

    schema: type[Any]
    load: Callable[[], Any]
    text: str
    module: str = ""


UNKNOWN_PART = "unknown_part"
"""Pydantic's error type for a setting that names an unknown part."""


class Registry:
    """All parts of one kind by name, in the order of registration. A setting with the annotation
    `Annotated[Schema, REGISTRY]` may be any part's schema; its key `name` decides which.

    Args:
        kind: the word for these parts in messages.
        base: the base class of their schemas.
        default: the part to use for settings without `name`; None: `name` is required.
        group: the Hydra group that offers the names as choices; None: there is none.
        package: the place of a choice's content in the configuration; None: the group's name.
        key: the key in a choice's content that holds the settings; NAME stands for the part's name.
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
        """Register a part. Without `load`, its schema is also its code.

        Raises:
            ConfigError: the name is taken, or the schema does not fit this registry.
        """
        if name in self._parts:
            raise ConfigError(f"the {self.kind} {name!r} is registered already")
        if not issubclass(schema, self.base):
            expected = f"expected one of {self.base.__name__}"
            raise ConfigError(f"the {self.kind} {name!r} has a {schema.__name__}, {expected}")
        field = schema.model_fields.get("name")
        if field and field.annotation is not str and name not in get_args(field.annotation):
            raise ConfigError(f'{schema.__name__} needs name: Literal["{name}"] = "{name}"')
        module = sys._getframe(1).f_globals.get("__name__", "")  # of the caller
        self._parts[name] = Part(schema, load or (lambda: schema), text, module)

    def load(self, name: str) -> Any:
        """Import and return the code of a part; raise ConfigError if that fails."""
        try:
            return self._parts[name].load()
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"the {self.kind} {name!r} cannot be imported: {error}") from error

    def optional_fields(self) -> dict[str, FieldInfo]:
        """Return an optional field for each part, for a section with only the parts in use."""
        parts = self._parts.items()
        return {name: further_field(part.schema | None, None, part.text) for name, part in parts}

    def chosen(self, section: Schema) -> dict[str, Any]:
        """Return the settings by name of the parts that a section with `optional_fields` uses."""
        fields = {name: getattr(section, name) for name in self._parts}
        return {name: settings for name, settings in fields.items() if settings is not None}

    def __getitem__(self, name: str) -> Part:
        return self._parts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._validated)

    def _validated(self, value: Any) -> Schema:
        # Not a union of pydantic's, which would add the names to the paths in error messages.
        if isinstance(value, dict):
            value = {"name": self.default} | value
        name = str(value["name"] if isinstance(value, dict) else getattr(value, "name", value))
        if name not in self._parts:
            message = "there is no such {kind}; accepted: {names}"
            known = {"kind": self.kind, "names": ", ".join(self), "name": name}
            raise PydanticCustomError(UNKNOWN_PART, message, known)
        return self._parts[name].schema.model_validate(value)


NAMED = BeforeValidator(lambda part: {"name": part} if isinstance(part, str) else part)
"""Accepts a part's name as the part without settings."""
NONE = "none"


class NameOf:
    """The type of a setting that is a part's name or `none`: `Annotated[str, NameOf(REGISTRY)]`."""

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
    """Return a function that imports `module` and returns its attribute `name`."""
    return lambda: getattr(importlib.import_module(module), name)


def import_all(package: str, files: str) -> None:
    """Import a package's modules with file names that match the pattern `files`, so that they
    register their parts. Do nothing if the package does not exist.
    """
    spec = importlib.util.find_spec(package)
    for folder in (spec and spec.submodule_search_locations) or ():
        for file in sorted(Path(folder).glob(files)):
            module = file.relative_to(folder).with_suffix("")
            importlib.import_module(".".join((package, *module.parts)))


def rebuild_schemas(
    schemas: Iterable[type[Schema]] = (), done: set[type[Schema]] | None = None
) -> None:
    """Rebuild schemas (by default all) after the sections in them, and add the fields for newly
    registered parts. If a schema has such a field already, raise ConfigError and change nothing.
    """
    schemas = list(schemas) or _subclasses(Schema)
    if done is None:
        done = set()
        for schema in schemas:
            if taken := schema.further_fields().keys() & schema.__annotations__.keys():
                named = ", ".join(taken)
                raise ConfigError(f"{schema.__name__} has {named} already: give yours another name")
    for schema in schemas:
        if schema in done:
            continue
        done.add(schema)
        fields, further = schema.model_fields, schema.further_fields()
        fields.update({name: further[name] for name in further if name not in fields})
        for field in fields.values():
            for section, _ in sections_in(field.annotation, *field.metadata):
                rebuild_schemas([section], done)
        schema.model_rebuild(force=True)


def _subclasses(schema: type[Schema]) -> list[type[Schema]]:
    own = schema.__subclasses__()
    return [*own, *(below for each in own for below in _subclasses(each))]


def sections_in(*annotations: Any, inside: str = "") -> Iterator[tuple[type[Schema], str]]:
    """Yield each schema in annotations, and its path's suffix: ".*" inside a dict or list, else "".
    A registry stands for the schemas of its parts; the schema beside it is only their base.
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

PLUGINS: list[str] = []
PLUGIN_PARTS: list[tuple[Registry, str]] = []
"""The registry and name of each part that a plug-in has registered."""


def import_plugins(names: Sequence[str]) -> None:
    """Import modules from Python's path or the current folder, and rebuild all schemas. After an
    error the modules before the wrong one are in use, and the wrong one can be imported again.

    Raises:
        ConfigError: a module cannot be imported, or registers a name that is taken.
    """
    for name in names:
        if name not in PLUGINS:
            _import_plugin(name)


def _import_plugin(name: str) -> None:
    before = _all_parts()
    try:
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            sys.path.append(str(Path.cwd()))
        importlib.import_module(name)
        rebuild_schemas()
        PLUGINS.append(name)
    except (Exception, SystemExit) as error:
        new = [part for part in _all_parts() if part not in before]
        if name in sys.modules:  # A schema refuses a part: drop all modules that registered some.
            for module in (name, *(registry[part].module for registry, part in new)):
                sys.modules.pop(module, None)
        # Python drops a module that failed, but keeps the modules that it has imported.
        for registry, part in new:
            if registry[part].module not in sys.modules:
                del registry._parts[part]
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"plugins=[{shown(name)}]: {shown(reason, 300)}") from error
    finally:
        PLUGIN_PARTS.extend(part for part in _all_parts() if part not in before)


def _all_parts() -> list[tuple[Registry, str]]:
    return [(registry, name) for registry in Registry.all for name in registry]
