"""Schemas of the architectures and their losses.

Nothing here imports torch: a configuration is checked before torch is loaded. What the data set
says (vocabulary, sequence length, number of puzzles) is a fact, not a setting, and arrives as
`DataFacts`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator


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


def _plain_evaluator_name(value: object) -> object:
    """Take the published form, {name: arc@ARC}, for the name."""
    if isinstance(value, Mapping) and value.keys() == {"name"}:
        value = value["name"]
    return "arc" if value == "arc@ARC" else value


EvaluatorName = Annotated[Literal["arc", "sudoku", "maze"], BeforeValidator(_plain_evaluator_name)]
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


class RecurrenceConfig(Schema):
    """What all architectures share.

    Widths are in units of features, `expansion` is the SwiGLU ratio before the 2/3 correction and
    the rounding up to a multiple of 256.

    Attributes:
        mlp_t: mix the cells with a SwiGLU over the positions instead of attention.
        puzzle_emb_ndim: width of the puzzle embedding (0: none); puzzle_emb_len: positions that it
            takes in front of the cells (0: as many as its width needs).
        halt_max_steps: ACT steps after which a puzzle halts in any case; halt_exploration_prob:
            share of the slots that must not halt before a random number of them.
        no_ACT_continue: learn no q_continue, and halt when q_halt > 0.
    """

    loss: ACTLossConfig = ACTLossConfig()

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

    forward_dtype: ForwardDtype = "bfloat16"
    attention: AttentionBackend = "auto"

    @model_validator(mode="after")
    def _widths_fit(self) -> Self:
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
        if self.puzzle_emb_ndim > (self.puzzle_emb_len or self.puzzle_emb_ndim) * self.hidden_size:
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


class HRMConfig(RecurrenceConfig):
    """Hierarchical Reasoning Model, arXiv:2506.21734.

    Attributes:
        gradient: what is backpropagated through: the last update of each level (the paper's), or
            the whole last cycle (TRM's).
        shared_levels: one stack, of L_layers blocks, does the work of both levels (as in TRM).
    """

    name: Literal["hrm"] = "hrm"

    H_cycles: Count = 2
    L_cycles: Count = 2
    H_layers: Count = 4
    L_layers: Count = 4
    gradient: Literal["last_step", "last_cycle"] = "last_step"
    shared_levels: StrictBool = False

    @model_validator(mode="after")
    def _prefix_has_an_embedding(self) -> Self:
        if self.puzzle_emb_len and not self.puzzle_emb_ndim:
            raise ValueError(
                f"puzzle_emb_len={self.puzzle_emb_len} needs puzzle_emb_ndim > 0 (it is 0: no "
                f"puzzle embedding)"
            )
        return self


class TRMConfig(RecurrenceConfig):
    """Tiny Recursive Model, arXiv:2510.04871; `trm_singlez` is its variant with a single latent.

    `H_layers` is accepted, as published, and ignored: one network of L_layers blocks does all. So
    is `puzzle_emb_len` where there is no puzzle embedding.
    """

    name: Literal["trm", "trm_singlez"] = "trm"

    H_cycles: Count = 3
    L_cycles: Count = 6
    H_layers: CountOrZero = 0
    L_layers: Count = 2
    puzzle_emb_len: CountOrZero = 16
    no_ACT_continue: StrictBool = True


class TransformerConfig(RecurrenceConfig):
    """A plain transformer of `H_layers` blocks under the ACT loop, without an inner recursion.

    `H_cycles` is accepted, as published, and ignored.
    """

    name: Literal["transformer"] = "transformer"

    H_cycles: Count = 1
    H_layers: Count = 8


# How the published configurations call them.
PUBLISHED_ARCHITECTURES = {
    "hrm.hrm_act_v1@HierarchicalReasoningModel_ACTV1": "hrm",
    "recursive_reasoning.hrm@HierarchicalReasoningModel_ACTV1": "hrm",
    "recursive_reasoning.trm@TinyRecursiveReasoningModel_ACTV1": "trm",
    "recursive_reasoning.trm_singlez@TinyRecursiveReasoningModel_ACTV1": "trm_singlez",
    "recursive_reasoning.transformers_baseline@Model_ACTV2": "transformer",
}
PUBLISHED_LOSSES = {"losses@ACTLossHead": "act"}


def _with_own_names(arch: object) -> object:
    """Translate the published class names of an architecture and its loss; without a name it is
    HRM.
    """
    if not isinstance(arch, dict):
        return arch
    translated = {"name": "hrm"} | arch
    if isinstance(name := arch.get("name"), str):
        translated["name"] = PUBLISHED_ARCHITECTURES.get(name, name)
    loss = arch.get("loss")
    if isinstance(loss, dict) and isinstance(name := loss.get("name"), str):
        translated["loss"] = loss | {"name": PUBLISHED_LOSSES.get(name, name)}
    return translated


ArchConfig = Annotated[
    HRMConfig | TRMConfig | TransformerConfig,
    Field(discriminator="name"),
    BeforeValidator(_with_own_names),
]


def _divisors_near(total: int, wanted: int) -> str:
    divisors = [n for n in range(1, total + 1) if total % n == 0]
    below = max(n for n in divisors if n <= wanted)
    above = min(n for n in divisors if n >= min(wanted, total))
    return f"{below} or {above}"
