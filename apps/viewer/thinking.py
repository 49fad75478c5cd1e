"""Run a model on a puzzle, and send each step to the page as soon as it is computed."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from threading import Lock
from typing import Any

import torch
from pydantic import Field

from apps.lattice.search import Round, SearchResult
from apps.reports.asking import load_for, note_on, search_for, verdict_of
from apps.reports.boards import Board, board_of_candidates, draw, draw_panels, panels_of
from apps.reports.frames import (
    Frame,
    frame_of_answers,
    frame_of_puzzle,
    frames_of_rounds,
    frames_of_steps,
    gif,
    settled,
    thinned,
)
from apps.reports.html import percent
from apps.viewer.shelf import MISTAKES
from dataset.kinds.base import Puzzle
from evaluation.config import ArchOverrides, SearchSettings, ThinkingSettings
from evaluation.solve import StepAnswers, reason
from runtime.device import resolve_device
from runtime.errors import ConfigError
from runtime.schema import Count, Schema
from runtime.text import many
from training.checkpoint.trained_model import TrainedModel

_MOST_FRAMES = 300
Event = dict[str, Any]


class Options(Schema):
    """The options on the page.

    Attributes:
        steps: ACT steps; None: as in training.
        chains: number of chains.
        rounds: most rounds of a search.
    """

    steps: Count | None = Field(None, le=1024)
    chains: Count = Field(1, le=64)
    rounds: Count = Field(200, le=5000)


class _Cancelled(Exception):
    """A newer request has come, so this one stops."""


class Thinker:
    """Solves one puzzle at a time; a new request stops the one before."""

    def __init__(self) -> None:
        self._numbers, self._lock = count(1), Lock()
        self._newest, self._frames = 0, list[Frame]()

    def think(
        self, trained: TrainedModel, puzzle: Puzzle, asked: Options, tell: Callable[[Event], object]
    ) -> None:
        """Solve a puzzle and report each event to `tell`: a `frame` for the puzzle and for each
        step; then `done`, the frames of the chain that answers, with the first frame of the final
        answer (`settled`), a `summary`, the number of this `thought` for `saved`, and the
        step of the checkpoint; or an `error`.
        """
        self._newest = number = next(self._numbers)

        def go_on(event: Event) -> None:
            if number != self._newest:
                raise _Cancelled("stopped")
            tell(event)

        try:
            with self._lock:
                frames, summary = _think(trained, puzzle, asked, go_on)
                done = [shown(frame) for frame in frames]
                about = {"summary": summary, "train_step": trained.step, "thought": number}
                self._frames = frames
                go_on({"done": done, "settled": settled(frames), **about})
        except (ConnectionError, TimeoutError):
            return  # The page has been closed.
        except (_Cancelled, *MISTAKES) as error:
            tell({"error": str(error)})
        except Exception as error:
            # An error of the model or the machine: show it on the page, and keep serving.
            tell({"error": f"{type(error).__name__}: {error}"})

    def saved(self, number: int) -> bytes:
        """Return the steps of the last request as a GIF.

        Raises:
            ConfigError: another request has begun since, or Pillow is missing.
        """
        if number != self._newest or not (frames := self._frames):
            raise ConfigError("these steps are no longer kept: solve the puzzle again")
        return gif(frames)


def shown(frame: Frame) -> Event:
    """Return a frame as JSON for the page."""
    # Skip the first line, the number of open cells before the step; the verdict has it after.
    board, words = frame.board, [word for word in frame.words[1:] if word]
    if not board.marks:
        return {"title": frame.title, "verdict": "", "words": [], "svg": svg_of(board)}
    event: Event = {"title": frame.title, "verdict": verdict_on(board), "svg": svg_of(board)}
    if frame.num_steps and board.changed is not None:
        words = [f"{many(int(board.changed.sum()), 'cell')} changed"]
        if frame.q:
            words.append(f"{percent(frame.q[-1])} sure that all is right")
            event["q"] = frame.q[-1]
    return {**event, "words": words}


def svg_of(board: Board) -> str:
    """Draw a board; grids on canvases are drawn one by one, all on one scale."""
    if not board.look.canvas:
        return draw(board).svg()
    puzzle = board.puzzle
    known = [puzzle.question] if puzzle.target is None else [puzzle.question, puzzle.target]
    most = max(max(puzzle.kind.seen(puzzle, grid).shape) for grid in known)
    return "".join(draw_panels(board.look, [panel], most).svg() for panel in panels_of(board))


def verdict_on(board: Board) -> str:
    """Return the verdict on a board: the number of open cells, or whether the answer is right."""
    puzzle = board.puzzle
    if board.candidates is not None and (left := int((board.candidates.sum(-1) > 1).sum())):
        marked = int(board.wrong.sum())
        return f"{many(left, 'cell')} open" + (f", {marked} wrong" if marked else "")
    return puzzle.kind.judge(puzzle.question, board.answer, puzzle.target).words


def _think(
    trained: TrainedModel, puzzle: Puzzle, settings: Options, tell: Callable[[Event], None]
) -> tuple[list[Frame], str]:
    """Return the frames of the chain that answers, and a summary."""
    if note := note_on(puzzle):
        tell({"note": note})
    tell({"frame": shown(frame_of_puzzle(puzzle))})
    look = _search if trained.run.arch.searches else _reason
    frames, summary = look(trained, puzzle, settings, tell)
    return thinned(frames, _MOST_FRAMES), summary


def _reason(
    trained: TrainedModel, puzzle: Puzzle, asked: Options, tell: Callable[[Event], None]
) -> tuple[list[Frame], str]:
    device = torch.device(resolve_device("auto"))
    _, model = load_for([puzzle], trained, device, ArchOverrides(halt_max_steps=asked.steps))
    halts = model.halting_head is not None
    select = "q" if halts else "residual"
    settings = ThinkingSettings(chains=[asked.chains], select=[select])
    settings.require_model(trained.run.arch, halts=halts, name=trained.weights)
    frame = start = frame_of_puzzle(puzzle, model.model.eval_max_steps)

    def watch(one: StepAnswers) -> None:
        nonlocal frame
        frame = frame_of_answers(start if one.step == 1 else frame, one, halts=halts)
        chain = f"chain {one.chain + 1} of {asked.chains}, " if asked.chains > 1 else ""
        tell({"frame": shown(replace(frame, title=f"{chain}{frame.title}"))})

    (found,) = reason(model, [puzzle], device, settings=settings, watch=watch)
    summary = ""
    if asked.chains > 1:
        gives = "gives" if found.num_agreeing == 1 else "give"
        agreeing = f"{found.num_agreeing} of {asked.chains} {gives} this answer"
        summary = f"chain {found.chain + 1} answers, {agreeing}"
    return frames_of_steps(found), summary


def _search(
    trained: TrainedModel, puzzle: Puzzle, asked: Options, tell: Callable[[Event], None]
) -> tuple[list[Frame], str]:
    if asked.steps is not None:
        raise ConfigError("steps has no effect: this model searches in rounds; set rounds")
    device = torch.device(resolve_device("auto"))
    _, model = load_for([puzzle], trained, device, ArchOverrides())

    def watch(found: SearchResult, one: Round) -> None:
        before, after, guessed = one.before[0], one.after[0], int(one.guessed[0])
        board = board_of_candidates(puzzle, after, guessed, before)
        tell({"frame": shown(Frame(board, f"chain 1, round {found.rounds}", []))})

    settings = SearchSettings(chains=asked.chains, rounds=asked.rounds)
    found, rounds = search_for(puzzle, model, device, settings, watch=watch)
    return frames_of_rounds(puzzle, rounds, found), verdict_of(puzzle, found, asked.chains)[0]
