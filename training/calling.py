"""Calls the callbacks of a run on rank 0, and brings their requests to all ranks."""

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from runtime.device import seeded_torch
from runtime.errors import ConfigError, Preempted
from runtime.text import shown
from training.callbacks.base import Callback, Run
from training.checkpoint.run import Progress
from training.step import Learner
from training.tracking import Tracker, warn


@dataclass
class Callbacks:
    """The callbacks of a run. As a context manager it tells them how training ends. After each
    event all ranks know the same `reason` to end the run ("": none), and whether to save.
    """

    learner: Learner
    progress: Progress
    folder: Path
    tracker: Tracker | None
    reason: str = ""
    failed: bool = False
    save_asked: bool = False

    def __post_init__(self) -> None:
        self._metrics, self._warn_once = dict[str, Any](), cache(warn)
        self._all = [one.model_copy(deep=True) for one in self.learner.config.callbacks]
        for callback in self._all:
            callback._state = self.progress.callbacks.setdefault(callback.name, {})

    def tell(self, event: str, *about: Any, metrics: Mapping[str, Any] | None = None) -> None:
        """Call an event; `metrics` are new values. The ranks meet afterwards, but not at the end,
        because one of them may have failed.
        """
        self._metrics |= metrics or {}
        ranks = self.learner.ranks
        if not (told := self.hearing(event)):
            return
        ranks.mark(f"the callbacks at step {self.progress.step}", long=True)
        for callback in told if ranks.is_main else ():
            before = deepcopy(callback._state)
            try:
                with seeded_torch(self.progress.step, ranks.device):  # The run's own state stays.
                    getattr(callback, event)(self._seen_by(callback.name), *about)
                json.dumps(callback._state, sort_keys=True, allow_nan=False)  # As in a checkpoint.
            except Exception as error:
                callback._state.clear()
                callback._state.update(before)
                line = f"callback {callback.name}: {_described(error)}"
                if callback.on_error == "stop" and event != "end":
                    self.reason, self.failed = line, True
                else:
                    self._warn_once(line)
        if event != "end":
            asked = (self.reason, self.failed, self.save_asked)
            self.reason, self.failed, self.save_asked = ranks.broadcast_object(asked)

    def hearing(self, event: str) -> list[Callback]:
        """Return the callbacks that an event calls."""
        base = getattr(Callback, event)
        return [one for one in self._all if getattr(type(one), event) is not base]

    def _seen_by(self, name: str) -> Run:
        def stop(reason: str) -> None:
            self.reason = self.reason or f"{name}: {reason}"

        def show(gif: Path) -> None:
            for log in self.tracker.others.values() if self.tracker else ():
                log.log([{"step": self.progress.step, name: gif}])

        learner, progress, save = self.learner, self.progress, partial(setattr, self, "save_asked")
        facts = (progress.step, learner.total_steps, learner.config, self.folder)
        figures = (progress.best_score, MappingProxyType(self._metrics))
        return Run(*facts, *figures, stop, partial(save, True), show, learner.evaluated)

    def ending(self) -> str:
        """Return a line on the end that a callback asked for; raise ConfigError if it failed."""
        if self.failed:
            raise ConfigError(f"on_error=stop ended the run: {self.reason}")
        return f"ended at step {self.progress.step} by {self.reason}"

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        is_done = self.progress.iteration >= self.learner.config.num_iterations
        outcome = "preempted" if isinstance(error, Preempted) else "failed"
        if error is None and not self.failed:
            outcome = "finished" if is_done else "stopped"
        self.tell("end", outcome, _described(error) if error else self.reason)


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {shown(error, 400)}"
