"""The ACT steps of a model in evaluations.

`steps` is the only loop that runs a model. The rest of the file provides its input: batches that
take all steps, rows that give their slots to the next rows when they halt (`_Slots`), and chains
with noise. Steps before the last are not measured, and their answers are read only on request.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby, repeat
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dataset.kinds.base import Kind
from evaluation.config import Halting, ThinkingSettings
from models.act import ACTCarry, ACTLossHead, Drawn, LossOutput
from models.draws import ROW_KEYS, RowDraws, noise_table
from models.heads.base import Examples, Targets
from puzzle_dataset import Batch, EvalBatches
from runtime.device import seeded_torch
from runtime.ranks import Ranks
from runtime.streams import Stream, random_words

NUM_ANSWERS = 32
"""Answers are kept for this many steps, from the first."""

Forward = Callable[..., LossOutput]
"""One ACT step of a model with its loss, plain or compiled; called like `ACTLossHead.forward`."""


class Offer(NamedTuple):
    """The input of an ACT step.

    Attributes:
        examples: slots that have halted take their row of these.
        halted: bool [B], the slots that take a new example; None: all slots in the first step, then
            those that halted in the step before.
        drawn: the random numbers of the step.
    """

    examples: Examples
    halted: Tensor | None = None
    drawn: Drawn | None = None


class Step(NamedTuple):
    """The result of an ACT step: the answer's states [B, T, D] before it, the carry after it."""

    before: Tensor
    carry: ACTCarry


def steps(
    forward: Forward,
    model: ACTLossHead,
    offers: Iterable[Offer],
    disturb: Callable[[ACTCarry], ACTCarry] = lambda carry: carry,
) -> Iterator[Step]:
    """Run an ACT step for each offer and yield its result.

    Args:
        forward: `model` or its compiled form.
        model: in evaluation mode.
        offers: each is requested after the step before has been read, and may depend on it.
        disturb: changes the carry between two steps.
    """
    carry = None
    for examples, halted, drawn in offers:
        carry = model.initial_carry(examples) if carry is None else disturb(carry)
        if halted is not None:
            carry = replace(carry, halted=halted)
        before = model.model.answer_of(carry)
        carry = forward(carry, examples, drawn, measured=False).carry
        yield Step(before, carry)


def all_steps(model: ACTLossHead, examples: Examples) -> Iterable[Offer]:
    """Offer the same examples at every ACT step, for as many steps as the model takes."""
    return repeat(Offer(examples), model.model.eval_max_steps)


@contextmanager
def evaluating(model: ACTLossHead, ranks: Ranks, first_row: int) -> Iterator[None]:
    """Put a model into evaluation mode in the block, without gradients. `first_row` seeds torch's
    own generator, for models that draw from it: each rank draws other numbers.
    """
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), seeded_torch(first_row, ranks.device):
            yield
    finally:
        model.train(was_training)


# The random draws of rows


Rows = int | np.ndarray
"""The rows of a batch in their set: the number of the first one, or int64 [b], those of all."""


def row_keys(stream: Stream, seed: int, rows: Rows, count: int, chain: int = 0) -> np.ndarray:
    """Return the random keys of `count` rows in a chain, int64 [count]."""
    numbers = np.asarray(rows) + (np.arange(count) if np.ndim(rows) == 0 else 0)
    # The counter of the generator advances by one for every four words.
    counter, last = int(numbers.min()) // 4, int(numbers.max())
    words = random_words(seed, stream, (counter, chain, 0, 0), last + 1 - 4 * counter)
    return (words[numbers - 4 * counter] >> np.uint64(32)).astype(np.int64)


def with_draws(
    arrays: dict[str, np.ndarray], model: ACTLossHead, seed: int, rows: Rows, chain: int = 0
) -> dict[str, np.ndarray]:
    """Return the arrays of a batch, with the keys of its rows if the model draws random numbers."""
    if not model.model.inner.draws_numbers:
        return arrays
    count = len(arrays["inputs"])
    return arrays | {ROW_KEYS: row_keys(Stream.ROWS, seed, rows, count, chain)}


# Chains


