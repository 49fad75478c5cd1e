"""Symmetries keep validity, clues, the number of solutions and the keys."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dataset.sudoku.generator import generate_puzzles, puzzle_key
from dataset.sudoku.kernels import solution_key
from dataset.sudoku.rules import are_valid_solutions, count_solutions
from dataset.sudoku.symmetries import augment_sudoku, sudoku_symmetries
from runtime.streams import Stream, random_words

CLUES = {4: (4, 10), 6: (9, 20), 9: (25, 40)}
seeds = st.integers(0, 2**64 - 1)


def generate_one(size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    low, high = CLUES[size]
    how = {"seed": seed, "stream": Stream.NEW_TRAIN, "size": size, "taken": set()}
    made = next(generate_puzzles(min_clues=low, max_clues=high, min_rating=0, **how))
    return made.question[None], made.answer[None]


@settings(deadline=None)
@given(st.sampled_from([4, 6, 9]), seeds, seeds)
def test_images_of_puzzles_are_puzzles(size: int, seed: int, other_seed: int):
    question, answer = generate_one(size, seed)
    inputs, labels = augment_sudoku(question + 1, answer + 1, 5, other_seed)
    assert are_valid_solutions(labels - 1, size).all()
    assert ((inputs == 1) | (inputs == labels)).all()
    assert ((inputs != 1).sum(axis=1) == (question != 0).sum()).all()
    for image in inputs:
        assert count_solutions((image - 1).reshape(size, size)) == 1


@settings(deadline=None)
@given(seeds, seeds)
def test_images_of_a_solution_share_its_key(seed: int, other_seed: int):
    _, answer = generate_one(9, seed)
    _, labels = augment_sudoku(answer + 1, answer + 1, 5, other_seed)
    assert len({solution_key(image.astype(np.int64) - 1) for image in labels}) == 1


@settings(deadline=None)
@given(st.sampled_from([4, 6]), seeds, seeds)
def test_images_of_a_puzzle_share_its_key_and_no_other_puzzle_has_it(
    size: int, seed: int, other_seed: int
):
    question, answer = generate_one(size, seed)
    inputs, _ = augment_sudoku(question + 1, answer + 1, 5, other_seed)
    keys = {puzzle_key(image - 1, size) for image in inputs}
    assert len(keys) == 1
    fewer = question[0].astype(np.int64)
    fewer[np.flatnonzero(fewer)[0]] = 0
    assert puzzle_key(fewer, size) not in keys


@settings(deadline=None)
@given(st.sampled_from([4, 6, 9]), st.data())
def test_a_symmetry_can_be_undone(size: int, data: st.DataObject):
    """Cells and digits are both permuted, so none is lost."""
    symmetries = sudoku_symmetries(size)
    number = data.draw(st.integers(0, symmetries.number - 1))
    moves = np.array([number // len(symmetries.tokens)])
    assert sorted(symmetries.cells(moves)[0]) == list(range(size * size))
    words = random_words(number, Stream.SUBSAMPLE, (0, 0, 0, 0), size * size)
    board = (words % np.uint64(size + 2)).astype(np.uint8)
    (image,) = symmetries.apply(np.array([number]), board[None])
    counts, image_counts = (np.bincount(b, minlength=size + 2) for b in (board, image[0]))
    assert counts[:2].tolist() == image_counts[:2].tolist()
    assert sorted(counts[2:]) == sorted(image_counts[2:])
