"""Save and restore a run. A checkpoint holds everything that changes the run's result."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from runtime.errors import CheckpointError, NonFiniteError
from runtime.text import shown
from training.checkpoint import store, tensors
from training.checkpoint.background import BackgroundWrite
from training.checkpoint.environment import environment_changes
from training.checkpoint.store import CARRY, EMA, MODEL, OPTIMIZER, RNG, STATE, Checkpoint, RunState
from training.checkpoint.tensors import load_tensors
from training.config.schema import TrainConfig
from training.optim.groups import ParamGroup, matches
from training.step import Learner
from training.tracking import Tracker


@dataclass
class Progress:
    """The progress of a run, see `RunState`."""

    step: int = 0
    iteration: int = 0
    position: int = 0
    measure: str = store.USUAL_MEASURE
    best_score: float | None = None
    best_step: int | None = None
    seconds: float = 0.0
    callbacks: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class RunKeeper:
    """Saves and restores a run. All ranks call each method.

    `fingerprint` is the sha256 of the training data; `environment` describes this process.
    """

    run_dir: Path
    learner: Learner
    fingerprint: str
    environment: Mapping[str, Any]

    @cached_property
    def writing(self) -> BackgroundWrite:
        """The write of the last checkpoint, which may still go on."""
        return BackgroundWrite(self.learner.ranks)

    def save(
        self, progress: Progress, tracker: Tracker | None, score: float | None, permanent: bool
    ) -> None:
        """Write a checkpoint on rank 0 and prune older ones. Errors are raised on all ranks: this
        call waits for them with background_save=false or without memory for a copy of the tensors;
        otherwise `writing.finish` does.

        Args:
            tracker: rank 0's; its records are flushed first. None on other ranks.
            score: the exact accuracy of the evaluation at this step, if there was one.
            permanent: never prune this checkpoint.
        Raises:
            CheckpointError: the files, or those of the call before, could not be written.
            NonFiniteError: a tensor is not finite; nothing is written.
        """
        learner, ranks = self.learner, self.learner.ranks
        self.writing.finish()
        ranks.mark(f"saving step {progress.step}", long=True)
        carry = tensors.gather_carry(learner.carry, ranks)
        rng = tensors.gather_rng(ranks, same_on_all=learner.exact)
        write, copy = None, False
        if ranks.is_main:
            assert tracker is not None, "rank 0 has one"
            state = self._state(progress, tracker)
            state = state.model_copy(update={"score": score, "permanent": permanent})
            copy = learner.config.background_save and self.writing.has_room(self._state_bytes())
            files = {
                MODEL: tensors.model_tensors(learner.model),
                OPTIMIZER: tensors.optimizer_tensors(learner.optimizer, learner.groups),
                CARRY: carry,
                RNG: rng,
            }
            if learner.average:
                files[EMA] = learner.average.tensors()
            if copy and ranks.device.type == "cpu":  # From a GPU they are copies already.
                files = self.writing.copied(files)
            write = partial(self._write, state, files, tracker)
        self.writing.start(progress.step, write, wait=not copy)

    def _state_bytes(self) -> int:
        """Return the size of the tensors that later steps change in place."""
        learner, found = self.learner, [*self.learner.model.state_dict().values()]
        for kept in learner.optimizer.state.values() if learner.optimizer else ():
            found += kept.values()
        found += learner.model.parameters() if learner.average else ()
        return sum(tensor.nbytes for tensor in found)

    def _state(self, progress: Progress, tracker: Tracker) -> RunState:
        learner = self.learner
        return RunState(
            **asdict(progress),
            total_steps=learner.total_steps,
            nonfinite=int(learner.outcomes.in_a_row),
            config=learner.config.model_dump(mode="json"),
            facts=learner.facts.to_dict(),
            data_fingerprint=self.fingerprint,
            environment=dict(self.environment),
            diagnostics=learner.diagnostics.state() if learner.diagnostics else None,
            wandb_id=tracker.run_ids.get("wandb"),
            mlflow_id=tracker.run_ids.get("mlflow"),
        )

    def _write(
        self, state: RunState, files: Mapping[str, dict[str, Tensor]], tracker: Tracker
    ) -> None:
        for file, content in files.items():
            for name, tensor in content.items():
                # Like isfinite().all(), ten times as fast: with NaN, the extremes are NaN too.
                is_checked = tensor.is_floating_point() and tensor.numel()
                if is_checked and not torch.stack(tensor.aminmax()).isfinite().all():
                    raise NonFiniteError(
                        f"step {state.step}: {name}, for {file}, is not finite; nothing is saved. "
                        "Earlier checkpoints are untouched"
                    )
        tracker.sync()
        writers = {file: partial(tensors.write_tensors, content) for file, content in files.items()}
        store.save_checkpoint(self.run_dir, state, writers)
        config = self.learner.config
        store.prune(self.run_dir, keep_last=config.keep_last, keep_best=config.keep_best)

    def restore(self, checkpoint: Checkpoint, say: Callable[[str], None]) -> Progress:
        """Load a verified checkpoint, the same on all ranks, into the newly built learner, and
        return the run's progress. In the same environment the run then continues bit for bit.
        Raise CheckpointError if a part of the checkpoint does not fit this run.
        """
        path, state, learner = checkpoint.path, checkpoint.state, self.learner
        if state.iteration is None or state.position is None:
            name = "iteration" if state.iteration is None else "position"
            raise CheckpointError(f"{path / STATE}: has no {name}")
        iteration = _iteration(checkpoint, learner.config)
        self._restore_weights(checkpoint)
        self._restore_rows(checkpoint, say)
        changes = environment_changes(
            state.environment, self.environment, any_world_size=learner.exact
        )
        exactly = f"not bit for bit ({'; '.join(changes)})" if changes else "exactly"
        say(f"resumed {exactly} from {path} at step {state.step}")
        if learner.ranks.is_main:
            store.remove_leftovers(self.run_dir)
        now = state.model_copy(update={"config": learner.config.model_dump(mode="json")})
        place, seconds = (state.step, iteration, state.position), state.seconds or 0.0
        progress = Progress(*place, seconds=seconds, callbacks=state.callbacks or {})
        if state.scored_on == now.scored_on:
            progress.best_score, progress.best_step = state.best_score, state.best_step
            progress.measure = state.measure
        return progress

    def _restore_weights(self, checkpoint: Checkpoint) -> None:
        """Restore the model, its moving average and the optimizer."""
        path, state, learner = checkpoint.path, checkpoint.state, self.learner
        optimizer = learner.config.optimizer
        saved_by = (state.config or {}).get("optimizer")
        way = f"in a new folder, load_checkpoint={path} starts from the weights"
        present, groups = optimizer.model_dump(), learner.groups
        if saved_by and _state_of(saved_by, groups) != _state_of(present, groups):
            fault = f"optimizer={optimizer.name} cannot go on from the state of {saved_by['name']}"
            raise CheckpointError(f"{path}: {fault}; {way}")
        tensors.restore_model(learner.model, load_tensors(path / MODEL), path / MODEL)
        saved = load_tensors(path / OPTIMIZER)
        try:
            tensors.restore_optimizer(learner.optimizer, learner.groups, saved)
        except CheckpointError as error:
            raise CheckpointError(f"{path}: {error}; {way}") from None
        if learner.average and (path / EMA).exists():
            learner.average.restore(load_tensors(path / EMA), path / EMA)
        elif learner.average:
            # Only with resume_changed=true: the run had no average so far.
            learner.average.restart()

    def _restore_rows(self, checkpoint: Checkpoint, say: Callable[[str], None]) -> None:
        """Restore the unfinished rows, their diagnostics and the random state."""
        path, state, learner = checkpoint.path, checkpoint.state, self.learner
        carry = tensors.load_carry(path / CARRY, learner.ranks, learner.carry)
        if carry is None:
            reason = "the saved carry belongs to another batch size, architecture or number format"
            say(f"{reason}: all rows start new puzzles")
        else:
            learner.carry = carry
        if learner.diagnostics and state.diagnostics:
            with _checkpoint_errors(path / STATE, "diagnostics"):
                learner.diagnostics.restore(state.diagnostics)
        learner.outcomes.in_a_row.fill_(state.nonfinite or 0)
        learner.seed_other_ranks(state.step)  # A new rank has no saved state.
        states = load_tensors(path / RNG)
        with _checkpoint_errors(path / RNG, "random state"):
            tensors.restore_rng(states, learner.ranks)


def _iteration(checkpoint: Checkpoint, config: TrainConfig) -> int:
    """Return the number of finished iterations, in iterations of this run."""
    state, now = checkpoint.state, config.epochs_per_iteration
    saved, iteration = state.config or {}, state.iteration or 0
    before = saved.get("eval_interval") or saved.get("epochs") or now
    if before == now:
        return iteration
    finished, rest = divmod(iteration * before, now)
    if rest or state.position:
        raise CheckpointError(
            f"{checkpoint.path}: it was saved after {iteration} times {before} epochs"
            f"{' and a part' if state.position else ''}; eval_interval={before} goes on from there"
        )
    return finished


def _state_of(optimizer: dict[str, Any], groups: list[ParamGroup]) -> str | set[str]:
    """Return what optimizers must share to go on from each other's state: with muon the matrices
    that Muon updates, else a name.
    """
    if optimizer["name"] in ("adam_atan2", "adamw"):
        return "adam"
    if optimizer["name"] != "muon":
        return optimizer["name"]
    updated = [optimizer["groups"][name]["params"] for name in optimizer["muon_groups"]]
    patterns = [pattern for params in updated for pattern in params]
    matrices = (n for group in groups for n, p in group.params.items() if p.ndim == 2)
    return {name for name in matrices if matches(name, patterns)}


@contextmanager
def _checkpoint_errors(path: Path, what: str) -> Iterator[None]:
    """Turn errors that bad values in a file cause in torch or our code into CheckpointErrors."""
    try:
        yield
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: {what}: {shown(error, 200)}") from None