def chain_steps(
    forward: Forward,
    model: ACTLossHead,
    arrays: dict[str, np.ndarray],
    settings: ThinkingSettings,
    chain: int,
    rows: Rows,
    on_device: Callable[[dict[str, np.ndarray]], Examples],
) -> Iterator[Step]:
    """Run the ACT steps of the chain with this number.

    With `perturb=noise` all chains but the first get noise after each step. The noise of a row
    depends only on seed, row, chain and step.

    Args:
        arrays: inputs, as this chain sees them, and puzzle_identifiers, on the host.
        on_device: copies arrays to the device of the model.
    """
    examples = on_device(with_draws(arrays, model, settings.seed, rows, chain))
    if settings.perturb != "noise" or chain == 0:
        return steps(forward, model, all_steps(model, examples))
    inputs = examples["inputs"]
    keys = row_keys(Stream.CHAINS, settings.seed, rows, len(inputs), chain)
    keys_there, table = torch.from_numpy(keys).to(inputs.device), noise_table(inputs.device)

    def disturb(carry: ACTCarry) -> ACTCarry:
        draws = RowDraws(table, keys_there, carry.steps)
        moved = {name: z + settings.noise * draws.normal(z) for name, z in carry.inner.items()}
        return replace(carry, inner=moved)

    return steps(forward, model, all_steps(model, examples), disturb)


# Batches of a test set


@dataclass(frozen=True)
class AnsweredBatch:
    """A batch with the answers of its rows.

    Attributes:
        set_name, batch, count, start: from `EvalBatches`.
        carry: after the last step of each row; all have halted. If slots were refilled, the
            answer's latent is the only one in it.
        right: which rows are right after each step, float32 [b, steps]; None: not noted.
        answers: the tokens after each of the first `NUM_ANSWERS` steps, int16 [b, steps, S];
            None: not noted.
    """

    set_name: str
    batch: Batch
    count: int
    start: int
    carry: ACTCarry
    right: Tensor | None = None
    answers: Tensor | None = None


def answered_batches(
    forward: Forward,
    model: ACTLossHead,
    batches: EvalBatches,
    ranks: Ranks,
    halting: Halting,
    begin: Callable[[int], None],
    seed: int = 0,
    notes_right: bool = False,
    kind: Kind | None = None,
) -> Iterator[AnsweredBatch]:
    """Run a model in evaluation mode on all batches, and yield them in order.

    Args:
        forward: `model` or its compiled form.
        halting: steps: every row takes all steps. q: a row that halts gives its slot to the next
            row; shapes stay constant.
        begin: called before each batch with its number.
        seed: of the random numbers that rows draw.
        notes_right: note which rows are right after each step; not with halting=q.
        kind: of puzzles with several right answers; then each is right.
    """
    if halting == "q":
        yield from _Slots(model, batches, ranks, seed).run(forward, begin)
        return
    first_row = ranks.rank * batches.local_batch_size
    for number, (set_name, batch, count, start) in enumerate(batches):
        begin(number)
        arrays = with_draws(batch.arrays(), model, seed, start + first_row)
        examples = ranks.on_device(arrays)
        took = _all_steps(forward, model, examples, kind, notes_right=notes_right)
        yield AnsweredBatch(set_name, batch, count, start, *took)


def _all_steps(
    forward: Forward,
    model: ACTLossHead,
    examples: Examples,
    kind: Kind | None = None,
    *,
    notes_right: bool = False,
) -> tuple[ACTCarry, Tensor | None, Tensor | None]:
    """Run all ACT steps on fresh examples. Return the carry, `AnsweredBatch.right` and
    `AnsweredBatch.answers`.
    """
    act, carry = model.model, None
    right: list[Tensor] = []
    answers: list[Tensor] = []
    for _, carry in steps(forward, model, all_steps(model, examples)):
        if notes_right:
            answer = act.inner.answer(act.answer_of(carry), carry.examples)
            logits = act.inner.heads["lm"].read(answer)["logits"]
            preds = logits.argmax(-1)
            if kind is None:
                right.append(Targets.of(carry.examples, logits).whole_right.float())
            else:
                right.append(valid_rows(kind, carry.examples["inputs"], preds).float())
            if len(answers) < NUM_ANSWERS:
                answers.append(preds.short())
    assert carry is not None  # A model takes at least one step.
    if not right:
        return carry, None, None
    return carry, torch.stack(right, -1), torch.stack(answers, 1)


def valid_rows(kind: Kind, questions: Tensor, answers: Tensor) -> Tensor:
    """Return which answers, tokens [b, S], keep the rules and the clues of a kind, bool [b]."""
    valid = kind.holds(questions.cpu().numpy(), answers.cpu().numpy())[0]
    return torch.from_numpy(valid).to(answers.device)


# Slots that are refilled


