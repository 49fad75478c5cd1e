"""Whatever a CSV file holds: right puzzles, or one documented error that names the file."""

import gzip
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from dataset.build_sudoku_dataset import read_puzzles
from dataset.sudoku.rules import are_valid_solutions, parse_puzzle
from runtime.errors import DatasetError

HEADER = "source,question,answer,rating"
GOOD = ["a,.234341221434321,1234341221434321,3", "b,123434124321214.,1234341243212143,-1"]


def read(content: bytes, name: str = "train.csv"):
    """Read a file of this content; None when it is refused in the documented way."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        try:
            return read_puzzles(path, 4)
        except DatasetError as error:
            message = str(error)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return None


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused(content: bytes):
    assert read(content) is None
    assert read(content, "train.csv.gz") is None


@settings(deadline=None)
@given(st.lists(st.sampled_from(GOOD), min_size=1), st.binary(max_size=60))
def test_good_rows_and_then_arbitrary_bytes(rows: list[str], tail: bytes):
    puzzles = read("\n".join([HEADER, *rows, ""]).encode() + tail)
    if puzzles is not None:
        assert len(puzzles.ratings) >= len(rows)
        assert are_valid_solutions(puzzles.answers, 4).all()


@settings(deadline=None)
@given(st.data())
def test_one_changed_character_is_harmless_or_refused(data: st.DataObject):
    text = "\n".join([HEADER, *GOOD]) + "\n"
    place = data.draw(st.integers(0, len(text) - 1))
    character = data.draw(st.sampled_from("0123456789.,ab\"\n\r\0 'é;|"))
    puzzles = read((text[:place] + character + text[place + 1 :]).encode())
    if puzzles is not None:
        assert 1 <= len(puzzles.ratings) <= 2
        assert are_valid_solutions(puzzles.answers, 4).all()
        assert ((puzzles.questions == 0) | (puzzles.questions == puzzles.answers)).all()


@settings(deadline=None)
@given(st.data())
def test_a_changed_byte_of_a_gzip_file_is_harmless_or_refused(data: st.DataObject):
    plain = "\n".join([HEADER, *GOOD]) + "\n"
    zipped = bytearray(gzip.compress(plain.encode(), mtime=0))
    zipped[data.draw(st.integers(0, len(zipped) - 1))] ^= data.draw(st.integers(1, 255))
    puzzles = read(bytes(zipped), "train.csv.gz")
    if puzzles is not None:  # a byte of the header that does not matter
        expected = read(plain.encode())
        assert expected is not None
        assert puzzles.questions.tolist() == expected.questions.tolist()
        assert puzzles.answers.tolist() == expected.answers.tolist()


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


def test_the_good_rows_are_good():
    puzzles = read("\n".join([HEADER, *GOOD]).encode())
    assert puzzles is not None
    assert puzzles.ratings.tolist() == [3, -1]
