"""The base of all configuration schemas, and their common types and settings. Imports no torch."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo
from pydantic_core import PydanticKnownError

from runtime.text import shown


class Schema(BaseModel):
    """A frozen section of the configuration. It rejects unknown keys, infinity and NaN. The string
    below a field is its comment in the YAML files that `make config` writes.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=()
    )

    @classmethod
    def further_fields(cls) -> dict[str, FieldInfo]:
        """Return fields for registered parts, for example one for each auxiliary head."""
        return {}

    @classmethod
    def aliases(cls) -> dict[str, str]:
        """Return the present name of each former name that a field has by `former_name`."""
        fields = cls.model_fields.items()
        return {field.serialization_alias: n for n, field in fields if field.serialization_alias}


def further_field(annotation: Any, default: Any, text: str = "") -> FieldInfo:
    """Return a field for `Schema.further_fields`; `text` is its comment in YAML files."""
    field = FieldInfo.from_annotated_attribute(annotation, default)
    field.description = text or None
    return field


def former_name(former: str, name: str) -> Any:
    """Return the annotation of a renamed setting: it can still be set by its former name, and files
    that other programs read keep that name.
    """
    return Field(validation_alias=AliasChoices(name, former), serialization_alias=former)


Count = Annotated[int, Field(strict=True, ge=1)]
CountOrZero = Annotated[int, Field(strict=True, ge=0)]
# The upper limits protect against a stranger's configuration.
Size = Annotated[int, Field(strict=True, ge=1, le=2**16)]
SizeOrZero = Annotated[int, Field(strict=True, ge=0, le=2**16)]
Seed = Annotated[int, Field(strict=True, ge=0, lt=2**64)]
NumLayers = Annotated[int, Field(strict=True, ge=1, le=1024)]
Probability = Annotated[float, Field(strict=True, ge=0.0, le=1.0)]
PositiveFloat = Annotated[float, Field(strict=True, gt=0.0)]
Seconds = Annotated[float, Field(strict=True, gt=0.0, le=86400.0)]
NonNegativeFloat = Annotated[float, Field(strict=True, ge=0.0)]
StrictBool = Annotated[bool, Field(strict=True)]
# The part of a model that is compiled. A setting of `true` means "model".
CompiledForm = Literal["block", "model", False]
CompileSetting = Literal["auto", "block", "model"] | StrictBool
Device = Literal["auto", "cpu", "cuda"]


def _number_as_name(name: object) -> object:
    # Hydra reads `run_name=42` as an integer.
    return str(name) if isinstance(name, int | float) and not isinstance(name, bool) else name


def _plain_name(name: str) -> str:
    has_slash = "/" in name or "\\" in name
    if not name.strip() or name in (".", "..") or has_slash or not name.isprintable():
        raise ValueError(
            f"{shown(repr(name))} is used as a folder's name: it must not be empty, '.', '..' "
            f"or contain a slash or control characters"
        )
    return name


def _some_path(path: str) -> str:
    # Field(min_length=1) would refuse names that are not UTF-8 in pydantic's words.
    if not path:
        raise PydanticKnownError("string_too_short", {"min_length": 1})
    return path


FolderName = Annotated[str, BeforeValidator(_number_as_name), AfterValidator(_plain_name)]
FolderPath = Annotated[str, AfterValidator(_some_path)]


def seconds_of(duration: object) -> int:
    """Return the seconds of a text like 1h30m, or raise ValueError."""
    parts = re.fullmatch(r"(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,6})s)?", str(duration))
    hours, minutes, seconds = (int(part or 0) for part in (parts.groups() if parts else "000"))
    if not (total := 3600 * hours + 60 * minutes + seconds):
        text = shown(repr(str(duration)))
        raise ValueError(f"{text} is not a time above 0; write it as 8h, 30m, 90s or 1h30m")
    return total


Duration = Annotated[str, BeforeValidator(lambda value: seconds_of(value) and str(value))]


class PluginSettings(Schema):
    """Plug-ins."""

    plugins: list[str] = []
    """your modules that register architectures, heads, ...: docs/extending.md"""


class MachineSettings(PluginSettings):
    """The machine."""

    device: Device = "auto"
    """auto: CUDA if there is a GPU, else the CPU"""
    compile: CompileSetting = "auto"
    """block: each kind of block once; model or true: everything; auto: docs/operations.md"""
    num_threads: Count | None = None
    """CPU threads per rank; null: torch's default"""
    rank_timeout: Seconds = 600.0
    """seconds to wait for a rank that does not answer; then all ranks stop"""
    sweep_name: FolderName | None = None
    """name of a sweep's folder (-m); null: made from its settings"""
