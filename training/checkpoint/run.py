"""Save a run and restore it: nothing that changes its result is left out of a checkpoint."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from models.config import DataFacts
from runtime.errors import CheckpointError, NonFiniteError
from runtime.ranks import Ranks
from training.checkpoint.environment import environment_changes
from training.checkpoint.state import RunState
from training.checkpoint.store import (
    CARRY,
    EMA,
    MODEL,
    OPTIMIZER,
    RNG,
    STATE,
    Checkpoint,
    prune,
    remove_leftovers,
    save_checkpoint,
)
from training.checkpoint.tensors import (
    gather_carry,
    gather_rng,
    load_carry,
    load_tensors,
    model_tensors,
    optimizer_tensors,
    restore_model,
    restore_optimizer,
    restore_rng,
    tensor_writer,
)
from training.config.schema import TrainConfig
from training.optim.ema import WeightAverage
from training.step import Learner
from training.tracking import Tracker


@dataclass
class Progress:
    """How far a run has come, see `RunState`."""

    step: int = 0
    iteration: int = 0
    position: int = 0
    best_score: float | None = None


@dataclass(frozen=True)
class RunKeeper:
    """Saves a run and restores it.

    Attributes:
        run_dir: the run's folder.
        config: validated settings.
        facts: what the data set says.
        fingerprint: sha256 of the training data.
        environment: of this process.
        ranks: all of them call each method.
    """

    run_dir: Path
    config: TrainConfig
    facts: DataFacts
    fingerprint: str
    environment: Mapping[str, Any]
    ranks: Ranks

    def save(
        self,
        learner: Learner,
        progress: Progress,
        tracker: Tracker | None,
        *,
        score: float | None,
        permanent: bool,
    ) -> None:
        """Write a checkpoint of everything, on rank 0, and drop the ones that need not stay.

        Args:
            learner: model, optimizer, average and carry.
            progress: how far the run is.
            tracker: of rank 0; its records are flushed first.
            score: of the evaluation at this step, if there was one.
            permanent: never drop this checkpoint.
        Raises:
            CheckpointError: the disk refused. On all ranks.
            NonFiniteError: something in it is not finite; nothing is written. On all ranks.
        """
        self.ranks.mark(f"saving step {progress.step}", long=True)
        carry = gather_carry(learner.carry, self.ranks)
        rng = gather_rng(self.ranks, same_on_all=learner.exact)
        failure = None
        if self.ranks.is_main:
            assert tracker is not None, "rank 0 has one"
            files = {
                MODEL: model_tensors(learner.model),
                OPTIMIZER: optimizer_tensors(learner.optimizer, learner.groups),
                CARRY: carry,
                RNG: rng,
            }
            if learner.average:
                files[EMA] = learner.average.tensors()
            state = RunState(
                **asdict(progress),
                score=score,
                permanent=permanent,
                config=self.config.model_dump(mode="json"),
                facts=self.facts.to_dict(),
                data_fingerprint=self.fingerprint,
                environment=dict(self.environment),
                diagnostics=learner.diagnostics.state() if learner.diagnostics else None,
                wandb_id=tracker.run_id,
            )
            failure = self._write(state, files, tracker)
        # Also the barrier behind which every rank may rely on the checkpoint.
        failure = self.ranks.broadcast_object(failure)
        if failure is not None:
            raise failure
        self.ranks.mark(f"after saving step {progress.step}")

    def _write(
        self, state: RunState, files: Mapping[str, dict[str, Tensor]], tracker: Tracker
    ) -> Exception | None:
        """Write files and state; returns what went wrong, for all ranks."""
        for file, tensors in files.items():
            for name, tensor in tensors.items():
                if tensor.is_floating_point() and not tensor.isfinite().all():
                    return NonFiniteError(
                        f"step {state.step}: {name}, for {file}, is not finite; nothing is saved. "
                        "The checkpoints before are untouched"
                    )
        try:
            tracker.sync()
            writers = {name: tensor_writer(tensors) for name, tensors in files.items()}
            save_checkpoint(self.run_dir, state, writers)
            prune(self.run_dir, keep_last=self.config.keep_last, keep_best=self.config.keep_best)
        except CheckpointError as error:
            return error
        except OSError as error:
            return CheckpointError(str(error))
        return None

    def restore(
        self, checkpoint: Checkpoint, learner: Learner, say: Callable[[str], None]
    ) -> Progress:
        """Put a verified checkpoint into `learner`, bit for bit where the environment is the same.

        Args:
            checkpoint: the same on all ranks.
            learner: newly built.
            say: prints a line for people.
        Returns:
            how far the run is.
        Raises:
            CheckpointError: something in it does not fit this run.
        """
        path, state = checkpoint.path, checkpoint.state
        if state.iteration is None or state.position is None:
            name = "iteration" if state.iteration is None else "position"
            raise CheckpointError(f"{path / STATE}: has no {name}")
        restore_model(learner.model, load_tensors(path / MODEL), path / MODEL)
        restore_optimizer(learner.optimizer, learner.groups, load_tensors(path / OPTIMIZER))
        if learner.average and (path / EMA).exists():
            learner.average.restore(load_tensors(path / EMA), path / EMA)
        elif learner.average:
            # Only with resume_changed=true: the run kept none so far.
            learner.average = WeightAverage(learner.model, self.config.ema_rate)
        carry = load_carry(path / CARRY, self.ranks, learner.carry)
        if carry is None:
            say(
                "the saved carry belongs to another batch size or architecture: all slots start "
                "new puzzles"
            )
        else:
            learner.carry = carry
        if learner.diagnostics and state.diagnostics:
            try:
                learner.diagnostics.restore(state.diagnostics)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise CheckpointError(f"{path / STATE}: diagnostics: {error}") from None
        learner.seed_other_ranks(state.step)  # A rank that was not there has no state of its own.
        restore_rng(load_tensors(path / RNG), self.ranks)
        changes = environment_changes(
            state.environment, self.environment, any_world_size=learner.exact
        )
        exactly = f"not bit for bit ({'; '.join(changes)})" if changes else "exactly"
        say(f"resumed {exactly} from {path} at step {state.step}")
        if self.ranks.is_main:
            remove_leftovers(self.run_dir)
        return Progress(state.step, state.iteration, state.position, state.best_score)
