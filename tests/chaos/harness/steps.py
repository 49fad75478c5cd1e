"""Faults inside a training step: a run that stands still there, and numbers that are not finite."""

import errno
import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from harness.processes import until


def before_step(step: int, act: Callable[[Any], None]) -> None:
    """Call `act` with the trainer before a step; what is armed later acts earlier."""
    from training.trainer import Trainer

    original = Trainer._train_step

    def acted(trainer: Any, batch: Any) -> None:
        if trainer.progress.step + 1 == step:
            act(trainer)
        original(trainer, batch)

    Trainer._train_step = acted  # type: ignore[method-assign]


@dataclass(frozen=True)
class WaitFor:
    """Begin only when a file is there."""

    file: Path

    def __call__(self) -> None:
        """Wait in this process."""
        until(self.file.exists, f"{self.file}")


@dataclass(frozen=True)
class StandStill:
    """Stay in front of step `step` for good, with a file `stands PID` in `folder`. `with_child`:
    and with a forked child, which leaves a file `child PID`.
    """

    step: int
    folder: Path
    with_child: bool = False

    def __call__(self) -> None:
        """Arm this process."""

        def stay(trainer: Any) -> None:
            kind = "stands"
            if self.with_child and os.fork() == 0:
                kind = "child"
            (self.folder / f"{kind} {os.getpid()}").touch()
            time.sleep(600)
            os._exit(1)

        before_step(self.step, stay)


def without_flock() -> None:
    """Let the file system know no flock."""
    import fcntl

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    fcntl.flock = refuse


PLACES = (
    "input",
    "puzzle embedding",
    "carry",
    "gradient",
    "gradient of the puzzle embedding",
    "loss",
)


@dataclass(frozen=True)
class Poison:
    """Put `value` (nan, inf or -inf) into what step `step` computes with, at one of `PLACES`."""

    place: str
    value: float
    step: int

    def __call__(self) -> None:
        """Arm this process."""
        import torch

        if self.place == "input":

            def poison(trainer: Any) -> None:
                with torch.no_grad():
                    inner = trainer.learner.model.model.inner
                    inner.embed_tokens.embedding_weight[:, 0] = self.value

            before_step(self.step, poison)
        elif self.place == "puzzle embedding":

            def poison(trainer: Any) -> None:
                trainer.learner.model.puzzle_embedding.weights[:, 0] = self.value

            before_step(self.step, poison)
        elif self.place == "carry":

            def poison(trainer: Any) -> None:
                carry = trainer.learner.carry
                assert not carry.halted.all(), "all slots start anew, nothing is read"
                for tensor in carry.tensors().values():
                    if tensor.is_floating_point():
                        tensor[..., 0] = self.value

            before_step(self.step, poison)
        else:
            self._poison_update()

    def _poison_update(self) -> None:
        from training.step import Learner

        original = Learner._update

        def poisoned(learner: Any, step: int, loss: Any, *rest: Any) -> Any:
            if step == self.step:
                if self.place == "gradient":
                    learner.bucket.flat[7] = self.value
                elif self.place == "loss":
                    loss = loss + self.value
                else:
                    learner.model.puzzle_embedding.local_weights.grad[0, 0] = self.value
            return original(learner, step, loss, *rest)

        Learner._update = poisoned  # type: ignore[method-assign]


@dataclass(frozen=True)
class Observe:
    """Write into `file` what a step that fails did to the state, and whether a save refuses then.

    To be armed before `Poison`, so that it looks after that one has struck.
    """

    step: int
    file: Path

    def __call__(self) -> None:
        """Arm this process."""
        from runtime.errors import NonFiniteError
        from training.trainer import Trainer

        seen: dict[str, Any] = {}
        fit = Trainer.fit

        def note(trainer: Any) -> None:
            seen["before"] = _digest(trainer.learner)

        def observed(trainer: Any) -> None:
            try:
                fit(trainer)
            except NonFiniteError:
                seen["after"] = _digest(trainer.learner)
                try:
                    trainer.save()
                except NonFiniteError as error:
                    seen["refused"] = str(error)
                self.file.write_text(json.dumps(seen))
                raise

        before_step(self.step, note)
        Trainer.fit = observed  # type: ignore[method-assign]


@dataclass(frozen=True)
class SpoilSave:
    """Put a NaN into a part of the state after step `step` was made, which is saved then."""

    part: str
    step: int

    parts: ClassVar[tuple[str, ...]] = ("weight", "average", "optimizer", "carry")

    def __call__(self) -> None:
        """Arm this process."""
        import torch

        from training.trainer import Trainer

        save = Trainer.save

        def spoilt(trainer: Any, **options: Any) -> None:
            if trainer.progress.step == self.step:
                tensors = {
                    "weight": lambda: list(trainer.learner.model.parameters()),
                    "average": lambda: list(trainer.learner.average.tensors().values()),
                    "optimizer": lambda: [
                        value
                        for state in trainer.learner.optimizer.state.values()
                        for value in state.values()
                    ],
                    "carry": lambda: list(trainer.learner.carry.tensors().values()),
                }[self.part]()
                with torch.no_grad():
                    last = [tensor for tensor in tensors if tensor.is_floating_point()][-1]
                    last.view(-1)[-1] = float("nan")
            save(trainer, **options)

        Trainer.save = spoilt  # type: ignore[method-assign]


def _digest(learner: Any) -> str:
    """Return the sha256 of what an update changes: weights, table, average, optimizer."""
    from training.checkpoint.tensors import model_tensors, optimizer_tensors

    parts = [
        model_tensors(learner.model),
        learner.average.tensors(),
        optimizer_tensors(learner.optimizer, learner.groups),
    ]
    digest = hashlib.sha256()
    for part in parts:
        for name, tensor in sorted(part.items()):
            digest.update(name.encode())
            digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()
