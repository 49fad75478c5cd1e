"""The settings of our heads, in the order in which they are built and told of.

Each is registered with the file of its module beside this one. A plug-in's may lie anywhere.
"""

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

    When it helps: always; no other head was more often right on our puzzles (docs/heads.md). It is
    the only one for architectures with a state for each digit, where all digits share one row.
    """

    name: Literal["linear"] = "linear"
    """a matrix of its own (published)"""
    bias: StrictBool = False
    """add a learned bias to the logits"""


class TiedHeadConfig(TokenHeadConfig):
    """The token embedding's own matrix at both ends (arXiv:1608.05859).

    When it helps: large vocabularies, of whose two matrices it saves one. With a dozen tokens there
    is nothing to save.
    """

    name: Literal["tied"] = "tied"
    """the token embedding's matrix"""
    bias: StrictBool = False
    """add a learned bias to the logits"""


class FactorizedHeadConfig(TokenHeadConfig):
    """Two matrices, D x rank and rank x V, in place of one (ALBERT, arXiv:1909.11942, section 3.1).

    When it helps: large vocabularies, where rank * (D + V) is much less than D * V. Below a rank of
    V some combinations of logits cannot be said.
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
    """each tail's width is that of the one before, divided by this"""

    @field_validator("cutoffs")
    @classmethod
    def _ascend(cls, cutoffs: list[int] | None) -> list[int] | None:
        if cutoffs is not None and any(b <= a for a, b in pairwise(cutoffs)):
            raise ValueError(f"{cutoffs} do not ascend")
        return cutoffs

    def require(self, arch: "RecurrenceConfig") -> None:
        super().require(arch)
        tails = len(self.cutoffs or [0])
        if arch.hidden_size < self.div_value**tails:
            raise ValueError(
                f"div_value={self.div_value:g}: with hidden_size={arch.hidden_size} the last of "
                f"{tails} tails would have no width; lower it, or give fewer cutoffs"
            )

    def require_tokens(self, vocab_size: int) -> None:
        if (self.cutoffs or [0])[-1] >= vocab_size:
            raise ValueError(f"cutoffs={self.cutoffs}")


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


class MoEHeadConfig(TokenHeadConfig):
    """Experts and a router that weights them cell by cell (Switch transformers, arXiv:2101.03961).

    When it helps: it is meant for sets of mixed tasks. On Sudoku it was no better than one matrix
    (docs/heads.md). All experts are computed, so that it saves no time.
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
    def _experts_are_there(self) -> Self:
        if self.top_k is not None and self.top_k > self.num_experts:
            raise ValueError(f"top_k={self.top_k} exceeds num_experts={self.num_experts}")
        return self


class HierarchicalHeadConfig(TokenHeadConfig):
    """First a cluster of tokens, then a token in it (class-based softmax, arXiv:cs/0108006).

    When it helps: it is meant for large vocabularies; tokens that stand side by side form a
    cluster. It costs a little more than one matrix.
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

    When it helps: where some cells cannot be known, and the wrong ones are to be found. On Sudokus
    of which half have too few clues it was right about 86 % of the cells, with a calibration error
    of 0.026 (docs/heads.md). Early in the training it costs the tokens a little accuracy, unless it
    has `detach: true`.
    """

    @classmethod
    def reported(cls, figures: Mapping[str, float]) -> dict[str, float]:
        """Fold the mean gaps of the bins, where there are any, into the expected calibration error
        (arXiv:1706.04599), the sum of |mean gap|.
        """
        gaps = [figures[name] for name in GAPS if name in figures]
        folded = {name: value for name, value in figures.items() if name not in GAPS}
        return folded | ({CALIBRATION_ERROR: sum(map(abs, gaps))} if gaps else {})


class PositionAttentionHeadConfig(AuxiliaryHeadConfig):
    """Which cells will the answer change? A distribution over the cells; ours.

    When it helps: where an answer leaves most cells as they are, as in mazes, and one wants to know
    which cells the model is about to change: on mazes it named 99 % of them (docs/heads.md). Early
    in the training it costs the tokens accuracy, unless it has `detach: true`.
    """


class FieldHeadConfig(AuxiliaryHeadConfig):
    """A head whose classes are told by a field that the data set declares: the action at each cell
    of a maze, the colours of each cell; ours.

    When it helps: where labels leave out what the answer means, and the data set knows it, such as
    which way a path goes (docs/heads.md). A field that the labels imply teaches nothing new.
    """

    field: str
    """name of the field"""

    @property
    def reads_field(self) -> str:
        return self.field


class HaltHeadConfig(AuxiliaryHeadConfig):
    """Stop here? Two classes, go on and halt, by whether the whole answer is right; ours.

    When it helps: in a model without Q (`arch.heads.q=null`), whose puzzles it then halts, as TRM's
    single q_halt does (arXiv:2510.04871). Beside Q it repeats what Q says.
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
    ("action", FieldHeadConfig, _field, "what is done at each cell"),
    ("pixel", FieldHeadConfig, _field, "colour of each cell"),
    ("halt", HaltHeadConfig, _halt, "stop here? Without q it decides"),
):
    AUXILIARY_HEADS.add(_name, _schema, _load, _text)
