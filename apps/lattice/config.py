"""Settings of deduction on candidate sets, and of its heads."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic.fields import FieldInfo

from apps.dec.config import require_one_row
from models.biases.sudoku.config import require_sudoku
from models.config import ARCHITECTURES, DataFacts, Expansion, RecurrenceConfig
from models.heads.config import AUXILIARY_HEADS, AuxiliaryHeadConfig, HeadsConfig
from runtime.registry import imported
from runtime.schema import (
    Count,
    NonNegativeFloat,
    NumLayers,
    PositiveFloat,
    Probability,
    Size,
    SizeOrZero,
    StrictBool,
    further_field,
)


class ContradictionHeadConfig(AuxiliaryHeadConfig):
    """A head that predicts whether a token of the solution has been struck."""

    def require(self, arch: RecurrenceConfig) -> None:
        if not isinstance(arch, LatticeConfig):
            raise ValueError(f"is for name=lattice, and this is name={arch.name}")


class CandidatesHeadConfig(ContradictionHeadConfig):
    """A head that predicts the candidates to keep."""

    keep_weight: NonNegativeFloat = 4.0
    """weight of the candidates in the solution (arXiv:2605.08605)"""
    strike_weight: NonNegativeFloat = 0.5
    """weight of all others"""


_load = imported("apps.lattice.heads", "CandidatesHead")
_text = "which candidates stay; arch=lattice"
AUXILIARY_HEADS.add("candidates", CandidatesHeadConfig, _load, _text)
_load = imported("apps.lattice.heads", "ContradictionHead")
AUXILIARY_HEADS.add("contradiction", ContradictionHeadConfig, _load, "is the solution struck?")


class LatticeConfig(RecurrenceConfig):
    """Deduction on a grid of candidates (lattice deduction transformer, arXiv:2605.08605). Sizes
    and thresholds are as in that source.
    """

    width_multiple: ClassVar[int] = 8
    searches: ClassVar[bool] = True
    boxes: ClassVar[bool] = True  # as in arch=dec; it searches Sudokus only
    takes_no_noise: ClassVar[str] = (
        "arch=lattice has candidates, which take no noise; use perturb=symmetry or search.chains"
    )
    overrides: ClassVar[dict[str, FieldInfo]] = {
        "loops": further_field(
            Count | None, None, "arch=lattice: passes through the blocks in a step"
        )
    }

    # Shared settings that this model cannot change; config/arch/lattice.yaml leaves them out.
    fixed: ClassVar[dict[str, object]] = {
        **{"mlp_t": False, "puzzle_emb_ndim": 0, "puzzle_emb_len": 0},
        **{"halt_exploration_prob": 0.0, "no_ACT_continue": True},
    }

    name: Literal["lattice"] = "lattice"
    """strikes candidates from a grid of possibilities, and guesses"""

    symmetry: Literal["none", "digits"] = "none"
    """digits: a state for each digit in each cell, and the same weights for all digits, as in
    arch=dec; needs units=true"""
    units: StrictBool = False
    """true: mix the cells by means over rows, columns, boxes and their crossings instead of
    attention, as in arch=dec; needs symmetry=digits"""
    loops: Size = 16
    """passes through the blocks in a step"""
    keep_states: StrictBool = False
    """true: a step continues from the states of the puzzle's last step; false: published"""
    L_layers: NumLayers = 4
    """blocks"""
    hidden_size: Size = 128
    """width of the states (D)"""
    num_heads: Size = 4
    """attention heads (N); must divide hidden_size"""
    expansion: Expansion = 4.0
    """inner width of the blocks' GELU layer / hidden_size; with symmetry=digits of their SwiGLU,
    before the factor 2/3 and rounding up to 8"""
    rms_norm_eps: PositiveFloat = 1e-5
    """added to the mean square in RMS norms; only with symmetry=digits"""
    heads: HeadsConfig = Field(
        default_factory=lambda: HeadsConfig.model_validate(
            {"q": None, "candidates": {}, "contradiction": {}}
        )
    )
    """the predictions of the model"""
    dropout: Annotated[float, Field(strict=True, ge=0.0, lt=1.0)] = 0.1
    """share of a block's update that is set to 0 in training; only with symmetry=none"""
    pos_encodings: Literal["rope", "learned", "none"] = "learned"
    """how attention knows the positions; learned: by row and column; rope is refused"""
    puzzle_emb_ndim: SizeOrZero = 0
    """must be 0: there is no puzzle embedding"""

    views: Literal["none", "dihedral"] = "dihedral"
    """dihedral: in training, turn and mirror each puzzle and permute its digits at random in each
    step; none: leave it as it is"""
    strike_below: Probability = 0.1
    """strike a candidate if its probability to be right is below this"""
    guess: Literal["always", "stuck"] = "always"
    """always: guess in each step, as published; stuck: only if the step struck nothing"""
    guess_temperature: PositiveFloat = 1.5
    """temperature of guessed tokens; higher: more random"""
    contradiction_above: Probability = 0.6
    """report a contradiction, and stop guessing, if its probability is above this"""
    guided_guesses: Probability = 0.0
    """share of the guesses in training that take the solution's token; 0: published"""
    learn_after_mistakes: StrictBool = True
    """false: once a puzzle's solution has been struck, only the contradiction head learns from it;
    true: all heads do, as published"""

    halt_max_steps: Size = 100
    """steps after which a puzzle is replaced in training in any case"""
    eval_steps: Size = 1
    """steps of a puzzle in evaluations without search; they strike but never guess"""
    halt_exploration_prob: Probability = 0.0
    """share of the puzzles that must not halt before a random number of steps"""
    no_ACT_continue: StrictBool = True
    """must be true: there is no q_continue"""

    def search(self, *asked: Any) -> Any:
        return imported("apps.lattice.evaluating", "search")()(self, *asked)

    @property
    def has_attention(self) -> bool:
        return not self.units

    @property
    def has_digits(self) -> bool:
        return self.symmetry == "digits"

    def with_depth(self, steps: int) -> Self:
        return self.model_copy(update={"eval_steps": steps})

    def require_data(self, facts: DataFacts) -> None:
        super().require_data(facts)
        require_sudoku(facts, "arch.name=lattice", most_cells=81)

    @model_validator(mode="after")
    def _settings_fit(self) -> Self:
        heads, techniques = self.heads, self.techniques
        own = {"candidates", "contradiction"}
        bias, views, places = self.attention_bias, self.views, self.pos_encodings
        known = ("none",) if self.units else ("learned", "none")
        turned, other = views != "none", "the states belong to another view; use views=none"
        faults = {
            f"name=lattice needs the heads {' and '.join(sorted(own))}, and no q; use "
            "heads=lattice": heads.q is not None or own - heads.auxiliary.keys(),
            f"name=lattice: heads.lm.name={heads.lm.name}; use linear": heads.lm.name != "linear",
            "heads.halt has no meaning with name=lattice; leave it out": "halt" in heads.auxiliary,
            **{f"heads.{n}: lattice cannot turn fields; leave it out": True for n in heads.fields},
            f"attention_bias={bias} with units=true: there is no attention over the cells; use "
            "units=false": self.units and bias != "none",
            "units=true and symmetry=digits need each other": self.units != self.has_digits,
            f"keep_states=true with views={views}: {other}": self.keep_states and turned,
            f"pos_encodings={places}: use {' or '.join(known)}": places not in known,
        }
        for name, technique in techniques.active.items():
            unknown = technique not in techniques.acting("weighed")
            faults[f"techniques.{name} has no meaning with name=lattice; leave it out"] = unknown
        for message, wrong in faults.items():
            if wrong:
                raise ValueError(message)
        if self.has_digits:
            require_one_row(self)
        return self


ARCHITECTURES.add("lattice", LatticeConfig, imported("apps.lattice.model", "lattice"))
