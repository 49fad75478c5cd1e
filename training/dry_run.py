"""The trial of a run, `dry_run=true`: everything once, and what the run would do."""

import time

import torch
from torch import Tensor

from runtime.errors import CheckpointError
from runtime.text import in_columns
from training.checkpoint.store import checkpoint_path, load_checkpoint
from training.checkpoint.tensors import model_tensors, optimizer_tensors
from training.data import ended_iterations
from training.trainer import Trainer


class DryRun(Trainer):
    """A trainer that makes one step, one evaluation, one save and one restore."""

    def fit(self) -> None:
        """Do everything once, and print what the run would do. Raise NonFiniteError as in training,
        CheckpointError also if the checkpoint restores another state.
        """
        learner = self.learner
        learner.model.train()
        position, batch = next(self.batches.iterate(0))
        began = time.perf_counter()
        self._train_step(batch)
        learner.outcomes.check(wait=True)
        seconds = time.perf_counter() - began
        self.progress.position = position + 1
        records = learner.metrics.drain()
        if self.tracker:
            self.tracker.log(records)
        score = self._evaluate()
        self.save()
        self.keeper.writing.finish()
        size = self._require_same_after_restore()
        rows = self._plan(evaluates=score is not None) | {"bytes of a checkpoint": f"{size:,}"}
        compiling = ", compiling included" if learner.compiling.form else ""
        rows["the first step took"] = f"{1000 * seconds:,.0f} ms{compiling}"
        self.say("dry run: step, evaluation, save and restore work. The run would have")
        self.say(in_columns([(f"  {name}", figure) for name, figure in rows.items()]))

    def _plan(self, *, evaluates: bool) -> dict[str, str]:
        """Return what the whole run would do, as figures by name."""
        config, steps = self.config, self._expected_steps()
        per = self.batches.steps_per_iteration(0)
        ended = range(1, 1 + ended_iterations(config, per * config.num_iterations))
        due = [n for n in ended if n > config.num_unevaluated]
        saved, every = {steps}, config.checkpoint_interval
        if every:
            saved.update(range(every, steps + 1, every))
        if every or config.checkpoint_every_eval:
            saved.update(number * per for number in (ended if every else due))
        best = ", and those with the best scores" if config.keep_best else ""
        return {
            "steps": f"{steps:,} (schedule: {self.learner.total_steps:,})",
            "examples": f"{steps * config.global_batch_size:,}",
            "evaluations": f"{len(due) * evaluates:,}",
            "checkpoints written": f"{len(saved):,}{best}",
        }

    def _require_same_after_restore(self) -> int:
        """Erase the weights and the optimizer's state, restore them from the checkpoint, and raise
        CheckpointError if they differ. Return the bytes of the checkpoint.
        """
        learner, before = self.learner, self._state()
        states = learner.optimizer.state.values() if learner.optimizer else ()
        for tensors in (learner.model.state_dict(), *states):
            for tensor in tensors.values():
                tensor.zero_()
        path = checkpoint_path(self.keeper.run_dir, self.progress.step)
        self.keeper.restore(load_checkpoint(path), lambda line: None)
        after = self._state()
        if lost := [name for name, value in before.items() if not torch.equal(value, after[name])]:
            raise CheckpointError(f"{path} restores another {', '.join(lost)}")
        return sum(file.stat().st_size for file in path.iterdir())

    def _state(self) -> dict[str, Tensor]:
        learner = self.learner
        tensors = model_tensors(learner.model) | learner.carry.tensors()
        tensors |= optimizer_tensors(learner.optimizer, learner.groups)
        return {name: value.detach().clone() for name, value in tensors.items()}
