"""The speed of a run: its wall-clock time by part, figures for each block of steps, a summary."""

import time
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Literal

import torch

from models.operations import train_step_flop
from models.technique import Depth
from runtime.device import memory_in_use
from runtime.peak import peak_of
from runtime.text import duration, in_columns, short
from training.checkpoint.run import Progress
from training.checkpoint.store import checkpoint_path
from training.config.schema import command
from training.step import Learner

Part = Literal["step", "data", "logging", "saving", "evaluating", "starting"]

_PARTS: dict[Part, str] = {  # With their names in the summary.
    "step": "training",
    "data": "waiting for data",
    "logging": "logging",
    "saving": "saving",
    "evaluating": "evaluating",
    "starting": "first step",
}
_TRAINING: tuple[Part, ...] = ("step", "data", "logging")
_SETTLED_SECONDS = 10.0


class Speed:
    """A stopwatch that gives each second since this start of the run to one part. Its figures are
    those of this rank. It never waits for a GPU: the time of a step passes when the host waits for
    the outcome of an earlier one.
    """

    def __init__(self, learner: Learner) -> None:
        self._learner, self._rows = learner, learner.config.global_batch_size
        self._seconds: dict[Part, float] = dict.fromkeys(_PARTS, 0.0)
        self._at = time.monotonic()
        self._step = 0  # The step made last.
        self._num_steps = 0  # Steps made, without those that may have been compiled.
        self._seconds_before, self._num_before = dict(self._seconds), 0  # At the block's start.
        self._flop: dict[Depth | None, float | None] = {}
        self._peak: float | None = None

    def lap(self, part: Part) -> None:
        """Give the time since the last call to a part."""
        now = time.monotonic()
        self._seconds[part] += now - self._at
        self._at = now

    def made_step(self, step: int, *, first: bool) -> None:
        """Note that a step was made. The first step of a depth may have been compiled."""
        self._step = step
        self._num_steps += not first
        self.lap("starting" if first else "step")

    def block(self) -> dict[str, float]:
        """Return the figures since the last block, by their names in docs/metrics.md. Speeds leave
        out first steps; a block without other steps has no speed.
        """
        used = memory_in_use(self._learner.ranks.device)
        figures = {f"memory/{name}": gib for name, gib in used.items()}
        before = self._seconds_before
        spent: dict[Part, float] = {one: s - before[one] for one, s in self._seconds.items()}
        steps = self._num_steps - self._num_before
        self._seconds_before, self._num_before = dict(self._seconds), self._num_steps
        if not steps:
            return figures
        rate, ms = self._pace(spent, steps)
        figures |= {"speed/examples_per_second": rate, "speed/ms_per_step": ms}
        timed = ((part, spent[part]) for part in _PARTS if part != "starting")
        figures |= {f"speed/{part}_ms": s * 1e3 / steps for part, s in timed if s}
        return figures | self._operations(rate)

    def _pace(self, seconds: dict[Part, float], steps: int) -> tuple[float, float]:
        """Return examples per second and ms per step in training alone."""
        training = max(sum(seconds[part] for part in _TRAINING), 1e-9)
        return steps * self._rows / training, training * 1e3 / steps

    def _operations(self, rate: float) -> dict[str, float]:
        """Return the figures of operations at this many examples per second. A short run has none:
        to count them, and to measure the peak of a CPU, takes up to some seconds, once.
        """
        if sum(self._seconds.values()) < _SETTLED_SECONDS:
            return {}
        learner, depth = self._learner, self._learner.depth_of_step(self._step)
        if not self._flop:
            self._peak = peak_of(learner.ranks.device, learner.arch.forward_dtype)
        if depth not in self._flop:
            self._flop[depth] = None
            # It builds a model, which must not change the random state. It has no values, but a
            # plug-in may read some: then the operations are not known.
            with suppress(RuntimeError), torch.random.fork_rng(devices=[]):
                self._flop[depth] = train_step_flop(learner.arch, learner.facts, depth)
            self.lap("starting")
        figures = {}
        if flop := self._flop[depth]:
            figures["speed/gflop_per_second"] = rate * flop / 1e9
            if peak := self._peak:
                figures["speed/share_of_peak"] = rate * flop / peak / learner.ranks.world_size
        return figures

    def ending(self, progress: Progress, run_dir: Path) -> str:
        """Return the last words of a run: time by part, best score, files, and what to do next."""
        rows, whole = list[tuple[str, str]](), sum(self._seconds.values())
        if self._step:
            largest = sorted(self._seconds.items(), key=lambda one: -one[1])
            shares = [(_PARTS[part], seconds / whole) for part, seconds in largest]
            parts = ", ".join(f"{name} {share:.0%}" for name, share in shares if share > 0.005)
            rows.append(("time", f"{duration(whole)}: {parts}"))
        if self._num_steps:
            rate, ms = self._pace(self._seconds, self._num_steps)
            rows.append(("speed", f"{short(rate)} examples/s, {short(ms)} ms a step"))
        if progress.best_score is not None:
            at = "" if progress.best_step is None else f" at step {progress.best_step}"
            measure = progress.measure.removeprefix("eval/")
            rows.append(("best", f"{measure} {progress.best_score:.4f}{at}"))
        rows.append(("saved", str(checkpoint_path(run_dir, progress.step))))
        run = quote(str(run_dir))
        rows.append(("measure", f"{command('evaluate', 'evaluate.py')} {run}"))
        rows.append(("watch", f"{command('view', 'scripts/viewer.py')} {run}"))
        rows.append(("report", f"{command('report', 'scripts/report.py')} {run}"))
        return in_columns(rows)
