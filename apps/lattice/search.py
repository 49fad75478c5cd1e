"""Search with a model that deduces and guesses (arXiv:2605.08605): several chains for each puzzle,
the first of which that has decided all cells answers.

Neither the rules nor the solution have a say: a chain that the model finds contradictory takes its
last guess back, or starts again, and what a chain decides is believed. So an answer can be wrong; a
puzzle of which no chain decides all cells in time has none.

Shape letters: P puzzles at a time, C chains of each, B = P * C rows, S cells.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from apps.lattice.config import LatticeConfig
from apps.lattice.heads import CANDIDATES
from apps.lattice.model import (
    BEGINNINGS,
    CONTRADICTION,
    DECIDED,
    ORIGIN_CELLS,
    ORIGIN_TOKENS,
    STRIKE_BELOW,
)
from evaluation.config import EvalSearchSettings, SearchSettings
from evaluation.think import Forward, Offer, steps
from models.act import ACTCarry, ACTLossHead
from puzzle_dataset import Batch
from runtime.errors import ConfigError, disk_errors
from runtime.files import write_atomically
from runtime.progress import bar
from runtime.ranks import Ranks
from runtime.streams import Stream, random_words


@dataclass
class Found:
    """What became of a puzzle."""

    row: int  # its number in the set
    at_once: np.ndarray | None = None  # tokens [S] that the model would answer after one pass
    answer: np.ndarray | None = None  # of the first chain that had decided all cells
    chain: int | None = None  # the chain that answered
    rounds: int = 0  # steps that each chain took
    calls: int = 0  # rows that passed through the model, the chains of all rounds
    taken_back: int = 0  # guesses, of all chains
    restarts: int = 0  # of all chains
    seconds: float = 0.0  # of this rank, shared with the other puzzles of the batch

    def add(self, one: "Round", seconds: float) -> None:
        """Add a round of the puzzle's chains."""
        self.rounds += 1
        self.calls += len(one.verdicts)
        taken_back = one.taken_back >= 0
        self.taken_back += int(taken_back.sum())
        self.restarts += int(((one.verdicts == CONTRADICTION) & ~taken_back).sum())
        self.seconds += seconds
        decided = np.flatnonzero(one.verdicts == DECIDED)
        if len(decided):
            self.chain = int(decided[0])
            self.answer = one.after[self.chain].argmax(-1)

    def to_json(self) -> dict[str, Any]:
        return {n: v.tolist() if isinstance(v, np.ndarray) else v for n, v in vars(self).items()}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "Found":
        arrays = {n: np.array(v) for n, v in values.items() if isinstance(v, list)}
        return Found(**{**values, **arrays})


class Round(NamedTuple):
    """A step of a puzzle's C chains."""

    before: np.ndarray  # bool [C, S, V], the candidates that the model was shown
    after: np.ndarray  # the same, what is left
    guessed: np.ndarray  # int64 [C], the cell that was guessed; -1: none
    verdicts: np.ndarray  # int64 [C], DECIDED, CONTRADICTION, or 0
    taken_back: np.ndarray  # int64 [C], cell of the guess taken back; -1: none, a chain starts anew


# Chains of a puzzle begin with so many degrees of caution, one after the other.
CAUTIONS = 4

Watch = Callable[[Found, Round], object]


class Chain:
    """What a chain goes back to at a contradiction.

    Attributes:
        begins_with: bool [S, V], its candidates when it begins, or begins again.
        caution: how often it has started again, and what it began with: where no guess is left,
            something was struck that should not have been.
    """

    def __init__(self, candidates: np.ndarray, *, backtracks: bool, caution: int = 0) -> None:
        self.begins_with, self._first, self._backtracks = candidates, candidates, backtracks
        self.caution = caution
        # Of each guess that stands its cell, and the candidates if it was wrong.
        self._guesses: list[tuple[int, np.ndarray]] = []

    def follow(self, before: np.ndarray, after: np.ndarray, guessed: int, verdict: int) -> int:
        """Follow a round of the chain, as `Round` has it; return the cell that is taken back."""
        taken_back = -1
        if verdict == CONTRADICTION:
            self.begins_with = self._first
            if self._guesses:
                taken_back, self.begins_with = self._guesses.pop()
            else:
                self.caution += 1
        elif guessed >= 0 and self._backtracks:
            others = after.copy()
            others[guessed] = before[guessed] & ~after[guessed]
            self._guesses.append((guessed, others))
        return taken_back


