"""Saves in a thread beside training: slow ones, struck ones, and a record of who writes when."""

import os
import threading
import time
from pathlib import Path
from typing import Any

from harness.operations import Operation, striking, watch
from harness.processes import until
from training.checkpoint import background, run
from training.checkpoint.background import BackgroundWrite
from training.trainer import Trainer

STEPS_AHEAD = 2


def strike_beside_training(root: Path, kind: str, number: int) -> None:
    """Strike at file operation `number` (from 0) of the threads that save; see `striking`.

    Each save is slow: before its first operation, training makes `STEPS_AHEAD` more steps, unless
    it ends or waits for the save.
    """
    strike, own, main = striking(kind, number), threading.local(), threading.main_thread()
    waiting, steps = threading.Event(), 0
    finish, train_step = BackgroundWrite.finish, Trainer._train_step

    def before(operation: Operation) -> None:
        if threading.current_thread() is main:
            return
        if not vars(own):
            own.awaited = steps + STEPS_AHEAD
            until(lambda: steps >= own.awaited or waiting.is_set(), "training goes on")
        strike(operation)

    def count_step(trainer: Any, batch: Any) -> None:
        nonlocal steps
        train_step(trainer, batch)
        steps += 1

    def tell_and_finish(writing: Any, *, wait: bool = True) -> None:
        if wait:
            waiting.set()
        finish(writing, wait=wait)
        waiting.clear()

    Trainer._train_step = count_step  # type: ignore[method-assign]
    BackgroundWrite.finish = tell_and_finish  # type: ignore[method-assign]
    watch(root, before)


def note_writes(file: Path, seconds: float, number: int = 0, step: int = 0) -> None:
    """Write a line into `file` at the begin and the end of each write of a checkpoint: the word,
    the step, and whether training goes on beside it. Each write takes `seconds` longer; that of
    `step` sends this process a signal first.
    """
    write, start, waits = run.RunKeeper._write, BackgroundWrite.start, False

    def noted_start(writing: Any, *rest: Any, wait: bool) -> None:
        nonlocal waits
        waits = wait
        start(writing, *rest, wait=wait)

    def noted(keeper: Any, state: Any, *rest: Any) -> None:
        def note(word: str) -> None:
            with file.open("a") as lines:
                lines.write(f"{word} {state.step} {'halting' if waits else 'beside'}\n")

        note("begin")
        if state.step == step:
            os.kill(os.getpid(), number)
        time.sleep(seconds)
        write(keeper, state, *rest)
        note("end")

    BackgroundWrite.start = noted_start  # type: ignore[method-assign]
    run.RunKeeper._write = noted  # type: ignore[method-assign]


def leave_memory(size: float) -> None:
    """Let the machine have `size` bytes of memory left."""
    background.host_memory_left = lambda: size
