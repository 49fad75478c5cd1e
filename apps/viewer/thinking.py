"""Let a model think about a puzzle, and tell each step as it is computed."""

from collections.abc import Callable
from itertools import count
from threading import Lock
from typing import Any

import torch
from pydantic import Field

from apps.lattice.search import Round, SearchResult
from apps.reports.asking import load_for, note_on, search_for, verdict_of
from apps.reports.boards import (
    Board,
    asked,
    board_of_candidates,
    board_of_step,
    draw,
    draw_panels,
    panels_of,
)
from apps.reports.frames import Frame, frames_of_rounds, frames_of_steps, gif, settled, thinned
from apps.reports.html import percent
from apps.viewer.shelf import MISTAKES
from dataset.kinds.base import Puzzle
from evaluation.config import ArchOverrides, SearchSettings, ThinkingSettings
from evaluation.solve import Glimpse, reason
from runtime.device import resolve_device
from runtime.errors import ConfigError
from runtime.schema import Count, Schema
from runtime.text import many
from training.checkpoint.trained_model import TrainedModel

_MOST_FRAMES = 300
Event = dict[str, Any]


class Asked(Schema):
    """How a puzzle is thought about.

    Attributes:
        depth: ACT steps; None: as many as in training.
        breadth: chains.
        rounds: of a search, at most.
    """

    depth: Count | None = Field(None, le=1024)
    breadth: Count = Field(1, le=64)
    rounds: Count = Field(200, le=5000)


class _Cancelled(Exception):
    """Nobody waits for the answer any more."""


class Thinker:
    """Thinks about one puzzle at a time; a new one ends the one before."""

    def __init__(self) -> None:
        self._numbers, self._lock = count(1), Lock()
        self._newest, self._frames = 0, list[Frame]()

    def think(
        self, trained: TrainedModel, puzzle: Puzzle, asked: Asked, tell: Callable[[Event], object]
    ) -> None:
        """Tell what happens: a `frame` for the puzzle and for each step as it is done, then `done`
        with the frames of the chain that answers, from which of them on the answer stays
        (`settled`), a `summary`, the number under which the thought can be saved, and which
        checkpoint of its run this was; or `error` with a sentence.
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
            return  # The page has gone.
        except (_Cancelled, *MISTAKES) as error:
            tell({"error": str(error)})
        except Exception as error:
            # Of the model itself, or of the machine: the page stays, and says so.
            tell({"error": f"{type(error).__name__}: {error}"})

    def saved(self, number: int) -> bytes:
        """Return the last thought as a GIF.

        Raises:
            ConfigError: another one has begun since, or Pillow is missing.
        """
        if number != self._newest or not (frames := self._frames):
            raise ConfigError("this thought is too long ago: solve the puzzle again")
        return gif(frames)


def shown(frame: Frame) -> Event:
    """Return a frame as the page takes it."""
    # The first line tells how many cells were open before; the verdict tells what is open now.
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
    """Draw a board; of canvases each grid for itself, all on one scale."""
    if not board.look.canvas:
        return draw(board).svg()
    puzzle = board.puzzle
    known = [puzzle.question] if puzzle.target is None else [puzzle.question, puzzle.target]
    most = max(max(puzzle.kind.seen(puzzle, grid).shape) for grid in known)
    return "".join(draw_panels(board.look, [panel], most).svg() for panel in panels_of(board))


def verdict_on(board: Board) -> str:
    """Say what is shown on a board."""
    puzzle = board.puzzle
    if board.candidates is not None and (left := int((board.candidates.sum(-1) > 1).sum())):
        marked = int(board.wrong.sum())
        return f"{many(left, 'cell')} open" + (f", {marked} wrong" if marked else "")
    return puzzle.kind.judge(puzzle.question, board.answer, puzzle.target).words


def _think(
    trained: TrainedModel, puzzle: Puzzle, settings: Asked, tell: Callable[[Event], None]
) -> tuple[list[Frame], str]:
    """Return the frames of the chain that answers, and what there is to say of the whole."""
    device = torch.device(resolve_device("auto"))
    if puzzle.target is None and (note := note_on(puzzle)):
        tell({"note": note})
    tell({"frame": shown(Frame(asked(puzzle), "the puzzle", []))})
    look = _search if trained.run.arch.searches else _reason
    frames, summary = look(trained, puzzle, settings, device, tell)
    return thinned(frames, _MOST_FRAMES), summary


def _reason(
    trained: TrainedModel,
    puzzle: Puzzle,
    asked: Asked,
    device: torch.device,
    tell: Callable[[Event], None],
) -> tuple[list[Frame], str]:
    _, model = load_for([puzzle], trained, device, ArchOverrides(halt_max_steps=asked.depth))
    halts = model.halting_head is not None
    select = "q" if halts else "residual"
    settings = ThinkingSettings(breadth=[asked.breadth], select=[select])
    settings.require_model(trained.run.arch, halts=halts, name=trained.weights)
    steps, q = model.model.eval_max_steps, list[float]()
    before = puzzle.question

    def watch(glimpse: Glimpse) -> None:
        nonlocal before
        if glimpse.step == 1:
            q.clear()
            before = puzzle.question
        answer = puzzle.kind.to_grid(glimpse.tokens[0])
        if halts:
            q.append(float(glimpse.q_halt[0]))
        certainty = glimpse.certainty[0].reshape(answer.shape)
        board = board_of_step(puzzle, before, answer, certainty)
        chain = f"chain {glimpse.chain + 1} of {asked.breadth}, " if asked.breadth > 1 else ""
        title = f"{chain}ACT step {glimpse.step} of {steps}"
        tell({"frame": shown(Frame(board, title, [], list(q), steps))})
        before = answer

    (found,) = reason(model, [puzzle], device, settings=settings, watch=watch)
    summary = ""
    if asked.breadth > 1:
        gives = "gives" if found.num_agreeing == 1 else "give"
        agreeing = f"{found.num_agreeing} of {asked.breadth} {gives} this answer"
        summary = f"chain {found.chain + 1} answers, {agreeing}"
    return frames_of_steps(found), summary


def _search(
    trained: TrainedModel,
    puzzle: Puzzle,
    asked: Asked,
    device: torch.device,
    tell: Callable[[Event], None],
) -> tuple[list[Frame], str]:
    if asked.depth is not None:
        raise ConfigError(
            "depth says nothing: this model strikes candidates and guesses; set rounds"
        )
    _, model = load_for([puzzle], trained, device, ArchOverrides())

    def watch(found: SearchResult, one: Round) -> None:
        before, after, guessed = one.before[0], one.after[0], int(one.guessed[0])
        board = board_of_candidates(puzzle, after, guessed, before)
        tell({"frame": shown(Frame(board, f"chain 1, round {found.rounds}", []))})

    settings = SearchSettings(chains=asked.breadth, rounds=asked.rounds)
    found, rounds = search_for(puzzle, model, device, settings, watch=watch)
    return frames_of_rounds(puzzle, rounds, found), verdict_of(puzzle, found, asked.breadth)[0]
