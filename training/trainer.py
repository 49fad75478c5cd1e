"""The training loop: train, evaluate, save; stop and resume at any step."""

import sys
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

from models.act import ACTLossHead
from puzzle_dataset import Batch, TrainBatches
from runtime.errors import CheckpointError, NonFiniteError, Preempted
from runtime.progress import bar
from runtime.ranks import Ranks
from runtime.text import figures, short, terminal_width
from training.calling import Callbacks
from training.checkpoint.run import Progress, RunKeeper
from training.config.schema import TrainConfig
from training.speed import Speed
from training.step import Learner
from training.stop_signals import StopSignals
from training.tracking import Tracker

# Evaluates the model at a step, and returns the figures and the name of their headline, which ranks
# the checkpoints. Calls its last argument before each batch.
Evaluate = Callable[[ACTLossHead, int, Callable[[], None]], tuple[Mapping[str, float], str | None]]

# Name in the bar -> name in the records, the most important first.
_SHOWN = {
    "loss": "train/lm_loss",
    "exact": "train/exact_accuracy",
    "ex/s": "speed/examples_per_second",
    "ms/step": "speed/ms_per_step",
    "peak": "speed/share_of_peak",
    "act": "train/steps",
}


class ProgressBar:
    """The bar of training steps, with loss, accuracy, speed and ACT steps."""

    def __init__(self, *, done: int, total: int | None, show: bool) -> None:
        self._figures: dict[str, float] = {}
        self._bar = bar(None, "training", "steps", total=total, done=done, show=show, leave=True)

    def advance(self, records: Sequence[dict[str, Any]]) -> None:
        """Show the steps of one or more records."""
        # If nothing halted in this block, the figures of the block before stay.
        for record in records:
            self._figures |= {name: record[key] for name, key in _SHOWN.items() if key in record}
        ordered = ((name, self._figures[name]) for name in _SHOWN if name in self._figures)
        texts = {name: f"{one:.0%}" if name == "peak" else short(one) for name, one in ordered}
        self._bar.show(texts)
        self._bar.update(len(records))

    def finish(self) -> None:
        """Fill the bar: training may end before the expected step."""
        self._bar.total = self._bar.n

    def close(self) -> None:
        self._bar.close()


