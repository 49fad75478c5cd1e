"""The only loop that drives a model in evaluations: ACT steps, and those who read them.

`steps` runs one ACT step after the other. All else here says what the slots are offered before each
step: a batch that takes all its steps, rows that give their slots to the next ones where they halt,
or a chain that is disturbed. A step between the first and the last is not measured, and its answer
is read only where somebody asks for it.
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

from evaluation.config import Halting, ThinkingSettings
from models.act import ACTCarry, ACTLossHead, Drawn, LossOutput
from models.draws import ROW_KEYS, RowDraws, noise_table
from models.heads.base import Examples, Targets
from puzzle_dataset import Batch, EvalBatches
from runtime.device import seeded_torch
from runtime.ranks import Ranks
from runtime.streams import Stream, random_words

NUM_ANSWERS = 32
"""Steps after which answers are noted."""


Forward = Callable[..., LossOutput]
"""A model with its loss, plain or compiled: one ACT step, called as `ACTLossHead.forward` is."""


class Offer(NamedTuple):
    """What all slots are offered before an ACT step.

    Attributes:
        examples: slots that have halted take their row of these.
        halted: bool [B], the slots that take a new example; None: those that halted in the step
            before, at first all.
        drawn: the random numbers of the step.
    """

    examples: Examples
    halted: Tensor | None = None
    drawn: Drawn | None = None


class Step(NamedTuple):
    """An ACT step: the answer's states [B, T, D] before it, and the carry after it."""

    before: Tensor
    carry: ACTCarry


