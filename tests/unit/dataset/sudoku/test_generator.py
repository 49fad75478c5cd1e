"""Generated Sudokus: one solution, the requested clues and rating, no image of another."""

import hashlib
from itertools import combinations, islice

import numpy as np
import pytest

from dataset.sources import Puzzles
from dataset.sudoku import generator as sudoku_generator
from dataset.sudoku.generator import generate_puzzles, puzzle_key, vary_puzzles
from dataset.sudoku.kernels import solution_key
from dataset.sudoku.rules import are_valid_solutions, count_solutions, solve
from dataset.sudoku.symmetries import sudoku_symmetries
from runtime.errors import ConfigError
from runtime.streams import Stream


def tried(num_puzzles: int, size=9, clues=(30, 40), rating=0, **changes) -> tuple[Puzzles, int]:
    settings = {"seed": 0, "taken": set(), "stream": Stream.NEW_TRAIN} | changes
    settings |= {"size": size, "min_clues": clues[0], "max_clues": clues[1]}
    made = [*islice(generate_puzzles(min_rating=rating, **settings), num_puzzles)]
    questions, answers, ratings, _ = map(np.array, zip(*made, strict=True))
    return Puzzles(questions, answers, ratings), made[-1].attempts


def generate(*given, **changes) -> Puzzles:
    return tried(*given, **changes)[0]


def all_images(question: np.ndarray) -> set[bytes]:
    """Return all symmetric images of a 4x4 puzzle as bytes."""
    symmetries = sudoku_symmetries(4)
    numbers = np.arange(symmetries.number)
    (images,) = symmetries.apply(numbers, np.repeat(question[None] + 1, len(numbers), axis=0))
    return {image.tobytes() for image in images}


@pytest.mark.parametrize(("size", "clues"), [(4, (5, 10)), (6, (12, 20)), (9, (27, 40))])
def test_puzzles_have_one_solution_and_the_clues_asked_for(size: int, clues: tuple[int, int]):
    made = generate(150, size, clues)
    assert made.questions.shape == made.answers.shape == (150, size * size)
    assert made.questions.dtype == made.answers.dtype == np.uint8
    assert are_valid_solutions(made.answers, size).all()
    assert ((made.questions == 0) | (made.questions == made.answers)).all()
    counts = (made.questions != 0).sum(axis=1)
    assert set(counts) == set(range(clues[0], clues[1] + 1))
    for question, answer, rating in zip(*made, strict=True):
        grid = question.reshape(size, size)
        assert count_solutions(grid) == 1
        solution, backtracks = solve(grid)
        assert solution is not None
        assert solution.reshape(-1).tolist() == answer.tolist()
        assert backtracks == rating


def test_a_list_starts_with_the_shorter_list_and_depends_on_seed_and_stream():
    made = generate(40)
    assert generate(15).questions.tolist() == made.questions[:15].tolist()
    assert (generate(40, seed=1).questions != made.questions).any(axis=1).all()
    assert (generate(40, stream=Stream.NEW_TEST).questions != made.questions).any(axis=1).all()


def test_puzzles_stay_what_they_were():
    """Later versions must write the same bytes for the same command."""
    made = generate(50, clues=(24, 40))
    hard = generate(3, clues=(17, 80), rating=20)
    content = made.questions.tobytes() + made.answers.tobytes() + hard.questions.tobytes()
    digest = "1c78e15395da3355cdc34c8d8bc4246dac361b513c2934b7f33cc6427b693d2d"
    assert hashlib.sha256(content).hexdigest() == digest


def test_no_puzzle_of_four_is_an_image_of_another():
    taken: set[int] = set()
    test = generate(60, 4, (4, 8), taken=taken, stream=Stream.NEW_TEST)
    train, attempts = tried(200, 4, (4, 8), taken=taken)
    assert len(taken) == 260
    assert attempts > 200  # some were images of earlier ones
    seen: set[bytes] = set()
    for question in np.concatenate([test.questions, train.questions]):
        assert (question + 1).tobytes() not in seen
        seen |= all_images(question)


def test_taken_keys_are_not_repeated():
    taken: set[int] = set()
    first = generate(20, taken=taken)
    second, attempts = tried(20, taken=taken)  # the same stream: its first 20 attempts are taken
    assert attempts == 40
    assert generate(40).questions[20:].tolist() == second.questions.tolist()
    assert {solution_key(answer.astype(np.int64)) for answer in first.answers} < taken


def test_the_known_number_of_puzzles_of_four_with_four_clues():
    """The key finds the known numbers: 13 essentially different puzzles and 2 solutions."""
    solutions = {}
    for answer in generate(12, 4, (5, 10)).answers.astype(np.int64):
        solutions[puzzle_key(answer, 4)] = answer
    assert len(solutions) == 2
    keys = set()
    for answer in solutions.values():
        for cells in combinations(range(16), 4):
            question = np.zeros(16, dtype=np.int64)
            question[list(cells)] = answer[list(cells)]
            if count_solutions(question.reshape(4, 4)) == 1:
                keys.add(puzzle_key(question, 4))
    assert len(keys) == 13


def test_hard_puzzles_reach_the_rating_and_are_minimal():
    made = generate(5, clues=(17, 80), rating=20)
    assert made.ratings.min() >= 20
    for question, rating in zip(made.questions, made.ratings, strict=True):
        grid = question.reshape(9, 9)
        assert solve(grid)[1] == rating
        assert count_solutions(grid) == 1
        for row, column in np.argwhere(grid):
            fewer = grid.copy()
            fewer[row, column] = 0
            assert count_solutions(fewer) == 2


@pytest.mark.parametrize(("clues", "rating"), [((17, 80), 20), ((75, 80), 0)])
def test_variants_are_minimal_new_and_as_hard(clues: tuple[int, int], rating: int):
    puzzles = generate(2, clues=clues, rating=rating)
    taken = {solution_key(answer) for answer in puzzles.answers}
    old = taken.copy()
    made = [*vary_puzzles(puzzles, 3, 9, seed=0, taken=taken)]
    assert made
    assert len(taken) == len(old) + len(made)
    for question, answer, given in made:
        assert solution_key(answer) not in old
        assert given in puzzles.ratings
        found, backtracks = solve(grid := question.reshape(9, 9))
        assert found is not None
        assert found.reshape(-1).tolist() == answer.tolist()
        assert backtracks >= min(puzzles.ratings.min(), 64)
        assert count_solutions(grid) == 1
        for row, column in np.argwhere(grid):
            fewer = grid.copy()
            fewer[row, column] = 0
            assert count_solutions(fewer) == 2
    again = [*vary_puzzles(puzzles, 3, 9, seed=0, taken=old)]
    assert np.array_equal([one[0] for one in again], [one[0] for one in made])


@pytest.mark.parametrize(
    ("num_puzzles", "size", "clues", "rating"),
    [(14, 4, (4, 4), 0), (1, 9, (17, 17), 0), (1, 4, (4, 15), 1000)],
)
def test_puzzles_that_do_not_exist_or_are_not_found_end_the_search(
    num_puzzles: int, size: int, clues: tuple, rating: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sudoku_generator, "_MAX_EFFORT", 500)
    message = (
        f"no new {size}x{size} puzzle with {clues[0]} to {clues[1]} clues and a rating of {rating}"
    )
    with pytest.raises(ConfigError, match=message):
        generate(num_puzzles, size, clues, rating)
