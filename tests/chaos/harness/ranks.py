"""Faults of one rank among several. Called in a child before its entry point."""

import importlib
import itertools
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
class Before:
    """Sleep, and send this process a signal, before the first call of `function` of `module`, or
    before each one.
    """

    module: str
    function: str
    seconds: float = 0.0
    number: int | None = None
    each: bool = False

    def __call__(self) -> None:
        """Arm this process."""
        module, calls = importlib.import_module(self.module), itertools.count()
        original = getattr(module, self.function)

        def called(*arguments: Any, **options: Any) -> Any:
            if next(calls) == 0 or self.each:
                time.sleep(self.seconds)
                if self.number is not None:
                    os.kill(os.getpid(), self.number)
            return original(*arguments, **options)

        setattr(module, self.function, called)


def compile_quickly() -> None:
    """Let torch.compile do all but write C++, which takes a compiler and most of a minute."""
    import torch

    compiled = torch.compile
    torch.compile = lambda model, **options: compiled(model, backend="aot_eager", **options)
