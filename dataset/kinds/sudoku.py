"""The kind `sudoku`: 4 x 4, 6 x 6 and 9 x 9 cells. Tokens are digit + 1; 0 is padding."""

from collections.abc import Sequence
from math import isqrt
from typing import Any

import numpy as np

from dataset.kinds.base import BoardLook, Kind, Puzzle, TokenLook, Verdict, Views, wrong_verdict
from dataset.sudoku import rules as sudoku
from dataset.sudoku.symmetries import sudoku_symmetries
from runtime.streams import Stream


class SudokuKind(Kind):
    """Sudokus. Answers are judged by the rules alone, without a target."""

    name = "Sudoku"
    sizes = (4, 6, 9)
    rating = "rating"
    is_published = True

    def vocab_size(self, size: int) -> int:
        return size + 1 + sudoku.EMPTY_TOKEN

    def fits(self, seq_len: int, vocab_size: int) -> bool:
        size = isqrt(seq_len)
        return seq_len == size**2 and size in sudoku.BOX_SHAPES and vocab_size == size + 2

    def to_grid(self, tokens: np.ndarray) -> np.ndarray:
        """Return tokens [cells] as digits; padding counts as an empty cell."""
        sudoku.grid_size(tokens.size)  # Raises for a size that Sudoku does not have.
        return np.maximum(super().to_grid(tokens) - sudoku.EMPTY_TOKEN, 0)

    def to_tokens(self, grid: np.ndarray) -> np.ndarray:
        return super().to_tokens(grid + sudoku.EMPTY_TOKEN)

    def board(self, size: int) -> BoardLook:
        digits = {digit + sudoku.EMPTY_TOKEN: str(digit) for digit in range(1, size + 1)}
        return BoardLook(
            (
                *(TokenLook(token, text, text, keys=(text,)) for token, text in digits.items()),
                TokenLook(sudoku.EMPTY_TOKEN, "empty", ".", keys=(*sudoku.EMPTY_MARKS, " ")),
            ),
            cells="written",
            open=sudoku.EMPTY_TOKEN,
            box=sudoku.BOX_SHAPES.get(size),
            hint="Arrow keys move, digits fill, Backspace clears; paste a whole puzzle as text.",
        )

    def parse(self, text: str) -> Puzzle:
        """Parse a Sudoku; see `dataset.sudoku.rules.parse_puzzle`."""
        return Puzzle(self, sudoku.parse_puzzle(text))

    def example(self, size: int, seed: int) -> Puzzle:
        from dataset.sudoku.generator import generate_puzzles

        clues = {"min_clues": size**2 // 3, "max_clues": size**2 // 2, "min_rating": 0}
        how: dict[str, Any] = {"seed": seed, "stream": Stream.NEW_TEST, "taken": set()}
        made = next(generate_puzzles(size=size, **clues, **how))
        return Puzzle(self, made.question.reshape(size, size))

    def views(self, size: int) -> Views:
        return sudoku_symmetries(size)

    def solution(self, question: np.ndarray) -> np.ndarray | None:
        return sudoku.solve(question)[0]

    def wrong(
        self, question: np.ndarray, answer: np.ndarray, target: np.ndarray | None
    ) -> np.ndarray:
        """Mark empty cells, repeated digits and changed clues."""
        changed_clue = (question != 0) & (question != answer)
        return repeated_digits(answer) | (answer == 0) | changed_clue

    def judge(self, question: np.ndarray, answer: np.ndarray, target: np.ndarray | None) -> Verdict:
        wrong = self.wrong(question, answer, target)
        if wrong.any():
            return wrong_verdict("a solution", wrong)
        return Verdict(True, "a valid Sudoku that keeps the clues")

    def holds(self, questions: np.ndarray, answers: np.ndarray) -> Sequence[np.ndarray]:
        kept = ((questions <= sudoku.EMPTY_TOKEN) | (questions == answers)).all(axis=1)
        size = isqrt(questions.shape[1])
        return kept & sudoku.are_valid_solutions(answers - sudoku.EMPTY_TOKEN, size), kept


def repeated_digits(grid: np.ndarray) -> np.ndarray:
    """Mark the cells that share a digit with a cell of their row, column or box."""
    layout = sudoku.layout_of(len(grid))
    cells = grid.reshape(-1)
    has_digit = cells[:, None] == np.arange(1, layout.size + 1)  # [cells, digits]
    unit_counts = has_digit[layout.unit_cells].sum(axis=1)  # [units, digits]
    repeated = (unit_counts[layout.cell_units] > 1).any(axis=1)  # [cells, digits]
    return (has_digit & repeated).any(axis=1).reshape(grid.shape)


SUDOKU = SudokuKind()
