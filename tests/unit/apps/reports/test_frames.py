from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from apps.reports.boards import Board, asked
from apps.reports.frames import Frame, animate, frames_of_steps, gif, picture_of, thinned
from dataset.arc.tasks import encode_canvas
from dataset.format.schema import ARC_PALETTE
from dataset.kinds.arc import ARC
from dataset.kinds.base import Puzzle
from runtime.errors import ConfigError
from tests.unit.apps.reports.test_golden import reasoning


def test_frames_of_a_model_without_q_do_not_mention_it() -> None:
    frames = frames_of_steps(reasoning(q_halt=(np.nan,) * 3))
    assert frames[1].words[0] == "12 cells changed"
    assert frames[2].q == []


def test_thinned_frames_keep_the_first_and_the_last() -> None:
    frames = frames_of_steps(reasoning(q_halt=(0.25, 0.5, 0.875))) * 50
    few = thinned(frames, 20)
    assert len(few) == 20
    assert few[0] is frames[0]
    assert few[-1] is frames[-1]
    assert thinned(frames, 200) == frames


def test_the_input_of_an_arc_task_never_moves() -> None:
    canvas, wide, high = (
        ARC.to_grid(encode_canvas(np.ones(shape, np.uint8))) for shape in ((3, 3), (2, 9), (30, 5))
    )
    puzzle = Puzzle(ARC, canvas, wide, 1, "abc")
    pictures = [picture_of(Frame(asked(puzzle), "", []))]
    pictures += [picture_of(Frame(Board(puzzle, answer), "", [])) for answer in (canvas, high)]
    inputs = [[s for s in one.shapes if s.fill == ARC_PALETTE[1]][:9] for one in pictures]
    assert inputs[0] == inputs[1] == inputs[2]
    assert len({(one.width, one.height) for one in pictures}) == 1


def test_a_gif_has_a_picture_for_each_frame_that_changes(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "out.gif"
    frames = frames_of_steps(reasoning(q_halt=(0.25, 0.5, 0.875)))
    told = animate([*frames, *frames[-1:] * 3], path)
    assert told == f"{path} ({path.stat().st_size / 1000:.0f} kB)"
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


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"file/out\.gif: "):
        animate(frames_of_steps(reasoning(q_halt=(0.25, 0.5, 0.875))), tmp_path / "file/out.gif")


def test_several_puzzles_share_a_gif_in_rows_of_two() -> None:
    frames = frames_of_steps(reasoning(q_halt=(0.25, 0.5, 0.875)))
    alone = Image.open(BytesIO(gif(frames)))
    both = Image.open(BytesIO(gif(frames, frames[:2])))
    three = Image.open(BytesIO(gif(frames, frames[:2], frames)))
    assert (both.n_frames, three.n_frames) == (alone.n_frames, alone.n_frames)
    assert both.size == (2 * alone.width, alone.height)
    assert three.size == (2 * alone.width, 2 * alone.height)
    alone.seek(alone.n_frames - 1)
    three.seek(three.n_frames - 1)
    own = np.asarray(alone.convert("L"), int)
    height, width = own.shape
    last = np.asarray(three.convert("L"), int)
    assert abs(last[:height, :width] - own).mean() < 2  # The colours are not the very same.
    assert abs(last[height:, :width] - own).mean() < 2
    assert last[height:, width:].min() == 255
