"""Base of every configuration schema, and the types and settings they share. Imports no torch."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class Schema(BaseModel):
    """A frozen configuration section that rejects unknown keys, infinity and NaN. The string
    below a field is its comment in the YAML file that `make config` writes.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=()
    )


Count = Annotated[int, Field(strict=True, ge=1)]
CountOrZero = Annotated[int, Field(strict=True, ge=0)]
# What a stranger's configuration may ask for at most.
Size = Annotated[int, Field(strict=True, ge=1, le=2**16)]
SizeOrZero = Annotated[int, Field(strict=True, ge=0, le=2**16)]
NumLayers = Annotated[int, Field(strict=True, ge=1, le=1024)]
Probability = Annotated[float, Field(strict=True, ge=0.0, le=1.0)]
PositiveFloat = Annotated[float, Field(strict=True, gt=0.0)]
Seconds = Annotated[float, Field(strict=True, gt=0.0, le=86400.0)]
NonNegativeFloat = Annotated[float, Field(strict=True, ge=0.0)]
StrictBool = Annotated[bool, Field(strict=True)]
Device = Literal["auto", "cpu", "cuda"]


class MachineSettings(Schema):
    """The machine."""

    device: Device = "auto"
    compile: Literal["auto"] | StrictBool = "auto"
    """use torch.compile; auto: on CUDA only"""
    num_threads: Count | None = None
    """CPU threads of a rank; null: torch's choice"""
    rank_timeout: Seconds = 600.0
    """seconds that a rank waits for one that does not answer, before all end"""
    sweep_name: str | None = None
    """the folder of a sweep (-m); null: named after its settings"""
