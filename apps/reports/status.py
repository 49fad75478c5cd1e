"""The status of a run, read from the ends of its files: fast even for hundreds of large runs."""

import itertools
import json
import os
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from apps.reports.values import parsed
from evaluation.headline import headline_of
from evaluation.values import at, listed, number
from runtime.errors import CheckpointError
from runtime.files import open_regular, read_bounded
from runtime.text import shown
from training.checkpoint.lock import LOCK_FILE, Owner
from training.checkpoint.run_folder import CONFIG_FILE
from training.checkpoint.store import (
    MANIFEST,
    STATE,
    USUAL_MEASURE,
    RunState,
    checkpoint_path,
    list_steps,
    parse_state,
    read_json,
)
from training.tracking import METRICS_FILE

State = Literal["running", "done", "stopped", "failed", "new"]

SWEEP = "sweep.json"

_RATE = "speed/examples_per_second"
_MAX_SWEEP = 64 * 2**20
_MAX_STEP = 2**53
_TAIL_BYTES = 2**20
# The lock of another machine counts until its run has written nothing for this long.
_SILENT_SECONDS = 3600.0
# For each callback that ends runs: what it counts, and the setting at which it ends the run.
_ENDINGS = {"early_stop": ("waited", "patience"), "all_right": ("in_a_row", "examples")}


@dataclass(frozen=True)
class Status:
    """The status of a run; None: not known.

    Attributes:
        state: running: a live process holds the lock. done: the schedule has ended. failed: the
            last loss was not finite, or the sweep says so. stopped: anything else that has started.
            new: nothing was written.
        detail: more words about the state.
        step, total_steps: optimizer steps done, and steps of the schedule (or `max_steps`).
        loss: of the last step.
        examples_per_second: of training, in the last block of logs.
        score: the best headline of the evaluations (`evaluation.headline`).
        measure: the name of the score, for example `eval/exact_accuracy`.
        seconds: training time until the newest checkpoint, over all starts.
        pace: seconds for one step; only of a running run.
        newest: the state in the newest readable checkpoint.
    """

    folder: Path
    state: State
    detail: str = ""
    step: int | None = None
    total_steps: int | None = None
    loss: float | None = None
    examples_per_second: float | None = None
    score: float | None = None
    measure: str | None = None
    seconds: float | None = None
    pace: float | None = None
    newest: RunState | None = None

    @property
    def name(self) -> str:
        return shown(self.folder.resolve().name, 60)

    @property
    def has_ended(self) -> bool:
        """Whether the run has ended for good, or as its settings asked."""
        return self.state in ("done", "failed") or self.detail.startswith(("at max_steps", "by "))

    @property
    def steps_ahead(self) -> int:
        """The remaining steps of the schedule, 0 if not known."""
        if self.state == "done" or self.step is None or self.total_steps is None:
            return 0
        return max(0, self.total_steps - self.step)

    @property
    def seconds_left(self) -> float | None:
        if self.pace is None or self.total_steps is None:
            return None
        return self.pace * self.steps_ahead


def job_of(folder: Path) -> Any:
    """Return the record of a run's job in its sweep, None if it has none or it cannot be read."""
    with suppress(OSError, ValueError, RecursionError):
        content = parsed(read_bounded(folder.parent / SWEEP, _MAX_SWEEP))
        return at(content, "jobs", folder.name)
    return None


def is_run(folder: Path) -> bool:
    """Return whether a folder holds a run, or an evaluation of a sweep."""
    names = (CONFIG_FILE, METRICS_FILE, f"{folder.name}.json")
    with suppress(OSError):
        if (folder / SWEEP).is_file():
            return False
        # A subfolder step_3 may be a run of that name; only a checkpoint has a manifest.
        steps = (checkpoint_path(folder, step) / MANIFEST for step in list_steps(folder))
        return any((folder / name).is_file() for name in names) or any(map(Path.is_file, steps))
    return False


def read_status(folder: Path) -> Status:
    """Return the status of the run in a folder. Its files are not trusted."""
    states, lines = _newest_states(folder), _last_lines(folder / METRICS_FILE)
    newest = states[-1] if states else None
    train = next(_records(reversed(lines), b'"train/lr"'), None)
    evaluations = list(_records(lines, b'"eval/'))
    timed = next(_records(reversed(lines), _RATE.encode()), {})
    step = max([one["step"] for one in [train] if one] + [s.step for s in states], default=None)
    measure = next(
        (one for r in reversed(evaluations) if (one := headline_of(r, "eval/"))), USUAL_MEASURE
    )
    scores = [number(record.get(measure)) for record in evaluations]
    scores += [number(newest.best_score)] if newest and measure == newest.measure else []
    score = max((one for one in scores if one is not None), default=None)
    state, detail = _state(folder, newest, train, step)
    return Status(
        folder,
        state,
        detail,
        step,
        _total_steps(newest) if newest else None,
        number(train.get("train/lm_loss")) if train else None,
        number(timed.get(_RATE)),
        score,
        None if score is None else measure,
        number(newest.seconds) if newest else None,
        _seconds_per_step(states) if state == "running" else None,
        newest,
    )


