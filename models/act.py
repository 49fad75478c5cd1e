"""One ACT step and its losses (arXiv:2506.21734, "Adaptive computational time").

Each slot of the batch works on one example until it halts; then it takes the next one offered. One
call is one ACT step for all slots: shapes never change, and no Python branch depends on tensor
values. Sums are over the batch; the trainer divides them by the global batch size.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from models.config import ACTLossConfig, LossWeights, RecurrenceConfig
from models.draws import ROW_KEYS, noise_table
from models.heads.base import Examples, Head, Outputs, Targets
from models.heads.q import QHead
from models.layers import CastedSparseEmbedding
from models.recurrence import Latents, Recurrence
from runtime.streams import Address, Stream

# Metrics that are reported first, in this order.
COUNTED_METRICS = ("accuracy", "exact_accuracy", "q_halt_accuracy", "steps")
# Among the outputs in training: the labels that a technique compares with, if one does.
AIMED_LABELS = "aimed_labels"

# The random numbers of a training step by name: `min_steps`, int32 [B], the step before which a
# slot must not halt early, and the draws of techniques and of the architecture. One of these is
# `skipped`, float32 [B] in [0, 1): the share of its ACT steps that a slot with a new example begins
# after. All depend only on (seed, step, row).
Drawn = dict[str, Tensor]


def choose_rows(where: Tensor, chosen: Tensor, others: Tensor) -> Tensor:
    """Return `chosen` [B, ...] in the rows that `where` (bool [B]) marks, `others` elsewhere."""
    return torch.where(where.view(-1, *[1] * (others.ndim - 1)), chosen, others)


@dataclass
class ACTCarry:
    """The state between two ACT steps."""

    inner: Latents
    steps: Tensor  # int32 [B], ACT steps spent on the present example
    halted: Tensor  # bool [B], the slot takes a new example at the next step
    examples: Examples  # the present example of each slot

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name, one row for each slot, as a checkpoint stores them."""
        named = self.inner | {"steps": self.steps, "halted": self.halted}
        return named | {f"examples.{name}": value for name, value in self.examples.items()}

    def without_nonfinite(self) -> "ACTCarry":
        """Return the carry with rows whose latents are not finite set to zero and halted: the next
        step gives them new examples.
        """
        latents = self.inner.values()
        finite = torch.stack([z.isfinite().reshape(len(z), -1).all(1) for z in latents]).all(0)
        kept = {n: choose_rows(finite, z, torch.zeros_like(z)) for n, z in self.inner.items()}
        return ACTCarry(kept, self.steps, self.halted | ~finite, self.examples)

    @staticmethod
    def from_tensors(tensors: dict[str, Tensor]) -> "ACTCarry":
        """Rebuild a carry from the result of `tensors`."""
        inner = {name: value for name, value in tensors.items() if name.startswith("z_")}
        prefix = "examples."
        named = {n.removeprefix(prefix): v for n, v in tensors.items() if n.startswith(prefix)}
        return ACTCarry(inner, tensors["steps"], tensors["halted"], named)


def min_halt_steps(at: Address, probability: float, halt_max_steps: int) -> np.ndarray:
    """Draw the ACT step, int32 [num_rows], before which each row of the global batch must not halt
    early: with `probability` uniform in [2, halt_max_steps], otherwise 0.
    """
    if halt_max_steps < 2:
        return np.zeros(at.num_rows, np.int32)
    explores, where = at.uniform(Stream.HALT)
    steps = 2 + np.floor(where * (halt_max_steps - 1))
    return np.where(explores < probability, steps, 0).astype(np.int32)


class Judged(NamedTuple):
    """The losses and metrics of an answer."""

    losses: dict[str, Tensor]  # [B] by name, in nats
    metrics: dict[str, Tensor]  # [B] by name
    labelled: Tensor  # bool [B], rows that have labels
    outputs: Outputs


