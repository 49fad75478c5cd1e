"""Search with a model that deduces and guesses (arXiv:2605.08605). Each puzzle has several chains;
the first one to decide all cells gives the answer.

The search knows neither rules nor solution. At a contradiction, as the model sees it, a chain takes
back its last guess or starts again. An answer can be wrong, because nothing checks it. A puzzle has
no answer if no chain decides all cells in time.

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
from dataset.sudoku.rules import EMPTY_TOKEN
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
class SearchResult:
    """The result of the search for a puzzle."""

    row: int  # its number in the set
    at_once: np.ndarray | None = None  # tokens [S], the answer of one pass without search
    answer: np.ndarray | None = None  # tokens [S] of the first chain to decide all cells
    chain: int | None = None  # that chain
    rounds: int = 0  # steps of each chain
    calls: int = 0  # rows through the model: chains times rounds, and checks
    taken_back: int = 0  # guesses taken back by all chains
    restarts: int = 0  # restarts of all chains
    seconds: float = 0.0  # this puzzle's share of this rank's time

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
    def from_json(values: Mapping[str, Any]) -> "SearchResult":
        arrays = {n: np.array(v) for n, v in values.items() if isinstance(v, list)}
        return SearchResult(**{**values, **arrays})


class Round(NamedTuple):
    """A step of a puzzle's C chains."""

    before: np.ndarray  # bool [C, S, V], the candidates that the model was shown
    after: np.ndarray  # bool [C, S, V], the candidates that are left
    guessed: np.ndarray  # int64 [C], the guessed cell; -1: none
    verdicts: np.ndarray  # int64 [C], DECIDED, CONTRADICTION, or 0
    taken_back: np.ndarray  # int64 [C], cell of a guess taken back; -1: none, or a restart
    fell: np.ndarray  # bool [C], contradictions that are answers which did not stand the checks


# Chain c of a puzzle begins with caution c modulo this.
CAUTIONS = 4
# A check hides at most this share of an answer's cells.
_MOST_HIDDEN = 0.4

Watch = Callable[[SearchResult, Round], object]


class Chain:
    """The guesses of a chain, for going back at a contradiction.

    Attributes:
        begins_with: bool [S, V], the candidates when the chain begins or begins again.
        caution: its initial caution plus its restarts without a guess left. Those mean that a right
            candidate was struck, so higher caution strikes less.
    """

    def __init__(self, candidates: np.ndarray, *, backtracks: bool, caution: int = 0) -> None:
        self.begins_with, self._first, self._backtracks = candidates, candidates, backtracks
        self.caution = caution
        # For each standing guess its cell, and the candidates to go on with if it was wrong.
        self._guesses: list[tuple[int, np.ndarray]] = []

    def follow(self, before: np.ndarray, after: np.ndarray, guessed: int, verdict: int) -> int:
        """Take in a round of the chain, in the terms of `Round`. Return the cell of the guess that
        is taken back, or -1.
        """
        taken_back = -1
        if verdict == CONTRADICTION:
            self.begins_with = self._first
            if not self._guesses:
                self.caution += 1
            elif self._backtracks:
                taken_back, self.begins_with = self._guesses.pop()
            else:
                self._guesses.clear()
        elif guessed >= 0:
            others = after.copy()
            others[guessed] = before[guessed] & ~after[guessed]
            self._guesses.append((guessed, others))
        return taken_back


@dataclass
class _Work:
    """The state of the search: the present puzzles by slot."""

    inputs: np.ndarray  # tokens [P, S]; an empty slot keeps its last puzzle
    halted: np.ndarray  # bool [P, C], chains that begin or begin again in the next round
    searched: dict[int, SearchResult] = field(default_factory=dict)
    chains: dict[int, list[Chain]] = field(default_factory=dict)
    taken: list[int] = field(default_factory=list)  # slots with a new puzzle in this round
    began: float = 0.0  # time at which this round began


