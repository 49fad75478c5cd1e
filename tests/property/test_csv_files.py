"""Any CSV file gives right puzzles, or one documented error with the file's name."""

import gzip
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataset.build_maze_dataset import MazeBuild
from dataset.build_sudoku_dataset import SudokuBuild
from dataset.maze.rules import check_paths
from dataset.puzzle_build import PuzzleBuild
from dataset.sources import Puzzles
from dataset.sudoku.rules import are_valid_solutions, parse_puzzle
from runtime.errors import DatasetError

Data = st.DataObject
HEADER = "source,question,answer,rating"
SUDOKUS = ["a,.234341221434321,1234341221434321,3", "b,123434124321214.,1234341243212143,-1"]
MAZES = ["a,S  # #  G,So #o# oG,5", "b, GS   # #, GS   # #,"]

SOURCE = ["--source=x", "--output-dir=x"]
KINDS = [
    pytest.param(SudokuBuild.parse([*SOURCE, "--size=4"]), SUDOKUS, id="sudoku"),
    pytest.param(MazeBuild.parse([*SOURCE, "--size=3"]), MAZES, id="maze"),
]


def read(kind: PuzzleBuild, content: bytes, name: str = "train.csv") -> Puzzles | None:
    """Read a file of this content; return None if it is refused in the documented way."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        try:
            puzzles = kind.read(path)
        except DatasetError as error:
            message = str(error)
        else:
            check(kind, puzzles)
            return puzzles
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return None


def check(kind: PuzzleBuild, puzzles: Puzzles) -> None:
    if isinstance(kind, SudokuBuild):
        assert are_valid_solutions(puzzles.answers, 4).all()
        assert ((puzzles.questions == 0) | (puzzles.questions == puzzles.answers)).all()
    else:
        assert check_paths(puzzles.questions, puzzles.answers)[1].all()
        assert ((puzzles.answers == 5).sum(axis=1) + 2).tolist() == puzzles.ratings.tolist()


@pytest.mark.parametrize(("kind", "good"), KINDS)
@settings(deadline=None)
@given(content=st.binary(max_size=200))
def test_arbitrary_bytes_are_refused(kind: PuzzleBuild, good: list, content: bytes):
    assert read(kind, content) is None
    assert read(kind, content, "train.csv.gz") is None


@pytest.mark.parametrize(("kind", "good"), KINDS)
@settings(deadline=None)
@given(data=st.data(), tail=st.binary(max_size=60))
def test_good_rows_and_then_arbitrary_bytes(kind: PuzzleBuild, good: list, data: Data, tail: bytes):
    rows = data.draw(st.lists(st.sampled_from(good), min_size=1))
    puzzles = read(kind, "\n".join([HEADER, *rows, ""]).encode() + tail)
    assert puzzles is None or len(puzzles.ratings) >= len(rows)


@pytest.mark.parametrize(("kind", "good"), KINDS)
@settings(deadline=None)
@given(data=st.data())
def test_changed_characters_are_harmless_or_refused(kind: PuzzleBuild, good: list, data: Data):
    text = list("\n".join([HEADER, *good]) + "\n")
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(text) - 1))
        text[place] = data.draw(st.sampled_from("# SGo.0123456789,ab\"\n\r\0'é;|-"))
    puzzles = read(kind, "".join(text).encode())
    assert puzzles is None or 1 <= len(puzzles.ratings) <= 2


@pytest.mark.parametrize(("kind", "good"), KINDS)
@settings(deadline=None)
@given(data=st.data())
def test_a_changed_byte_of_gzip_is_harmless_or_refused(kind: PuzzleBuild, good: list, data: Data):
    plain = "\n".join([HEADER, *good]).encode()
    zipped = bytearray(gzip.compress(plain, mtime=0))
    zipped[data.draw(st.integers(0, len(zipped) - 1))] ^= data.draw(st.integers(1, 255))
    puzzles = read(kind, bytes(zipped), "train.csv.gz")
    if puzzles is not None:  # The byte was one that gzip ignores.
        expected = read(kind, plain)
        assert expected is not None
        for found, right in zip(puzzles, expected, strict=True):
            assert found.tolist() == right.tolist()


@settings(deadline=None)
@given(st.text(max_size=100) | st.text(".0123456789|-+ \n", max_size=100))
def test_puzzle_text_is_a_grid_or_a_value_error(text: str):
    grid, message = None, ""
    try:
        grid = parse_puzzle(text)
    except ValueError as error:
        message = str(error)
    if grid is None:
        assert "accepted" in message or "stands twice" in message
    else:
        assert grid.shape in {(4, 4), (6, 6), (9, 9)}
        assert grid.max() <= len(grid)
