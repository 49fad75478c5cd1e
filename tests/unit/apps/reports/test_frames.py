from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from apps.lattice.model import CONTRADICTION, DECIDED
from apps.lattice.search import Found, Round
from apps.reports.animation import animate, as_gif, as_page
from apps.reports.boards import RING, Board, asked, legend
from apps.reports.drawing import Words, darkened
from apps.reports.frames import (
    Frame,
    frames_of_rounds,
    frames_of_steps,
    picture_of,
    thinned,
    without_idle_end,
)
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
    return Reasoning(
        PUZZLE, np.stack([first, SOLUTION]), -1, 0.5, q, q, q > 0.6, 0, 1, 1, certainty
    )


def text_of(frame: Frame) -> list[str]:
    return [shape.text for shape in picture_of(frame).shapes if isinstance(shape, Words)]


def test_each_step_is_a_frame() -> None:
    puzzle, first, second = frames_of_steps(thinking())
    assert (puzzle.title, first.title, second.title) == (
        *("the puzzle", "ACT step 1 of 2", "ACT step 2 of 2"),
    )
    assert first.words == [
        *("12 cells changed; Q: 25.0% sure that all is right",),
        "not a solution: 3 cells cannot stay",
    ]
    assert second.words[0] == "1 cell changed; Q: 87.5% sure that all is right"
    assert second.words[1] == "a valid Sudoku that keeps the clues"
    assert second.q == [0.25, 0.875]
    assert second.board.changed is not None
    assert np.argwhere(second.board.changed).tolist() == [[0, 1]]
    assert {"ACT step 2 of 2", *second.words} < set(text_of(second))


def test_a_model_without_q_says_nothing_of_it() -> None:
    frames = frames_of_steps(thinking((np.nan, np.nan)))
    assert frames[1].words[0] == "12 cells changed"
    assert frames[2].q == []


def test_rounds_of_a_search_are_frames() -> None:
    everything = np.zeros((1, 16, 6), bool)
    everything[0, :, 2:] = True
    guessed = everything.copy()
    guessed[0, 0] = False
    guessed[0, 0, 2] = True
    done = np.zeros((1, 16, 6), bool)
    done[0, np.arange(16), SUDOKU.to_tokens(SOLUTION)] = True
    nothing = everything.copy()
    nothing[0, 5] = False

    def one(before: np.ndarray, after: np.ndarray, cell: int, verdict: int, back: int) -> Round:
        return Round(before, after, np.array([cell]), np.array([verdict]), np.array([back]))

    rounds = [
        one(everything, guessed, 0, 0, -1),
        one(guessed, nothing, -1, CONTRADICTION, 0),
        one(everything, done, -1, DECIDED, -1),
    ]
    frames = frames_of_rounds(PUZZLE, rounds, Found(0, chain=0))
    assert [frame.title for frame in frames[1:]] == [f"round {n} of 3" for n in (1, 2, 3)]
    assert frames[1].words[1:] == ["3 candidates struck, 1 cell decided", "guess r1c1 = 1"]
    assert frames[1].board.guessed == 0
    assert frames[2].words[2] == "contradiction: nothing is left for r2c2; so r1c1 is not 1"
    assert frames[3].words[2] == "all cells are decided"
    assert np.array_equal(frames[3].board.answer, SOLUTION)


def test_few_of_many_frames_keep_the_first_and_the_last() -> None:
    frames = frames_of_steps(thinking()) * 50
    few = thinned(frames, 20)
    assert len(few) == 20
    assert few[0] is frames[0]
    assert few[-1] is frames[-1]
    assert thinned(frames, 150) == frames


def test_of_idle_frames_at_the_end_one_stays_and_says_what_came_of_it() -> None:
    puzzle, first, second = frames_of_steps(thinking())
    idle = [replace(second, title=f"ACT step {step} of 5") for step in (3, 4, 5)]
    frames = without_idle_end([puzzle, first, second, *idle])
    assert [frame.title for frame in frames] == [
        *("the puzzle", "ACT step 1 of 2", "ACT step 2 of 2"),
        "solved, unchanged since ACT step 2 of 2",
    ]
    assert [frame.title for frame in without_idle_end([puzzle, first])][1:] == [
        *("ACT step 1 of 2", "not solved")
    ]


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


def test_pictures_of_several_sizes_share_the_largest_paper() -> None:
    pictures = [picture_of(frame) for frame in frames_of_steps(thinking())]
    pictures[0].width += 100
    with Image.open(BytesIO(as_gif(pictures))) as image:
        assert image.size == (pictures[0].width, pictures[1].height)


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


@pytest.mark.parametrize("name", ["out.png", "out", "out.gif.exe"])
def test_other_suffixes_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"accepted: a file's name with \.gif or \.html"):
        animate(frames_of_steps(thinking()), tmp_path / name, "x")


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"animate=.*file/out\.html: cannot be written"):
        animate(frames_of_steps(thinking()), tmp_path / "file" / "out.html", "x")
