"""Settings of TRM's recursion with a state for each digit in each cell."""

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from models.biases.sudoku.config import require_sudoku
from models.config import ARCHITECTURES, DataFacts, Expansion, RecurrenceConfig
from models.heads.schemas import LinearHeadConfig
from runtime.errors import ConfigError
from runtime.registry import imported
from runtime.schema import NumLayers, Size, SizeOrZero, StrictBool

LATIN_KINDS = {"latin_square", "sudoku", "sudoku_16", "sudoku_x"}
"""Kinds whose digits are once in each row and column. A plug-in with such a kind adds its name."""


def require_one_row(arch: RecurrenceConfig) -> None:
    """Raise ValueError if head or loss need more than the one row that all digits share."""
    if not isinstance(arch.heads.lm, LinearHeadConfig):
        raise ValueError(
            f"heads.lm.name={arch.heads.lm.name} has its own weights for each digit, but "
            f"arch={arch.name} shares one row among all digits; use heads.lm.name=linear"
        )
    if arch.loss.label_smoothing:
        raise ValueError(
            f"loss.label_smoothing={arch.loss.label_smoothing:g} spreads over all tokens, but "
            f"arch={arch.name} predicts digits only; use 0"
        )


class DECConfig(RecurrenceConfig):
    """TRM's recursion on a state for each digit and cell (Fixed-Point-Reasoner-Structures, "DEC").
    The defaults are as in that source, except `halt_exploration_prob`.
    """

    width_multiple: ClassVar[int] = 8
    fixed: ClassVar[dict[str, object]] = dict(
        puzzle_emb_ndim=0, puzzle_emb_len=0, attention_bias="none"
    )

    name: Literal["dec"] = "dec"
    """TRM with a state for each digit in each cell; treats all digits alike"""

    H_cycles: Size = 3
    """updates of z_H in an ACT step, the last of them with gradients"""
    L_cycles: Size = 6
    """updates of z_L before each update of z_H"""
    L_layers: NumLayers = 2
    """blocks of the network"""
    hidden_size: Size = 192
    """width of the state of a digit in a cell (D)"""
    expansion: Expansion = 4.0
    """inner width of SwiGLU / hidden_size, before the factor 2/3 and rounding up to 8"""
    mlp_t: StrictBool = True
    """true: mix the cells with a SwiGLU over them"""
    cell_expansion: Expansion = 4.0
    """inner width of that SwiGLU / number of cells, before the factor 2/3"""
    units: StrictBool = False
    """true: mix the cells only by means over rows, columns, boxes and their crossings, so that the
    model has all symmetries of Sudoku"""
    boxes: StrictBool = True
    """false: rows and columns only, for Latin squares; needs units=true"""
    pos_encodings: Literal["rope", "learned", "none"] = "none"
    """learned: add a learned vector for each cell; rope and none: no positions"""
    puzzle_emb_ndim: SizeOrZero = 0
    """must be 0: there is no puzzle embedding"""
    no_ACT_continue: StrictBool = True
    """false: learn q_continue and halt as HRM does"""

    @property
    def has_attention(self) -> bool:
        return False

    @property
    def has_digits(self) -> bool:
        return True

    def require_data(self, facts: DataFacts) -> None:
        super().require_data(facts)
        squares = (facts.vocab_size - 2) ** 2 == facts.seq_len
        latin = squares and facts.kind in {None, *LATIN_KINDS}
        if self.boxes:
            way = "; arch.boxes=false arch.units=true reads rows and columns only" if latin else ""
            require_sudoku(facts, "arch.name=dec", instead=way)
        elif not latin:
            kind = f" (kind {facts.kind})" if facts.kind else ""
            raise ConfigError(
                f"arch.boxes=false is for Latin squares of N x N cells with N + 2 tokens; the data "
                f"have {facts.seq_len} cells and {facts.vocab_size} tokens{kind}"
            )

    @model_validator(mode="after")
    def _treats_digits_alike(self) -> Self:
        require_one_row(self)
        if not (self.units or self.boxes):
            raise ValueError("boxes=false needs units=true")
        if not (self.units or self.mlp_t):
            raise ValueError("arch=dec has no attention; use mlp_t=true or units=true")
        return self


ARCHITECTURES.add("dec", DECConfig, imported("apps.dec.model", "DECInner"))
