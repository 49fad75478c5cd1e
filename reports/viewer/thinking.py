"""Let a model think about a puzzle, and tell each step as it is computed."""

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from pydantic import Field

from evaluation.config import ArchOverrides, SearchSettings, ThinkingSettings
from evaluation.puzzles import Puzzle
from evaluation.search import Found, Round
from evaluation.solving import Glimpse, Reasoning, reason
from models.config import LatticeConfig
from reports.asking import load_for, note_on, search_for
from reports.boards import Board, board_of_candidates
from reports.frames import Frame, frames_of_rounds, frames_of_steps, picture_of, thinned
from reports.viewer.shelf import MISTAKES
from runtime.device import resolve_device
from runtime.errors import ConfigError
from runtime.schema import Count, Schema, StrictBool
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
        compare: mark what differs from the right answer, where that is known, instead of what
            cannot stay by the rules.
    """

    depth: Count | None = Field(None, le=1024)
    breadth: Count = Field(1, le=64)
    rounds: Count = Field(200, le=5000)
    compare: StrictBool = False


class _Cancelled(Exception):
    """Nobody waits for the answer any more."""


class Thinker:
    """Thinks about one puzzle at a time; a new one ends the one before."""

    def __init__(self) -> None:
        self._number, self._lock = 0, threading.Lock()

    def events(self, trained: TrainedModel, puzzle: Puzzle, asked: Asked) -> Iterator[Event]:
        """Yield what happens: a `frame` for each step as soon as it is done, then `done` with the
        frames of the chain that answers, a verdict, and which checkpoint of its run this was; or
        `error` with a sentence.
        """
        self._number += 1
        number, told = self._number, queue.Queue[Event | None]()

        def tell(event: Event) -> None:
            if number != self._number:
                raise _Cancelled
            told.put(event)

        def work() -> None:
            try:
                with self._lock:
                    _think(trained, puzzle, asked, tell)
            except _Cancelled:
                told.put({"error": "stopped"})
            except MISTAKES as error:
                told.put({"error": str(error)})
            except Exception as error:
                # Of the model itself, or of the machine: the page stays, and says so.
                told.put({"error": f"{type(error).__name__}: {error}"})
            finally:
                told.put(None)

        threading.Thread(target=work, daemon=True).start()
        try:
            while (event := told.get()) is not None:
                yield event
        finally:
            if number == self._number:
                self._number += 1  # The page has gone.


def shown(frame: Frame) -> Event:
    """Return a frame as the page takes it."""
    words = [word for word in frame.words if word]
    return {"title": frame.title, "words": words, "svg": picture_of(frame).svg()}


def _think(
    trained: TrainedModel, puzzle: Puzzle, asked: Asked, tell: Callable[[Event], None]
) -> None:
    device = torch.device(resolve_device("auto"))
    right, note = _right_answer(puzzle, compare=asked.compare)
    if note:
        tell({"note": note})
    if isinstance(trained.run.arch, LatticeConfig):
        frames, verdict = _search(trained, puzzle, asked, device, right, tell)
    else:
        frames, verdict = _reason(trained, puzzle, asked, device, right, tell)
    few = thinned(frames, _MOST_FRAMES)
    done = [shown(frame) for frame in few]
    tell({"done": done, "verdict": verdict, "train_step": trained.step})


def _right_answer(puzzle: Puzzle, *, compare: bool) -> tuple[np.ndarray | None, str]:
    """Return the right answer, where it is to be compared with, and what people have to know."""
    if puzzle.target is None and (note := note_on(puzzle)):
        return None, note
    if not compare:
        return None, ""
    right = puzzle.kind.solution(puzzle.question) if puzzle.target is None else puzzle.target
    unknown = "the right answer is not known: marked is what cannot stay by the rules"
    return right, unknown if right is None else ""


def _reason(
    trained: TrainedModel,
    puzzle: Puzzle,
    asked: Asked,
    device: torch.device,
    right: np.ndarray | None,
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
        board = Board(
            puzzle,
            answer,
            glimpse.certainty[0].reshape(answer.shape),
            puzzle.kind.changed(puzzle.question, before, answer),
            right=right,
        )
        chain = f"chain {glimpse.chain + 1} of {asked.breadth}, " if asked.breadth > 1 else ""
        title = f"{chain}ACT step {glimpse.step} of {steps}"
        words = [puzzle.kind.judge(puzzle.question, answer, puzzle.target).words]
        tell({"frame": shown(Frame(board, title, words, list(q), steps))})
        before = answer

    (found,) = reason(model, [puzzle], device, settings=settings, watch=watch)
    return frames_of_steps(found, right), _verdict(found, asked)


def _verdict(found: Reasoning, asked: Asked) -> str:
    words = found.judge().words
    if asked.breadth == 1:
        return words
    agreeing = f"{found.num_agreeing} of {asked.breadth} give this answer"
    return f"{words}; chain {found.chain + 1} answers, {agreeing}"


def _search(
    trained: TrainedModel,
    puzzle: Puzzle,
    asked: Asked,
    device: torch.device,
    right: np.ndarray | None,
    tell: Callable[[Event], None],
) -> tuple[list[Frame], str]:
    if asked.depth is not None:
        raise ConfigError(
            "depth says nothing: this model strikes candidates and guesses; set rounds"
        )
    arch, model = load_for([puzzle], trained, device, ArchOverrides())
    assert isinstance(arch, LatticeConfig)

    def watch(found: Found, one: Round) -> None:
        before, after, guessed = one.before[0], one.after[0], int(one.guessed[0])
        board = board_of_candidates(puzzle, after, guessed, before, right)
        words = [f"{many(int((after.sum(-1) > 1).sum()), 'cell')} open"]
        tell({"frame": shown(Frame(board, f"chain 1, round {found.rounds}", words))})

    settings = SearchSettings(chains=asked.breadth, rounds=asked.rounds)
    found, rounds = search_for(puzzle, arch, model, device, settings, watch=watch)
    taken_back = many(found.taken_back, "guess", "guesses")
    effort = f"{many(found.rounds, 'round')}, {taken_back} taken back"
    verdict = f"no answer: no chain has decided all cells in {effort}"
    if found.answer is not None:
        answer = puzzle.kind.to_grid(found.answer)
        said = puzzle.kind.judge(puzzle.question, answer, puzzle.target).words
        verdict = f"{said}; chain {(found.chain or 0) + 1} answers after {effort}"
    return frames_of_rounds(puzzle, rounds, found, right), verdict
