"""Sudoku symmetries, compared with known counts and slow code for single cells."""

import hashlib

import numpy as np
import pytest

from dataset.sudoku import symmetries as sudoku
from dataset.sudoku.rules import layout_of
from dataset.sudoku.symmetries import augment_sudoku, sudoku_symmetries
from runtime.streams import Stream, random_words

QUESTION = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
ANSWER = "534678912672195348198342567859761423426853791713924856961537284287419635345286179"


def tokens(text: str) -> np.ndarray:
    return np.array([[int(digit) + 1 for digit in text.replace(".", "0")]], dtype=np.uint8)


def same_unit(size: int) -> np.ndarray:
    """Return bool [cells, cells]: whether two cells share a row, a column or a box."""
    units = layout_of(size).cell_units
    return (units[:, None, :] == units[None, :, :]).any(axis=2)


def test_streams_stay_what_they_were():
    """Data sets are rebuilt for old checkpoints, so later versions must write the same bytes."""
    words = random_words(0, Stream.SUBSAMPLE, (0, 0, 0, 0), 2)
    assert words.tolist() == [213000021201967259, 4455796210202625458]
    inputs, labels = augment_sudoku(tokens(QUESTION), tokens(ANSWER), 100, 3)
    digest = hashlib.sha256(inputs.tobytes() + labels.tobytes()).hexdigest()
    assert digest == "bfd27ddf555ce5e2f97a976a346a7013b04e3038387d8d0fcf7f3b75f9a671ae"


@pytest.mark.parametrize(
    ("size", "moves", "relabellings"), [(4, 128, 24), (6, 3456, 720), (9, 3_359_232, 362_880)]
)
def test_number_of_symmetries(size: int, moves: int, relabellings: int):
    symmetries = sudoku_symmetries(size)
    assert symmetries.num_moves == moves
    assert symmetries.number == moves * relabellings


@pytest.mark.parametrize("size", [4, 6])
def test_moves_are_all_different_and_keep_units_together(size: int):
    """Sizes 4 and 6 are small enough to test all moves."""
    symmetries = sudoku_symmetries(size)
    sources = symmetries.cells()
    assert len(np.unique(sources, axis=0)) == symmetries.num_moves
    assert (np.sort(sources, axis=1) == np.arange(size * size)).all()
    related = same_unit(size)
    for source in sources[:: max(1, len(sources) // 200)]:
        assert (related[np.ix_(source, source)] == related).all()


@pytest.mark.parametrize("size", [4, 6, 9])
def test_digit_permutations_are_all_there_and_spare_pad_and_empty(size: int):
    table = sudoku_symmetries(size).tokens
    assert (table[:, 0] == 0).all()
    assert (table[:, 1] == 1).all()
    assert (np.sort(table[:, 2:], axis=1) == np.arange(2, size + 2)).all()
    assert len(np.unique(table, axis=0)) == len(table)


def test_apply_equals_its_definition():
    symmetries = sudoku_symmetries(9)
    words = random_words(4, Stream.SUBSAMPLE, (0, 0, 0, 0), 50)
    numbers = (words % np.uint64(symmetries.number)).astype(np.int64)
    board = tokens(QUESTION)
    (images,) = symmetries.apply(numbers, np.repeat(board, 50, axis=0))
    for number, image in zip(numbers.tolist(), images, strict=True):
        move, digits = divmod(number, 362_880)
        rest, column = divmod(move, 1296)
        half, row = divmod(rest, 1296)
        for i in range(9):
            for j in range(9):
                cell = symmetries.row_part[half * 1296 + row, i]
                cell += symmetries.column_part[half * 1296 + column, j]
                assert image[9 * i + j] == symmetries.tokens[digits, board[0, cell]]


def test_an_image_depends_on_seed_puzzle_and_number_alone(monkeypatch: pytest.MonkeyPatch):
    questions = np.concatenate([tokens(QUESTION), tokens(ANSWER), tokens(QUESTION)])
    answers = np.repeat(tokens(ANSWER), 3, axis=0)
    images = augment_sudoku(questions, answers, 6, 5)[0].reshape(3, 7, 81)
    fewer = augment_sudoku(questions[:2], answers[:2], 4, 5)[0].reshape(2, 5, 81)
    assert (fewer == images[:2, :5]).all()
    assert (images[0, 1:] != images[2, 1:]).any(axis=1).all()  # equal puzzles, other images
    assert (augment_sudoku(questions, answers, 6, 6)[0].reshape(3, 7, 81) != images).any()
    for rows in (1, 13):
        monkeypatch.setattr(sudoku, "_ROWS_PER_CHUNK", rows)
        again = augment_sudoku(questions, answers, 6, 5)[0].reshape(3, 7, 81)
        assert (again == images).all()
