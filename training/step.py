"""One optimizer step: forward and backward over this rank's rows, update, metrics."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from models.act import AIMED_LABELS, ACTCarry, ACTLossHead, Drawn, LossOutput
from models.architectures import ArchConfig
from models.heads.base import Examples
from models.metrics import mean_metrics
from models.operations import train_step_flop
from models.registry import build_model, compiled_forward
from models.technique import Depth
from puzzle_dataset import Batch, PuzzleDataset
from runtime.compiler import Compiling, choose_compiling
from runtime.device import require_room
from runtime.errors import CheckpointError, NonFiniteError
from runtime.ranks import Ranks, sum_in_order
from runtime.schema import CompiledForm
from runtime.streams import Address, torch_seed
from training.checkpoint.tensors import load_start_weights
from training.config.schema import CANONICAL_SHARDS, TrainConfig
from training.data import data_facts, scheduled_steps
from training.diagnostics import Diagnostics
from training.optim.ema import WeightAverage
from training.optim.groups import GradientBucket, build_optimizer, groups_of, lr_factor, update_by
from training.optim.sparse_sign_sgd import SparseSignSGD
from training.stop_signals import StopSignals
from training.tracking import WARNINGS, warn


class Pass(NamedTuple):
    """The result of forward and backward over some rows."""

    carry: ACTCarry
    loss: Tensor  # 0-dim, summed over the sequences.
    metrics: list[dict[str, Tensor]]  # One item for each part of the rows.
    measured: list[dict[str, Tensor]]  # The same, for diagnostics; empty if this step has none.


class Learner:
    """The state that training changes: model (the same on all ranks), optimizers, weight average
    and carry. `step` makes an optimizer step.

    Args:
        arch: the architecture, as it runs on this device.
        start_weights: a checkpoint or a published file to load the first weights from.
        compiled: the compiled form of the run that is resumed; `compile=auto` keeps it.
    Raises:
        ConfigError: the model does not fit into memory.
        CheckpointError: the start weights are damaged or do not fit the model.
    """

    def __init__(
        self,
        config: TrainConfig,
        arch: ArchConfig,
        train_set: PuzzleDataset,
        ranks: Ranks,
        start_weights: Path | None = None,
        compiled: CompiledForm | None = None,
    ) -> None:
        self.config, self.arch, self.ranks = config, arch, ranks
        data = train_set.metadata
        self.facts = data_facts(data, train_set.fields, train_set.kind)
        self.total_steps = scheduled_steps(config, data)
        self.exact = config.reduction == "exact"
        self.num_parts = config.num_parts(ranks.world_size)
        self.local_batch_size = config.global_batch_size // ranks.world_size
        self.model = self._build_model(start_weights)
        compiling = choose_compiling(
            config.compile, ranks.device.type, saved=compiled, operations=self._operations
        )
        self.compiling: Compiling = ranks.broadcast_object(compiling)
        self.forward = compiled_forward(self.model, self.compiling.form)
        self.depth_techniques = self.model.model.inner.techniques.acting("depth_at")
        self._add_optimizers()
        self._add_schedule()
        self.carry = self.model.initial_carry(self._empty_examples())
        self._add_records()
        self.seed_other_ranks(0)

    def _build_model(self, start_weights: Path | None) -> ACTLossHead:
        with torch.device("meta"):
            planned = build_model(self.arch, self.facts)
        require_room(planned, f"{self.config.train_paths[0]} with {self.arch.name}")
        torch.manual_seed(self.config.seed)
        model = build_model(self.arch, self.facts).to(self.ranks.device)
        model.prepare(self.local_batch_size // self.num_parts)
        if start_weights is not None:
            self._load_start_weights(model, start_weights)
        self.ranks.broadcast_(list(model.state_dict().values()))
        return model

    def _load_start_weights(self, model: ACTLossHead, path: Path) -> None:
        """Load the weights on rank 0, which may be the only one that has the file. Raise its
        CheckpointError on all ranks.
        """
        fault: CheckpointError | None = None
        if self.ranks.is_main:
            try:
                load_start_weights(model, path, warn, self.config.load_puzzle_rows)
            except CheckpointError as error:
                fault = error
        if fault := self.ranks.broadcast_object(fault):
            raise fault

    def _operations(self) -> float:
        """Return the number of operations in all training steps of one rank."""
        config = self.config
        # With `reduction=exact` the number of ranks must not change the result.
        rows = config.global_batch_size if self.exact else self.local_batch_size
        steps = min(self.total_steps, config.max_steps or self.total_steps)
        return steps * rows * train_step_flop(self.arch, self.facts)

    def _add_optimizers(self) -> None:
        """Build the gradient bucket, the optimizers and the weight average."""
        config, model, ranks = self.config, self.model, self.ranks
        self.num_shards = config.num_shards(ranks.world_size)
        self.groups = groups_of(model, config)
        # First, because the bucket moves the weights in memory.
        self.bucket = GradientBucket(
            self.groups, ranks.device, num_shards=self.num_shards, in_order=self.exact
        )
        self.optimizer = None
        if self.groups:
            betas = (config.beta1, config.beta2)
            self.optimizer = build_optimizer(config.optimizer, self.groups, betas)
        self.average = WeightAverage(model, config.ema_rate) if config.ema else None
        self.update = update_by(self.optimizer, self.bucket, self.average)
        self.sparse = None
        if (embedding := model.puzzle_embedding) is not None:
            rates = {"lr": config.puzzle_emb_lr, "weight_decay": config.puzzle_emb_weight_decay}
            self.sparse = SparseSignSGD(embedding, ranks, **rates)

    def _add_schedule(self) -> None:
        """Set up the learning rate schedule, and the addresses of each step's random numbers."""
        config = self.config
        self.lr_factor = partial(
            lr_factor,
            warmup_steps=config.lr_warmup_steps,
            total_steps=self.total_steps,
            min_ratio=config.lr_min_ratio,
            schedule=config.lr_schedule,
        )
        rates = {f"train/lr/{group.name}": group.lr for group in self.groups}
        self.peak_rates = {"train/lr": config.lr} | rates
        start = self.ranks.rank * self.local_batch_size
        self.address = partial(
            Address,
            config.seed,
            num_rows=config.global_batch_size,
            own=range(start, start + self.local_batch_size),
            num_parts=self.num_parts,
            seq_len=self.facts.seq_len,
        )

    def _add_records(self) -> None:
        """Build the metrics, the outcomes of steps and the diagnostics."""
        config, model, ranks = self.config, self.model, self.ranks
        self.skips = config.on_nonfinite == "skip"
        norms = tuple(f"train/grad_norm/{group.name}" for group in self.groups)
        self.metrics = MetricBlock(
            config.log_interval,
            names=model.metric_names,
            replicated=(*norms, "train/nonfinite") if self.skips else norms,
            num_shards=self.num_parts,
            global_batch_size=config.global_batch_size,
            ranks=ranks,
        )
        self.outcomes = Outcomes(ranks, config.max_nonfinite if self.skips else 1)
        self.diagnostics = None
        if config.diagnose_interval:
            self.diagnostics = Diagnostics(
                interval=config.diagnose_interval,
                warmup_steps=config.lr_warmup_steps,
                halting_head=model.halting_head,
                ranks=ranks,
            )

    def _empty_examples(self) -> Examples:
        """Return zero examples to start the carry from."""
        rows, device = self.local_batch_size, self.ranks.device
        cells = torch.zeros(rows, self.facts.seq_len, dtype=torch.int32, device=device)
        ids = cells.new_zeros(rows)
        examples = {"inputs": cells, "labels": cells.clone(), "puzzle_identifiers": ids}
        for part, name in self.config.arch.fields.items():
            _, channels = self.facts.field(name, f"arch.{part}")
            examples[name] = cells.new_zeros((*cells.shape, channels) if channels else cells.shape)
        return examples

    def step(self, step: int, rows: Batch, stop: StopSignals) -> None:
        """Make optimizer step `step` (from 1) with this rank's rows. Record it in `metrics` and
        `outcomes`, and tell all ranks of `stop`.
        """
        batch = self.ranks.on_device(rows.arrays())
        factor = self.lr_factor(step)
        if self.depth_techniques:
            self.model.model.inner.depth = self.depth_of_step(step)
        drawn = self.ranks.on_device(self.model.model.draw(self.address(step - 1)))
        asked = self.ranks.on_device({"stop": np.array(stop.requested)})["stop"]
        self.bucket.zero_()
        if self.exact or self.num_parts > 1:
            done = self._in_parts(batch, drawn, step)
        else:
            drawn = {name: of_parts[0] for name, of_parts in drawn.items()}
            done = self._forward_backward(self.carry, batch, drawn, step)
        carry, loss, metrics, measured = done
        self.carry = carry.without_nonfinite() if self.skips else carry
        norms, in_a_row, stops = self._update(loss, factor, asked)
        self.outcomes.add(step, loss, in_a_row, stops)
        known = {"step": step} | {name: rate * factor for name, rate in self.peak_rates.items()}
        if measured:
            known |= self._diagnose(step, measured, norms)
        if self.skips:
            norms = torch.cat([norms, in_a_row.view(1)])
        self.metrics.record(metrics, norms, known)

    @contextmanager
    def evaluated(self) -> Iterator[ACTLossHead]:
        """Give the model in evaluation mode, with its averaged weights if there are any."""
        with self.average.in_place_of_weights() if self.average else nullcontext():
            try:
                yield self.model.eval()
            finally:
                self.model.train()

    def depth_of_step(self, step: int) -> Depth | None:
        """Return the depth of a step (from 1) if a technique sets it. A new depth compiles anew."""
        done = (step - 1) / max(1, self.total_steps)  # As a share of the run's steps.
        return next((one.depth_at(done) for one in self.depth_techniques), None)

    def seed_other_ranks(self, step: int) -> None:
        """Seed torch on all ranks but the first, which goes on from the initialization."""
        if not self.ranks.is_main:
            torch.manual_seed(torch_seed(self.config.seed, step, self.ranks.rank))

    def _forward_backward(
        self, carry: ACTCarry, offered: Examples, drawn: Drawn, step: int
    ) -> Pass:
        """Run forward and backward on this rank's rows or on a part of them."""
        output = self.forward(carry, offered, drawn)
        (output.loss / self.config.global_batch_size).backward()
        is_due = self.diagnostics and step % self.diagnostics.interval == 0
        measured = [self._measure(output)] if is_due else []
        return Pass(output.carry, output.loss.detach(), [output.metrics], measured)

    def _in_parts(self, batch: Examples, drawn: dict[str, Tensor], step: int) -> Pass:
        """Run this rank's rows part by part; `drawn` is [parts, ...] by name.

        A part is a micro-batch (`micro_batch_size`, to save memory). With `reduction=exact` the
        global batch is first cut into `CANONICAL_SHARDS` shards, each with its own gradients and
        random numbers, so that any number of ranks computes the same bits.
        """
        carries = [ACTCarry.from_tensors(own) for own in _cut(self.carry.tensors(), self.num_parts)]
        done = []
        for number, offered in enumerate(_cut(batch, self.num_parts)):
            if number and self.sparse:
                self.sparse.keep_gradient()
            shard, place = divmod(number, self.num_parts // self.num_shards)
            if self.exact and place == 0:
                self.bucket.select(shard)
                self._draw_as(step, self.ranks.rank * self.num_shards + shard)
            own = {name: of_parts[number] for name, of_parts in drawn.items()}
            done.append(self._forward_backward(carries[number], offered, own, step))
        if self.exact:
            # The next draw must find the same state at any number of ranks.
            self._draw_as(step, CANONICAL_SHARDS)
        tensors = [part.carry.tensors() for part in done]
        joined = {name: torch.cat([own[name] for own in tensors]) for name in tensors[0]}
        return Pass(
            ACTCarry.from_tensors(joined),
            sum_in_order(torch.stack([part.loss for part in done])),
            [metrics for part in done for metrics in part.metrics],
            [measured for part in done for measured in part.measured],
        )

    def _draw_as(self, step: int, shard: int) -> None:
        """Seed torch for one shard of the global batch."""
        torch.manual_seed(torch_seed(self.config.seed, step - 1, shard))

    def _measure(self, output: LossOutput) -> dict[str, Tensor]:
        """Measure a part for the diagnostics, before the weights are updated."""
        assert self.diagnostics
        act, may_halt = self.model.model, self.model.halting_head is not None
        may_stop = may_halt and act.halt_max_steps > 1
        return self.diagnostics.measure(
            logits=output.outputs["logits"],
            labels=output.outputs.get(AIMED_LABELS, output.carry.examples["labels"]),
            q_halt_logits=output.outputs["q_halt_logits"] if may_halt else None,
            halts=act.wants_to_halt(output.outputs) if may_stop else None,
        )

    def _update(self, loss: Tensor, factor: float, stop: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Apply the gradients of all ranks if they are finite. Return their norms, `in_a_row` of
        the outcomes, and whether any rank was asked to stop.
        """
        finite = loss.isfinite()
        if self.sparse:
            # Checked before the sign, which turns NaN into 0.
            finite = finite & self.sparse.finite()
        norms, not_finite, stops = self.bucket.reduce(self.ranks, finite=finite, stop=stop)
        skip = self.outcomes.skip_if(not_finite)
        with self.ranks.wait():  # On a CPU, for `skip`.
            self.update(norms, skip, factor)
        if self.sparse:
            self.sparse.lr = self.config.puzzle_emb_lr * factor
            self.sparse.step(skip)
            self.sparse.zero_grad()
        return norms, self.outcomes.in_a_row, stops

    def _diagnose(
        self, step: int, shards: Sequence[dict[str, Tensor]], norms: Tensor
    ) -> dict[str, Any]:
        """Print warnings about the step just made. Return the entries for its record."""
        assert self.diagnostics
        group_norms = {g.name: norm for g, norm in zip(self.groups, norms, strict=True)}
        numbers, warnings = self.diagnostics.diagnose(step, shards, group_norms)
        for warning in warnings if self.ranks.is_main else ():
            warn(warning)
        learned = {f"diagnose/weight/{n}": w for n, w in self.model.learned_weights().items()}
        return numbers | learned | ({WARNINGS: warnings} if warnings else {})


def _cut(tensors: dict[str, Tensor], number: int) -> list[dict[str, Tensor]]:
    """Cut the rows of all tensors into `number` equal parts, which are views."""
    chunks = {name: value.chunk(number) for name, value in tensors.items()}
    return [{name: parts[i] for name, parts in chunks.items()} for i in range(number)]


class MetricBlock:
    """The metrics of up to `capacity` steps, kept on the device and gathered by one collective.

    Args:
        names: the metrics that each step sums over the rows of a shard.
        replicated: the metrics that are the same on all ranks.
        global_batch_size: divisor of the losses.
    """

    def __init__(
        self,
        capacity: int,
        names: tuple[str, ...],
        replicated: tuple[str, ...],
        *,
        num_shards: int,
        global_batch_size: int,
        ranks: Ranks,
    ) -> None:
        self.names, self.replicated = names, replicated
        self.global_batch_size, self.ranks = global_batch_size, ranks
        self._sums = torch.zeros(num_shards, capacity, len(names), device=ranks.device)
        self._same = torch.zeros(capacity, len(replicated), device=ranks.device)
        self._host: list[dict[str, Any]] = []

    @property
    def full(self) -> bool:
        """Whether `drain` must come before the next `record`."""
        return len(self._host) == len(self._same)

    def record(
        self, shards: Sequence[Mapping[str, Tensor]], same: Tensor, host: dict[str, Any]
    ) -> None:
        """Add a step: the 0-dim sums of each shard by name, `same` [replicated], and numbers that
        the host knows.
        """
        row = len(self._host)
        for own, sums in zip(self._sums, shards, strict=True):
            own[row] = torch.stack([sums[name].detach() for name in self.names])
        self._same[row] = same
        self._host.append(host)

    def drain(self) -> list[dict[str, Any]]:
        """Return one record for each step, and empty the block."""
        rows = len(self._host)
        if not rows:
            return []
        shards = self.ranks.concat(self._sums[:, :rows])
        sums = self.ranks.to_host(sum_in_order(shards)).tolist()
        same = self._same[:rows].tolist()
        records = []
        for host, step_sums, step_same in zip(self._host, sums, same, strict=True):
            values = dict(zip(self.names, step_sums, strict=True))
            means = mean_metrics(values, self.global_batch_size)
            record = host | {f"train/{name}": value for name, value in means.items()}
            records.append(record | dict(zip(self.replicated, step_same, strict=True)))
        self._host = []
        return records


class Outcomes:
    """The outcomes of steps, brought to the host. On a GPU they come two steps late, so that the
    host never waits. All ranks read the same outcome at the same step.

    `in_a_row` (float32 [], on the device) counts the last steps that were not finite. At `most` of
    them the run ends, and no later step makes an update.
    """

    def __init__(self, ranks: Ranks, most: int = 1) -> None:
        self._ranks, self._most = ranks, most
        self._lag = 2 if ranks.device.type == "cuda" else 0
        self.in_a_row = torch.zeros((), device=ranks.device)
        self._ended = torch.zeros((), dtype=torch.bool, device=ranks.device)
        self._pending: deque[tuple[int, Tensor, Any]] = deque()

    def skip_if(self, not_finite: Tensor) -> Tensor:
        """Count a step. Return bool [], whether to leave out its update."""
        self.in_a_row.add_(1).mul_(not_finite)
        self._ended.logical_or_(self.in_a_row >= self._most)
        return self._ended | not_finite

    def add(self, step: int, loss: Tensor, in_a_row: Tensor, stop: Tensor) -> None:
        """Add the outcome of a counted step; `stop` is bool [], from `GradientBucket.reduce`."""
        values = torch.stack([loss.float(), in_a_row.float(), stop.float()])
        event = None
        if self._lag:
            values = torch.empty(3, pin_memory=True).copy_(values, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        self._pending.append((step, values, event))

    def check(self, *, wait: bool = False) -> bool:
        """Read the outcomes that are due (all with `wait`), and warn of updates that were left out.
        Return True if a stop was asked for.

        Raises:
            NonFiniteError: too many steps in a row were not finite. Later calls raise it too, so
                nothing is saved.
        """
        stop_asked = False
        while len(self._pending) > (0 if wait else self._lag):
            step, values, event = self._pending[0]
            if event is not None:
                with self._ranks.wait():
                    event.synchronize()
            loss, in_a_row, stop = values.tolist()
            said = f"step {step}: the loss ({loss}) or a gradient is not finite"
            if in_a_row >= self._most:
                often = f" ({in_a_row:.0f} in a row)" if self._most > 1 else ""
                raise NonFiniteError(
                    f"{said}{often}; no update was made from it and nothing is saved. A lower lr "
                    "or max_grad_norm usually helps"
                )
            if in_a_row and self._ranks.is_main:
                warn(f"{said}; its update is left out")
            self._pending.popleft()
            stop_asked |= bool(stop)
        return stop_asked
