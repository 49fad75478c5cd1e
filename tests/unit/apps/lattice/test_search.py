"""Search with several chains, with a model that deduces like a beginner."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from apps.lattice.config import LatticeConfig
from apps.lattice.evaluating import as_text, scores_of
from apps.lattice.model import CONTRADICTION
from apps.lattice.narration import describe_chain
from apps.lattice.search import Chain, Ledger, Round, Search, SearchResult, search_sets
from dataset.kinds.sudoku import SUDOKU
from dataset.sudoku import rules
from evaluation.config import EvalSearchSettings
from models.config import DataFacts
from models.registry import build_model
from puzzle_dataset import Batch
from runtime.ranks import Ranks

YES, NO = 9.0, -9.0
SMALL: Any = {"hidden_size": 4, "num_heads": 1, "L_layers": 1, "loops": 1, "dropout": 0.0}


@pytest.fixture(scope="module")
def puzzles() -> Batch:
    """Return twelve 4 x 4 puzzles with one solution each; every third needs no guess."""
    generator = np.random.default_rng(0)
    inputs, labels = [], []
    while len(inputs) < 12:
        solution = _solution(generator)
        question = np.where(
            generator.random((4, 4)) < (0.3, 0.3, 0.8)[len(inputs) % 3], solution, 0
        )
        if rules.count_solutions(question) == 1:
            inputs.append(SUDOKU.to_tokens(question))
            labels.append(SUDOKU.to_tokens(solution))
    ids = np.zeros(12, np.int32)
    return Batch(np.stack(inputs).astype(np.int32), np.stack(labels).astype(np.int32), ids)


def _solution(generator: np.random.Generator) -> np.ndarray:
    first = np.zeros((4, 4), int)
    first[0] = generator.permutation(4) + 1
    solution, _ = rules.solve(first)
    assert solution is not None
    return solution


@pytest.fixture
def ranks() -> Any:
    with Ranks("cpu") as ranks:
        yield ranks


class Beginner:
    """Heads that strike a digit if it is the only one left in another cell of the unit, and notice
    an empty cell. `doubt` is a (cell, token) that they almost strike.
    """

    def __init__(self, views: str = "none", doubt: tuple[int, int] | None = None) -> None:
        self.doubt = doubt
        self.config = LatticeConfig(**SMALL, forward_dtype="float32", views=views)
        self.model = build_model(self.config, DataFacts(6, 16, 1))
        self.inner: Any = self.model.model.inner
        self.shown: Tensor | None = None
        self.batch_sizes: list[int] = []
        forward = self.inner.forward

        def remembering(carry: Any, examples: Any, **options: Any) -> Any:
            self.shown = carry["z_candidates"]
            self.batch_sizes.append(len(self.shown))
            return forward(carry, examples, **options)

        self.inner.forward, self.inner.read = remembering, self.read

    def read(self, states: Tensor, examples: Any) -> dict[str, Tensor]:
        assert self.shown is not None
        if len(states) < len(self.shown):  # Called for the first chains' predictions.
            return {"logits": torch.zeros(len(states), 16, 6)}
        layout = rules.layout_of(4)
        single = self.shown & (self.shown.sum(-1, keepdim=True) == 1)
        keep = torch.full(self.shown.shape, YES)
        for cell in range(16):
            peers = sorted(set(layout.unit_cells[layout.cell_units[cell]].ravel()) - {cell})
            keep[:, cell][single[:, peers].any(1)] = NO
        if self.doubt:
            keep[:, *self.doubt] = torch.tensor(0.03).logit()
        return {
            "candidates_logits": keep,
            "contradiction_logits": torch.full((len(states),), NO),
            "logits": torch.zeros(self.shown.shape),
        }


def searching(
    ranks: Ranks, beginner: Beginner | None = None, seed: int = 0, **changed: Any
) -> Search:
    one = beginner or Beginner()
    settings = EvalSearchSettings(**{"chains": 4, "rounds": 200, "at_once": 3} | changed)
    return Search(one.model, one.model.eval(), one.config, ranks, settings, seed)


def search_with(
    ranks: Ranks,
    puzzles: Batch,
    seed: int = 0,
    views: str = "none",
    doubt: tuple[int, int] | None = None,
    **changed: Any,
) -> list[SearchResult]:
    beginner = Beginner(views, doubt)
    search = searching(ranks, beginner, seed, **changed)
    found = list(search(enumerate(puzzles.inputs)))
    assert set(beginner.batch_sizes) == {search.rows}
    return sorted(found, key=lambda one: one.row)


def essence(found: SearchResult) -> dict[str, Any]:
    values = {name: value for name, value in vars(found).items() if name != "seconds"}
    return {n: v.tolist() if isinstance(v, np.ndarray) else v for n, v in values.items()}


@pytest.mark.parametrize("backtrack", [True, False])
@pytest.mark.parametrize("views", ["none", "dihedral"])
def test_all_puzzles_are_solved_some_after_a_contradiction(
    ranks: Ranks, puzzles: Batch, views: str, backtrack: bool
) -> None:
    found = search_with(ranks, puzzles, views=views, backtrack=backtrack)
    for one, labels in zip(found, puzzles.labels, strict=True):
        assert np.array_equal(one.answer, labels)
        assert one.calls == 4 * one.rounds
        assert not (one.restarts if backtrack else one.taken_back)
    assert any(one.taken_back if backtrack else one.restarts for one in found)


def test_a_chain_takes_back_its_guesses_and_then_restarts() -> None:
    def cells(*left: set[int]) -> np.ndarray:
        return np.array([[token in cell for token in range(3)] for cell in left])

    first = cells({0, 1, 2}, {0, 1})
    chain = Chain(first, backtracks=True)
    # Struck: 0 of the first cell; guessed: 1 there. Then 0 of the second.
    assert chain.follow(first, cells({1}, {0, 1}), 0, 0) == -1
    assert chain.follow(cells({1}, {0, 1}), cells({1}, {0}), 1, 0) == -1
    for taken_back, left in (
        (1, cells({1}, {1})),
        (0, cells({0, 2}, {0, 1})),
        (-1, first),
        (-1, first),
    ):
        assert chain.follow(first, first, -1, CONTRADICTION) == taken_back
        assert np.array_equal(chain.begins_with, left)


def test_a_restart_after_a_guess_does_not_mean_that_too_much_was_struck() -> None:
    first = np.ones((2, 3), bool)
    chain = Chain(first, backtracks=False)
    for guessed, caution in ((0, 0), (-1, 1), (1, 1)):
        if guessed >= 0:
            assert chain.follow(first, first, guessed, 0) == -1
        assert chain.follow(first, first, -1, CONTRADICTION) == -1
        assert chain.caution == caution
        assert np.array_equal(chain.begins_with, first)


def test_each_restart_strikes_less(ranks: Ranks, puzzles: Batch) -> None:
    row = next(row for row in range(12) if (puzzles.inputs[row] == 1).sum() > 8)
    cell = int((puzzles.inputs[row] == 1).argmax())
    alone = slice(row, row + 1)
    one = Batch(puzzles.inputs[alone], puzzles.labels[alone], np.zeros(1, np.int32))
    doubt = (cell, int(one.labels[0, cell]))
    (bold,) = search_with(ranks, one, doubt=doubt, chains=1, caution=1.0)
    assert (bold.answer, bold.restarts > 2) == (None, True)
    (careful,) = search_with(ranks, one, doubt=doubt, chains=1)
    assert careful.answer is not None
    assert careful.answer.tolist() == one.labels[0].tolist()
    # 0.1, then 0.05, then 0.025.
    assert careful.restarts == 2
    # The third of several chains begins with this bound.
    (several,) = search_with(ranks, one, doubt=doubt, chains=4)
    assert several.chain in (2, 3)


@pytest.mark.parametrize("views", ["none", "dihedral"])
def test_an_answer_does_not_depend_on_the_puzzles_beside_it(
    ranks: Ranks, puzzles: Batch, views: str
) -> None:
    together = search_with(ranks, puzzles, at_once=5, views=views)
    alone = search_with(ranks, puzzles, at_once=1, views=views)
    assert list(map(essence, together)) == list(map(essence, alone))
    other = search_with(ranks, puzzles, at_once=1, seed=1)
    assert list(map(essence, other)) != list(map(essence, alone))


def test_right_answers_stand_the_checks_and_wrong_ones_fall(ranks: Ranks, puzzles: Batch) -> None:
    search = searching(ranks, checks=30)
    for row, labels in enumerate(puzzles.labels):
        wrong = labels.copy()
        wrong[:2] = labels[1::-1]  # Right in the row and the box, wrong in two columns.
        for tokens, stands in ((labels, True), (wrong, False)):
            answer = np.eye(6, dtype=bool)[tokens]
            found = SearchResult(row)
            assert search._stands(answer, found, chain=0) == stands
            assert found.calls == 30


def test_what_a_check_hides_does_not_depend_on_the_batch(
    ranks: Ranks, puzzles: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, own = list[np.ndarray](), Search._shown

    def noted(search: Search, inputs: np.ndarray, candidates: np.ndarray, bound: np.ndarray) -> Any:
        shown.append(candidates)
        return own(search, inputs, candidates, bound)

    monkeypatch.setattr(Search, "_shown", noted)
    answer, seen = np.eye(6, dtype=bool)[puzzles.labels[0]], []
    for at_once in (1, 2):
        search = searching(ranks, checks=20, at_once=at_once)
        assert search._stands(answer, SearchResult(0), chain=1)
        seen.append(np.concatenate(shown)[:20])
        shown.clear()
    assert np.array_equal(*seen)
    # Up to 40 % of the cells are hidden, on average 20 %.
    assert (seen[0].sum(-1) > 1).mean() == pytest.approx(0.2, abs=0.04)


def test_an_answer_in_which_a_contradiction_is_seen_falls(ranks: Ranks, puzzles: Batch) -> None:
    beginner, sees = Beginner(), []

    def reading(states: Tensor, examples: Any) -> dict[str, Tensor]:
        said = torch.full((len(states),), sees[-1])
        return beginner.read(states, examples) | {"contradiction_logits": said}

    beginner.inner.read = reading
    answer = np.eye(6, dtype=bool)[puzzles.labels[0]]
    for said in (NO, YES):
        sees.append(said)
        stands = searching(ranks, beginner, checks=2)._stands(answer, SearchResult(0), 0)
        assert stands is (said == NO)


def test_an_answer_stands_though_its_hidden_tokens_are_struck(ranks: Ranks, puzzles: Batch) -> None:
    beginner, answer = Beginner(), np.eye(6, dtype=bool)[puzzles.labels[0]]

    def reading(states: Tensor, examples: Any) -> dict[str, Tensor]:
        assert beginner.shown is not None
        is_hidden = beginner.shown.sum(-1, keepdim=True) > 1
        kept = torch.where(is_hidden & torch.from_numpy(answer), NO, YES)
        assert (kept == NO).any()
        return beginner.read(states, examples) | {"candidates_logits": kept}

    beginner.inner.read = reading
    assert searching(ranks, beginner, checks=8)._stands(answer, SearchResult(0), 0)


@pytest.mark.parametrize("views", ["none", "dihedral"])
def test_the_answer_at_once_is_in_the_puzzles_own_view(
    ranks: Ranks, puzzles: Batch, views: str
) -> None:
    beginner = Beginner(views)

    def copying(states: Tensor, examples: Any) -> dict[str, Tensor]:
        assert beginner.shown is not None
        if len(states) < len(beginner.shown):
            cells = examples["inputs"].long()
            return {"logits": torch.nn.functional.one_hot(cells, 6).float()}
        return beginner.read(states, examples)

    beginner.inner.read = copying
    found = list(searching(ranks, beginner)(enumerate(puzzles.inputs)))
    assert len(found) == len(puzzles.inputs)
    for one in found:
        assert np.array_equal(one.at_once, puzzles.inputs[one.row])


def test_a_chain_goes_on_after_an_answer_that_falls(
    ranks: Ranks, puzzles: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = search_with(ranks, puzzles, chains=1)
    fallen = set[int]()

    def falls_once(_: Search, answer: np.ndarray, found: SearchResult, chain: int) -> bool:
        is_first = found.row not in fallen
        fallen.add(found.row)
        return not is_first

    monkeypatch.setattr(Search, "_stands", falls_once)
    for one, before, labels in zip(
        search_with(ranks, puzzles, chains=1), plain, puzzles.labels, strict=True
    ):
        assert np.array_equal(one.answer, labels)
        assert one.rounds > before.rounds
        assert one.taken_back + one.restarts > before.taken_back + before.restarts


def test_the_story_tells_of_an_answer_that_falls(
    ranks: Ranks, puzzles: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    stands, rounds = iter([False]), list[Round]()
    monkeypatch.setattr(Search, "_stands", lambda *_: next(stands, True))
    search = searching(ranks, chains=1)
    list(search([(0, puzzles.inputs[0])], lambda _, one: rounds.append(one)))
    lines = list(describe_chain(rounds, 0))
    told = "  contradiction: the answer did not stand the checks; "
    assert sum(line.startswith(told) for line in lines) == 1
    assert lines[-1] == "  all cells are decided"


def test_a_puzzle_is_given_up_after_its_rounds(ranks: Ranks, puzzles: Batch) -> None:
    enough = search_with(ranks, puzzles)
    few = search_with(ranks, puzzles, rounds=3)
    for one, other in zip(enough, few, strict=True):
        assert (other.answer is None) == (one.rounds > 3)
        assert other.rounds == min(3, one.rounds)


def test_a_search_that_was_killed_goes_on(ranks: Ranks, puzzles: Batch, tmp_path: Path) -> None:
    search = searching(ranks)

    def found_with(ledger: Ledger) -> list[SearchResult]:
        return search_sets(search, {"all": puzzles}, ledger, "me", show_progress=False)["all"]

    class Killed(Ledger):
        def add(self, who: str, set_name: str, found: SearchResult) -> None:
            super().add(who, set_name, found)
            if len(self._done) == 7:
                raise KeyboardInterrupt

    class Counting(Ledger):
        def add(self, who: str, set_name: str, found: SearchResult) -> None:
            rows.add(found.row)
            super().add(who, set_name, found)

    whole, rows = found_with(Ledger(tmp_path / "whole", "key", ranks)), set[int]()
    with pytest.raises(KeyboardInterrupt):
        found_with(Killed(tmp_path / "search", "key", ranks))
    file = tmp_path / "search.0.jsonl"
    file.write_text(file.read_text()[:-40])  # The seventh line was cut off.
    again = found_with(Counting(tmp_path / "search", "key", ranks))
    assert len(rows) == 12 - 6
    assert len(file.read_text().splitlines()) == 1 + 12
    assert list(map(essence, again)) == list(map(essence, whole))


def test_another_search_ignores_the_file_of_a_killed_one(ranks: Ranks, tmp_path: Path) -> None:
    def ledger(key: str) -> Ledger:
        return Ledger(tmp_path / "search", key, ranks)

    ledger("one").add("me", "all sets", SearchResult(3))
    assert ledger("two").missing("me", "all sets", 5) == [0, 1, 2, 3, 4]
    ledger("two").add("me", "all sets", SearchResult(2))
    assert ledger("two").missing("me", "all sets", 5) == [0, 1, 3, 4]
    assert ledger("two").missing("you", "all sets", 3) == [0, 1, 2]
    assert ledger("two").missing("me", "none", 3) == [0, 1, 2]


def test_figures_distinguish_solved_wrong_and_abstained() -> None:
    labels = np.array([[2, 3], [3, 2], [2, 2], [3, 3]])
    found = [
        SearchResult(0, at_once=labels[0], answer=labels[0], calls=4, seconds=1.0),
        SearchResult(1, at_once=labels[0], answer=labels[1], calls=8, seconds=2.0),
        SearchResult(2, at_once=labels[0], answer=labels[3], calls=100, seconds=3.0),
        SearchResult(3, at_once=labels[3], calls=400, seconds=6.0),
    ]
    (figures,) = scores_of("all", "model", found, labels)
    assert scores_of("all", "model", found, np.full((4, 2), -100)) == []
    shares = [figures.solved, figures.wrong, figures.abstained]
    assert [share.value for share in shares] == [0.5, 0.25, 0.25]
    assert figures.at_once is not None
    assert figures.at_once.value == 0.5
    assert figures.calls[:2] == (128.0, 54.0)
    within = {1: 0, 2: 0, 4: 0.25, 8: 0.5, 16: 0.5, 32: 0.5, 64: 0.5, 128: 0.5, 256: 0.5, 512: 0.5}
    assert figures.solved_within == within
    assert "all, model: share solved by number of calls: 1 0.000, 2 0.000, 4 0.250" in as_text(
        [figures]
    )
    assert figures.seconds == 3.0


@pytest.mark.parametrize("backtrack", [True, False])
@pytest.mark.parametrize("views", ["none", "dihedral"])
def test_the_story_of_a_chain_leads_to_its_answer(
    ranks: Ranks, puzzles: Batch, views: str, backtrack: bool
) -> None:
    search = searching(ranks, Beginner(views), chains=2, backtrack=backtrack)
    stories = 0
    for row, inputs in enumerate(puzzles.inputs):
        rounds: list[Round] = []
        (found,) = search([(row, inputs)], lambda _, one, rounds=rounds: rounds.append(one))
        assert found.chain is not None
        lines = list(describe_chain(rounds, found.chain))
        assert lines[-1] == "  all cells are decided"
        told: dict[str, int] = {}
        before_guess: list[dict[str, int]] = []
        for line in lines:
            words = line.split()
            if words[0] == "guess":
                before_guess.append(dict(told))
                told[words[1]] = int(words[3])
            elif words[0] == "contradiction:" and words[-1] == "restart":
                told, before_guess = {}, []
            elif words[0] == "contradiction:":
                place, _, _, digit, *but = words[words.index("so") + 1 :]
                wrong, told = told[place], before_guess.pop()
                assert wrong == int(digit)
                told |= {place: int(but[1])} if but else {}
            elif words[1] == "is":
                told[words[0]] = int(words[2].rstrip(":"))
        grid = SUDOKU.to_grid(found.answer)
        given = SUDOKU.to_grid(inputs)
        assert told == {
            f"r{r + 1}c{c + 1}": grid[r, c] for r in range(4) for c in range(4) if not given[r, c]
        }
        stories += any("contradiction" in line for line in lines)
    assert stories