@dataclass
class Trainer:
    """One training run. `learner` makes the steps and `keeper` saves checkpoints. `tracker` (rank 0
    only) takes a record of each step and evaluation, `say` prints a line, and `after_step` is
    called after each step.
    """

    config: TrainConfig
    learner: Learner
    batches: TrainBatches
    evaluate: Evaluate
    keeper: RunKeeper
    progress: Progress
    tracker: Tracker | None
    ranks: Ranks
    say: Callable[[str], None]
    after_step: Callable[[], object] = bool
    stop: StopSignals = field(init=False)
    # Depths of the steps made since the start. A new depth may have to be compiled.
    _depths_seen: set[Hashable] = field(default_factory=set, init=False)
    _saved_at: float = field(default_factory=time.monotonic, init=False)

    def __post_init__(self) -> None:
        self.stop = StopSignals(self.config.max_time)
        self.callbacks = Callbacks(self.learner, self.progress, self.keeper.run_dir, self.tracker)
        self.speed = Speed(self.learner)

    def fit(self) -> None:
        """Train from the run's present step to its end.

        Raises:
            Preempted: a signal asked the run to stop, or `max_time` is over; everything is saved.
            NonFiniteError: a loss or gradient was not finite; it updated nothing.
            CheckpointError: a checkpoint or the metrics could not be written.
            ConfigError: a callback with on_error=stop failed; everything is saved.
        """
        if self._reached_max_steps():
            return self.say(f"nothing to do: step {self.progress.step} has reached max_steps")
        self.callbacks.tell("start")
        if self.callbacks.reason:
            return self.say(f"nothing to do: {self.callbacks.ending()}")
        self.learner.model.train()
        bar = ProgressBar(
            done=self.progress.step,
            total=self._expected_steps() if self.ranks.is_main else None,
            show=self.ranks.is_main,
        )
        self.speed.lap("starting")
        with self.stop, closing(bar), self.callbacks, self.keeper.writing:
            while self.progress.iteration < self.config.num_iterations:
                try:
                    stopped = self._train_iteration(bar)
                except NonFiniteError:
                    with suppress(CheckpointError):  # It would hide the cause.
                        self._log_steps(bar)  # The steps that led here. All ranks take part.
                    raise
                self._log_steps(bar)
                if stopped or self.callbacks.reason:
                    return self._stop(bar)
                try:
                    self._evaluate_and_save()
                except _EvaluationStopped:
                    return self._stop(bar)
                if self.callbacks.reason:
                    break
            bar.finish()
        # Rank 0 closes its logs first, and W&B may have much to send.
        self.ranks.mark("the end", long=True)
        step, scheduled = self.progress.step, self.learner.total_steps
        counted = "" if step == scheduled else f" (the lr schedule has {scheduled} steps)"
        self._say_ending(f"training ended at step {step}{counted}")

    def save(self, *, score: float | None = None, permanent: bool = False) -> None:
        """Save a checkpoint, see `RunKeeper.save`. Raise NonFiniteError if a step was skipped."""
        self.learner.outcomes.check(wait=True)
        now = time.monotonic()
        self.progress.seconds += now - self._saved_at
        self._saved_at = now
        self.callbacks.save_asked = False
        self.keeper.save(self.progress, self.tracker, score, permanent)
        if self.callbacks.hearing("saved"):
            self.keeper.writing.finish()
            self.callbacks.tell("saved")
        self.speed.lap("saving")

    def _train_iteration(self, bar: ProgressBar) -> bool:
        """Train until the next evaluation. Return True if the run must stop before it."""
        progress, interval = self.progress, self.config.checkpoint_interval
        for position, batch in self.batches.iterate(progress.iteration, progress.position):
            self.speed.lap("data")
            self._train_step(batch)
            progress.position = position + 1
            if self.learner.outcomes.check() or self._reached_max_steps():
                return True
            self.speed.lap("step")
            if self.learner.metrics.full:
                self._log_steps(bar)
            if self.callbacks.save_asked or (interval and progress.step % interval == 0):
                self._log_steps(bar)
                self.save()
            if self.callbacks.reason:
                return True
        return self.learner.outcomes.check(wait=True)

    def _train_step(self, batch: Batch) -> None:
        step = self.progress.step + 1
        depth = self.learner.depth_of_step(step)
        is_first = depth not in self._depths_seen
        self.ranks.mark(f"step {step}", long=is_first)
        self._depths_seen.add(depth)
        self.learner.step(step, batch, self.stop)
        self.progress.step = step
        self.after_step()
        self.speed.made_step(step, first=is_first)

    def _evaluate_and_save(self) -> None:
        """Evaluate at the end of an iteration, and save a checkpoint if one is due."""
        config, progress = self.config, self.progress
        if config.checkpoint_interval and progress.step % config.checkpoint_interval:
            self.save()  # So that no training is lost if the evaluation fails.
        is_due = progress.iteration >= config.num_unevaluated
        score = self._evaluate() if is_due else None
        ends = progress.iteration + 1 == config.num_iterations
        last = ends or bool(self.callbacks.reason)
        progress.iteration, progress.position = progress.iteration + 1, 0
        kept = last or (config.checkpoint_every_eval and is_due)
        is_best = progress.best_step == progress.step
        may_be_kept = score is not None and config.keep_best >= (1 if is_best else 2)
        if kept or self.callbacks.save_asked or may_be_kept:
            self.save(score=score, permanent=kept)

    def _evaluate(self) -> float | None:
        """Evaluate the averaged weights if there are any, else the weights. Return the score."""
        progress, step = self.progress, self.progress.step
        with self.learner.evaluated() as model:
            metrics, measure = self.evaluate(model, step, self._stop_evaluation_if_asked)
        self.ranks.mark(f"after evaluating step {step}")
        if metrics:
            if self.tracker:
                self.tracker.log([{"step": step, **metrics}])
            which = " (averaged weights)" if self.learner.average else ""
            shown = {name.removeprefix("eval/"): value for name, value in metrics.items()}
            told = figures(shown, terminal_width(sys.stdout))
            self.say(f"step {step}{which}: {told}")
        score = None if measure is None else metrics[measure]
        if measure is not None and measure != progress.measure:  # Other evaluators than before.
            progress.best_score = progress.best_step = None
            progress.measure = measure
        if score is not None and (progress.best_score is None or score > progress.best_score):
            progress.best_score, progress.best_step = score, step
        self.callbacks.tell("evaluated", metrics, metrics=metrics)
        self.speed.lap("evaluating")
        return score

    def _stop_evaluation_if_asked(self) -> None:
        # An evaluation may take longer than a launcher waits. The resumed run repeats it.
        if self.ranks.any(self.stop.requested):
            self.speed.lap("evaluating")
            raise _EvaluationStopped

    def _expected_steps(self) -> int:
        """Return the step at which training will end if all iterations are as long as this one."""
        progress = self.progress
        left = self.config.num_iterations - progress.iteration
        steps = progress.step - progress.position
        if left:
            steps += left * self.batches.steps_per_iteration(progress.iteration)
        return min(steps, self.config.max_steps or steps)

    def _reached_max_steps(self) -> bool:
        return self.config.max_steps is not None and self.progress.step >= self.config.max_steps

    def _stop(self, bar: ProgressBar) -> None:
        self.save()
        self.keeper.writing.finish()
        bar.close()  # The words below come after it.
        how = "" if self.config.resume == "auto" else " with resume=auto"
        if self._reached_max_steps() and not self.callbacks.reason:
            most = self.config.max_steps
            again = f"a larger one{how} resumes the run"
            return self._say_ending(f"stopped at max_steps={most}; {again}")
        self._say_ending()
        if self.callbacks.reason:
            return
        step, is_over = self.progress.step, self.stop.out_of_time
        why = f"max_time={self.config.max_time} is over" if is_over else "asked to stop"
        message = f"{why}: saved at step {step}; the same command{how} resumes the run"
        raise Preempted(message if self.ranks.is_main else "")

    def _log_steps(self, bar: ProgressBar) -> None:
        if records := self.learner.metrics.drain():
            self.speed.lap("step")
            if self.tracker:
                records[-1] |= self.speed.block()
                self.tracker.log(records)
            bar.advance(records)
            self.callbacks.tell("logged", records, metrics=records[-1])
            self.keeper.writing.finish(wait=False)
            self.speed.lap("logging")

    def _say_ending(self, *lines: str) -> None:
        """Print lines on the end, the reason of a callback that asked for it, and a summary."""
        if self.callbacks.reason:
            lines += (self.callbacks.ending(),)
        if self.ranks.is_main:
            lines += (self.speed.ending(self.progress, self.keeper.run_dir),)
        for line in lines:
            self.say(line)


class _EvaluationStopped(Exception):
    """A rank was asked to stop, so all ranks leave the evaluation."""
