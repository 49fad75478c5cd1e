"""The interface of callbacks, which follow a training run: `callbacks=[NAME, {name: NAME, ...}]`.
Imports no torch.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator

from runtime.registry import Registry
from runtime.schema import Schema

if TYPE_CHECKING:
    from models.act import ACTLossHead
    from training.config.schema import TrainConfig


class Run(NamedTuple):
    """A view of the run at an event."""

    step: int  # Optimizer steps done.
    total_steps: int  # Of the learning rate's schedule; the run may end earlier.
    config: "TrainConfig"
    folder: Path
    best_score: float | None  # The best headline of all evaluations.
    metrics: Mapping[str, Any]  # The newest value of each figure, by name.
    stop: Callable[[str], None]  # Ends the run after this event, for this reason; exit code 0.
    save: Callable[[], None]  # Asks for a checkpoint after this block of steps or evaluation.
    show: Callable[[Path], None]  # Sends a GIF to W&B and TensorBoard, if the run logs to them.
    # Gives the model as it is evaluated, with averaged weights if there are any. Do not change it.
    model: "Callable[[], AbstractContextManager[ACTLossHead]]"


class Callback(Schema):
    """The base of callbacks; the fields are settings. Rank 0 alone calls the events, and the other
    ranks wait. An exception is printed as one line, and undoes the event's changes of `_state`.
    Checkpoints contain `_state`: it must be ready for JSON, and be changed in place.
    """

    name: str
    on_error: Literal["continue", "stop"] = "continue"
    """if the callback fails; continue: the run goes on; stop: the run saves and fails"""
    _state: dict[str, Any] = {}

    def start(self, run: Run) -> None:
        """Called before the first step of this start."""

    def logged(self, run: Run, records: Sequence[Mapping[str, Any]]) -> None:
        """Called after a block of steps, with the record of each."""

    def evaluated(self, run: Run, metrics: Mapping[str, float]) -> None:
        """Called after an evaluation; `metrics` is empty if there are no test puzzles."""

    def saved(self, run: Run) -> None:
        """Called after a checkpoint has been written."""

    def end(self, run: Run, outcome: str, why: str) -> None:
        """Called when training is finished, stopped (by max_steps or a callback), preempted (by a
        signal) or failed: that word is `outcome`, and `why` is the reason, the error or empty.
        """


CALLBACKS = Registry("callback", Callback)
_named = BeforeValidator(lambda one: {"name": one} if isinstance(one, str) else one)
AnyCallback = Annotated[Callback, CALLBACKS, _named]