class ACT(nn.Module):
    """A recurrence under the ACT loop.

    Attributes:
        halt_max_steps: ACT steps after which a slot halts in any case.
        halting_head: name of the head that lets a slot halt early; None if there is none.
        rule: the rule of that head; None: every slot takes all steps.
        learns_continue: whether q_continue is learned, from the target of `look_ahead`.
    """

    def __init__(self, inner: Recurrence, config: RecurrenceConfig) -> None:
        super().__init__()
        self.inner, self.halt_max_steps = inner, config.halt_max_steps
        self.halt_exploration_prob = config.halt_exploration_prob
        rules = ((f"{name}_head", head.rule) for name, head in inner.heads.items() if head.rule)
        self.halting_head, self.rule = next(rules, (None, None))
        q = inner.heads.get("q")
        self.learns_continue = isinstance(q, QHead) and q.learns_continue
        acting = inner.techniques.acting
        self.at_draw, self.at_beginnings = acting("draw"), acting("begun")
        self.at_targets = acting("aimed")

    @property
    def eval_max_steps(self) -> int:
        """ACT steps that each example takes in evaluations."""
        return self.halt_max_steps

    def initial_carry(self, examples: Examples) -> ACTCarry:
        """Return a carry with all slots halted, so that the first step takes all new examples."""
        B, device = examples["inputs"].shape[0], examples["inputs"].device
        if ROW_KEYS in examples:
            self.inner.noise_table = noise_table(device)
        return ACTCarry(
            inner=self.inner.empty_carry(B),
            steps=torch.zeros(B, dtype=torch.int32, device=device),
            halted=torch.ones(B, dtype=torch.bool, device=device),
            examples={name: torch.zeros_like(value) for name, value in examples.items()},
        )

    def draw(self, at: Address) -> dict[str, np.ndarray]:
        """Draw the random numbers of a training step, [parts, ...] by name: see `Drawn`."""
        least = min_halt_steps(at, self.halt_exploration_prob, self.halt_max_steps)
        drawn = {"min_steps": at.parts(least[at.own.start : at.own.stop])}
        for technique in self.at_draw:
            drawn |= technique.draw(at)
        return drawn

    def forward(
        self, carry: ACTCarry, offered: Examples, drawn: Drawn | None = None
    ) -> tuple[ACTCarry, Outputs]:
        """Run one ACT step on every slot.

        Args:
            offered: the next batch; halted slots take their row of it, the others discard it.
            drawn: None: slots may halt at any step, and techniques that need `drawn` do not act.
        Returns:
            the new carry (detached) and the outputs of the heads; in training also the outputs of
            `look_ahead`, if q_continue is learned.
        """
        carry, answer = self.think(carry, offered, drawn)
        outputs = self.inner.read(answer, carry.examples)
        if not self.training:
            return carry, outputs
        halted = carry.halted
        if self.rule is not None:
            halted = halted | self.wants_to_halt(outputs)
        if drawn is not None:
            halted = halted & (carry.steps >= drawn["min_steps"])
        if self.learns_continue:
            rows = None if drawn is None else drawn.get("ahead")
            outputs |= self.look_ahead(carry.inner, carry.examples, carry.halted, rows)
        return ACTCarry(carry.inner, carry.steps, halted, carry.examples), outputs

    def think(
        self, carry: ACTCarry, offered: Examples, drawn: Drawn | None = None
    ) -> tuple[ACTCarry, Tensor]:
        """Run one ACT step like `forward`, without the heads. Return the new carry and the answer's
        states [B, T, D], with gradients. Slots that have taken all their steps are halted.
        """
        drawn = drawn or {}
        steps, examples = self._take_examples(carry, offered, drawn)
        self.inner.draw_by(examples.get(ROW_KEYS), steps)
        latents = self.inner.reset_carry(carry.halted, carry.inner)
        for technique in self.at_beginnings:
            latents = technique.begun(self.inner, carry.halted, steps, latents, examples, drawn)
        latents, answer = self.inner(latents, examples)
        return ACTCarry(latents, steps, steps >= self.halt_max_steps, examples), answer

    def _take_examples(
        self, carry: ACTCarry, offered: Examples, drawn: Drawn
    ) -> tuple[Tensor, Examples]:
        """Return the slots' step counts, this step included, and their old or new examples."""
        new, kept = carry.halted, carry.examples
        examples = {name: choose_rows(new, offered[name], kept[name]) for name in kept}
        begins = (drawn["skipped"] * self.halt_max_steps).int() if "skipped" in drawn else 0
        return torch.where(new, begins, carry.steps) + 1, examples

    def judge(self, heads: Iterable[Head], carry: ACTCarry, outputs: Outputs) -> Judged:
        """Let `heads` compare their outputs with the examples of a carry."""
        targets = Targets.of(carry.examples, outputs["logits"])
        if self.training and self.at_targets:
            logs = self.inner.lm_head.log_probs(outputs["logits"].detach())
            for technique in self.at_targets:
                targets = technique.aimed(targets, {**outputs, "log_probs": logs}, carry.steps)
            outputs = {**outputs, AIMED_LABELS: targets.examples["labels"]}
        losses, metrics = {}, {"steps": carry.steps}
        for head in heads:
            measured = head.measure(outputs, targets)
            losses |= measured.losses
            metrics |= measured.metrics
        return Judged(losses, metrics, targets.labelled.any(-1), outputs)

    def answer_of(self, carry: ACTCarry) -> Tensor:
        """Return the answer's states [B, T, D], the first latent of a carry."""
        return carry.inner[self.inner.latents[0]]

    def halts(self, carry: ACTCarry) -> Tensor:
        """Return bool [B], the slots that are done after a step of `think`: they have taken all
        steps, or the halting head stops them, as in training but without exploration.
        """
        if self.halting_head is None:
            return carry.halted
        head = self.inner.heads[self.halting_head.removesuffix("_head")]
        outputs = head.read(self.inner.answer(self.answer_of(carry), carry.examples))
        return carry.halted | self.wants_to_halt(outputs)

    @torch.no_grad()
    def wants_to_halt(self, outputs: Outputs) -> Tensor:
        """Return bool [B], the slots that the halting head would halt; none without such a head."""
        if self.rule is None:
            return torch.zeros_like(outputs["q_halt_logits"], dtype=torch.bool)
        return self.rule.wants_to_halt(outputs)

    def look_ahead(
        self, latents: Latents, examples: Examples, last_step: Tensor, rows: Tensor | None = None
    ) -> Outputs:
        """Return `target_q_continue`, [B]. If only some `rows` (int64 [n]) look ahead, also return
        `weight_q_continue`, [B], a factor on their loss: B / n for them, 0 for all others.

        Args:
            last_step: bool [B], slots at their last step, whose only choice is to halt.
        """
        if rows is None:
            return {"target_q_continue": self.target_of_continue(latents, examples, last_step)}
        own = [{n: value[rows] for n, value in part.items()} for part in (latents, examples)]
        few = self.target_of_continue(own[0], own[1], last_step[rows])
        target = torch.zeros_like(last_step, dtype=few.dtype)
        weight = target.float().index_fill(0, rows, len(target) // len(rows))
        return {"target_q_continue": target.index_copy(0, rows, few), "weight_q_continue": weight}

    @torch.no_grad()
    def target_of_continue(self, latents: Latents, examples: Examples, last_step: Tensor) -> Tensor:
        """Bootstrap the target of q_continue, [B], from the Q values of one more ACT step."""
        q_head = cast(QHead, self.inner.heads["q"])
        answer = self.inner.answer(self.inner(latents, examples)[1], examples)
        return q_head.target_of_continue(answer, last_step)


class LossOutput(NamedTuple):
    """The results of a step for the trainer."""

    carry: ACTCarry
    loss: Tensor  # sum over the sequences, to be divided by the global batch size
    metrics: dict[str, Tensor]  # sums over the batch, 0-dim, by `ACTLossHead.metric_names`
    rows: dict[str, Tensor]  # the same for each row, float32 [B]
    outputs: Outputs  # of the heads; in training also the target of q_continue


class ACTLossHead(nn.Module):
    """A model with its losses. Its attribute `model` is the first part of every checkpoint key.

    Attributes:
        heads: the measured heads by name.
        loss_names: names of the losses, in the order of their sum.
        counted_metrics: names of the metrics that count only sequences that halted and have labels;
            they are reported as a share of `count`.
        metric_names: names of `LossOutput.metrics` in training; evaluations lack `q_continue_loss`.
        confidence_output: name of the output with the confidence in each cell, logits [B, S].
    """

    def __init__(self, model: ACT, config: ACTLossConfig) -> None:
        super().__init__()
        self.model, self.config = model, config
        self._measure_heads(model.inner.heads)
        self.at_losses = model.inner.techniques.acting("weighed")
        # Learned weighting: exp(-s) * loss + s. s starts at 0, so it starts like fixed weights.
        learned = self.loss_names if config.weighting == "uncertainty" else ()
        self.log_variances = nn.ParameterDict({n: nn.Parameter(torch.zeros(())) for n in learned})

    def _measure_heads(self, heads: Mapping[str, Head]) -> None:
        # Collect the names now: a compiled step cannot ask a schema for its fields.
        self.heads = dict(heads)
        losses = {name for head in heads.values() for name in head.loss_names}
        self.loss_names = tuple(name for name in LossWeights.model_fields if name in losses)
        metrics = ["steps", *(name for head in heads.values() for name in head.metric_names)]
        first = [name for name in COUNTED_METRICS if name in metrics]
        self.counted_metrics = (*first, *(name for name in metrics if name not in first))
        losses = [f"{name}_loss" for name in self.loss_names]
        self.metric_names = ("count", *self.counted_metrics, *losses)
        sure = (f"{name}_logits" for name, head in heads.items() if head.gives_confidence)
        self.confidence_output = next(sure, None)

    @property
    def halting_head(self) -> str | None:
        """Name of the head that decides when a puzzle is done, like `q_head`."""
        return self.model.halting_head

    @property
    def puzzle_embedding(self) -> CastedSparseEmbedding | None:
        return self.model.inner.puzzle_emb

    def log_probs(self, logits: Tensor) -> Tensor:
        """Return the log probabilities [..., V] of token logits, in float32 (float64 stays)."""
        return self.model.inner.lm_head.log_probs(logits)

    def leave_unmeasured(self, names: Iterable[str]) -> None:
        """Leave out loss and metrics of auxiliary heads whose targets the data lack."""
        left_out = set(names)
        self._measure_heads({n: head for n, head in self.heads.items() if n not in left_out})

    def prepare(self, batch_size: int) -> None:
        """Allocate memory to train with `batch_size` rows on this rank; not needed to evaluate."""
        if self.puzzle_embedding is not None:
            self.puzzle_embedding.prepare(batch_size)

    def initial_carry(self, examples: Examples) -> ACTCarry:
        """Return the initial carry, see `ACT.initial_carry`."""
        return self.model.initial_carry(examples)

    def forward(
        self,
        carry: ACTCarry,
        offered: Examples,
        drawn: Drawn | None = None,
        *,
        measured: bool = True,
    ) -> LossOutput:
        """Run one ACT step like `ACT.forward` and measure it, unless measured=False."""
        if not measured:
            carry, _ = self.model.think(carry, offered, drawn)
            return LossOutput(carry, torch.zeros((), device=carry.steps.device), {}, {}, {})
        return self._output(*self.model(carry, offered, drawn))

    def measure(self, carry: ACTCarry) -> LossOutput:
        """Read the heads from the answer in a carry, and measure them like `forward`."""
        states = self.model.answer_of(carry)
        return self._output(carry, self.model.inner.read(states, carry.examples))

    def _output(self, carry: ACTCarry, outputs: Outputs) -> LossOutput:
        judged = self.model.judge(self.heads.values(), carry, outputs)
        counts = carry.halted & judged.labelled
        rows = {"count": counts.float()}
        for name in self.counted_metrics:
            rows[name] = torch.where(counts, judged.metrics[name].detach(), 0.0).float()
        known = [name for name in self.loss_names if name in judged.losses]
        losses = {name: self._weighted(name, judged.losses[name], carry.steps) for name in known}
        rows |= {f"{name}_loss": judged.losses[name].detach() for name in losses}
        metrics = {name: value.sum() for name, value in rows.items()}
        first, *others = losses.values()
        return LossOutput(carry, sum(others, first), metrics, rows, judged.outputs)

    def _weighted(self, name: str, values: Tensor, steps: Tensor) -> Tensor:
        """Return the weighted sum, 0-dim, of a loss [B]."""
        for technique in self.at_losses if self.training else ():
            values = technique.weighed(values, steps, self.model.halt_max_steps)
        total = values.sum()
        weight = getattr(self.config.weights, name)
        if self.config.weighting == "uncertainty":
            s = self.log_variances[name]
            return weight * (torch.exp(-s) * total + s * values.shape[0])
        return total if weight == 1 else weight * total

    def learned_weights(self) -> dict[str, float]:
        """Return the factor of each loss in the sum; nothing unless the factors are learned."""
        return {
            name: getattr(self.config.weights, name) * math.exp(-s.item())
            for name, s in self.log_variances.items()
        }
