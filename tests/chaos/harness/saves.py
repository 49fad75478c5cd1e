"""Strike one save of a real run at each of its file operations, each time in another copy."""

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from harness.lab import Lab
from harness.operations import Operation, striking, watching
from harness.processes import Fault
from training.checkpoint.store import list_steps

_NOT_REACHED, _NOT_TORN = 90, 91  # Exit codes: too few operations; not a write.


def strike_saves(
    lab: Lab, saves_before: int | None, kinds: Sequence[str], *faults: Fault
) -> tuple[list[tuple[Path, str]], int]:
    """Train up to a save, and strike this save at each of its file operations.

    Each try has its own copy of the run's folder; the error of a failed save is in `COPY.error`.

    Args:
        saves_before: number of saves made as usual; None makes all but the run's last.
        kinds: kinds of faults, see `striking`.

    Returns:
        The copies, each with the operation that was struck, in order.
        The last step saved before.
    """
    copies = lab.folder / "copies"
    copies.mkdir()
    lab.train("struck", faults=(*faults, partial(_strike_a_save, saves_before, kinds, copies)))
    left = [(note.with_suffix(""), note.read_text()) for note in sorted(copies.glob("*.operation"))]
    return left, list_steps(lab.folder / "struck")[-1]


def _strike_a_save(saves_before: int | None, kinds: Sequence[str], copies: Path) -> None:
    from training.trainer import Trainer

    save, made = Trainer.save, count()

    def strike_or_save(trainer: Trainer, **options: Any) -> None:
        due = saves_before is None and options.get("permanent")
        if next(made) == saves_before or due:
            trainer.keeper.writing.finish()  # No child has its thread.
            trainer.tracker.sync()
            for kind in kinds:
                _strike_everywhere(trainer, kind, copies, lambda: save(trainer, **options))
            os._exit(0)
        save(trainer, **options)

    Trainer.save = strike_or_save


def _strike_everywhere(trainer: Any, kind: str, copies: Path, save: Callable[[], None]) -> None:
    for number in count():
        copy = shutil.copytree(trainer.keeper.run_dir, copies / f"{kind}-{number:03}")
        child = os.fork()
        if child == 0:
            trainer.keeper = replace(trainer.keeper, run_dir=copy)
            os._exit(_save_struck(kind, number, copy, trainer, save))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code in (_NOT_REACHED, _NOT_TORN):
            shutil.rmtree(copy)
        if code == _NOT_REACHED:
            return


def _save_struck(kind: str, number: int, copy: Path, trainer: Any, save: Callable[[], None]) -> int:
    """Save with a fault, and return an exit code (0 if the save succeeded all the same)."""
    note, seen, strike = copy.with_suffix(".operation"), count(), striking(kind, number)

    def act(operation: Operation) -> None:
        if next(seen) == number:
            if kind == "tear" and operation.tear is None:
                os._exit(_NOT_TORN)
            note.write_text(str(operation))
        strike(operation)

    try:
        with watching(copy, act):
            save()
            trainer.keeper.writing.finish()
    except Exception as error:
        copy.with_suffix(".error").write_text(str(error))
        return 1
    return 0 if note.exists() else _NOT_REACHED