@dataclass
class _Work:
    """The puzzles that are searched at a time, by slot."""

    inputs: np.ndarray  # Tokens [P, S]; of a slot without a puzzle those of the last one.
    halted: np.ndarray  # bool [P, C], chains that begin, or begin again, in the next round.
    searched: dict[int, Found] = field(default_factory=dict)
    chains: dict[int, list[Chain]] = field(default_factory=dict)
    taken: list[int] = field(default_factory=list)  # Slots whose puzzle begins in this round.
    began: float = 0.0


class Search:
    """Lets a model search for the answers of puzzles; slots that are done take the next one.

    Args:
        model: a lattice in evaluation mode, on the device of `ranks`; `forward` runs its steps.
        settings: chains of each puzzle (C), puzzles at a time (P; 1 if they do not say), and when
            one is given up.
        seed: of guesses and views, which follow from it, the puzzle's row, its chain and the round.
    """

    def __init__(
        self,
        forward: Forward,
        model: ACTLossHead,
        config: LatticeConfig,
        ranks: Ranks,
        settings: SearchSettings,
        seed: int,
    ) -> None:
        self._forward, self._model, self._ranks, self._seed = forward, model, ranks, seed
        self._views, self._rounds, self._chains = config.views, settings.rounds, settings.chains
        self._backtracks, self._caution = settings.backtrack, settings.caution
        self._strike_below = config.strike_below
        self._num_slots = settings.at_once if isinstance(settings, EvalSearchSettings) else 1
        self.rows = self._num_slots * settings.chains

    @torch.no_grad()
    def __call__(
        self, puzzles: Iterable[tuple[int, np.ndarray]], watch: Watch | None = None
    ) -> Iterator[Found]:
        """Yield what is found of puzzles, row and tokens [S], in the order in which they are done;
        `watch` is called with each of them after each of its rounds.
        """
        inner: Any = self._model.model.inner
        inputs = np.zeros((self._num_slots, inner.seq_len), np.int32)
        work = _Work(inputs, np.ones((self._num_slots, self._chains), bool))
        offers = self._offers(iter(puzzles), work)
        for _, carry in steps(self._forward, self._model, offers):
            if work.taken:
                at_once = self._at_once(carry)
                for slot in work.taken:
                    work.searched[slot].at_once = at_once[slot]
            rounds = self._told(carry, work.chains)
            seconds = (time.perf_counter() - work.began) / len(work.searched)
            for slot, found in list(work.searched.items()):
                one = rounds[slot]
                work.halted[slot] = one.verdicts == CONTRADICTION
                found.add(one, seconds)
                if watch:
                    watch(found, one)
                if found.answer is not None or found.rounds == self._rounds:
                    del work.chains[slot]
                    yield work.searched.pop(slot)

    def _offers(self, coming: Iterator[tuple[int, np.ndarray]], work: _Work) -> Iterator[Offer]:
        """Give the free slots the next puzzles, and yield what all rows are offered; those that
        have halted begin, or begin again.
        """
        while True:
            free = [slot for slot in range(self._num_slots) if slot not in work.searched]
            taken = dict(zip(free, coming, strict=False))
            work.taken = list(taken)
            for slot, (row, tokens) in taken.items():
                work.searched[slot], work.inputs[slot] = Found(row), tokens
                work.chains[slot], work.halted[slot] = self._new_chains(tokens), True
            if not work.searched:
                return
            work.began = time.perf_counter()
            offered = self._ranks.on_device(self._examples(work.inputs, work.chains))
            self._ranks.mark(f"round of {len(work.searched)} puzzles", long=True)
            arrays = {"halted": work.halted.ravel()} | self._draws(work.searched)
            drawn = self._ranks.on_device(arrays)
            yield Offer(offered, drawn.pop("halted"), drawn)

    def _new_chains(self, tokens: np.ndarray) -> list[Chain]:
        inner: Any = self._model.model.inner
        inputs = self._ranks.on_device({"inputs": tokens[None]})["inputs"]
        candidates = self._ranks.to_host(inner.all_candidates(inputs)).numpy()[0]
        cautions = (chain % CAUTIONS for chain in range(self._chains))
        return [Chain(candidates, backtracks=self._backtracks, caution=c) for c in cautions]

    def _examples(
        self, inputs: np.ndarray, chains: Mapping[int, Sequence[Chain]]
    ) -> dict[str, np.ndarray]:
        """Return what is offered to all rows, for inputs [P, S] and the chains of each slot."""
        inner: Any = self._model.model.inner
        rows = inputs.repeat(self._chains, axis=0)
        candidates = np.zeros((self.rows, inner.seq_len, len(inner.open_cell)), bool)
        strike_below = np.zeros(self.rows, np.float32)
        for slot, own in chains.items():
            place = slice(slot * self._chains, (slot + 1) * self._chains)
            candidates[place] = [one.begins_with for one in own]
            strike_below[place] = [self._strike_below * self._caution**one.caution for one in own]
        ids = np.zeros(self.rows, np.int32)
        examples = {"inputs": rows, "puzzle_identifiers": ids}
        examples |= {BEGINNINGS: candidates, STRIKE_BELOW: strike_below}
        if self._views != "none":
            shape = (self.rows, inner.seq_len), (self.rows, len(inner.open_cell))
            cells, tokens = (np.broadcast_to(np.arange(n), (rows, n)) for rows, n in shape)
            examples |= {ORIGIN_CELLS: cells.copy(), ORIGIN_TOKENS: tokens.copy()}
        return examples

    def _draws(self, searched: Mapping[int, Found]) -> dict[str, np.ndarray]:
        """Draw what all rows guess in their round, and their views."""
        words = np.zeros((self._num_slots, self._chains, 4), np.uint64)
        for slot, found in searched.items():
            counter = (0, found.rounds, found.row, 0)
            drawn = random_words(self._seed, Stream.SEARCH, counter, 4 * self._chains)
            words[slot] = drawn.reshape(-1, 4)
        words = words.reshape(-1, 4)
        draws = {"guesses": ((words[:, :2] >> np.uint64(40)) * 2.0**-24).astype(np.float32)}
        if self._views != "none":
            inner: Any = self._model.model.inner
            draws["cells"], draws["tokens"] = inner.views.turns(words[:, 2:].T)
        return draws

    def _told(self, carry: ACTCarry, chains: Mapping[int, Sequence[Chain]]) -> dict[int, Round]:
        """Follow the chains of each slot, and return what they did as the puzzle itself is seen."""
        names = (CANDIDATES, "z_next", "z_guess", "z_verdict")
        before, after, guessed, verdicts = (carry.inner[name] for name in names)
        examples = carry.examples
        if ORIGIN_CELLS in examples:
            cells, tokens = examples[ORIGIN_CELLS], examples[ORIGIN_TOKENS]
            before, after = (_turned_back(each, cells, tokens) for each in (before, after))
            known = cells.gather(1, guessed.clamp_min(0).unsqueeze(1)).squeeze(1)
            guessed = torch.where(guessed < 0, guessed, known)
        on_host = [self._ranks.to_host(each).numpy() for each in (before, after, guessed, verdicts)]
        rounds = {}
        for slot, own in chains.items():
            was, left, guesses, said = (each[slot * len(own) :][: len(own)] for each in on_host)
            each = zip(own, was, left, guesses.tolist(), said.tolist(), strict=True)
            taken_back = [chain.follow(*what) for chain, *what in each]
            rounds[slot] = Round(was, left, guesses, said, np.array(taken_back))
        return rounds

    def _at_once(self, carry: ACTCarry) -> np.ndarray:
        """Return the tokens that the first chain of each slot would answer now, [P, S]."""
        first = {name: values[:: self._chains] for name, values in carry.examples.items()}
        outputs = self._model.model.inner.read(carry.inner["z_H"][:: self._chains], first)
        tokens = outputs["logits"].argmax(-1)
        if ORIGIN_CELLS in first:
            renamed = first[ORIGIN_TOKENS].gather(1, tokens)
            tokens = torch.zeros_like(renamed).scatter(1, first[ORIGIN_CELLS], renamed)
        return self._ranks.to_host(tokens).numpy()