@dataclass
class _OpenBatch:
    """A batch with rows that are still waiting or running."""

    place: tuple[str, Batch, int, int]  # From `EvalBatches`.
    examples: Examples
    answers: Tensor  # States [B, T, D]; zeros until a row has its answer.
    steps: Tensor  # int32 [B]
    missing: int  # Rows without an answer, not counting padding.


class _Slots:
    """The slots for halting=q: as many as a batch has rows. When a row halts, the next row, even of
    the next batch, takes its slot; at the end slots stay empty.
    """

    def __init__(self, model: ACTLossHead, batches: EvalBatches, ranks: Ranks, seed: int) -> None:
        self._model, self._batches, self._ranks, self._seed = model, batches, ranks, seed
        self._opened: dict[int, _OpenBatch] = {}  # By batch number, until all rows have answers.
        self._coming = self._rows()
        self._owners: list[tuple[int, int] | None] = [None] * batches.local_batch_size
        self._offered: Examples = {}
        self._halted: Tensor | None = None

    def run(self, forward: Forward, begin: Callable[[int], None]) -> Iterator[AnsweredBatch]:
        """Yield all batches in order, each as soon as its rows have halted."""
        offers = (Offer(self._offered, self._halted) for _ in repeat(None))
        running = steps(forward, self._model, offers)
        for number in range(len(self._batches)):
            begin(number)
            self._fill()
            while self._opened[number].missing:
                self._collect(next(running).carry)
                self._fill()
            yield self._take_out(number)

    def _rows(self) -> Iterator[tuple[int, int]]:
        """Yield (number of the batch, row in it) for this rank's rows without padding. A batch is
        opened when its first row is needed.
        """
        size, inner = self._batches.local_batch_size, self._model.model.inner
        first = self._ranks.rank * size
        for number, place in enumerate(self._batches):
            _, batch, count, start = place
            arrays = with_draws(batch.arrays(), self._model, self._seed, start + first)
            examples = self._ranks.on_device(arrays)
            if not self._offered:
                self._offered = {name: values.clone() for name, values in examples.items()}
            shape = (size, inner.num_states, inner.hidden_size)
            answers = torch.zeros(shape, dtype=inner.dtype, device=self._ranks.device)
            taken = torch.zeros(size, dtype=torch.int32, device=answers.device)
            num_rows = min(size, max(0, count - first))
            self._opened[number] = _OpenBatch(place, examples, answers, taken, num_rows)
            yield from ((number, row) for row in range(num_rows))

    def _fill(self) -> None:
        """Offer the next rows to the slots without one."""
        free = [slot for slot, owner in enumerate(self._owners) if owner is None]
        taken = list(zip(free, self._coming, strict=False))
        for slot, owner in taken:
            self._owners[slot] = owner
        for number, slots, rows in self._by_batch(taken):
            for name, values in self._opened[number].examples.items():
                self._offered[name][slots] = values[rows]

    def _collect(self, carry: ACTCarry) -> None:
        """Collect the answers of the rows that halted in this step, and free their slots."""
        act = self._model.model
        self._halted = act.halts(carry)
        halted = self._ranks.to_host(self._halted).nonzero().flatten().tolist()
        done = [(slot, owner) for slot in halted if (owner := self._owners[slot]) is not None]
        for number, slots, rows in self._by_batch(done):
            opened = self._opened[number]
            opened.answers[rows] = act.answer_of(carry)[slots]
            opened.steps[rows] = carry.steps[slots]
            opened.missing -= len(rows)
        for slot, _ in done:
            self._owners[slot] = None

    def _take_out(self, number: int) -> AnsweredBatch:
        """Return a batch with all its answers, and forget it."""
        opened = self._opened.pop(number)
        latents = {self._model.model.inner.latents[0]: opened.answers}
        halted = torch.ones_like(opened.steps, dtype=torch.bool)
        carry = ACTCarry(latents, opened.steps, halted, opened.examples)
        return AnsweredBatch(*opened.place, carry)

    def _by_batch(
        self, pairs: list[tuple[int, tuple[int, int]]]
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Group pairs (slot, (batch, row)): yield each batch's number, slots and rows. All indices
        go to the device in one copy.
        """
        triples = sorted((number, slot, row) for slot, (number, row) in pairs)
        indices, end = torch.tensor(triples).to(self._ranks.device), 0
        for number, group in groupby(triples, key=itemgetter(0)):
            start, end = end, end + len(list(group))
            yield number, indices[start:end, 1], indices[start:end, 2]
