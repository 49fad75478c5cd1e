"""Settings of the token head that the puzzle embedding changes."""

from typing import TYPE_CHECKING, Literal

from models.heads.config import TOKEN_HEADS, TokenHeadConfig
from runtime.registry import imported
from runtime.schema import Size, StrictBool

if TYPE_CHECKING:
    from models.config import RecurrenceConfig


class PuzzleHeadConfig(TokenHeadConfig):
    """A matrix and a change of low rank (arXiv:2106.09685) that the puzzle embedding steers; ours.

    When it helps: it is meant for sets such as ARC, whose tasks use colours differently and have an
    embedding each. All Sudokus share one embedding: there it is one matrix.
    """

    name: Literal["puzzle"] = "puzzle"
    """a matrix that the puzzle embedding changes; needs puzzle_emb_ndim > 0"""
    rank: Size = 8
    """rank of the change"""
    bias: StrictBool = False
    """add a learned bias to the logits"""

    def require(self, arch: "RecurrenceConfig") -> None:
        if not arch.puzzle_emb_ndim:
            raise ValueError(
                "name=puzzle is steered by the puzzle embedding, and there is none "
                "(puzzle_emb_ndim=0)"
            )


_load = imported("models.heads.puzzle.model", "PuzzleAdapted")
TOKEN_HEADS.add("puzzle", PuzzleHeadConfig, _load, place=4)
