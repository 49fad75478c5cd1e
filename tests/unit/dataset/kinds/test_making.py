"""Rules as clauses, and made puzzles of all kinds."""

from itertools import islice
from typing import Any

import numpy as np
import pytest

from dataset.kinds import KINDS
from dataset.kinds.base import Kind, kind_named
from dataset.kinds.making import Clauses, Draws, make_puzzles
from runtime.errors import ConfigError
from runtime.streams import Stream

LOADED = {name: kind_named(name) for name in KINDS}
MADE = {name: kind for name, kind in LOADED.items() if type(kind).draw is not Kind.draw}
"""The kinds that are made by `make_puzzles`, without one that takes seconds for a puzzle."""
del MADE["sudoku_16"]


def made(kind: Kind, number: int, seed: int = 0, **how: Any) -> list[Any]:
    size = kind.sizes[1]
    how = {"seed": seed, "stream": Stream.NEW_TEST, "taken": set(), **how}
    return [*islice(make_puzzles(kind, size, **how), number)]


@pytest.fixture(params=MADE)
def kind(request: pytest.FixtureRequest) -> Kind:
    return MADE[request.param]


def test_clauses_count_what_can_be_counted_by_hand() -> None:
    rules = Clauses(num_tokens=4)
    for cell in range(4):
        rules.choose(cell, (1, 2, 3))
    assert len([*rules.solutions([])]) == 3**4
    rules.different([0, 1, 2], (1, 2, 3))
    assert len([*rules.solutions([])]) == 6 * 3
    assert len([*rules.solutions([rules.holds(0, 1), -rules.holds(1, 2)])]) == 3
    rules.exactly(2, [rules.holds(cell, 1) for cell in range(4)])
    assert {found[3] for found in rules.solutions([])} == {1}
    assert rules.open_cells([]) == 4
    assert rules.open_cells([rules.holds(0, 1), rules.holds(1, 2)]) == 0
    rules.exactly(5, [rules.holds(cell, 1) for cell in range(4)])
    assert not rules.can_hold([])


def test_clauses_of_one_literal_fill_cells_too() -> None:
    rules = Clauses(num_tokens=3)
    for cell in range(3):
        rules.choose(cell, (1, 2))
    rules.different([0, 1], (1, 2))
    rules.either(-rules.holds(0, 2))
    assert rules.open_cells([]) == 1
    assert rules.open_cells([rules.holds(2, 1)]) == 0


def test_draws_depend_on_their_numbers_alone() -> None:
    first, same, other = Draws(1, 2, 3), Draws(1, 2, 3), Draws(1, 2, 4)
    order = first.order(50)
    assert sorted(order) == [*range(50)]
    np.testing.assert_array_equal(order, same.order(50))
    assert order.tolist() != other.order(50).tolist()
    assert order.tolist() != first.order(50).tolist()
    assert all(2.0 <= first.between(2.0, 3.0) < 3.0 for _ in range(100))
    assert {first.below(3) for _ in range(100)} == {0, 1, 2}


def test_a_made_puzzle_has_a_right_answer_and_one_only_if_the_kind_says_so(kind: Kind) -> None:
    for puzzle in made(kind, 8):
        question = kind.to_grid(puzzle.question)
        open_token = kind.board(len(question)).open
        assert (puzzle.question == open_token).any()
        valid, kept = kind.holds(puzzle.question[None], puzzle.answer[None])
        assert valid.all()
        assert kept.all()
        assert kind.judge(question, kind.to_grid(puzzle.answer), None).solved
        rules = kind.rules(question)
        assert rules is not None
        number = len([*rules.solutions(rules.given(puzzle.question, open_token))])
        assert puzzle.rating == number if kind.many_answers else number == 1
        solution = kind.solution(question)
        assert solution is not None
        assert kind.judge(question, solution, None).solved


