"""Base schemas of the architectures and their losses. Importing this module registers our heads,
techniques and attention biases.

Imports no torch. Facts about the data set are not settings; they arrive as `DataFacts`.
"""

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic.fields import FieldInfo

from models.biases.base import ATTENTION_BIASES
from models.heads.config import HeadLoss, HeadsConfig
from models.heads.schemas import AUXILIARY_HEADS, TOKEN_HEADS
from models.technique import TechniquesConfig
from runtime.errors import ConfigError
from runtime.registry import NONE, NameOf, Registry, import_all, imported, rebuild_schemas
from runtime.schema import (
    NonNegativeFloat,
    PositiveFloat,
    Probability,
    Schema,
    Size,
    SizeOrZero,
    StrictBool,
    further_field,
)

Expansion = Annotated[float, Field(strict=True, gt=0.0, le=1024.0)]
ForwardDtype = Literal["bfloat16", "float32", "float16", "float64"]
AttentionBackend = Literal["auto", "math", "fa2", "fa3", "fa4"]
BACKENDS_WITH_BIAS = ("auto", "math")
"""Attention backends that can add a bias to the scores."""

OutputField = Literal[
    "inputs",
    "labels",
    "puzzle_identifiers",
    "preds",
    "logits",
    "q_halt_logits",
    "q_continue_logits",
]
"""Inputs and outputs of an ACT step that an evaluation can save."""


