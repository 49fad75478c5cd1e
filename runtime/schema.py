"""Base of every configuration schema, and the number types they share. Imports no torch."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Schema(BaseModel):
    """A frozen configuration section that rejects keys it does not know.

    Floats must be finite; `true` is not a number and `"3"` is not an integer.
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
