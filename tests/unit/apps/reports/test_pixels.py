import sys
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from PIL import Image

from apps.reports.boards import asked, draw
from apps.reports.pixels import read_maze
from dataset.kinds.maze import MAZE
from runtime.errors import ConfigError, DatasetError

PUZZLE = MAZE.parse("S  #\n# # \n  # \n#  G")


def test_a_drawn_maze_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "maze.png"
    draw(asked(PUZZLE)).image().save(path)
    for num_cells in (None, 16):
        assert np.array_equal(read_maze(path, num_cells).question, PUZZLE.question)


@pytest.mark.parametrize("size", [6, 10])
def test_the_frame_of_a_drawn_maze_is_not_taken_for_its_start(tmp_path: Path, size: int) -> None:
    path = tmp_path / "maze.png"
    puzzle = MAZE.parse("S" + " " * (size * size - 2) + "G")
    draw(asked(puzzle)).image().save(path)
    assert np.array_equal(read_maze(path).question, puzzle.question)


def test_a_picture_that_claims_to_be_huge_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    for side, told in ((30_000, "too many pixels"), (12_000, "12000 x 12000 pixels; accepted")):
        header = b"IHDR" + side.to_bytes(4, "big") * 2 + bytes([8, 2, 0, 0, 0])
        chunk = (13).to_bytes(4, "big") + header + crc32(header).to_bytes(4, "big")
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk + b"\0\0\0\0IDAT" + bytes(100))
        with pytest.raises(DatasetError, match=told):
            read_maze(path)


def test_a_pixel_may_be_a_cell_and_a_drawn_path_is_none(tmp_path: Path) -> None:
    colours = {1: (0, 0, 0), 2: (255, 255, 255), 3: (40, 200, 60), 4: (250, 60, 50)}
    pixels = np.array([[colours[int(token)] for token in row] for row in PUZZLE.question], np.uint8)
    pixels[1, 1] = (0, 116, 217)
    path = tmp_path / "maze.png"
    Image.fromarray(pixels).save(path)
    assert np.array_equal(read_maze(path).question, PUZZLE.question)


@pytest.mark.parametrize(
    ("size", "told"),
    [((10, 12), "10 x 12 pixels"), ((2100, 2100), "2100 x 2100"), ((12, 12), "0 green and 0 red")],
)
def test_other_pictures_are_refused(tmp_path: Path, size: tuple[int, int], told: str) -> None:
    path = tmp_path / "x.png"
    Image.new("RGB", size, "#ffffff").save(path)
    with pytest.raises(DatasetError, match=f"x.png: {told}"):
        read_maze(path, 16)


def test_cells_must_be_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    Image.new("RGB", (10, 10), "#ffffff").save(path)
    with pytest.raises(DatasetError, match="10 pixels a side are not whole cells of 4 x 4"):
        read_maze(path, 16)


def test_files_that_are_no_pictures_are_named(tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    with pytest.raises(DatasetError, match=r"x\.png: No such file"):
        read_maze(path)
    for content in (b"", b"\x89PNG\r\n\x1a\n" + b"x" * 100, b"GIF89a"):
        path.write_bytes(content)
        with pytest.raises(DatasetError, match=r"x\.png: not a picture in PNG"):
            read_maze(path)


def test_without_pillow_one_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ConfigError, match="pillow is not installed"):
        read_maze(tmp_path / "x.png")