@dataclass(frozen=True)
class DataFacts:
    """The facts about a data set that shape a model.

    Attributes:
        vocab_size: number of tokens (V).
        seq_len: cells of a puzzle (S).
        num_puzzle_identifiers: rows of the puzzle embedding; identifier 0 is `<blank>`.
        fields: further labels of each cell, by name: (number of classes, number of channels or 0).
        kind: kind of puzzle, like "sudoku"; None if unknown, as in published sets and old records.
    """

    vocab_size: int
    seq_len: int
    num_puzzle_identifiers: int
    fields: dict[str, tuple[int, int]] = field(default_factory=dict)
    kind: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as values for JSON, without an unknown `kind` and empty `fields`."""
        facts = asdict(self)
        if self.kind is None:
            del facts["kind"]
        declared = {name: list(shape) for name, shape in facts.pop("fields").items()}
        return facts | ({"fields": declared} if declared else {})

    def field(self, name: str, wanted_by: str) -> tuple[int, int]:
        """Return the numbers of classes and channels of a field; ValueError if it is unknown."""
        if name in self.fields:
            return self.fields[name]
        raise ValueError(
            f"{wanted_by} needs the field {name!r}, which the data set does not declare (it "
            f"declares {', '.join(self.fields) or 'none'})"
        )


class LossWeights(Schema):
    """The weight of each loss. Losses are summed, and reported, in this order."""

    lm: NonNegativeFloat = 1.0
    """tokens"""
    q_halt: NonNegativeFloat = 0.5
    """Q: is the answer right?"""
    q_continue: NonNegativeFloat = 0.5
    """Q: will the answer be right after more steps?"""

    @classmethod
    def further_fields(cls) -> dict[str, FieldInfo]:
        losses = {name: HeadLoss(0.5, f"{name} head") for name in AUXILIARY_HEADS}
        for name in TOKEN_HEADS:
            losses.update(TOKEN_HEADS[name].schema.further_losses)
        return {name: further_field(NonNegativeFloat, *loss) for name, loss in losses.items()}


class ACTLossConfig(Schema):
    """Cross entropy over the labelled cells plus the losses of the other heads (docs/heads.md)."""

    name: Literal["act"] = "act"
    """loss of the tokens"""
    loss_type: Literal["stablemax_cross_entropy", "softmax_cross_entropy"] = (
        "stablemax_cross_entropy"
    )
    """how logits become probabilities; published: stablemax"""
    label_smoothing: Annotated[float, Field(strict=True, ge=0.0, lt=1.0)] = 0.0
    """share of the target that is spread evenly over the vocabulary"""
    weights: LossWeights = Field(default_factory=LossWeights)
    """factor on each loss in the sum"""
    weighting: Literal["fixed", "uncertainty"] = "fixed"
    """fixed: weight * loss; uncertainty: weight * (exp(-s) * loss + s), with a learned s for each
    loss (arXiv:1705.07115)"""


LOSSES = Registry("loss", ACTLossConfig, "act", "loss", "arch.loss")
"""A name loads a class with the interface of `models.losses.CrossEntropy`."""
LOSSES.add("act", ACTLossConfig, imported("models.losses", "CrossEntropy"))


class RecurrenceConfig(Schema):
    """Settings that all architectures share."""

    if TYPE_CHECKING:
        name: Any

    # SwiGLU's inner width is rounded up to a multiple of this, as published.
    width_multiple: ClassVar[int] = 256
    # The architecture's own settings that an evaluation may change, as fields with default null.
    overrides: ClassVar[dict[str, FieldInfo]] = {}
    # Whether the model guesses and finds contradictions, so that evaluations can search with it.
    searches: ClassVar[bool] = False
    # Whether the same weights fit grids of all sizes.
    any_canvas: ClassVar[bool] = False
    # The only kind of puzzles that it reads; None: all kinds.
    kind: ClassVar[str | None] = None
    # Shared settings that the architecture cannot change; its file in config/arch/ leaves them out.
    fixed: ClassVar[dict[str, object]] = {}
    # Why noise cannot make its chains differ, and what to use instead; "": noise can.
    takes_no_noise: ClassVar[str] = ""

    heads: HeadsConfig = Field(default_factory=HeadsConfig)
    """the predictions of the model"""
    loss: Annotated[ACTLossConfig, LOSSES] = Field(default_factory=ACTLossConfig)
    """the training loss"""
    techniques: TechniquesConfig = Field(default_factory=TechniquesConfig)
    """changes to the published training loop: docs/options.md"""

    hidden_size: Size = 512
    """width of the states (D)"""
    num_heads: Size = 8
    """attention heads (N); must divide hidden_size"""
    expansion: Expansion = 4.0
    """inner width of SwiGLU / hidden_size, before the factor 2/3 and rounding up to 256"""
    mlp_t: StrictBool = False
    """true: mix the cells with a SwiGLU over the positions instead of attention"""
    rms_norm_eps: PositiveFloat = 1e-5
    """added to the mean square in RMS norms"""

    pos_encodings: Literal["rope", "learned", "none"] = "rope"
    """how attention knows the positions"""
    rope_theta: PositiveFloat = 10000.0
    """base of the rotary frequencies"""
    puzzle_emb_ndim: SizeOrZero = 512
    """width of the puzzle embedding; 0: no puzzle embedding"""
    puzzle_emb_len: SizeOrZero = 0
    """positions of the puzzle embedding in front of the cells (P); 0: as many as its width needs"""

    halt_max_steps: Size = 16
    """ACT steps after which a puzzle halts in any case"""
    halt_exploration_prob: Probability = 0.1
    """share of the puzzles that must not halt before a random number of ACT steps"""
    no_ACT_continue: StrictBool = False
    """true: do not learn q_continue, and halt when q_halt > 0"""
    forward_dtype: ForwardDtype = "bfloat16"
    """dtype of the states; use float32 on a CPU without bfloat16 in hardware"""
    attention: AttentionBackend = "auto"
    """attention kernel: torch's choice, plain products, or FlashAttention 2, 3 or 4"""
    attention_bias: Annotated[str, NameOf(ATTENTION_BIASES)] = NONE

    @model_validator(mode="after")
    def _fixed_settings_stay(self) -> Self:
        for name, value in self.fixed.items():
            if (found := getattr(self, name)) != value:
                raise ValueError(
                    f"{name}={found} has no meaning with name={self.name}; use {value}"
                )
        return self

    @model_validator(mode="after")
    def _attention_takes_the_bias(self) -> Self:
        asked = f"attention_bias={self.attention_bias}"
        if self.attention_bias != NONE and self.mlp_t:
            raise ValueError(f"{asked} with mlp_t=true: there is no attention; use mlp_t=false")
        if self.attention_bias != NONE and self.attention not in BACKENDS_WITH_BIAS:
            raise ValueError(
                f"{asked} with attention={self.attention}: that kernel takes no bias; use "
                "attention=auto"
            )
        return self

    @model_validator(mode="after")
    def _widths_fit(self) -> Self:
        D, N, prefix = self.hidden_size, self.num_heads, self.puzzle_emb_len
        if self.has_attention and D % N:
            near = max(n for n in range(1, N) if D % n == 0)
            raise ValueError(f"num_heads={N} must divide hidden_size={D}, as {near} does")
        if self.has_attention and self.pos_encodings == "rope" and (D // N) % 2:
            raise ValueError(
                f"pos_encodings=rope needs an even head width, but hidden_size={D} / num_heads={N} "
                f"= {D // N}"
            )
        if self.puzzle_emb_ndim > (prefix or self.puzzle_emb_ndim) * D:
            raise ValueError(
                f"puzzle_emb_ndim={self.puzzle_emb_ndim} does not fit in puzzle_emb_len={prefix} "
                f"positions of hidden_size={D}"
            )
        return self

    @model_validator(mode="after")
    def _prefix_has_an_embedding(self) -> Self:
        length, default = self.puzzle_emb_len, type(self).model_fields["puzzle_emb_len"].default
        # Published: a model with a length by default ignores it without an embedding.
        if length and not default and not self.puzzle_emb_ndim:
            raise ValueError(f"puzzle_emb_len={length} needs puzzle_emb_ndim > 0, or must be 0")
        return self

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        parts = {f"techniques.{name}: ": one for name, one in self.techniques.active.items()}
        parts |= {"heads.lm.": self.heads.lm}
        parts |= {f"heads.{name} ": head for name, head in self.heads.auxiliary.items()}
        for where, part in parts.items():
            try:
                part.require(self)
            except ValueError as error:
                raise ValueError(f"{where}{error}") from None
        return self

    @property
    def fields(self) -> dict[str, str]:
        """Fields of the training data that are needed, by the part of the architecture."""
        read = {f"heads.{name}": field for name, field in self.heads.fields.items()}
        of_techniques = {
            f"techniques.{n}": t.reads_field for n, t in self.techniques.active.items()
        }
        return read | {name: field for name, field in of_techniques.items() if field is not None}

    def require_data(self, facts: DataFacts) -> None:
        """Raise ConfigError if the model cannot be used for these data."""
        if self.kind and facts.kind not in (self.kind, None):
            reads = f"arch.name={self.name} reads {self.kind} puzzles"
            raise ConfigError(f"{reads}, and these are {facts.kind}")
        if self.attention_bias != NONE:
            try:
                ATTENTION_BIASES[self.attention_bias].schema.require_data(facts)
            except ValueError as error:
                raise ConfigError(f"arch.attention_bias={self.attention_bias}: {error}") from None

    def search(self, *asked: Any) -> Any:
        """Evaluate by search (if `searches`); called like `evaluation.measure.with_chains`."""
        raise NotImplementedError

    @property
    def has_cycles(self) -> bool:
        """Whether an ACT step has cycles. Some models ignore H_cycles, as published."""
        return hasattr(self, "H_cycles") and hasattr(self, "L_cycles")

    @property
    def local_updates(self) -> int:
        """Updates in an ACT step if each tells a cell about its neighbours only, and cells keep
        only their answers between steps; else 0.
        """
        return 0

    @property
    def has_attention(self) -> bool:
        """Whether cells are mixed by attention; if not, its settings have no effect."""
        return not self.mlp_t

    @property
    def kernel(self) -> AttentionBackend:
        """The attention kernel that must be there; without attention auto, which always is."""
        return self.attention if self.has_attention else "auto"

    @property
    def has_digits(self) -> bool:
        """Whether the model has a state for each digit in each cell."""
        return False

    def with_depth(self, steps: int) -> Self:
        """Return a copy with this many ACT steps for each puzzle in evaluations."""
        return self.model_copy(update={"halt_max_steps": steps})

    @property
    def rows_per_target(self) -> int:
        """One row in this many gets a target for q_continue."""
        return max((one.rows_per_target for one in self.techniques.active.values()), default=1)

    @property
    def puzzle_emb_width(self) -> int:
        """Numbers in a row of the puzzle embedding."""
        return self.puzzle_emb_ndim

    @property
    def num_prefix(self) -> int:
        """Positions of the puzzle embedding in front of the cells (P)."""
        if not self.puzzle_emb_ndim:
            return 0
        return self.puzzle_emb_len or -(-self.puzzle_emb_ndim // self.hidden_size)


ARCHITECTURES = Registry("architecture", RecurrenceConfig, "hrm", "arch")
"""A name loads a `models.recurrence.Recurrence`."""

import_all("models.biases", "*/config.py")
import_all("models.techniques", "[!_]*.py")
rebuild_schemas([RecurrenceConfig])
