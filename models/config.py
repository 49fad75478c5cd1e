"""Schemas of the architectures and their losses.

Nothing here imports torch: a configuration is checked before torch is loaded. What the data set
says (vocabulary, sequence length, number of puzzles) is a fact, not a setting, and arrives as
`DataFacts`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from runtime.schema import (
    Count,
    NonNegativeFloat,
    NumLayers,
    PositiveFloat,
    Probability,
    Schema,
    Size,
    SizeOrZero,
    StrictBool,
)

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
        fields: further labels of each cell that the data set declares, by name (number of classes,
            number of channels or 0).
    """

    vocab_size: int
    seq_len: int
    num_puzzle_identifiers: int
    fields: dict[str, tuple[int, int]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as JSON-ready values; `fields` only where there are some."""
        facts = asdict(self)
        declared = {name: list(shape) for name, shape in facts.pop("fields").items()}
        return facts | ({"fields": declared} if declared else {})

    def field(self, name: str, wanted_by: str) -> tuple[int, int]:
        """Return classes and channels of a field.

        Raises:
            ValueError: the data set does not declare it.
        """
        if name not in self.fields:
            declared = ", ".join(self.fields) or "none"
            raise ValueError(
                f"{wanted_by} needs the field {name!r}, which the data set does not declare "
                f"(it declares {declared})"
            )
        return self.fields[name]


# Heads that a model may have beside tokens and Q.
FURTHER_HEADS = ("confidence", "attention", "action", "pixel", "halt")


class _TokenHeadConfig(Schema):
    """What every token head has in front of its projection."""

    norm: Literal["none", "layer", "rms"] = "none"
    dropout: Annotated[float, Field(strict=True, ge=0.0, lt=1.0)] = 0.0


class LinearHeadConfig(_TokenHeadConfig):
    """A matrix of its own: the published head."""

    name: Literal["linear"] = "linear"
    bias: StrictBool = False


class TiedHeadConfig(_TokenHeadConfig):
    """The token embedding's matrix."""

    name: Literal["tied"] = "tied"
    bias: StrictBool = False


class FactorizedHeadConfig(_TokenHeadConfig):
    """Two matrices of rank `rank`."""

    name: Literal["factorized"] = "factorized"
    rank: Size = 8
    bias: StrictBool = False


class AdaptiveHeadConfig(_TokenHeadConfig):
    """Adaptive softmax; `cutoffs` None: one tail with the second half of the vocabulary."""

    name: Literal["adaptive"] = "adaptive"
    cutoffs: Annotated[list[Count], Field(min_length=1)] | None = None
    div_value: Annotated[float, Field(strict=True, ge=1.0)] = 4.0

    @field_validator("cutoffs")
    @classmethod
    def _ascend(cls, cutoffs: list[int] | None) -> list[int] | None:
        if cutoffs is not None and any(b <= a for a, b in pairwise(cutoffs)):
            raise ValueError(f"{cutoffs} do not ascend")
        return cutoffs


class PuzzleHeadConfig(_TokenHeadConfig):
    """A weight change of rank `rank` for each puzzle, computed from the puzzle embedding."""

    name: Literal["puzzle"] = "puzzle"
    rank: Size = 8
    bias: StrictBool = False


class MoEHeadConfig(_TokenHeadConfig):
    """`num_experts` matrices and a router; `top_k` None keeps all."""

    name: Literal["moe"] = "moe"
    num_experts: Size = 4
    top_k: Count | None = None
    bias: StrictBool = False

    @model_validator(mode="after")
    def _experts_are_there(self) -> Self:
        if self.top_k is not None and self.top_k > self.num_experts:
            raise ValueError(f"top_k={self.top_k} exceeds num_experts={self.num_experts}")
        return self


class HierarchicalHeadConfig(_TokenHeadConfig):
    """Clusters of tokens, then tokens; `num_clusters` None: the square root of the vocabulary."""

    name: Literal["hierarchical"] = "hierarchical"
    num_clusters: Size | None = None


def _linear_unless_named(head: object) -> object:
    return {"name": "linear"} | head if isinstance(head, dict) else head


TokenHeadConfig = Annotated[
    LinearHeadConfig
    | TiedHeadConfig
    | FactorizedHeadConfig
    | AdaptiveHeadConfig
    | PuzzleHeadConfig
    | MoEHeadConfig
    | HierarchicalHeadConfig,
    Field(discriminator="name"),
    BeforeValidator(_linear_unless_named),
]
TOKEN_HEADS = ("linear", "tied", "factorized", "adaptive", "puzzle", "moe", "hierarchical")


class QHeadConfig(Schema):
    """Halt and continue.

    Attributes:
        init_bias, init_std: start of the bias, and standard deviation of the weight's start.
        rule: halt when q_halt > q_continue (`continue`) or when q_halt > 0 (`zero`); None: `zero`
            where no q_continue is learned, `continue` otherwise.
        halt_min_steps: ACT steps before which no slot halts early.
        exploration_bonus: training only; added, divided by the root of the steps taken, to what
            q_halt must exceed, so that early halting needs the more conviction.
    """

    init_bias: Annotated[float, Field(strict=True)] = -5.0
    init_std: NonNegativeFloat = 0.0
    rule: Literal["continue", "zero"] | None = None
    halt_min_steps: Count = 1
    exploration_bonus: NonNegativeFloat = 0.0


class FurtherHeadConfig(Schema):
    """A head beside tokens and Q; with `detach` its gradient does not reach the trunk."""

    detach: StrictBool = False


class FieldHeadConfig(FurtherHeadConfig):
    """A head whose classes are told by a field that the data set declares."""

    field: str


class HeadsConfig(Schema):
    """What the model predicts. `q` None: every puzzle takes all its ACT steps, unless there is a
    `halt` head to say when to stop. The other heads are left out unless they are named.
    """

    lm: TokenHeadConfig = LinearHeadConfig()
    q: QHeadConfig | None = QHeadConfig()
    confidence: FurtherHeadConfig | None = None
    attention: FurtherHeadConfig | None = None
    action: FieldHeadConfig | None = None
    pixel: FieldHeadConfig | None = None
    halt: FurtherHeadConfig | None = None

    @property
    def fields(self) -> dict[str, str]:
        """Fields of the data set that the heads need, by head."""
        heads = {"action": self.action, "pixel": self.pixel}
        return {name: head.field for name, head in heads.items() if head is not None}


class LossWeights(Schema):
    """What each loss weighs in the sum; those of heads that are left out do not matter.

    `balance` is the load-balance loss of a mixture of experts.
    """

    lm: NonNegativeFloat = 1.0
    q_halt: NonNegativeFloat = 0.5
    q_continue: NonNegativeFloat = 0.5
    confidence: NonNegativeFloat = 0.5
    attention: NonNegativeFloat = 0.5
    action: NonNegativeFloat = 0.5
    pixel: NonNegativeFloat = 0.5
    halt: NonNegativeFloat = 0.5
    balance: NonNegativeFloat = 0.01


class LossClip(Schema):
    """Losses of a sequence, in nats, from which on they enter the sum by their logarithm, as limit
    * (1 + log(loss / limit)): the gradient is then that of the loss scaled down to the limit.
    None: no limit.
    """

    lm: PositiveFloat | None = None
    q_halt: PositiveFloat | None = None
    q_continue: PositiveFloat | None = None
    confidence: PositiveFloat | None = None
    attention: PositiveFloat | None = None
    action: PositiveFloat | None = None
    pixel: PositiveFloat | None = None
    halt: PositiveFloat | None = None
    balance: PositiveFloat | None = None


class ACTLossConfig(Schema):
    """Cross entropy over the labelled cells plus the losses of the other heads (DESIGN "Loss").

    Attributes:
        loss_type: how logits become probabilities, `stablemax_cross_entropy` (published) or
            `softmax_cross_entropy`.
        label_smoothing: share of the target that is spread evenly over the vocabulary.
        weights: of the losses in the sum.
        weighting: `fixed`, or `uncertainty`: learned, exp(-s) * loss + s for each loss
            (arXiv:1705.07115), on top of the weights.
        clip: limits of the losses.
    """

    name: Literal["act"] = "act"
    loss_type: Literal["stablemax_cross_entropy", "softmax_cross_entropy"] = (
        "stablemax_cross_entropy"
    )
    label_smoothing: Annotated[float, Field(strict=True, ge=0.0, lt=1.0)] = 0.0
    weights: LossWeights = LossWeights()
    weighting: Literal["fixed", "uncertainty"] = "fixed"
    clip: LossClip = LossClip()


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

    heads: HeadsConfig = HeadsConfig()
    loss: ACTLossConfig = ACTLossConfig()

    hidden_size: Size = 512
    num_heads: Size = 8
    expansion: Annotated[float, Field(strict=True, gt=0.0, le=1024.0)] = 4.0
    mlp_t: StrictBool = False
    rms_norm_eps: PositiveFloat = 1e-5

    pos_encodings: Literal["rope", "learned", "none"] = "rope"
    rope_theta: PositiveFloat = 10000.0
    puzzle_emb_ndim: SizeOrZero = 512
    puzzle_emb_len: SizeOrZero = 0

    halt_max_steps: Size = 16
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

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        lm = self.heads.lm
        if lm.name == "puzzle" and not self.puzzle_emb_ndim:
            raise ValueError(
                "heads.lm.name=puzzle is steered by the puzzle embedding, and there is none "
                "(puzzle_emb_ndim=0)"
            )
        if lm.name in ("adaptive", "hierarchical") and self.loss.loss_type.startswith("stablemax"):
            raise ValueError(
                f"heads.lm.name={lm.name} gives probabilities by softmax: it needs "
                f"loss.loss_type=softmax_cross_entropy (loss=act_softmax)"
            )
        if lm.name == "adaptive":
            num_tails = len(lm.cutoffs or [0])
            if self.hidden_size < lm.div_value**num_tails:
                raise ValueError(
                    f"heads.lm.div_value={lm.div_value:g}: with hidden_size={self.hidden_size} "
                    f"the last of {num_tails} tails would have no width; lower it, or give fewer "
                    f"cutoffs"
                )
        q = self.heads.q
        if q is not None and q.rule == "continue" and self.no_ACT_continue:
            raise ValueError(
                "heads.q.rule=continue compares q_halt with q_continue, which is not learned with "
                "no_ACT_continue=true; use rule=zero"
            )
        if q is not None and q.halt_min_steps > self.halt_max_steps:
            raise ValueError(
                f"heads.q.halt_min_steps={q.halt_min_steps} exceeds "
                f"halt_max_steps={self.halt_max_steps}"
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

    H_cycles: Size = 2
    L_cycles: Size = 2
    H_layers: NumLayers = 4
    L_layers: NumLayers = 4
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

    H_cycles: Size = 3
    L_cycles: Size = 6
    H_layers: SizeOrZero = 0
    L_layers: NumLayers = 2
    puzzle_emb_len: SizeOrZero = 16
    no_ACT_continue: StrictBool = True


class TransformerConfig(RecurrenceConfig):
    """A plain transformer of `H_layers` blocks under the ACT loop, without an inner recursion.

    `H_cycles` is accepted, as published, and ignored.
    """

    name: Literal["transformer"] = "transformer"

    H_cycles: Size = 1
    H_layers: NumLayers = 8


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