def _turned_back(candidates: Tensor, cells: Tensor, tokens: Tensor) -> Tensor:
    """Return candidates [C, S, V] as those of the puzzle itself, from its cells and tokens."""
    renamed = torch.zeros_like(candidates)
    renamed.scatter_(2, tokens.unsqueeze(1).expand_as(candidates), candidates)
    placed = torch.zeros_like(candidates)
    return placed.scatter_(1, cells.unsqueeze(-1).expand_as(candidates), renamed)


class Ledger:
    """Files of the puzzles that are done, one of each rank, so that a search that was killed goes
    on. Their names begin with `prefix`; those with another `key` are replaced.
    """

    def __init__(self, prefix: Path, key: str, ranks: Ranks) -> None:
        self._ranks, self._done = ranks, {}
        self._path = prefix.with_name(f"{prefix.name}.{ranks.rank}.jsonl")
        own = ""
        for path in prefix.parent.glob(f"{prefix.name}.*.jsonl"):
            first, *lines = path.read_text().splitlines() or [""]
            if first != key:
                continue
            for line in lines:
                with suppress(ValueError):  # A kill may have cut it off.
                    who, set_name, found = json.loads(line)
                    self._done[who, set_name, found["row"]] = Found.from_json(found)
                    own += f"{line}\n" if path == self._path else ""
        ranks.barrier()
        with disk_errors(self._path, ConfigError):
            write_atomically(self._path, f"{key}\n{own}")

    def missing(self, who: str, set_name: str, num_examples: int) -> list[int]:
        """Return the rows of a searcher and a set that this rank has to do."""
        own = range(self._ranks.rank, num_examples, self._ranks.world_size)
        return [row for row in own if (who, set_name, row) not in self._done]

    def add(self, who: str, set_name: str, found: Found) -> None:
        self._done[who, set_name, found.row] = found
        with disk_errors(self._path, ConfigError), self._path.open("a") as file:
            file.write(json.dumps([who, set_name, found.to_json()]) + "\n")

    def gather(self, who: str, set_name: str) -> dict[int, Found]:
        """Return what all ranks have done, by row."""
        own = {place[2]: one for place, one in self._done.items() if place[:2] == (who, set_name)}
        return {row: one for part in self._ranks.gather_objects(own) for row, one in part.items()}


def search_sets(
    search: Search, puzzles: Mapping[str, Batch], ledger: Ledger, who: str, *, show_progress: bool
) -> dict[str, list[Found]]:
    """Search all puzzles of each set, over all ranks; every rank returns the same, by row."""
    found = {}
    for name, rows in puzzles.items():
        missing = ledger.missing(who, name, len(rows.inputs))
        coming = search((row, rows.inputs[row]) for row in missing)
        shown = {"total": len(missing), "show": show_progress}
        for one in bar(coming, f"searching: {who}", "puzzles", **shown):
            ledger.add(who, name, one)
        done = ledger.gather(who, name)
        found[name] = [done[row] for row in range(len(rows.inputs))]
    return found
