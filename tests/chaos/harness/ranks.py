"""Faults of one rank among several. Called in a child before its entry point."""

import time
from dataclasses import dataclass
from typing import Any

from harness.steps import before_step


@dataclass(frozen=True)
class SleepAt:
    """Sleep `seconds` before training step `step`, as a rank that is slow or hangs; everything but
    the main thread goes on.
    """

    step: int
    seconds: float

    def __call__(self) -> None:
        """Arm this process."""
        before_step(self.step, lambda trainer: time.sleep(self.seconds))


@dataclass(frozen=True)
class SlowSave:
    """Write the first checkpoint for `seconds`."""

    seconds: float

    def __call__(self) -> None:
        """Arm this process."""
        from training import trainer

        save_checkpoint, seconds = trainer.save_checkpoint, [self.seconds]

        def slow(*arguments: Any) -> Any:
            if seconds:
                time.sleep(seconds.pop())
            return save_checkpoint(*arguments)

        trainer.save_checkpoint = slow


@dataclass(frozen=True)
class SlowEvaluation:
    """Take `seconds` for each batch of the evaluations."""

    seconds: float

    def __call__(self) -> None:
        """Arm this process."""
        from evaluation import runner

        think = runner.think

        def slow(*arguments: Any) -> Any:
            time.sleep(self.seconds)
            return think(*arguments)

        runner.think = slow
