"""Faults of one rank among several. Called in a child before its entry point."""

import importlib
import os
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


@dataclass(frozen=True)
class SignalIn:
    """Send a signal to this process at the first call of `function` of `module`."""

    number: int
    module: str
    function: str

    def __call__(self) -> None:
        """Arm this process."""
        module, pending = importlib.import_module(self.module), [self.number]
        original = getattr(module, self.function)

        def signalled(*arguments: Any, **options: Any) -> Any:
            if pending:
                os.kill(os.getpid(), pending.pop())
            return original(*arguments, **options)

        setattr(module, self.function, signalled)


def compile_quickly() -> None:
    """Let torch.compile do all but write C++, which takes a compiler and most of a minute."""
    import torch

    compiled = torch.compile
    torch.compile = lambda model, **options: compiled(model, backend="aot_eager", **options)
