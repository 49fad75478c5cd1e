"""Schemas of the architectures and their losses.

Nothing here imports torch: a configuration is checked before torch is loaded. What the data set
says (vocabulary, sequence length, number of puzzles) is a fact, not a setting, and arrives as
`DataFacts`.
"""

from dataclasses import asdict, dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Schema(BaseModel):
    """A frozen configuration section that rejects keys it does not know.

    Floats must be finite; `true` is not a number and `"3"` is not an integer.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=()
    )


Count = Annotated[int, Field(strict=True, ge=1)]
CountOrZero = Annotated[int, Field(strict=True, ge=0)]
Probability = Annotated[float, Field(strict=True, ge=0.0, le=1.0)]
PositiveFloat = Annotated[float, Field(strict=True, gt=0.0)]
NonNegativeFloat = Annotated[float, Field(strict=True, ge=0.0)]
StrictBool = Annotated[bool, Field(strict=True)]

ForwardDtype = Literal["bfloat16", "float32", "float16", "float64"]
OutputField = Literal[
    "inputs",
    "labels",
    "puzzle_identifiers",
    "preds",
    "logits",
    "q_halt_logits",
    "q_continue_logits",
]
AttentionBackend = Literal["auto", "math", "sdpa_flash", "sdpa_cudnn", "fa2", "fa3", "fa4"]


@dataclass(frozen=True)
class DataFacts:
    """What a model must know of a data set.

    Attributes:
        vocab_size: number of token ids.
        seq_len: cells of a puzzle (S).
        num_puzzle_identifiers: rows of the puzzle embedding; identifier 0 is `<blank>`.
    """

    vocab_size: int
    seq_len: int
    num_puzzle_identifiers: int

    def to_dict(self) -> dict[str, int]:
        """Return the facts as JSON-ready integers."""
        return asdict(self)


class ACTLossConfig(Schema):
    """Cross entropy over the labelled cells plus the two Q losses (DESIGN "Loss").

    `loss_type` picks how logits become probabilities: `stablemax_cross_entropy` (the published
    default) or `softmax_cross_entropy`.
    """

    name: Literal["act"] = "act"
    loss_type: Literal["stablemax_cross_entropy", "softmax_cross_entropy"] = (
        "stablemax_cross_entropy"
    )


class HRMConfig(Schema):
    """Hierarchical Reasoning Model, arXiv:2506.21734.

    Widths are in units of features, cycles and layers are counts, `expansion` is the SwiGLU ratio
    before the 2/3 correction and the rounding up to a multiple of 256. With `shared_levels` one
    stack, of L_layers blocks, does the work of both levels (as in TRM, arXiv:2510.04871).
    """

    name: Literal["hrm"] = "hrm"
    loss: ACTLossConfig = ACTLossConfig()

    H_cycles: Count = 2
    L_cycles: Count = 2
    H_layers: Count = 4
    L_layers: Count = 4

    hidden_size: Count = 512
    num_heads: Count = 8
    expansion: PositiveFloat = 4.0
    mlp_t: StrictBool = False
    rms_norm_eps: PositiveFloat = 1e-5

    pos_encodings: Literal["rope", "learned", "none"] = "rope"
    rope_theta: PositiveFloat = 10000.0
    puzzle_emb_ndim: CountOrZero = 512
    puzzle_emb_len: CountOrZero = 0

    halt_max_steps: Count = 16
    halt_exploration_prob: Probability = 0.1
    no_ACT_continue: StrictBool = False
    gradient: Literal["last_step", "last_cycle"] = "last_step"
    shared_levels: StrictBool = False

    forward_dtype: ForwardDtype = "bfloat16"
    attention: AttentionBackend = "auto"

    @model_validator(mode="after")
    def _widths_fit(self) -> "HRMConfig":
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"num_heads={self.num_heads} must divide hidden_size={self.hidden_size} "
                f"(num_heads = {_divisors_near(self.hidden_size, self.num_heads)} would)"
            )
        if self.pos_encodings == "rope" and (self.hidden_size // self.num_heads) % 2:
            raise ValueError(
                f"pos_encodings=rope needs an even head width, but "
                f"hidden_size={self.hidden_size} / "
                f"num_heads={self.num_heads} = {self.hidden_size // self.num_heads}"
            )
        if self.puzzle_emb_len and not self.puzzle_emb_ndim:
            raise ValueError(
                f"puzzle_emb_len={self.puzzle_emb_len} needs puzzle_emb_ndim > 0 (it is 0: no "
                f"puzzle embedding)"
            )
        if self.puzzle_emb_len and self.puzzle_emb_ndim > self.puzzle_emb_len * self.hidden_size:
            raise ValueError(
                f"puzzle_emb_ndim={self.puzzle_emb_ndim} does not fit in "
                f"puzzle_emb_len={self.puzzle_emb_len} "
                f"positions of hidden_size={self.hidden_size}"
            )
        return self

    @property
    def num_prefix(self) -> int:
        """Positions that the puzzle embedding takes in front of the cells (P)."""
        if not self.puzzle_emb_ndim:
            return 0
        return self.puzzle_emb_len or -(-self.puzzle_emb_ndim // self.hidden_size)


ArchConfig = HRMConfig


def _divisors_near(total: int, wanted: int) -> str:
    divisors = [n for n in range(1, total + 1) if total % n == 0]
    below = max(n for n in divisors if n <= wanted)
    above = min(n for n in divisors if n >= min(wanted, total))
    return f"{below} or {above}"
