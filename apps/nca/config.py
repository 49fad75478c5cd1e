"""Settings of TRM with one latent as a neural cellular automaton."""

from math import isqrt
from typing import ClassVar, Literal, Self

from pydantic import model_validator

from models.config import ARCHITECTURES, DataFacts, Expansion, RecurrenceConfig
from runtime.errors import ConfigError
from runtime.registry import imported
from runtime.schema import NumLayers, Size, SizeOrZero, StrictBool


class AnyCanvasConfig(RecurrenceConfig):
    """A recurrence on square grids without positions; a subclass may have a puzzle embedding. No
    weight depends on the size of the grid, so the same model fits all sizes.
    """

    width_multiple: ClassVar[int] = 8
    any_canvas: ClassVar[bool] = True
    fixed: ClassVar[dict[str, object]] = dict(
        mlp_t=False,
        puzzle_emb_ndim=0,
        puzzle_emb_len=0,
        attention_bias="none",
        pos_encodings="none",
    )

    pos_encodings: Literal["rope", "learned", "none"] = "none"
    """must be none: there are no positions"""
    puzzle_emb_ndim: SizeOrZero = 0
    """must be 0: there is no puzzle embedding"""

    @property
    def has_attention(self) -> bool:
        return False

    def require_data(self, facts: DataFacts) -> None:
        super().require_data(facts)
        if isqrt(facts.seq_len) ** 2 != facts.seq_len:
            found = f"{facts.seq_len} cells form none"
            raise ConfigError(f"arch.name={self.name} reads square grids; {found}")


class NCAConfig(AnyCanvasConfig):
    """TRM with one latent where an update reads a cell and its neighbours only. Far cells reach
    each other in many cheap updates.
    """

    name: Literal["nca"] = "nca"
    """TRM as a neural cellular automaton: an update reads a cell and its four neighbours"""

    H_cycles: Size = 1
    """cycles in an ACT step, the last of them with gradients"""
    L_cycles: Size = 5
    """updates in a cycle"""
    L_layers: NumLayers = 1
    """blocks of the network"""
    hidden_size: Size = 32
    """width of the state of a cell (D)"""
    expansion: Expansion = 2.0
    """inner width of SwiGLU / hidden_size, before the factor 2/3 and rounding up to 8"""
    keeps: Literal["states", "answers"] = "states"
    """what a cell takes from one ACT step to the next: its state, or only its heads' answers"""
    no_ACT_continue: StrictBool = True
    """false: learn q_continue and halt as HRM does"""

    @property
    def local_updates(self) -> int:
        return self.H_cycles * self.L_cycles if self.keeps == "answers" else 0

    @model_validator(mode="after")
    def _starts_are_used(self) -> Self:
        starts = self.techniques.acting("start")
        for name, technique in self.techniques.active.items():
            if self.keeps == "answers" and (name == "anchors" or technique in starts):
                raise ValueError(f"keeps=answers leaves no states to start at: no {name}")
        return self


ARCHITECTURES.add("nca", NCAConfig, imported("apps.nca.model", "NCAInner"))
