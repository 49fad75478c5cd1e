"""The settings and registration of our heads, in the order of building and listing."""

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from models.heads.config import (
    AUXILIARY_HEADS,
    TOKEN_HEADS,
    AuxiliaryHeadConfig,
    HeadLoss,
    TokenHeadConfig,
)
from runtime.registry import imported
from runtime.schema import Count, Size, StrictBool

if TYPE_CHECKING:
    from models.config import RecurrenceConfig


class LinearHeadConfig(TokenHeadConfig):
    """A matrix of its own: the published head (arXiv:2506.21734).

    When it helps: always; no other head was right more often on our puzzles (docs/log/heads.md).
    Architectures with a state for each digit take no other; all digits then share one row.
    """

    name: Literal["linear"] = "linear"
    """a matrix of its own (published)"""
    bias: StrictBool = False
    """add a learned bias to the logits"""


class TiedHeadConfig(TokenHeadConfig):
    """The token embedding's own matrix at both ends (arXiv:1608.05859).

    When it helps: large vocabularies, where it saves one of two large matrices. With a dozen tokens
    it saves nothing.
    """

    name: Literal["tied"] = "tied"
    """the token embedding's matrix"""
    bias: StrictBool = False
    """add a learned bias to the logits"""


class FactorizedHeadConfig(TokenHeadConfig):
    """Two matrices, D x rank and rank x V, in place of one (ALBERT, arXiv:1909.11942, section 3.1).

    When it helps: large vocabularies, where rank * (D + V) is much less than D * V. With a rank
    below V it cannot produce every combination of logits.
    """

    name: Literal["factorized"] = "factorized"
    """two thin matrices"""
    rank: Size = 8
    """rank of their product"""
    bias: StrictBool = False
    """add a learned bias to the logits"""


class AdaptiveHeadConfig(TokenHeadConfig):
    """Adaptive softmax (arXiv:1609.04309): frequent tokens first, rare ones in ever thinner tails.

    When it helps: vocabularies of many thousands, sorted by falling frequency. With a dozen tokens
    it has more parameters than one matrix, and is no better.
    """

    by_softmax: ClassVar[bool] = True

    name: Literal["adaptive"] = "adaptive"
    """adaptive softmax; needs loss=act_softmax"""
    cutoffs: Annotated[list[Count], Field(min_length=1)] | None = None
    """first tokens of the tails, ascending; null: one tail, the second half of the vocabulary"""
    div_value: Annotated[float, Field(strict=True, ge=1.0)] = 4.0
    """each tail is narrower than the one before by this factor"""

    @field_validator("cutoffs")
    @classmethod
    def _ascend(cls, cutoffs: list[int] | None) -> list[int] | None:
        if cutoffs is not None and any(b <= a for a, b in pairwise(cutoffs)):
            raise ValueError(f"{cutoffs} must ascend")
        return cutoffs

    def require(self, arch: "RecurrenceConfig") -> None:
        super().require(arch)
        tails = len(self.cutoffs or [0])
        if arch.hidden_size < self.div_value**tails:
            raise ValueError(
                f"div_value={self.div_value:g}: with hidden_size={arch.hidden_size} the last of "
                f"{tails} tails would have width 0; lower it, or give fewer cutoffs"
            )

    def require_tokens(self, vocab_size: int) -> None:
        if (self.cutoffs or [0])[-1] >= vocab_size:
            raise ValueError(f"cutoffs={self.cutoffs}")


class PuzzleHeadConfig(TokenHeadConfig):
    """A matrix plus a low-rank change (arXiv:2106.09685) computed from the puzzle embedding; ours.

    When it helps: it is meant for sets like ARC, where each task has its own embedding and its own
    use of colours. All Sudokus share one embedding, so there it equals one matrix.
    """

    name: Literal["puzzle"] = "puzzle"
    """a matrix that depends on the puzzle embedding; needs puzzle_emb_ndim > 0"""
    rank: Size = 8
    """rank of the change"""
    bias: StrictBool = False
    """add a learned bias to the logits"""

    def require(self, arch: "RecurrenceConfig") -> None:
        if not arch.puzzle_emb_ndim:
            raise ValueError(
                "name=puzzle needs a puzzle embedding, and puzzle_emb_ndim=0 leaves it out; use "
                "puzzle_emb_ndim > 0 or another head"
            )


class MoEHeadConfig(TokenHeadConfig):
    """Experts and a router that weights them cell by cell (Switch transformers, arXiv:2101.03961).

    When it helps: it is meant for sets of mixed tasks. On Sudoku it was no better than one matrix
    (docs/log/heads.md). It saves no time, because all experts are computed.
    """

    further_losses: ClassVar[dict[str, HeadLoss]] = {
        "balance": HeadLoss(0.01, "load balance of a mixture of experts")
    }

    name: Literal["moe"] = "moe"
    """a mixture of experts"""
    num_experts: Size = 4
    """number of matrices"""
    top_k: Count | None = None
    """experts that each cell uses; null: all"""
    bias: StrictBool = False
    """add a learned bias to the logits"""

    @model_validator(mode="after")
    def _top_k_fits(self) -> Self:
        if self.top_k is not None and self.top_k > self.num_experts:
            raise ValueError(f"top_k={self.top_k} exceeds num_experts={self.num_experts}")
        return self


