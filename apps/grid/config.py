"""Settings of TRM's recursion with a state for each colour in each cell of an ARC grid."""

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from apps.dec.config import require_one_row
from apps.nca.config import AnyCanvasConfig
from models.config import ARCHITECTURES, DataFacts, Expansion
from runtime.errors import ConfigError
from runtime.registry import imported
from runtime.schema import NumLayers, Size, SizeOrZero, StrictBool

NUM_TOKENS = 11
"""Tokens with a state in each cell, at most: the border and the ten colours."""


class GridConfig(AnyCanvasConfig):
    """TRM's recursion on a state for each colour and cell of an ARC grid. No weight depends on the
    canvas, so the same model fits canvases of all sizes.
    """

    kind: ClassVar[str | None] = "arc"
    fixed: ClassVar[dict[str, object]] = dict(
        mlp_t=False, puzzle_emb_len=0, attention_bias="none", pos_encodings="none"
    )

    name: Literal["grid"] = "grid"
    """TRM with a state for each colour in each cell of an ARC grid; treats colours 1 to 9 alike"""

    H_cycles: Size = 2
    """updates of z_H in an ACT step, the last of them with gradients"""
    L_cycles: Size = 4
    """updates of z_L before each update of z_H"""
    L_layers: NumLayers = 1
    """blocks of the network"""
    hidden_size: Size = 32
    """width of the state of a colour in a cell (D)"""
    expansion: Expansion = 2.0
    """inner width of SwiGLU / hidden_size, before the factor 2/3 and rounding up to 8"""
    puzzle_emb_ndim: SizeOrZero = 32
    """width of a puzzle's vector for each colour and the border; at most hidden_size"""
    halt_max_steps: Size = 4
    """ACT steps after which a puzzle halts in any case"""
    no_ACT_continue: StrictBool = True
    """false: learn q_continue and halt as HRM does"""

    @property
    def has_digits(self) -> bool:
        return True

    @property
    def num_prefix(self) -> int:
        return 0

    @property
    def puzzle_emb_width(self) -> int:
        return NUM_TOKENS * self.puzzle_emb_ndim

    def require_data(self, facts: DataFacts) -> None:
        super().require_data(facts)
        if self.puzzle_emb_ndim and facts.vocab_size > NUM_TOKENS + 1:
            raise ConfigError(
                f"arch.name=grid with a puzzle embedding reads at most {NUM_TOKENS + 1} tokens; "
                f"the data have {facts.vocab_size}: use arch.puzzle_emb_ndim=0"
            )

    @model_validator(mode="after")
    def _knows_the_grid(self) -> Self:
        require_one_row(self)
        if self.puzzle_emb_ndim > self.hidden_size:
            raise ValueError(
                f"puzzle_emb_ndim={self.puzzle_emb_ndim}: arch=grid adds a puzzle's vectors to its "
                f"states; use at most hidden_size={self.hidden_size}"
            )
        return self


ARCHITECTURES.add("grid", GridConfig, imported("apps.grid.model", "GridInner"))
