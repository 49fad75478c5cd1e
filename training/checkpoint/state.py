"""The schema of a checkpoint's `state.json`, for all that write or read it. Imports no torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from models.config import DataFacts
from runtime.errors import CheckpointError
from runtime.schema import CountOrZero, NonNegativeFloat, Schema, StrictBool
from runtime.text import quoted

_Score = Annotated[float, Field(strict=True)]
_Text = Annotated[str, Field(strict=True)]


class RunState(Schema, extra="ignore"):
    """Where a run stands, beside its tensors. All but `step` may be missing: converted weights have
    little of it, and older versions wrote less.
    """

    step: CountOrZero
    """optimizer steps done"""
    iteration: CountOrZero | None = None
    """iterations done (epochs between two evaluations)"""
    position: CountOrZero | None = None
    """batches done in the present iteration"""
    total_steps: CountOrZero | None = None
    """steps that the schedule counts"""
    seconds: NonNegativeFloat | None = None
    """that the process was at work to get here, over all starts"""
    best_score: _Score | None = None
    score: _Score | None = None
    """exact accuracy of the evaluation at this step, if there was one"""
    permanent: StrictBool = False
    """never to be pruned"""
    config: dict[str, Any] | None = None
    """settings, as the run's version wrote them"""
    facts: dict[str, Any] | None = None
    data_fingerprint: _Text | None = None
    """sha256 of the training data"""
    environment: dict[str, Any] = {}
    diagnostics: dict[str, Any] | None = None
    wandb_id: _Text | None = None
    mlflow_id: _Text | None = None
    weights_only: StrictBool = False
    """converted from a published file; no run can go on from it"""

    def to_json(self) -> dict[str, Any]:
        """Return what was given, ready for `state.json`."""
        return self.model_dump(exclude_unset=True)


def parse_state(content: Mapping[str, Any], source: Path) -> RunState:
    """Check what was read from `source`; CheckpointError names it, the key and the value."""
    try:
        return RunState.model_validate({"step": None} | dict(content))
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
    expected = fault["msg"].replace("Input should be", "expected")
    raise CheckpointError(f"{source}: {fault['loc'][0]} is {quoted(fault['input'])}, {expected}")


_Size = Annotated[int, Field(strict=True, ge=1, lt=2**31)]  # What data sets may say.


class _Facts(Schema, extra="ignore"):
    vocab_size: _Size
    seq_len: _Size
    num_puzzle_identifiers: _Size
    fields: dict[str, tuple[_Size, Annotated[int, Field(strict=True, ge=0, lt=2**31)]]] = {}


def read_facts(recorded: object) -> DataFacts | None:
    """Return recorded facts of a data set, None where these are none."""
    try:
        return DataFacts(**dict(_Facts.model_validate(recorded)))
    except ValidationError:
        return None
