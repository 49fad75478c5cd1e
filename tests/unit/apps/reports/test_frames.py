import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from apps.reports.animation import animate, as_page
from apps.reports.boards import RING, Board, asked, legend
from apps.reports.drawing import darkened
from apps.reports.frames import Frame, frames_of_steps, picture_of, thinned
from dataset.arc.tasks import encode_canvas
from dataset.format.schema import ARC_PALETTE
from dataset.kinds.arc import ARC
from dataset.kinds.base import Puzzle
from dataset.kinds.sudoku import SUDOKU
from dataset.sudoku.rules import parse_puzzle
from evaluation.solve import Reasoning
from runtime.errors import ConfigError

SOLUTION = parse_puzzle("1234341221434321")
QUESTION = np.where(np.eye(4, dtype=bool), SOLUTION, 0).astype(np.int8)
PUZZLE = Puzzle(SUDOKU, QUESTION)


def thinking(q_halt: tuple[float, ...] = (0.25, 0.875)) -> Reasoning:
    first = SOLUTION.copy()
    first[0, 1] = 1
    q = np.array(q_halt, np.float32)
    certainty = np.full((2, 4, 4), 0.5, np.float32)
    return Reasoning(PUZZLE, np.stack([first, SOLUTION]), q, q, q > 0.6, 0, 1, 1, certainty)


def test_a_model_without_q_says_nothing_of_it() -> None:
    frames = frames_of_steps(thinking((np.nan, np.nan)))
    assert frames[1].words[0] == "12 cells changed"
    assert frames[2].q == []


def test_few_of_many_frames_keep_the_first_and_the_last() -> None:
    frames = frames_of_steps(thinking()) * 50
    few = thinned(frames, 20)
    assert len(few) == 20
    assert few[0] is frames[0]
    assert few[-1] is frames[-1]
    assert thinned(frames, 150) == frames


def test_no_step_moves_the_input_of_an_arc_task() -> None:
    canvas, wide, high = (
        ARC.to_grid(encode_canvas(np.ones(shape, np.uint8))) for shape in ((3, 3), (2, 9), (30, 5))
    )
    puzzle = Puzzle(ARC, canvas, wide, 1, "abc")
    pictures = [picture_of(Frame(asked(puzzle), "", []))]
    pictures += [picture_of(Frame(Board(puzzle, answer), "", [])) for answer in (canvas, high)]
    inputs = [[s for s in one.shapes if s.fill == ARC_PALETTE[1]][:9] for one in pictures]
    assert inputs[0] == inputs[1] == inputs[2]
    assert len({(one.width, one.height) for one in pictures}) == 1
    page = as_page([Frame(Board(puzzle, canvas), "", [])], "x")
    assert RING in page
    assert not any(f'[fill="{colour}"]' in page for colour in (*ARC_PALETTE, RING))


def test_a_gif_has_a_picture_for_each_frame(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "out.gif"
    told = animate(frames_of_steps(thinking()), path, "x")
    assert told.startswith(f"{path} (4 pictures, ")
    with Image.open(path) as image:
        assert image.n_frames == 4
        assert image.info["loop"] == 0
        durations, sizes = [], set()
        for number in range(4):
            image.seek(number)
            durations.append(image.info["duration"])
            sizes.add(image.size)
    assert durations[-1] > durations[0] >= 80
    assert len(sizes) == 1


def test_a_page_holds_its_frames_as_data() -> None:
    frames = frames_of_steps(thinking())
    page = as_page(frames, "<script>alert(1)</script>", "<b>run</b>, step 5")
    assert "<script>alert(1)" not in page
    assert '<p class="small">&lt;b&gt;run&lt;/b&gt;, step 5</p>' in page
    for colour, words in legend(frames[-1].board):
        assert f'fill="{colour}"/></svg>{words}</li>' in page
    colours = {shape.fill for frame in frames for shape in picture_of(frame).shapes}
    assert all(f'[fill="{colour}"] {{ fill: {darkened(colour)} }}' in page for colour in colours)
    assert page.count("</script>") == 2
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "default-src 'none'" in page


@pytest.mark.parametrize(
    ("name", "told"),
    [
        *(
            (name, "accepted: a file's name with .gif or .html")
            for name in ("x.png", "x", "x.gif.exe")
        ),
        ("file/out.html", "file/out.html: cannot be written"),
    ],
)
def test_files_that_cannot_be_written_are_refused(tmp_path: Path, name: str, told: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=f"animate=.*{re.escape(told)}"):
        animate(frames_of_steps(thinking()), tmp_path / name, "x")
