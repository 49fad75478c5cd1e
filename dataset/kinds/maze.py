"""The kind `maze`: a path from S to G past the walls of a square grid."""

from collections.abc import Sequence
from math import isqrt
from typing import Any

import numpy as np

from dataset.kinds.base import (
    BoardLook,
    DihedralViews,
    Kind,
    Puzzle,
    TokenLook,
    Verdict,
    Views,
    wrong_verdict,
)
from dataset.maze import rules as maze
from runtime.streams import Stream
from runtime.text import many


class MazeKind(Kind):
    """Mazes. Any shortest path from S to G is right, as for the maze evaluator."""

    name = "maze"
    rating = "cells on the path"
    is_published = True
    shares = ("valid_path", "shortest_path")

    def vocab_size(self, size: int) -> int:
        return maze.VOCAB_SIZE

    def fits(self, seq_len: int, vocab_size: int) -> bool:
        return isqrt(seq_len) ** 2 == seq_len and vocab_size == maze.VOCAB_SIZE

    def board(self, size: int) -> BoardLook:
        wall, free, start, goal, path = maze.PALETTE
        return BoardLook(
            (
                TokenLook(maze.WALL, "wall", "#", wall, style="48;5;244", keys=("#",)),
                TokenLook(maze.FREE, "free", " ", free, style="0", keys=(" ", ".")),
                TokenLook(maze.START, "start", "S", start, "S", "42;30", ("S",), once=True),
                TokenLook(maze.GOAL, "goal", "G", goal, "G", "41;97", ("G",), once=True),
                TokenLook(maze.PATH, "path", "o", path, style="44;97", drawn=True),
            ),
            cells="filled",
            open=maze.FREE,
            pen=maze.WALL,
            hint="Arrow keys move; # wall, Space or . free, S start, G goal; drag to draw walls; "
            "paste rows as text.",
        )

    def recognises(self, text: str) -> bool:
        """Return whether the text has an end, or walls and no node of a graph."""
        return "S" in text or "G" in text or ("#" in text and "?" not in text)

    def parse(self, text: str) -> Puzzle:
        """Parse a maze in rows or in one line: `#` a wall, space or `.` free, `S` and `G` the ends.

        Spaces at the end of a row may be missing.

        Raises:
            ValueError: a wrong character, not a square, or not exactly one S and one G.
        """
        puzzle = super().parse(text)
        if not maze.are_mazes(puzzle.tokens[None])[0]:
            accepted = "'#' walls, ' ' or '.' free cells, one 'S', one 'G', and no path"
            raise ValueError(f"{text.count('S')} S and {text.count('G')} G; accepted: {accepted}")
        return puzzle

    def example(self, size: int, seed: int) -> Puzzle:
        from dataset.maze.generator import generate_mazes

        how: dict[str, Any] = {"seed": seed, "stream": Stream.NEW_TEST, "taken": set()}
        made = next(generate_mazes(size=size, min_length=size, **how))
        return Puzzle(self, self.to_grid(made.question))

    def answer_sizes(self, labels: np.ndarray) -> dict[str, np.ndarray]:
        """Return the number of moves of each path."""
        return {"path_length": (labels == maze.PATH).sum(axis=1) + 1}

    def views(self, size: int) -> Views:
        return DihedralViews(size)

    def solution(self, question: np.ndarray) -> np.ndarray | None:
        labels, moves = maze.solve(question.reshape(1, -1))
        return self.to_grid(labels[0]) if moves[0] > 0 else None

    def wrong(
        self, question: np.ndarray, answer: np.ndarray, target: np.ndarray | None
    ) -> np.ndarray:
        """Mark changed walls and ends, and cells where the path breaks, forks or touches itself."""
        kept = (answer == question) | ((answer == maze.PATH) & (question == maze.FREE))
        drawn = np.pad(answer >= maze.START, 1)
        beside = drawn[2:, 1:-1] + 0 + drawn[:-2, 1:-1] + drawn[1:-1, 2:] + drawn[1:-1, :-2]
        due = np.where(answer == maze.PATH, 2, 1)
        return ~kept | ((answer >= maze.START) & (beside != due))

    def judge(self, question: np.ndarray, answer: np.ndarray, target: np.ndarray | None) -> Verdict:
        inputs, preds = question.reshape(1, -1), answer.reshape(1, -1)
        (moves,), (least,), _ = maze.measure_paths(inputs, preds)
        if moves < 0:
            return wrong_verdict("a path from S to G", self.wrong(question, answer, target))
        if moves == least:
            return Verdict(True, f"a shortest path from S to G, {many(int(moves), 'move')}")
        return Verdict(
            False, f"a path from S to G of {many(int(moves), 'move')}; the shortest has {least}"
        )

    def holds(self, questions: np.ndarray, answers: np.ndarray) -> Sequence[np.ndarray]:
        return maze.check_paths(questions, answers)


MAZE = MazeKind()