class Search:
    """Searches for the answers of puzzles with a model, several puzzles at a time.

    Args:
        model: a lattice in evaluation mode, on the device of `ranks`; `forward` runs its steps.
        settings: chains of each puzzle (C), puzzles at a time (P; 1 without this setting), and the
            rounds after which a puzzle is given up.
        seed: guesses and views depend only on it and the puzzle's row, chain and round.
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
        self._inner: Any = model.model.inner
        self._config, self._settings, self._chains = config, settings, settings.chains
        self._num_slots = settings.at_once if isinstance(settings, EvalSearchSettings) else 1
        self.rows = self._num_slots * settings.chains

    @torch.no_grad()
    def __call__(
        self, puzzles: Iterable[tuple[int, np.ndarray]], watch: Watch | None = None
    ) -> Iterator[SearchResult]:
        """Yield the result of each puzzle as soon as it is done. `puzzles` are (row, tokens [S]).
        `watch` is called after each round of each puzzle.
        """
        inputs = np.zeros((self._num_slots, self._inner.seq_len), np.int32)
        work = _Work(inputs, np.ones((self._num_slots, self._chains), bool))
        offers = self._offers(iter(puzzles), work)
        for _, carry in steps(self._forward, self._model, offers):
            if work.taken:
                at_once = self._at_once(carry)
                for slot in work.taken:
                    work.searched[slot].at_once = at_once[slot]
            rounds = self._follow(carry, work)
            seconds = (time.perf_counter() - work.began) / len(work.searched)
            for slot, found in list(work.searched.items()):
                one = rounds[slot]
                work.halted[slot] = one.verdicts == CONTRADICTION
                found.add(one, seconds)
                if watch:
                    watch(found, one)
                if found.answer is not None or found.rounds == self._settings.rounds:
                    del work.chains[slot]
                    yield work.searched.pop(slot)

    def _offers(self, coming: Iterator[tuple[int, np.ndarray]], work: _Work) -> Iterator[Offer]:
        """Fill free slots with the next puzzles, and yield the offer for all rows of a round."""
        while True:
            free = [slot for slot in range(self._num_slots) if slot not in work.searched]
            taken = dict(zip(free, coming, strict=False))
            work.taken = list(taken)
            for slot, (row, tokens) in taken.items():
                work.searched[slot], work.inputs[slot] = SearchResult(row), tokens
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
        inputs = self._ranks.on_device({"inputs": tokens[None]})["inputs"]
        candidates = self._ranks.to_host(self._inner.all_candidates(inputs)).numpy()[0]
        cautions, backtracks = (i % CAUTIONS for i in range(self._chains)), self._settings.backtrack
        return [Chain(candidates, backtracks=backtracks, caution=c) for c in cautions]

    def _examples(
        self, inputs: np.ndarray, chains: Mapping[int, Sequence[Chain]]
    ) -> dict[str, np.ndarray]:
        """Return the examples for all rows, from inputs [P, S] and the chains of each slot."""
        inner, least = self._inner, self._config.strike_below
        candidates = np.zeros((self.rows, inner.seq_len, len(inner.open_cell)), bool)
        strike_below = np.zeros(self.rows, np.float32)
        for slot, own in chains.items():
            place = slice(slot * self._chains, (slot + 1) * self._chains)
            candidates[place] = [one.begins_with for one in own]
            strike_below[place] = [least * self._settings.caution**one.caution for one in own]
        return self._shown(inputs.repeat(self._chains, axis=0), candidates, strike_below)

    def _shown(
        self, inputs: np.ndarray, candidates: np.ndarray, strike_below: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Return the examples for inputs [rows, S] that begin with candidates [rows, S, V]."""
        examples = {"inputs": inputs, "puzzle_identifiers": np.zeros(len(inputs), np.int32)}
        examples |= {BEGINNINGS: candidates, STRIKE_BELOW: strike_below}
        if self._config.views != "none":
            sizes = candidates.shape[1:]
            cells, tokens = (np.broadcast_to(np.arange(n), (len(inputs), n)) for n in sizes)
            examples |= {ORIGIN_CELLS: cells.copy(), ORIGIN_TOKENS: tokens.copy()}
        return examples

    def _draws(self, searched: Mapping[int, SearchResult]) -> dict[str, np.ndarray]:
        """Draw the guesses and views of all rows for their round."""
        words = np.zeros((self._num_slots, self._chains, 4), np.uint64)
        for slot, found in searched.items():
            counter = (0, found.rounds, found.row, 0)
            drawn = random_words(self._seed, Stream.SEARCH, counter, 4 * self._chains)
            words[slot] = drawn.reshape(-1, 4)
        words = words.reshape(-1, 4)
        draws = {"guesses": ((words[:, :2] >> np.uint64(40)) * 2.0**-24).astype(np.float32)}
        if self._config.views != "none":
            draws["cells"], draws["tokens"] = self._inner.views.turns(words[:, 2:].T)
        return draws

    def _follow(self, carry: ACTCarry, work: _Work) -> dict[int, Round]:
        """Let the chains of each slot follow their round. Return it in the puzzle's own view. An
        answer that does not stand the checks is a contradiction.
        """
        names = (CANDIDATES, "z_next", "z_guess", "z_verdict")
        before, after, guessed, verdicts = (carry.inner[name] for name in names)
        examples = carry.examples
        if ORIGIN_CELLS in examples:
            cells, tokens = examples[ORIGIN_CELLS], examples[ORIGIN_TOKENS]
            before, after = (_in_own_view(each, cells, tokens) for each in (before, after))
            known = cells.gather(1, guessed.clamp_min(0).unsqueeze(1)).squeeze(1)
            guessed = torch.where(guessed < 0, guessed, known)
        on_host = [self._ranks.to_host(each).numpy() for each in (before, after, guessed, verdicts)]
        rounds = {}
        for slot, own in work.chains.items():
            was, left, guesses, verdict = (each[slot * len(own) :][: len(own)] for each in on_host)
            said = verdict.copy()
            for chain in np.flatnonzero(verdict == DECIDED):
                if self._stands(left[chain], work.searched[slot], int(chain)):
                    break
                said[chain] = CONTRADICTION
            each = zip(own, was, left, guesses.tolist(), said.tolist(), strict=True)
            taken_back = [chain.follow(*what) for chain, *what in each]
            rounds[slot] = Round(was, left, guesses, said, np.array(taken_back), said != verdict)
        return rounds

    def _stands(self, answer: np.ndarray, found: SearchResult, chain: int) -> bool:
        """Return whether an answer, bool [S, V], stands the checks: shown without the puzzle, and
        with other cells hidden each time, the model sees no contradiction.
        """
        checks = self._settings.checks
        size = max(1, min(checks, self.rows))
        is_open = self._ranks.to_host(self._inner.open_cell).numpy()
        inputs = np.full((size, len(answer)), EMPTY_TOKEN, np.int32)
        bound = np.full(size, self._config.strike_below, np.float32)
        counter = (0, found.rounds, found.row, 1 + chain)
        words = random_words(self._seed, Stream.SEARCH, counter, checks * (1 + len(answer)))
        drawn = (words >> np.uint64(40)).reshape(checks, 1 + len(answer)) * 2.0**-24
        masks = drawn[:, 1:] < _MOST_HIDDEN * drawn[:, :1]
        found.calls += checks  # Also those after a fall: how many run depends on `at_once`.
        for first in range(0, checks, size):
            hidden = np.resize(masks[first : first + size], inputs.shape)
            candidates = np.where(hidden[..., None], is_open, answer)
            offered = self._ranks.on_device(self._shown(inputs, candidates, bound))
            ((_, carry),) = steps(self._forward, self._model, [Offer(offered)])
            verdicts = self._ranks.to_host(carry.inner["z_verdict"]).numpy()
            if (verdicts == CONTRADICTION).any():
                return False
        return True

    def _at_once(self, carry: ACTCarry) -> np.ndarray:
        """Return the present token predictions of the first chain of each slot, [P, S]."""
        first = {name: values[:: self._chains] for name, values in carry.examples.items()}
        outputs = self._inner.read(carry.inner["z_H"][:: self._chains], first)
        tokens = outputs["logits"].argmax(-1)
        if ORIGIN_CELLS in first:
            renamed = first[ORIGIN_TOKENS].gather(1, tokens)
            tokens = torch.zeros_like(renamed).scatter(1, first[ORIGIN_CELLS], renamed)
        return self._ranks.to_host(tokens).numpy()