def steps(
    forward: Forward,
    model: ACTLossHead,
    offers: Iterable[Offer],
    disturb: Callable[[ACTCarry], ACTCarry] = lambda carry: carry,
) -> Iterator[Step]:
    """Run an ACT step for each offer; yields them.

    Args:
        forward: `model` or its compiled form.
        model: in evaluation mode.
        offers: the next one is asked for when the step before has been read, and may depend on it.
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
    """Offer the same examples at each ACT step, until each row has taken all its steps."""
    return repeat(Offer(examples), model.model.eval_max_steps)


@contextmanager
def evaluating(model: ACTLossHead, ranks: Ranks, first_row: int) -> Iterator[None]:
    """Put a model into evaluation mode in the block, without gradients. Models of your own that ask
    torch for numbers draw those of this rank, whose rows begin at `first_row`.
    """
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), seeded_torch(first_row, ranks.device):
            yield
    finally:
        model.train(was_training)


# What rows draw


def row_keys(stream: Stream, seed: int, first_row: int, count: int, chain: int = 0) -> np.ndarray:
    """Return the keys by which rows from `first_row` on draw in a chain, int64 [count]."""
    # Four words for each step of the counter.
    first_word = first_row % 4
    words = random_words(seed, stream, (first_row // 4, chain, 0, 0), first_word + count)
    return (words[first_word:] >> np.uint64(32)).astype(np.int64)


def with_draws(
    arrays: dict[str, np.ndarray], model: ACTLossHead, seed: int, first_row: int, chain: int = 0
) -> dict[str, np.ndarray]:
    """Return the arrays of a batch, for a model that draws random numbers with the keys that its
    rows have, the first of which is row `first_row` of its set.
    """
    if not model.model.inner.draws_numbers:
        return arrays
    count = len(arrays["inputs"])
    return arrays | {ROW_KEYS: row_keys(Stream.ROWS, seed, first_row, count, chain)}


# Chains


def chain_steps(
    forward: Forward,
    model: ACTLossHead,
    arrays: dict[str, np.ndarray],
    settings: ThinkingSettings,
    chain: int,
    first_row: int,
    on_device: Callable[[dict[str, np.ndarray]], Examples],
) -> Iterator[Step]:
    """Return the ACT steps of the chain with this number.

    With `perturb=noise` all chains but the first are disturbed after each step. A row's noise
    depends on seed, row, chain and step alone.

    Args:
        arrays: inputs, as this chain sees them, and puzzle_identifiers, on the host.
        first_row: number of the first puzzle in its set.
        on_device: brings arrays to the device of the model.
    """
    examples = on_device(with_draws(arrays, model, settings.seed, first_row, chain))
    if settings.perturb != "noise" or chain == 0:
        return steps(forward, model, all_steps(model, examples))
    inputs = examples["inputs"]
    keys = row_keys(Stream.CHAINS, settings.seed, first_row, len(inputs), chain)
    keys_there, table = torch.from_numpy(keys).to(inputs.device), noise_table(inputs.device)

    def disturb(carry: ACTCarry) -> ACTCarry:
        draws = RowDraws(table, keys_there, carry.steps)
        moved = {name: z + settings.noise * draws.normal(z) for name, z in carry.inner.items()}
        return replace(carry, inner=moved)

    return steps(forward, model, all_steps(model, examples), disturb)


# Batches of a test set


@dataclass(frozen=True)
class Thought:
    """A batch with the answers of its rows.

    Attributes:
        set_name, batch, count, start: as `EvalBatches` gives them.
        carry: after the last step of each row; all have halted. Where slots were refilled it has
            the answer's latent alone.
        right: which rows are right after each step, float32 [b, steps], where that was noted.
        answers: with `right`, the tokens after each of the first steps, at most `NUM_ANSWERS`,
            int16 [b, steps, S].
    """

    set_name: str
    batch: Batch
    count: int
    start: int
    carry: ACTCarry
    right: Tensor | None = None
    answers: Tensor | None = None


def thoughts(
    forward: Forward,
    model: ACTLossHead,
    batches: EvalBatches,
    ranks: Ranks,
    halting: Halting,
    begin: Callable[[int], None],
    seed: int = 0,
    notes_right: bool = False,
) -> Iterator[Thought]:
    """Let a model in evaluation mode think about all batches; yields them in their order.

    Args:
        forward: `model` or its compiled form.
        halting: steps: every row takes all steps. q: a row that halts gives its slot to the next
            row, at a constant shape.
        begin: called before the work on each batch, with its number.
        seed: of the numbers that the rows of a model draw.
        notes_right: note which rows are right after each step, but with `halting` q.
    """
    if halting == "q":
        yield from _Slots(model, batches, ranks, seed).thoughts(forward, begin)
        return
    first_row = ranks.rank * batches.local_batch_size
    for number, (set_name, batch, count, start) in enumerate(batches):
        begin(number)
        arrays = with_draws(batch.arrays(), model, seed, start + first_row)
        examples = ranks.on_device(arrays)
        took = _all_steps(forward, model, examples, notes_right=notes_right)
        yield Thought(set_name, batch, count, start, *took)


def _all_steps(
    forward: Forward, model: ACTLossHead, examples: Examples, *, notes_right: bool = False
) -> tuple[ACTCarry, Tensor | None, Tensor | None]:
    """Return the carry after all ACT steps on fresh examples and, where asked for, which rows are
    right after each step, and their answers, as `Thought` has them.
    """
    act, carry = model.model, None
    right: list[Tensor] = []
    answers: list[Tensor] = []
    for _, carry in steps(forward, model, all_steps(model, examples)):
        if notes_right:
            answer = act.inner.answer(act.answer_of(carry), carry.examples)
            logits = act.inner.heads["lm"].read(answer)["logits"]
            right.append(Targets.of(carry.examples, logits).whole_right.float())
            if len(answers) < NUM_ANSWERS:
                answers.append(logits.argmax(-1).short())
    assert carry is not None  # A model takes a step at least.
    if not right:
        return carry, None, None
    return carry, torch.stack(right, -1), torch.stack(answers, 1)


# Slots that are refilled


@dataclass
class _OpenBatch:
    """A batch some of whose rows are waiting or in work; the others have left their answers."""

    place: tuple[str, Batch, int, int]  # As `EvalBatches` gives it.
    examples: Examples
    answers: Tensor  # States [B, T, D]; zeros until a row has its answer.
    steps: Tensor  # int32 [B]
    missing: int  # Rows without an answer, padding aside.


class _Slots:
    """As many slots as a batch has rows, each with a row of its own or, at the end, none."""

    def __init__(self, model: ACTLossHead, batches: EvalBatches, ranks: Ranks, seed: int) -> None:
        self._model, self._batches, self._ranks, self._seed = model, batches, ranks, seed
        self._opened: dict[int, _OpenBatch] = {}  # By number, until they are taken out.
        self._coming = self._rows()
        self._owners: list[tuple[int, int] | None] = [None] * batches.local_batch_size
        self._offered: Examples = {}
        self._halted: Tensor | None = None

    def thoughts(self, forward: Forward, begin: Callable[[int], None]) -> Iterator[Thought]:
        """Yield all batches, in their order, as soon as their rows have halted."""
        running = steps(forward, self._model, self._offers())
        for number in range(len(self._batches)):
            begin(number)
            self._fill()
            while self._opened[number].missing:
                self._leave(next(running).carry)
                self._fill()
            yield self._take_out(number)

    def _rows(self) -> Iterator[tuple[int, int]]:
        """Yield (batch, row in it) of this rank's rows but padding; opens the batches."""
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

    def _offers(self) -> Iterator[Offer]:
        """Yield what the slots are offered before each step."""
        while True:
            yield Offer(self._offered, self._halted)

    def _leave(self, carry: ACTCarry) -> None:
        """Let the rows that have halted after a step leave their answers and their slots."""
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

    def _take_out(self, number: int) -> Thought:
        """Return a batch whose rows all have their answers, and forget it."""
        opened = self._opened.pop(number)
        latents = {self._model.model.inner.latents[0]: opened.answers}
        halted = torch.ones_like(opened.steps, dtype=torch.bool)
        carry = ACTCarry(latents, opened.steps, halted, opened.examples)
        return Thought(*opened.place, carry)

    def _by_batch(
        self, pairs: list[tuple[int, tuple[int, int]]]
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield for each batch its number, slots and rows, from (slot, (batch, row)) of several;
        they go to the device in one copy.
        """
        triples = sorted((number, slot, row) for slot, (number, row) in pairs)
        indices, end = torch.tensor(triples).to(self._ranks.device), 0
        for number, group in groupby(triples, key=itemgetter(0)):
            start, end = end, end + len(list(group))
            yield number, indices[start:end, 1], indices[start:end, 2]
