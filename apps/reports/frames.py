"""A model's work on a puzzle as frames, each a board with words, and as a GIF of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path

import numpy as np

from apps.lattice.narration import describe_rounds
from apps.lattice.search import Round, SearchResult
from apps.reports.boards import (
    ANSWER,
    FAINT,
    INK,
    LINES,
    PAPER,
    Board,
    asked,
    board_of_candidates,
    board_of_step,
    draw,
)
from apps.reports.drawing import Picture, require_gif
from dataset.kinds.base import Puzzle
from evaluation.solve import Reasoning, StepAnswers
from runtime.errors import ConfigError, disk_errors
from runtime.files import replacing
from runtime.text import many, shown

_TOP, _LINE, _BARS, _MARGIN = 40, 22, 46, 16
_LINES = 3  # Most lines of words below a board.
_MOST_FRAMES = 240
_SECONDS = 15.0  # Approximate length of a GIF; each frame is shown for 0.08 to 0.7 s.
_LAST_SECONDS = 3.0


@dataclass(frozen=True)
class Frame:
    """A board at one step.

    Attributes:
        title: the name of the step.
        words: lines that say what happened.
        q: Q's probability of a right answer after this and each earlier ACT step; empty without Q.
        num_steps: total number of ACT steps; 0: no bars for `q` are drawn.
    """

    board: Board
    title: str
    words: list[str]
    q: list[float] = field(default_factory=list)
    num_steps: int = 0


def frames_of_steps(reasoning: Reasoning) -> list[Frame]:
    """Return a frame of the puzzle, then one for each ACT step."""
    frames = [frame_of_puzzle(reasoning.puzzle, len(reasoning.answers))]
    for step, (answer, q) in enumerate(zip(reasoning.answers, reasoning.q_halt, strict=True)):
        cells = (reasoning.certainty, reasoning.reached)
        certainty, reached = (None if one is None else one[step] for one in cells)
        frame = frame_of_step(frames[-1], step + 1, answer, certainty, float(q), reached)
        frames.append(frame)
    return frames


def frame_of_puzzle(puzzle: Puzzle, num_steps: int = 0) -> Frame:
    """Return the frame of an unanswered puzzle, before `num_steps` ACT steps."""
    return Frame(asked(puzzle), "the puzzle", [], [], num_steps)


def frame_of_answers(before: Frame, one: StepAnswers, *, halts: bool) -> Frame:
    """Return the frame of the first puzzle after an ACT step; `before` is the one before it.
    `halts`: whether the model has a Q.
    """
    answer = before.board.puzzle.kind.to_grid(one.tokens[0])
    certainty = one.certainty[0].reshape(answer.shape)
    q = float(one.q_halt[0]) if halts else np.nan
    reached = one.reached[0].reshape(answer.shape)
    return frame_of_step(before, one.step, answer, certainty, q, reached)


def frame_of_step(
    before: Frame,
    step: int,
    answer: np.ndarray,
    certainty: np.ndarray | None,
    q: float,
    reached: np.ndarray | None = None,
) -> Frame:
    """Return the frame of ACT step `step`, from 1; `before` is the one before it. `q` is Q after
    the step, NaN without Q.
    """
    puzzle, num_steps = before.board.puzzle, before.num_steps
    board = board_of_step(puzzle, before.board.answer, answer, certainty, reached)
    changed = 0 if board.changed is None else int(board.changed.sum())
    verdict = puzzle.kind.judge(puzzle.question, answer, puzzle.target).words
    words, all_q = [f"{many(changed, 'cell')} changed", verdict], before.q
    if not np.isnan(q):
        words[0] += f"; Q: {q:.1%} sure that all is right"
        all_q = [*before.q, q]
    return Frame(board, f"ACT step {step} of {num_steps}", words, all_q, num_steps)


def frames_of_rounds(puzzle: Puzzle, rounds: Sequence[Round], found: SearchResult) -> list[Frame]:
    """Return a frame of the puzzle, then one for each round of the chain that answered; if no chain
    answered, of the first chain.
    """
    chain = found.chain or 0
    frames = [frame_of_puzzle(puzzle)]
    narrated = describe_rounds(rounds, chain)
    for number, (one, words) in enumerate(zip(rounds, narrated, strict=False), start=1):
        before, after = one.before[chain], one.after[chain]
        board = board_of_candidates(puzzle, after, int(one.guessed[chain]), before)
        num_decided = int(((before.sum(-1) > 1) & (after.sum(-1) == 1)).sum())
        struck = f"{many(int((before & ~after).sum()), 'candidate')} struck"
        happened = f"{struck}, {many(num_decided, 'cell')} decided"
        lines = [words.left, happened, words.ending]
        frames.append(Frame(board, f"round {number} of {len(rounds)}", lines))
    return frames


def thinned(frames: Sequence[Frame], most: int) -> list[Frame]:
    """Return at most `most` of the frames, evenly spaced, with the first and the last."""
    if len(frames) <= most:
        return list(frames)
    return [frames[round(place)] for place in np.linspace(0, len(frames) - 1, most)]


def without_idle_end(frames: Sequence[Frame]) -> list[Frame]:
    """Return the frames without those at the end that change nothing; the last frame stays, and its
    title gives the result.
    """
    last, place = frames[-1].board, settled(frames)
    solved = last.puzzle.kind.judge(last.puzzle.question, last.answer, last.puzzle.target).solved
    result = {True: "solved", False: "not solved", None: "settled"}[solved]
    since = f", unchanged since {frames[place].title}" if place < len(frames) - 1 else ""
    return [*frames[: place + 1], replace(frames[-1], title=f"{result}{since}")]


def settled(frames: Sequence[Frame]) -> int:
    """Return the index of the first frame after which answer and candidates never change."""
    boards = [frame.board for frame in frames]
    seen = [(b.marks, b.answer.tolist(), np.asarray(b.candidates).tolist()) for b in boards]
    differ = [number for number, one in enumerate(seen) if one != seen[-1]]
    return differ[-1] + 1 if differ else 0


def picture_of(frame: Frame) -> Picture:
    """Draw a frame: its title, board, words, and the bars of Q."""
    board = draw(frame.board)
    width = max(board.width, 380) + 2 * _MARGIN
    height = _TOP + board.height + _LINES * _LINE + _MARGIN + (_BARS if frame.num_steps else 0)
    picture = Picture(width, height)
    picture.rectangle(0, 0, width, height, PAPER)
    picture.words(_MARGIN, _TOP / 2, frame.title, 17, INK, bold=True, anchor="start")
    # Canvases start at the left, because they may differ in width.
    left = 0.0 if frame.board.look.canvas else (width - board.width) / 2
    picture.place(board, left, _TOP)
    y = _TOP + board.height + _LINE
    for line in frame.words[:_LINES]:
        picture.words(_MARGIN, y, shown(line, int(width / 7.6)), 14, INK, anchor="start")
        y += _LINE
    if frame.num_steps:
        _draw_bars(picture, frame, height - _MARGIN)
    return picture


def _draw_bars(picture: Picture, frame: Frame, bottom: float) -> None:
    """Draw Q after each ACT step so far as a bar."""
    length = picture.width - 2 * _MARGIN
    each = length / frame.num_steps
    gap = 1 if each >= 4 else 0
    picture.rectangle(_MARGIN, bottom, length, 1, LINES)
    picture.words(_MARGIN, bottom - _BARS + 8, "Q after each step", 11, FAINT, anchor="start")
    for step, q in enumerate(frame.q):
        height = max(1.0, q * (_BARS - 18))
        colour = ANSWER if step == len(frame.q) - 1 else FAINT
        picture.rectangle(_MARGIN + step * each, bottom - height, each - gap, height, colour)


def animate(frames: Sequence[Frame], path: Path) -> str:
    """Write frames into a GIF; return its path and size as text.

    Raises:
        ConfigError: the file cannot be written or is no GIF by its name, or Pillow is missing.
    """
    require_gif(path)
    content = gif(frames)
    with disk_errors(path, ConfigError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(content)
    return f"{path} ({len(content) / 1000:.0f} kB)"


def gif(*puzzles: Sequence[Frame]) -> bytes:
    """Return the frames of a puzzle as an endless GIF, or those of several puzzles in rows of two.
    Very many frames are thinned out.

    Raises:
        ConfigError: Pillow is missing.
    """
    cut = [without_idle_end(frames) for frames in puzzles]
    most = max(map(len, cut))
    alike = [thinned([*own, *[own[-1]] * (most - len(own))], _MOST_FRAMES) for own in cut]
    times = [[picture_of(frame) for frame in frames] for frames in zip(*alike, strict=True)]
    width = max(picture.width for pictures in times for picture in pictures)
    height = max(picture.height for pictures in times for picture in pictures)
    columns, rows = min(2, len(puzzles)), (len(puzzles) + 1) // 2
    papers = [Picture(columns * width, rows * height) for _ in times]  # Of equal size.
    for paper, pictures in zip(papers, times, strict=True):
        for place, picture in enumerate(pictures):
            paper.place(picture, place % columns * width, place // columns * height)
    few = [paper.image().quantize(64) for paper in papers]
    pause = round(1000 * min(0.7, max(0.08, _SECONDS / len(few))))
    durations = [pause] * (len(few) - 1) + [round(1000 * _LAST_SECONDS)]
    content = BytesIO()
    options = {"append_images": few[1:], "duration": durations, "loop": 0, "optimize": True}
    few[0].save(content, "GIF", save_all=True, **options)
    return content.getvalue()