def _in_own_view(candidates: Tensor, cells: Tensor, tokens: Tensor) -> Tensor:
    """Return candidates [C, S, V] in the puzzle's own view; see `ORIGIN_CELLS`."""
    renamed = torch.zeros_like(candidates)
    renamed.scatter_(2, tokens.unsqueeze(1).expand_as(candidates), candidates)
    placed = torch.zeros_like(candidates)
    return placed.scatter_(1, cells.unsqueeze(-1).expand_as(candidates), renamed)


class Ledger:
    """Files with the results so far, one for each rank, to continue a killed search. Their names
    begin with `prefix`; files with another `key` are replaced.
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
                with suppress(ValueError):  # A kill may have cut off the last line.
                    who, set_name, found = json.loads(line)
                    self._done[who, set_name, found["row"]] = SearchResult.from_json(found)
                    own += f"{line}\n" if path == self._path else ""
        ranks.barrier()
        with disk_errors(self._path, ConfigError):
            write_atomically(self._path, f"{key}\n{own}")

    def missing(self, who: str, set_name: str, num_examples: int) -> list[int]:
        """Return the rows that this rank still has to search."""
        own = range(self._ranks.rank, num_examples, self._ranks.world_size)
        return [row for row in own if (who, set_name, row) not in self._done]

    def add(self, who: str, set_name: str, found: SearchResult) -> None:
        self._done[who, set_name, found.row] = found
        with disk_errors(self._path, ConfigError), self._path.open("a") as file:
            file.write(json.dumps([who, set_name, found.to_json()]) + "\n")

    def gather(self, who: str, set_name: str) -> dict[int, SearchResult]:
        """Return the results of all ranks by row."""
        own = {place[2]: one for place, one in self._done.items() if place[:2] == (who, set_name)}
        return {row: one for part in self._ranks.gather_objects(own) for row, one in part.items()}


def search_sets(
    search: Search, puzzles: Mapping[str, Batch], ledger: Ledger, who: str, *, show_progress: bool
) -> dict[str, list[SearchResult]]:
    """Search all puzzles of each set on all ranks; each rank returns all results, by row."""
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