def _newest_states(folder: Path) -> list[RunState]:
    """Return the states in the two newest readable checkpoints, the older one first."""
    found: list[RunState] = []
    with suppress(OSError):
        for step in reversed(list_steps(folder)[-10:]):
            path = checkpoint_path(folder, step) / STATE
            with suppress(CheckpointError):
                state = parse_state(read_json(path), path)
                if max(state.step, state.total_steps or 0) < _MAX_STEP:
                    found.append(state)
            if len(found) == 2:
                break
    return found[::-1]


def _last_lines(path: Path) -> list[bytes]:
    with suppress(OSError), open_regular(path) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        return file.read(_TAIL_BYTES).split(b"\n")
    return []


def _records(lines: Iterable[bytes], name: bytes = b"") -> Iterator[dict[str, Any]]:
    """Yield the records in the readable lines that contain `name`."""
    for line in lines:
        with suppress(ValueError, RecursionError):
            record: Any = json.loads(line) if name in line else None
            step = at(record, "step")
            if type(step) is int and 0 <= step < _MAX_STEP:
                yield record


def _total_steps(newest: RunState) -> int | None:
    """Return the steps of a run's schedule, or `max_steps` if that is smaller."""
    total, limit = newest.total_steps, at(newest.config, "max_steps")
    return min(total, limit) if total is not None and type(limit) is int else total


def _state(
    folder: Path, newest: RunState | None, train: dict[str, Any] | None, step: int | None
) -> tuple[State, str]:
    owner = Owner.recorded(folder / LOCK_FILE)
    if owner is not None and not owner.is_gone:
        silent = time.time() - modified(folder / METRICS_FILE)
        if owner.host == socket.gethostname() or silent < _SILENT_SECONDS:
            return "running", str(owner)
        return "stopped", f"locked by {owner}, which wrote nothing for {silent / 3600:.0f} hours"
    skips = newest is not None and at(newest.config, "on_nonfinite") == "skip"
    if train is not None and number(train.get("train/lm_loss")) is None and not skips:
        return "failed", f"the loss was not finite at step {train['step']:,}"
    ended = _final_state(newest) if newest else None
    if ended is not None and ended[0] == "done":
        return ended
    if step is None and (folder / f"{folder.name}.json").is_file():
        return "done", "an evaluation"
    job = job_of(folder)
    if at(job, "state") == "failed":
        return "failed", f"exit code {shown(at(job, 'exit_code'), 20)}"
    if step is None:
        return "new", "nothing written yet"
    return ended or ("stopped", "killed" if owner is not None else "")


def _final_state(newest: RunState) -> tuple[State, str] | None:
    """Return the state after the newest checkpoint if that ends the run, else None."""
    config = newest.config or {}
    epochs, interval, limit = map(config.get, ("epochs", "eval_interval", "max_steps"))
    if newest.iteration is not None and type(epochs) is int:
        done = newest.iteration * (interval if type(interval) is int else epochs)
        if done >= epochs:
            return "done", ""
    if type(limit) is int and newest.step >= limit:
        return "stopped", f"at max_steps={limit}"
    for one, (name, names) in itertools.product(listed(config.get("callbacks")), _ENDINGS.items()):
        counted, most = number(at(newest.callbacks, name, names[0])), number(at(one, names[1]))
        if at(one, "name") == name and counted and most and counted >= most:
            return "stopped", f"by {name}"
    return None


def _seconds_per_step(states: list[RunState]) -> float | None:
    """Return the pace between the two newest checkpoints, or up to the only one."""
    known = [(state.seconds, state.step) for state in states if state.seconds is not None]
    if not known:
        return None
    seconds, steps = known[-1]
    if len(known) == 2 and known[0][0] < seconds and known[0][1] < steps:
        seconds, steps = seconds - known[0][0], steps - known[0][1]
    return seconds / steps if steps else None


def modified(path: Path) -> float:
    """Return the time of a file's last change, 0 if it cannot be read."""
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0
