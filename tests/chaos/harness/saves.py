"""One save of a real run, made again and again: each time in a copy of the run's folder, with a
fault at another of its file operations.
"""

import errno
import os
import shutil
import signal
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Literal

from harness.lab import Lab
from harness.operations import Operation, nth, watching
from harness.processes import Fault
from training.checkpoint.store import list_steps

Kind = Literal["kill", "tear", "ENOSPC", "EIO"]
_NOT_REACHED, _NOT_TORN = 90, 91  # Exit codes: fewer operations than that; it was no write.


@dataclass(frozen=True)
class Strike:
    """A fault at operation `number` of a save.

    Attributes:
        kind: kill; tear (kill in the middle of a write); or the name of an error number, which a
            full disk (ENOSPC) keeps giving.
    """

    number: int
    kind: Kind

    def __str__(self) -> str:
        return f"{self.kind}-{self.number:03}"


@dataclass(frozen=True)
class AtEachOperation:
    """Instead of the save, make a copy of the run's folder for each strike, named after it, save
    there, and end. What the save said, if it failed, is in `STRIKE.error`, the operation in
    `STRIKE.operation`.

    Attributes:
        saves_before: how many saves are made as usual; None: all but the run's last.
        kinds: of the strikes. copies: folder for the copies; exists.
    """

    saves_before: int | None
    kinds: tuple[Kind, ...]
    copies: Path

    def __call__(self) -> None:
        """Arm this process."""
        from training.trainer import Trainer

        save, made = Trainer.save, count()

        def strike_or_save(trainer: Trainer, **options: Any) -> None:
            before = next(made)
            due = options.get("permanent") if self.saves_before is None else False
            if before == self.saves_before or due:
                trainer.tracker.sync()
                for kind in self.kinds:
                    self._strike_everywhere(trainer, kind, lambda: save(trainer, **options))
                os._exit(0)
            save(trainer, **options)

        Trainer.save = strike_or_save

    def _strike_everywhere(self, trainer: Any, kind: Any, save: Any) -> None:
        for number in count():
            strike = Strike(number, kind)
            copy = self.copies / str(strike)
            shutil.copytree(trainer.keeper.run_dir, copy)
            child = os.fork()
            if child == 0:
                trainer.keeper = replace(trainer.keeper, run_dir=copy)
                os._exit(self._save_struck(strike, copy, save))
            status = os.waitpid(child, 0)[1]
            code = os.waitstatus_to_exitcode(status)
            if code in (_NOT_REACHED, _NOT_TORN):
                shutil.rmtree(copy)
            if code == _NOT_REACHED:
                return

    def _save_struck(self, strike: Strike, copy: Path, save: Any) -> int:
        """Save with a fault; the exit code is the error's, 0 when the save got over it."""
        from runtime.errors import exit_code

        reached = False

        def act(operation: Operation) -> None:
            nonlocal reached
            if strike.kind == "tear" and operation.tear is None:
                os._exit(_NOT_TORN)
            if not reached:
                copy.with_suffix(".operation").write_text(str(operation))
            reached = True
            self._strike(strike, operation)

        try:
            with watching(copy, nth(strike.number, act, lasting=strike.kind == "ENOSPC")):
                save()
        except Exception as error:
            copy.with_suffix(".error").write_text(str(error))
            return exit_code(error) or 1
        return 0 if reached else _NOT_REACHED

    def _strike(self, strike: Strike, operation: Operation) -> None:
        if operation.tear is not None and strike.kind != "kill":
            operation.tear()
        if strike.kind in ("kill", "tear"):
            os.kill(os.getpid(), signal.SIGKILL)
        number = getattr(errno, strike.kind)
        raise OSError(number, os.strerror(number), str(operation.path))


def strike_saves(
    lab: Lab, saves_before: int | None, kinds: tuple[Kind, ...], *faults: Fault
) -> tuple[list[tuple[Path, str]], int]:
    """Train, and strike a save at each of its operations (see `AtEachOperation`).

    Returns:
        The folders left behind, each with the operation that was struck, in order.
        The last step that had been saved before.
    """
    copies = lab.folder / "copies"
    copies.mkdir()
    lab.train("struck", faults=(*faults, AtEachOperation(saves_before, kinds, copies)))
    left = [(note.with_suffix(""), note.read_text()) for note in sorted(copies.glob("*.operation"))]
    return left, list_steps(lab.folder / "struck")[-1]
