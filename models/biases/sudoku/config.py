"""The attention bias for Sudoku, and a check that data are Sudokus."""

from typing import TYPE_CHECKING

from models.biases.base import ATTENTION_BIASES, AttentionBiasConfig
from runtime.errors import ConfigError
from runtime.registry import imported

if TYPE_CHECKING:
    from models.config import DataFacts

# Number of cells -> (rows, columns) of a box.
SUDOKU_BOXES = {16: (2, 2), 36: (2, 3), 81: (3, 3), 256: (4, 4)}


def require_sudoku(facts: "DataFacts", wanted_by: str) -> None:
    """Raise ConfigError unless the data can be Sudokus."""
    fits = facts.seq_len in SUDOKU_BOXES and (facts.vocab_size - 2) ** 2 == facts.seq_len
    if not fits or not (facts.kind or "sudoku").startswith("sudoku"):
        mazes = ": mazes" if facts.kind == "maze" else ""
        raise ConfigError(
            f"{wanted_by} is for Sudoku of 4 x 4, 6 x 6, 9 x 9 or 16 x 16 cells, with tokens for "
            f"padding, for an empty cell and for each digit; the data have {facts.seq_len} cells "
            f"and {facts.vocab_size} tokens{mazes}"
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
