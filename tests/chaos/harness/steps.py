"""Faults inside a training step: a run that sleeps or hangs, and numbers that are not finite.

Like all faults, they are called in a child before its entry point.
"""

import errno
import hashlib
import importlib
import itertools
import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from harness.processes import until


def before_step(step: int, act: Callable[[Any], None]) -> None:
    """Call `act` with the trainer before a step; the function armed last acts first."""
    from training.trainer import Trainer

    original = Trainer._train_step

    def acted(trainer: Any, batch: Any) -> None:
        if trainer.progress.step + 1 == step:
            act(trainer)
        original(trainer, batch)

    Trainer._train_step = acted  # type: ignore[method-assign]


def wait_for(file: Path) -> None:
    """Wait until a file exists."""
    until(file.exists, f"{file}")


def sleep_at(step: int, seconds: float) -> None:
    """Sleep before a training step, like a rank that is slow or hangs; other threads go on."""
    before_step(step, lambda trainer: time.sleep(seconds))


def stand_still(step: int, folder: Path, with_child: bool) -> None:
    """Hang before a step, and leave a file `stands PID` in `folder`.

    With `with_child` a forked child hangs too, and leaves a file `child PID`.
    """

    def stay(trainer: Any) -> None:
        kind = "child" if with_child and os.fork() == 0 else "stands"
        (folder / f"{kind} {os.getpid()}").touch()
        time.sleep(600)
        os._exit(1)

    before_step(step, stay)


def before_call(
    module: str, function: str, *, seconds: float = 0.0, number: int = 0, each: bool = False
) -> None:
    """Sleep and send this process a signal before the first (or `each`) call of a function."""
    owner, calls = importlib.import_module(module), itertools.count()
    original = getattr(owner, function)

    def called(*arguments: Any, **options: Any) -> Any:
        if next(calls) == 0 or each:
            time.sleep(seconds)
            os.kill(os.getpid(), number)  # 0 sends nothing.
        return original(*arguments, **options)

    setattr(owner, function, called)


def compile_quickly() -> None:
    """Let torch.compile skip the C++ code, which needs a compiler and most of a minute."""
    import torch

    compiled = torch.compile
    torch.compile = lambda model, **options: compiled(model, backend="aot_eager", **options)


def without_flock() -> None:
    """Act as a file system without flock."""
    import fcntl

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    fcntl.flock = refuse


# Numbers that are not finite

_BEFORE_UPDATE = ("gradient", "gradient of the puzzle embedding", "loss")
PLACES = ("input", "puzzle embedding", "carry", *_BEFORE_UPDATE)
PARTS = ("weight", "average", "optimizer", "carry")


def poison(place: str, value: float, step: int) -> None:
    """Put `value` (nan, inf or -inf) into a step's numbers, at one of `PLACES`."""
    import torch

    from training.step import Learner

    def poison_forward(learner: Any) -> None:
        if place == "input":
            with torch.no_grad():
                learner.model.model.inner.embed_tokens.embedding_weight[:, 0] = value
        elif place == "puzzle embedding":
            learner.model.puzzle_embedding.weights[:, 0] = value
        else:
            assert not learner.carry.halted.all(), "all slots start anew: the step reads no carry"
            for tensor in _floats(learner.carry.tensors().values()):
                tensor[..., 0] = value

    original = Learner._update

    def poisoned(learner: Any, loss: Any, *rest: Any) -> Any:
        Learner._update = original  # type: ignore[method-assign]
        if place == "gradient":
            learner.bucket.flat[7] = value
        elif place == "loss":
            loss = loss + value
        else:
            learner.model.puzzle_embedding.local_weights.grad[0, 0] = value
        return original(learner, loss, *rest)

    def strike(trainer: Any) -> None:
        if place in _BEFORE_UPDATE:
            Learner._update = poisoned  # type: ignore[method-assign]
        else:
            poison_forward(trainer.learner)

    before_step(step, strike)


def observe(step: int, file: Path) -> None:
    """Write the state's digests before and after a failing step, and a save's error, into `file`.

    Arm it before `poison`: then it takes its first digest after `poison` has struck.
    """
    from runtime.errors import NonFiniteError
    from training.trainer import Trainer

    seen: dict[str, Any] = {}
    fit = Trainer.fit

    def observed(trainer: Any) -> None:
        try:
            fit(trainer)
        except NonFiniteError:
            seen["after"] = _digest(trainer.learner)
            try:
                trainer.save()
            except NonFiniteError as error:
                seen["refused"] = str(error)
            file.write_text(json.dumps(seen))
            raise

    before_step(step, lambda trainer: seen.update(before=_digest(trainer.learner)))
    Trainer.fit = observed  # type: ignore[method-assign]


def spoil_save(part: str, step: int) -> None:
    """Put a NaN into one of `PARTS` of the state after a step, just before it is saved."""
    import torch

    from training.trainer import Trainer

    save = Trainer.save

    def spoilt(trainer: Any, **options: Any) -> None:
        if trainer.progress.step == step:
            learner = trainer.learner
            tensors = {
                "weight": learner.model.parameters(),
                "average": learner.average.tensors().values(),
                "optimizer": [v for s in learner.optimizer.state.values() for v in s.values()],
                "carry": learner.carry.tensors().values(),
            }[part]
            with torch.no_grad():
                _floats(tensors)[-1].view(-1)[-1] = float("nan")
        save(trainer, **options)

    Trainer.save = spoilt  # type: ignore[method-assign]


def _floats(tensors: Iterable[Any]) -> list[Any]:
    return [tensor for tensor in tensors if tensor.is_floating_point()]


def _digest(learner: Any) -> str:
    """Return the sha256 of all that an update changes: weights, table, average, optimizer."""
    from training.checkpoint.tensors import model_tensors, optimizer_tensors

    digest = hashlib.sha256()
    optimizer = optimizer_tensors(learner.optimizer, learner.groups)
    for part in (model_tensors(learner.model), learner.average.tensors(), optimizer):
        for name, tensor in sorted(part.items()):
            digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()