class HierarchicalHeadConfig(TokenHeadConfig):
    """First a cluster of tokens, then a token in it (class-based softmax, arXiv:cs/0108006).

    When it helps: it is meant for large vocabularies with neighbouring tokens that belong together.
    It costs a little more than one matrix.
    """

    by_softmax: ClassVar[bool] = True

    name: Literal["hierarchical"] = "hierarchical"
    """a cluster of tokens, then a token in it; needs loss=act_softmax"""
    num_clusters: Size | None = None
    """number of clusters; null: the square root of the vocabulary"""

    def require_tokens(self, vocab_size: int) -> None:
        if (self.num_clusters or 1) > vocab_size:
            raise ValueError(f"num_clusters={self.num_clusters}")


NUM_BINS = 10
GAPS = tuple(f"confidence_bin{i}_gap" for i in range(NUM_BINS))
CALIBRATION_ERROR = "confidence_calibration_error"


class ConfidenceHeadConfig(AuxiliaryHeadConfig):
    """Is the token of each cell right? Its calibration is measured as in arXiv:1706.04599.

    When it helps: to find wrong cells if some cannot be known. On Sudokus, half of them with too
    few clues, it judged 86 % of the cells correctly, with a calibration error of 0.026
    (docs/log/heads.md). Early in the training it costs the tokens a little accuracy, unless it has
    `detach: true`.
    """

    @classmethod
    def reported(cls, figures: Mapping[str, float]) -> dict[str, float]:
        """Replace the mean gaps of the bins by the calibration error, the sum of |gap|."""
        gaps = [figures[name] for name in GAPS if name in figures]
        folded = {name: value for name, value in figures.items() if name not in GAPS}
        return folded | ({CALIBRATION_ERROR: sum(map(abs, gaps))} if gaps else {})


class PositionAttentionHeadConfig(AuxiliaryHeadConfig):
    """Which cells will the answer change? A distribution over the cells; ours.

    When it helps: to see the cells that the model is about to change, in puzzles like mazes where
    most stay the same; there it named 99 % of them (docs/log/heads.md). Early in the training it
    costs the tokens accuracy, unless it has `detach: true`.
    """


class FieldHeadConfig(AuxiliaryHeadConfig):
    """Predicts a field of the data set, like the action or the colours of each cell; ours.

    When it helps: if the field adds meaning that the labels lack, like the direction of a path
    (docs/log/heads.md). A field that follows from the labels teaches nothing new.
    """

    field: str
    """name of the field"""

    @property
    def reads_field(self) -> str:
        return self.field


class HaltHeadConfig(AuxiliaryHeadConfig):
    """Is the whole answer right? Two classes, go on and halt; ours.

    When it helps: in a model without Q (`arch.heads.q=null`), where it halts the puzzles, like
    TRM's single q_halt (arXiv:2510.04871). Beside Q it adds nothing.
    """


for _name, _schema, _module, _built_by in (
    ("linear", LinearHeadConfig, "linear", "build"),
    ("tied", TiedHeadConfig, "linear", "Tied"),
    ("factorized", FactorizedHeadConfig, "factorized", "Factorized"),
    ("adaptive", AdaptiveHeadConfig, "adaptive", "Adaptive"),
    ("puzzle", PuzzleHeadConfig, "puzzle", "PuzzleAdapted"),
    ("moe", MoEHeadConfig, "moe", "MixtureOfExperts"),
    ("hierarchical", HierarchicalHeadConfig, "hierarchical", "Hierarchical"),
):
    TOKEN_HEADS.add(_name, _schema, imported(f"models.heads.{_module}", _built_by))

_confidence = imported("models.heads.confidence", "ConfidenceHead")
_attention = imported("models.heads.attention", "PositionAttentionHead")
_field = imported("models.heads.field", "FieldHead")
_halt = imported("models.heads.halt", "HaltHead")
for _name, _schema, _load, _text in (
    ("confidence", ConfidenceHeadConfig, _confidence, "is the token of each cell right?"),
    ("attention", PositionAttentionHeadConfig, _attention, "which cells change?"),
    ("action", FieldHeadConfig, _field, "the action at each cell"),
    ("pixel", FieldHeadConfig, _field, "the colour of each cell"),
    ("halt", HaltHeadConfig, _halt, "is the whole answer right? Without q it decides when to halt"),
):
    AUXILIARY_HEADS.add(_name, _schema, _load, _text)
