"""Answers and their steps, which show themselves in a terminal and in a notebook."""

from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

import numpy as np
import torch

from apps.inside.recording import Recorded, Recorder
from apps.reports.asking import note_on, search_for, verdict_of, verdict_on_steps
from apps.reports.boards import Board
from apps.reports.frames import (
    Frame,
    animate,
    frame_of_answers,
    frame_of_puzzle,
    frames_of_rounds,
    frames_of_steps,
    gif,
    picture_of,
    thinned,
)
from apps.reports.terminal import as_text
from dataset.kinds.base import Puzzle
from evaluation.config import SolveConfig
from evaluation.solve import reason, step_by_step
from models.act import ACTLossHead
from runtime.errors import ConfigError

_MOST_FRAMES = 60  # In a notebook, which keeps the animation in its file.


@dataclass(frozen=True, repr=False, eq=False)
class Step:
    """An ACT step of a model, or a round of a search.

    Attributes:
        step: its number, from 1.
        answer: int8 [size, size]; in a Sudoku 0 is a cell without a digit.
        confidence: the probability of each cell's token, float32 [size, size]; None in a search.
        q: the model's probability that the whole answer is right; None if no head says so.
        candidates: the tokens that a search has left in each cell, bool [cells, V]; else None.
        frame: its board and words, as in an animation.
        recorded: what `record` asked for, by name; see `apps.inside.recording.recordable`.
    """

    step: int
    answer: np.ndarray
    confidence: np.ndarray | None
    q: float | None
    candidates: np.ndarray | None
    frame: Frame
    recorded: Recorded = field(default_factory=dict)

    def __repr__(self) -> str:
        words = (self.frame.title, *self.frame.words)
        return "\n".join([as_text(self.frame.board, colour=False), *filter(None, words)])

    def _repr_html_(self) -> str:
        return _svg(self.frame, "; ".join(filter(None, (self.frame.title, *self.frame.words))))


@dataclass(frozen=True, repr=False, eq=False)
class Answer:
    """A model's answer to a puzzle.

    Attributes:
        grid: int8 [size, size]; if a search found none, the puzzle's grid.
        solved: whether it is right; None: unknown.
        words: one line: the verdict, and how sure the model is or how the search went.
        note: says if the puzzle has no solution or several; else "".
        frames: the puzzle and each step of the chain that answers, as in an animation.
    """

    puzzle: Puzzle
    grid: np.ndarray
    solved: bool | None
    words: str
    note: str
    frames: list[Frame]

    @property
    def text(self) -> str:
        """The answer as people type it: a Sudoku in one line, a maze or an ARC grid in rows."""
        kind = self.puzzle.kind
        return kind.board(len(self.grid)).text(kind.seen(self.puzzle, self.grid))

    @property
    def steps(self) -> list[Step]:
        """The steps of the chain that answers."""
        return [_step(number, frame) for number, frame in enumerate(self.frames)][1:]

    def save_gif(self, path: str | Path) -> Path:
        """Write the steps as an animation and return its path. Needs Pillow."""
        animate(self.frames, Path(path))
        return Path(path)

    def __repr__(self) -> str:
        board = as_text(Board(self.puzzle, self.grid), colour=False)
        return "\n".join(filter(None, (board, self.words, self.note)))

    def _repr_html_(self) -> str:
        words = "; ".join(filter(None, (self.puzzle.kind.name, self.words, self.note)))
        try:
            data = b64encode(gif(thinned(self.frames, _MOST_FRAMES))).decode()
        except ConfigError:  # Pillow is missing.
            return _svg(self.frames[-1], words)
        return f'<img alt="{escape(words)}" src="data:image/gif;base64,{data}">'


def answered(
    puzzle: Puzzle, model: ACTLossHead, device: torch.device, config: SolveConfig, *, searches: bool
) -> Answer:
    """Let a model answer a puzzle, by a search or in ACT steps."""
    note = note_on(puzzle)
    if not searches:
        (found,) = reason(model, [puzzle], device, config)
        words, solved = verdict_on_steps(found)
        return Answer(puzzle, found.answer, solved, words, note, frames_of_steps(found))
    row, seed = puzzle.row, config.seed
    result, rounds = search_for(puzzle, model, device, config.search, row=row, seed=seed)
    words, solved = verdict_of(puzzle, result, config.search.chains)
    grid = puzzle.question if result.answer is None else puzzle.kind.to_grid(result.answer)
    return Answer(puzzle, grid, solved, words, note, frames_of_rounds(puzzle, rounds, result))


def thoughts(
    puzzle: Puzzle,
    model: ACTLossHead,
    device: torch.device,
    config: SolveConfig,
    record: Sequence[str] = (),
) -> Iterator[Step]:
    """Yield the ACT steps of a single chain; each is computed when it is asked for.

    Raises:
        ConfigError: the model has nothing with a name in `record`.
    """
    recorder = Recorder(model, record) if record else None

    def steps() -> Iterator[Step]:
        frame = frame_of_puzzle(puzzle, model.model.eval_max_steps)
        running = step_by_step(model, puzzle, device, config)
        while True:
            with recorder.recording() if recorder else nullcontext():
                if (one := next(running, None)) is None:
                    return
            frame = frame_of_answers(frame, one, halts=model.halting_head is not None)
            yield _step(one.step, frame, recorder.take() if recorder else {})

    return steps()


def _step(number: int, frame: Frame, recorded: Recorded | None = None) -> Step:
    board, q = frame.board, frame.q[-1] if frame.q else None
    grids = board.answer, board.certainty
    return Step(number, *grids, q, board.candidates, frame, recorded or {})


def _svg(frame: Frame, words: str) -> str:
    picture = picture_of(frame)
    return picture.svg(f' width="{picture.width}" aria-label="{escape(words)}"')
