"""The attention bias for Sudoku, and a check that data are Sudokus."""

from math import isqrt
from typing import TYPE_CHECKING

from models.biases.base import ATTENTION_BIASES, AttentionBiasConfig
from runtime.errors import ConfigError
from runtime.registry import imported

if TYPE_CHECKING:
    from models.config import DataFacts

# Number of cells -> (rows, columns) of a box.
SUDOKU_BOXES = {16: (2, 2), 36: (2, 3), 81: (3, 3), 256: (4, 4)}


def require_sudoku(
    facts: "DataFacts", wanted_by: str, most_cells: int = 256, instead: str = ""
) -> None:
    """Raise ConfigError unless the data can be Sudokus; `instead` ends its message."""
    fits = facts.seq_len in SUDOKU_BOXES and (facts.vocab_size - 2) ** 2 == facts.seq_len
    kinds = "sudoku", "sudoku_16", None
    if not fits or facts.seq_len > most_cells or facts.kind not in kinds:
        kind = "" if facts.kind in kinds else f" (kind {facts.kind})"
        sizes = ", ".join(f"{isqrt(n)} x {isqrt(n)}" for n in SUDOKU_BOXES if n <= most_cells)
        raise ConfigError(
            f"{wanted_by} is for Sudoku of {sizes} cells, with tokens for padding, for an empty "
            f"cell and for each digit; the data have {facts.seq_len} cells and "
            f"{facts.vocab_size} tokens{kind}{instead}"
        )


class SudokuBiasConfig(AttentionBiasConfig):
    """A learned bias for the rows, columns and boxes that two cells share, like the bias for
    relative positions in Swin (arXiv:2103.14030, section 3.2).

    When it helps: models that mix the cells by attention (`arch.mlp_t=false`). On easy Sudokus a
    small model solved 60 % of unseen puzzles with it and none without (docs/log/experiments.md).
    """

    @classmethod
    def require_data(cls, facts: "DataFacts") -> None:
        require_sudoku(facts, "it")


ATTENTION_BIASES.add(
    "sudoku",
    SudokuBiasConfig,
    imported("models.biases.sudoku.model", "SudokuBias"),
    "each head learns a bias for two cells that share a row, column or box; for Sudoku of 16, "
    "36, 81 or 256 cells",
)
