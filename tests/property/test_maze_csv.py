"""Whatever a CSV file holds: mazes with shortest paths, or one error that names the file."""

import gzip
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from dataset.build_maze_dataset import read_mazes
from dataset.maze.rules import check_paths
from runtime.errors import DatasetError

HEADER = "source,question,answer,rating"
GOOD = ["a,S  # #  G,So #o# oG,5", "b, GS   # #, GS   # #,"]


def read(content: bytes, name: str = "train.csv"):
    """Read a file of this content; None when it is refused in the documented way."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        try:
            return read_mazes(path, 3)
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
@given(st.data())
def test_changed_characters_are_harmless_or_refused(data: st.DataObject):
    text = list("\n".join([HEADER, *GOOD]) + "\n")
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(text) - 1))
        text[place] = data.draw(st.sampled_from("# SGo.,ab\"\n\r\0'é5-"))
    puzzles = read("".join(text).encode())
    if puzzles is not None:
        assert 1 <= len(puzzles.ratings) <= 2
        assert check_paths(puzzles.questions, puzzles.answers)[1].all()
        assert ((puzzles.answers == 5).sum(axis=1) + 2).tolist() == puzzles.ratings.tolist()


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


def test_the_good_rows_are_good():
    puzzles = read("\n".join([HEADER, *GOOD]).encode())
    assert puzzles is not None
    assert puzzles.ratings.tolist() == [5, 2]