def test_the_checker_and_the_clauses_agree(kind: Kind) -> None:
    """On right answers, and on answers with some other tokens."""
    draws, verdicts = Draws(0, 1, 0), set()
    for puzzle in made(kind, 5):
        question, answer = kind.to_grid(puzzle.question), puzzle.answer
        rules, open_token = kind.rules(question), kind.board(len(question)).open
        assert rules is not None
        cells = np.array([*rules._tokens])
        for changes in (0, 1, 2, 2, 4):
            board = answer.copy()
            for cell in cells[draws.order(len(cells))[:changes]]:
                tokens = rules._tokens[int(cell)]
                board[cell] = tokens[draws.below(len(tokens))]
            if changes == 2:  # Exchanged digits or queens are nearer to right than others.
                one, other = cells[draws.order(len(cells))[:2]]
                board[[one, other]] = answer[[other, one]]
            holds = rules.can_hold([rules.holds(cell, board[cell]) for cell in cells])
            assert holds == (not kind.broken(kind.to_grid(board)).any()), (changes, open_token)
            verdicts.add(holds)
    assert verdicts == {True, False}


def test_views_keep_answers_right_and_can_be_undone(kind: Kind) -> None:
    puzzles = made(kind, 12)
    questions, answers = (
        np.stack([getattr(one, name) for one in puzzles]) for name in ("question", "answer")
    )
    views = kind.views(len(kind.to_grid(questions[0])))
    assert views is not None
    numbers = (np.arange(12) * 7919) % views.number
    turned = views.apply(numbers, questions, answers)
    assert all(part.all() for part in kind.holds(*turned))
    assert (turned[0] != questions).any()
    for before, after in zip((questions, answers), turned, strict=True):
        np.testing.assert_array_equal(views.undo(numbers, after), before)
    np.testing.assert_array_equal(views.apply(np.array([0]), answers[:1])[0], answers[:1])


def test_puzzles_depend_on_the_seed_and_repeat_no_other(kind: Kind) -> None:
    first, longer = made(kind, 3), made(kind, 6)
    same = [np.array_equal(a.question, b.question) for a, b in zip(first, longer, strict=False)]
    assert all(same)
    taken = {kind.key_of(one.question) for one in longer}
    assert len(taken) == 6
    others = made(kind, 3, taken=set(taken))
    assert not taken & {kind.key_of(one.question) for one in others}
    assert any(kind.key_of(one.question) not in taken for one in made(kind, 6, seed=1))


def test_answers_may_have_foreign_tokens(kind: Kind) -> None:
    (puzzle,) = made(kind, 1)
    answers = np.stack([puzzle.answer] * 3).astype(np.int64)
    answers[1], answers[2, 0] = 0, 60
    valid, kept = kind.holds(np.stack([puzzle.question] * 3), answers)
    assert valid.tolist() == [True, False, False]
    assert not kept[1]


def test_a_typed_puzzle_is_read_back(kind: Kind) -> None:
    question = kind.to_grid(made(kind, 1)[0].question)
    look = kind.board(len(question))
    lines = ["".join(look.token(token).text for token in row) for row in question.tolist()]
    for text in ("\n".join(lines), "\n".join(line.rstrip(" ") for line in lines), "".join(lines)):
        np.testing.assert_array_equal(kind.parse(text).question, question)
    with pytest.raises(ValueError, match="cell 2 is '!'; accepted: "):
        kind.parse("\n".join([lines[0][0] + "!" + lines[0][2:], *lines[1:]]))
    example = kind.example(len(question), seed=3)
    assert example is not None
    assert kind.solution(example.question) is not None
    assert kind.example(99, seed=0) is None


def test_a_data_set_without_a_kind_is_none_of_them(kind: Kind) -> None:
    from dataset.kinds.base import kinds_with

    rows = kind.rows(kind.sizes[0])
    assert kind.fits(rows**2, kind.vocab_size(rows))
    assert not kind.fits(rows**2, kind.vocab_size(rows) + 1)
    assert kind not in kinds_with(rows**2, kind.vocab_size(rows))


def test_a_rating_out_of_reach_is_told_with_the_best_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataset.kinds.making._MAX_ATTEMPTS", 20)
    message = (
        "no new Latin square of size 5 with a rating of 26 or more in 20 attempts; the highest"
    )
    with pytest.raises(ConfigError, match=rf"{message} rating was \d+; ask for fewer or easier"):
        made(MADE["latin_square"], 1, min_rating=26)
