"""The training loop: stream batches through ACT, update, evaluate, save; stop and resume at any
step.
"""

import math
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from models.act import ACTCarry, Examples, Exploration
from models.config import DataFacts
from models.losses import ACTLossHead, LossOutput
from puzzle_dataset import Batch, TrainBatches
from runtime.errors import CheckpointError, NonFiniteError, Preempted
from runtime.ranks import Ranks, sum_in_order
from training.checkpoint.run_state import (
    environment,
    environment_changes,
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
from training.config.schema import CANONICAL_SHARDS, TrainConfig
from training.diagnostics import Diagnostics, Measured, trunk_gradient_norms, wants_to_halt
from training.exploration import min_halt_steps, torch_seed
from training.metrics import MetricBlock
from training.optim.ema import WeightAverage
from training.optim.groups import (
    GradientBucket,
    build_optimizer,
    groups_of,
    set_rates,
    skip_update,
)
from training.optim.schedule import lr_factor, published_total_steps
from training.optim.sparse_sign_sgd import SparseSignSGD
from training.tracking import Tracker, warn

Evaluate = Callable[[ACTLossHead, int, Callable[[], None]], Mapping[str, float]]
Forward = Callable[[ACTCarry, Examples, Exploration], LossOutput]

SCORE = "eval/exact_accuracy"
_SAME_SIGNAL_SECONDS = 2.0


@dataclass
class Progress:
    """How far a run has come: optimizer steps done, iteration (epochs between two evaluations),
    batches done in it.
    """

    step: int = 0
    iteration: int = 0
    position: int = 0
    best_score: float | None = None


class Trainer:
    """One run.

    Args:
        config: validated settings. facts: what the data set says. fingerprint: sha256 of the
            training data.
        model: with its loss, on the device of `ranks`, its puzzle embedding prepared for a shard of
            this rank.
        forward: `model` or its compiled form, called at each step. forward_dtype: what it really
            computes in.
        batches: training batches of this rank.
        evaluate: measures the model at a step, after each iteration, and calls its last argument
            before each batch; its `eval/exact_accuracy` ranks the checkpoints.
        run_dir: the run's folder.
        show_progress: whether to draw a bar on standard error.
        say: prints a line for people.
    """

    def __init__(
        self,
        config: TrainConfig,
        *,
        facts: DataFacts,
        fingerprint: str,
        model: ACTLossHead,
        forward: Forward,
        forward_dtype: str,
        batches: TrainBatches,
        evaluate: Evaluate,
        ranks: Ranks,
        run_dir: Path,
        show_progress: bool,
        say: Callable[[str], None],
    ) -> None:
        self.config, self.facts, self.fingerprint = config, facts, fingerprint
        self.model, self.forward, self.batches, self.evaluate = model, forward, batches, evaluate
        self.ranks, self.run_dir = ranks, run_dir
        self.tracker = Tracker(None, None)
        self.show_progress, self.say = show_progress, say

        self.groups = groups_of(model, config)
        self.optimizer = (
            build_optimizer(config.optimizer, self.groups, (config.beta1, config.beta2))
            if self.groups
            else None
        )
        self.average = WeightAverage(model, config.ema_rate) if config.ema else None
        self.exact = config.reduction == "exact"
        self.num_shards = config.num_shards(ranks.world_size)
        self.bucket = GradientBucket(
            self.groups, ranks.device, num_shards=self.num_shards, in_order=self.exact
        )
        self.sparse = None
        if model.puzzle_embedding is not None:
            self.sparse = SparseSignSGD(
                model.puzzle_embedding,
                ranks,
                lr=config.puzzle_emb_lr,
                weight_decay=config.puzzle_emb_weight_decay,
            )
        metadata = batches.dataset.metadata
        self.total_steps = published_total_steps(
            config.epochs,
            metadata.total_groups,
            metadata.mean_puzzle_examples,
            config.global_batch_size,
        )
        self.progress = Progress()
        self.carry = model.initial_carry(self._empty_examples())
        self.block = MetricBlock(
            config.log_interval,
            names=model.metric_names,
            replicated=tuple(f"train/grad_norm/{group.name}" for group in self.groups),
            num_shards=self.num_shards,
            global_batch_size=config.global_batch_size,
            ranks=ranks,
        )
        self.diagnostics = None
        if config.diagnose_interval:
            self.diagnostics = Diagnostics(
                interval=config.diagnose_interval,
                warmup_steps=config.lr_warmup_steps,
                log_probs=model.log_probs,
                halting_head=model.halting_head,
                ranks=ranks,
            )
        self.verdicts = _Verdicts(ranks)
        self.environment = environment(ranks, forward_dtype, compiled=forward is not model)
        self.stop_requested = False
        self._started_at = 0  # The step from which this process went on.
        self._seed_further_rank()

    # The run

    def fit(self, tracker: Tracker) -> None:
        """Train to the end, from wherever the run stands.

        Args:
            tracker: receives a record for every step and every evaluation.
        Raises:
            Preempted: a signal asked to stop; everything is saved.
            NonFiniteError: a loss or gradient was not finite; nothing was updated from it.
            CheckpointError: the disk refused a save, or the metrics.
        """
        self.tracker = tracker
        if self._reached_max_steps():
            return self.say(f"nothing to do: step {self.progress.step} has reached max_steps")
        self.model.train()
        with self._signals_set_a_flag(), self._bar() as bar:
            while self.progress.iteration < self.config.num_iterations:
                try:
                    stopped = self._train_iteration(bar)
                except NonFiniteError:
                    with suppress(CheckpointError):  # It would hide the cause.
                        self._log_block(bar)  # All ranks are here: what led to it can be read.
                    raise
                self._log_block(bar)
                if stopped:
                    return self._stop()
                try:
                    self._evaluate_and_save()
                except _EvaluationStopped:
                    return self._stop()
        # The first rank closes its logs, and W&B may have much to send.
        self.ranks.mark("the end", long=True)
        self.say(
            f"training ended at step {self.progress.step} (the schedule counts {self.total_steps})"
        )

    def _train_iteration(self, bar: "tqdm[Any]") -> bool:
        """Train until the next evaluation; returns True when the run has to stop before it."""
        for position, batch in self.batches.iterate(
            self.progress.iteration, self.progress.position
        ):
            self._train_step(batch)
            self.progress.position = position + 1
            if self._must_stop():
                return True
            if self.block.full:
                self._log_block(bar)
            interval = self.config.checkpoint_interval
            if interval and self.progress.step % interval == 0:
                self._log_block(bar)
                self.save()
        return self._heed(self.verdicts.rest())

    def _train_step(self, batch: Batch) -> None:
        step = self.progress.step + 1
        # The first one compiles.
        self.ranks.mark(f"step {step}", long=step == self._started_at + 1)
        factor = lr_factor(
            step,
            warmup_steps=self.config.lr_warmup_steps,
            total_steps=self.total_steps,
            min_ratio=self.config.lr_min_ratio,
        )
        if self.optimizer:
            set_rates(self.optimizer, factor)
        self.bucket.zero_()
        shards = self._work_on_shards(batch)
        norms = self._update(sum_in_order(torch.stack([shard.loss for shard in shards])), factor)
        self.carry = ACTCarry.join([shard.carry for shard in shards])
        self.progress.step = step
        rates = {f"train/lr/{group.name}": group.lr * factor for group in self.groups}
        known = {"step": step, "train/lr": self.config.lr * factor, **rates}
        if measured := [shard.measured for shard in shards if shard.measured is not None]:
            known |= self._diagnose(measured, norms)
        self.block.record([shard.metrics for shard in shards], norms, known)

    def _work_on_shards(self, batch: Batch) -> "list[_Shard]":
        """Run forward and backward on each shard of this rank's rows; with `reduction=fast` all
        rows are one shard.
        """
        arrays, min_steps = batch.arrays(), self._min_halt_steps()
        size = self.batches.local_batch_size // self.num_shards
        first = self.ranks.rank * self.num_shards
        done = []
        for number, carry in enumerate(self.carry.split(self.num_shards)):
            rows = slice(number * size, (number + 1) * size)
            own = {name: array[rows] for name, array in arrays.items()}
            if number and self.sparse:
                self.sparse.keep_gradient()
            self.bucket.select(number)
            if self.exact:
                self._seed(first + number)
            done.append(self._work_on(carry, own, min_steps[rows]))
        if self.exact:
            # What draws next finds the same state on all ranks, however many there are.
            self._seed(CANONICAL_SHARDS)
        return done

    def _work_on(
        self, carry: ACTCarry, arrays: Mapping[str, np.ndarray], min_steps: np.ndarray
    ) -> "_Shard":
        exploration = Exploration(**self.ranks.on_device({"min_steps": min_steps}))
        output = self.forward(carry, self.ranks.on_device(arrays), exploration)
        (output.loss / self.config.global_batch_size).backward()
        measured = None
        if self.diagnostics and self.diagnostics.due(self.progress.step + 1):
            # With the weights of before the update.
            head_norms = trunk_gradient_norms(self.model, output, self.config.global_batch_size)
            measured = self.diagnostics.measure(
                logits=output.output.logits,
                labels=output.carry.examples["labels"],
                q_halt_logits=output.output.q_halt_logits if self.model.halting_head else None,
                halts=wants_to_halt(self.model, output),
                head_norms=head_norms,
            )
        return _Shard(output.carry, output.loss.detach(), output.metrics, measured)

    def _diagnose(self, shards: Sequence[Measured], norms: Tensor) -> dict[str, float]:
        """Tell what looks wrong with the step that was just made; returns what to record of it."""
        assert self.diagnostics
        group_norms = {g.name: norm for g, norm in zip(self.groups, norms, strict=True)}
        diagnosis = self.diagnostics.diagnose(self.progress.step, shards, group_norms)
        if self.ranks.is_main:
            for warning in diagnosis.warnings:
                warn(warning)
        learned = self.model.learned_weights()
        return diagnosis.numbers | {f"diagnose/weight/{name}": w for name, w in learned.items()}

    def _update(self, loss: Tensor, factor: float) -> Tensor:
        """Apply the gradients of all ranks, unless something is not finite; returns the groups'
        gradient norms.
        """
        finite = loss.isfinite()
        if self.sparse:
            # Asked before the sign, which turns NaN into 0.
            finite = finite & self.sparse.finite()
        norms, skip, stop = self.bucket.reduce(self.ranks, finite=finite, stop=self.stop_requested)
        skip = self.verdicts.add(self.progress.step + 1, loss, skip, stop)
        self.bucket.clip_(norms, skip)
        if self.optimizer:
            skip_update(self.optimizer, skip)
            self.optimizer.step()
        if self.average:
            self.average.update(skip)
        if self.sparse:
            self.sparse.lr = self.config.puzzle_emb_lr * factor
            self.sparse.step(skip)
            self.sparse.zero_grad()
        return norms

    def _must_stop(self) -> bool:
        asked = self._heed(self.verdicts.due())
        return asked or self._reached_max_steps()

    def _reached_max_steps(self) -> bool:
        return self.config.max_steps is not None and self.progress.step >= self.config.max_steps

    def _heed(self, verdicts: "Iterator[_Verdict]") -> bool:
        asked = False
        for verdict in verdicts:
            if verdict.skip:
                raise NonFiniteError(
                    f"step {verdict.step}: the loss ({verdict.loss}) or a gradient is not finite; "
                    "no update was made from it and nothing is saved. A lower lr or "
                    "max_grad_norm usually helps"
                )
            asked |= verdict.stop
        return asked

    def _heed_in_evaluation(self) -> None:
        # It may take longer than a launcher waits; the resumed run begins it anew.
        if self.ranks.any(self.stop_requested):
            raise _EvaluationStopped

    def _stop(self) -> None:
        self.save()
        if self._reached_max_steps():
            self.say(f"stopped at max_steps={self.config.max_steps}")
        else:
            said = (
                f"asked to stop: saved at step {self.progress.step}; the same command resumes the "
                f"run"
            )
            raise Preempted(said if self.ranks.is_main else "")

    def _evaluate_and_save(self) -> None:
        """Evaluate at the end of an iteration, and keep a checkpoint where one is due."""
        config, progress = self.config, self.progress
        if config.checkpoint_interval and progress.step % config.checkpoint_interval:
            self.save()  # An evaluation may take long, and nothing of the training is lost in it.
        last = progress.iteration + 1 == config.num_iterations
        score = None
        if progress.iteration >= config.min_eval_interval or last:
            self.model.eval()
            with self._averaged():
                metrics = dict(self.evaluate(self.model, progress.step, self._heed_in_evaluation))
            self.ranks.mark(f"after evaluating step {progress.step}")
            self.model.train()
            score = metrics.get(SCORE)
            if metrics:
                self.tracker.log([{"step": progress.step, **metrics}])
                shown = ", ".join(
                    f"{name.removeprefix('eval/')} {value:.4f}" for name, value in metrics.items()
                )
                which = " (averaged weights)" if self.average else ""
                self.say(f"step {progress.step}{which}: {shown}")
        progress.iteration += 1
        progress.position = 0
        best = score is not None and (progress.best_score is None or score > progress.best_score)
        if best:
            progress.best_score = score
        if last or config.checkpoint_every_eval or (best and config.keep_best):
            self.save(score=score, permanent=last or config.checkpoint_every_eval)

    # Saving and resuming

    def save(self, *, score: float | None = None, permanent: bool = False) -> None:
        """Write a checkpoint of everything, on rank 0, and drop the ones that need not stay.

        Raises:
            CheckpointError: the disk refused. NonFiniteError: something in it is not finite, or a
                step was skipped. On all ranks, and nothing is written.
        """
        self._heed(self.verdicts.rest())
        self.ranks.mark(f"saving step {self.progress.step}", long=True)
        carry = gather_carry(self.carry, self.ranks)
        rng = gather_rng(self.ranks, same_on_all=self.exact)
        failure = self._write(carry, rng, score, permanent) if self.ranks.is_main else None
        # Also the barrier behind which every rank may rely on the checkpoint.
        failure = self.ranks.broadcast_object(failure)
        if failure is not None:
            raise failure
        self.ranks.mark(f"after saving step {self.progress.step}")

    def _write(
        self, carry: dict[str, Tensor], rng: dict[str, Tensor], score: float | None, permanent: bool
    ) -> Exception | None:
        progress = self.progress
        state = {
            "step": progress.step,
            "iteration": progress.iteration,
            "position": progress.position,
            "best_score": progress.best_score,
            "score": score,
            "permanent": permanent,
            "config": self.config.model_dump(mode="json"),
            "facts": self.facts.to_dict(),
            "data_fingerprint": self.fingerprint,
            "environment": self.environment,
            "diagnostics": self.diagnostics.state() if self.diagnostics else None,
            "wandb_id": self.tracker.run_id,
        }
        files = {
            MODEL: model_tensors(self.model),
            OPTIMIZER: optimizer_tensors(self.optimizer, self.groups),
            CARRY: carry,
            RNG: rng,
        }
        if self.average:
            files[EMA] = self.average.tensors()
        for file, tensors in files.items():
            for name, tensor in tensors.items():
                if tensor.is_floating_point() and not tensor.isfinite().all():
                    return NonFiniteError(
                        f"step {progress.step}: {name}, for {file}, is not finite; nothing is "
                        "saved. The checkpoints before are untouched"
                    )
        try:
            self.tracker.sync()
            writers = {name: tensor_writer(tensors) for name, tensors in files.items()}
            save_checkpoint(self.run_dir, progress.step, state, writers)
            prune(self.run_dir, keep_last=self.config.keep_last, keep_best=self.config.keep_best)
        except CheckpointError as error:
            return error
        except OSError as error:
            return CheckpointError(str(error))
        return None

    def resume(self, checkpoint: Checkpoint) -> None:
        """Continue from a verified checkpoint, bit for bit where the environment is the same.

        Raises:
            CheckpointError: something in it does not fit this run.
        """
        path, state = checkpoint.path, checkpoint.state
        for name in ("iteration", "position"):
            if name not in state:
                raise CheckpointError(f"{path / STATE}: has no {name}")
        restore_model(self.model, load_tensors(path / MODEL), path / MODEL)
        restore_optimizer(self.optimizer, self.groups, load_tensors(path / OPTIMIZER))
        if self.average:
            self._restore_average(path / EMA)
        carry = load_carry(path / CARRY, self.ranks, self.carry)
        if carry is None:
            self.say(
                "the saved carry belongs to another batch size or architecture: all slots start "
                "new puzzles"
            )
        else:
            self.carry = carry
        if self.diagnostics and state.get("diagnostics"):
            try:
                self.diagnostics.restore(state["diagnostics"])
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise CheckpointError(f"{path / STATE}: diagnostics: {error}") from None
        self.progress = Progress(
            checkpoint.step,
            int(state["iteration"]),
            int(state["position"]),
            state.get("best_score"),
        )
        self._seed_further_rank()  # A rank that was not there has no state of its own.
        restore_rng(load_tensors(path / RNG), self.ranks)
        changes = environment_changes(
            state.get("environment", {}), self.environment, any_world_size=self.exact
        )
        exactly = f"not bit for bit ({'; '.join(changes)})" if changes else "exactly"
        self.say(f"resumed {exactly} from {path} at step {self.progress.step}")
        if self.ranks.is_main:
            remove_leftovers(self.run_dir)

    def _restore_average(self, path: Path) -> None:
        assert self.average
        if path.exists():
            self.average.restore(load_tensors(path), path)
        else:
            # Only with resume_changed=true: the run kept none so far.
            self.average = WeightAverage(self.model, self.config.ema_rate)

    # Details

    def _averaged(self) -> AbstractContextManager[None]:
        return self.average.in_place_of_weights() if self.average else nullcontext()

    def _empty_examples(self) -> Examples:
        rows, device = self.batches.local_batch_size, self.ranks.device
        cells = torch.zeros(rows, self.facts.seq_len, dtype=torch.int32, device=device)
        ids = torch.zeros(rows, dtype=torch.int32, device=device)
        examples = {"inputs": cells, "labels": cells.clone(), "puzzle_identifiers": ids}
        for head, name in self.config.arch.heads.fields.items():
            _, channels = self.facts.field(name, f"arch.heads.{head}")
            shape = (*cells.shape, channels) if channels else cells.shape
            examples[name] = cells.new_zeros(shape)
        return examples

    def _seed(self, part: int) -> None:
        """Let torch draw what is due to one part of the next step's batch."""
        torch.manual_seed(torch_seed(self.config.seed, self.progress.step, part))

    def _seed_further_rank(self) -> None:
        """Let no rank but the first draw what the first does, which goes on with what the model's
        initialization left.
        """
        if not self.ranks.is_main:
            self._seed(self.ranks.rank)

    def _min_halt_steps(self) -> np.ndarray:
        arch = self.config.arch
        steps = min_halt_steps(
            self.config.seed,
            self.progress.step,
            self.config.global_batch_size,
            probability=arch.halt_exploration_prob,
            halt_max_steps=arch.halt_max_steps,
        )
        local = self.batches.local_batch_size
        return steps[self.ranks.rank * local : (self.ranks.rank + 1) * local]

    def _log_block(self, bar: "tqdm[Any]") -> None:
        records = self.block.drain()
        if not records:
            return
        self.tracker.log(records)
        counted = [record for record in records if record["train/count"] > 0]
        # Where nothing halted in this block, what the last one showed stays.
        self._shown["loss"] = records[-1]["train/lm_loss"]
        if counted:
            self._shown["exact"] = counted[-1]["train/exact_accuracy"]
            self._shown["act"] = counted[-1]["train/steps"]
        elapsed = max(time.monotonic() - self._started, 1e-9)
        rows = (self.progress.step - self._started_at) * self.config.global_batch_size
        self._shown["ex/s"] = rows / elapsed
        shown = {name: f"{value:.3g}" for name, value in self._shown.items()}
        bar.set_postfix(shown, refresh=False)
        bar.update(len(records))

    @contextmanager
    def _bar(self) -> "Iterator[tqdm[Any]]":
        self._started, self._started_at = time.monotonic(), self.progress.step
        self._shown: dict[str, float] = {}
        total = min(self.total_steps, self.config.max_steps or self.total_steps)
        with tqdm(
            total=total,
            initial=self.progress.step,
            disable=not self.show_progress,
            unit="step",
            desc="training",
            dynamic_ncols=True,
            mininterval=0.5,
        ) as bar:
            yield bar

    @contextmanager
    def _signals_set_a_flag(self) -> Iterator[None]:
        first_asked = math.inf

        def request_stop(number: int, frame: FrameType | None) -> None:
            nonlocal first_asked
            now = time.monotonic()
            # The second time the user means it, unless it is the same Ctrl-C: the terminal sends
            # it to all processes, and torchrun passes it on once more.
            if number == signal.SIGINT and now - first_asked > _SAME_SIGNAL_SECONDS:
                raise KeyboardInterrupt
            first_asked = min(first_asked, now)
            self.stop_requested = True

        before = {
            number: signal.signal(number, request_stop)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _EvaluationStopped(Exception):
    """All ranks leave an evaluation because one of them was asked to stop."""


class _Shard(NamedTuple):
    """What forward and backward left of a shard, beside its gradients: the new carry, the loss
    (0-dim, summed over its sequences), sums for the metrics, and, where a diagnosis is due, what it
    measured.
    """

    carry: ACTCarry
    loss: Tensor
    metrics: dict[str, Tensor]
    measured: Measured | None


@dataclass(frozen=True)
class _Verdict:
    """What all ranks know of a step: whether its update was skipped, whether one of them was
    asked to stop.
    """

    step: int
    loss: float
    skip: bool
    stop: bool


class _Verdicts:
    """Brings verdicts to the host without stalling the device.

    A GPU is two steps ahead of the host, so a verdict is read two steps late, when it has long been
    computed; every rank reads the same one at the same step. On a CPU it is read at once.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._lag = 2 if ranks.device.type == "cuda" else 0
        self._skipping = torch.zeros((), dtype=torch.bool, device=ranks.device)
        self._pending: deque[tuple[int, Tensor, Any]] = deque()

    def add(self, step: int, loss: Tensor, skip: Tensor, stop: Tensor) -> Tensor:
        """Note a step's verdict; returns whether to skip its update: once one is skipped, all
        later ones are too.
        """
        self._skipping = self._skipping | skip
        values = torch.stack([loss.float(), skip.float(), stop.float()])
        event = None
        if self._lag:
            values = torch.empty(3, pin_memory=True).copy_(values, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        self._pending.append((step, values, event))
        return self._skipping

    def due(self) -> Iterator[_Verdict]:
        """Yield the verdicts that may be read by now."""
        while len(self._pending) > self._lag:
            yield self._pop()

    def rest(self) -> Iterator[_Verdict]:
        """Yield all verdicts there are, waiting for the device."""
        while self._pending:
            yield self._pop()

    def _pop(self) -> _Verdict:
        step, values, event = self._pending.popleft()
        if event is not None:
            with self._ranks.wait():
                event.synchronize()
        loss, skip, stop = values.tolist()
        if skip:
            # Whoever asks again is told again: from here on nothing may be saved.
            self._pending.appendleft((step, values, event))
        return _Verdict(step, loss, bool(skip), bool(stop))
