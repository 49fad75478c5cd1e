"""The base class of training techniques, which change the loop of the papers, and their registry.

A technique is one class: its fields are its settings, and its methods act at fixed places of the
loop. Ours are the files of `models/techniques/`. HRM and TRM as published use none. Imports no
torch.
"""

from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

from pydantic import model_validator
from pydantic.fields import FieldInfo

from runtime.registry import Registry
from runtime.schema import Schema

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from models.act import Drawn
    from models.config import RecurrenceConfig
    from models.draws import Draws
    from models.heads.base import Examples, Outputs, Targets
    from models.recurrence import Latents, Recurrence
    from runtime.streams import Address

# H_cycles and L_cycles.
Depth = tuple[int, int]


class Former(NamedTuple):
    """A setting of `arch` in earlier versions that is now part of a technique.

    Attributes:
        field: the present setting of the technique; "": naming the technique replaces it.
        off: its value in runs without the technique; `...`: it could have any value there.
    """

    field: str
    off: object = ...


class Technique(Schema):
    """A change of the loop. A subclass overrides the methods for the places where it acts.

    A technique has no weights. Several techniques act in the order of their names. The compiler
    traces the methods that are called in a step.

    Attributes:
        former: its settings in earlier versions, by their keys below `arch`.
        gone: its removed settings, each with the value that had no effect.
    """

    former: ClassVar[dict[str, Former]] = {}
    gone: ClassVar[dict[str, object]] = {}

    # Checks and facts, before anything runs.

    def require(self, arch: "RecurrenceConfig") -> None:
        """Raise ValueError if the architecture does not fit; the caller adds the key in front."""

    def require_rows(self, rows: int) -> None:
        """Raise ValueError if training cannot pass this many rows through the model at once."""

    @property
    def draws_numbers(self) -> bool:
        """Whether it uses `draws`. Then each row of an evaluation gets a key for its draws."""
        return False

    @property
    def exported_facts(self) -> dict[str, object]:
        """Facts for an exported file, by name: how its caller must draw the starts."""
        return {}

    @property
    def reads_field(self) -> str | None:
        """The field of the training data that it needs."""
        return None

    @property
    def rows_per_target(self) -> int:
        """One row in this many looks ahead for q_continue."""
        return 1

    # Called before each training step.

    def depth_at(self, share: float) -> Depth | None:
        """Return the cycles of the next step when `share` of the run's steps is done, or None for
        all cycles. Only one technique may override it.
        """
        return None

    def draw(self, at: "Address") -> "dict[str, np.ndarray]":
        """Draw the random numbers of the step, [parts, ...] by name. Draw from `at` with a stream
        number of your own. The name `ahead`, int64 [parts, n], is for the rows that look ahead for
        q_continue, if only one in `rows_per_target` does; `skipped`, float32 [parts, rows] in
        [0, 1), for the share of its ACT steps that a row with a new example begins after.
        """
        return {}

    # Called in each step. `start`, `begun` and `moved` run in evaluations, too.

    def start(self, z: "Tensor", draws: "Draws") -> "Tensor":
        """Return the start of a latent like z [B, T, D]. Only one technique may override it."""
        raise NotImplementedError

    def begun(
        self,
        inner: "Recurrence",
        new: "Tensor",
        steps: "Tensor",
        latents: "Latents",
        examples: "Examples",
        drawn: "Drawn",
    ) -> "Latents":
        """Return the latents [B, T, D] at the beginning of a step. `new`, bool [B], marks rows that
        have just taken their example; `steps`, int32 [B], counts the row's ACT steps with this one.

        In evaluations and exported models `drawn` is {} and the examples may lack labels. Return
        the latents unchanged then.
        """
        return latents

    def moved(self, before: "Tensor", after: "Tensor", draws: "Draws") -> "Tensor":
        """Return the new value of a latent whose update gave `after`, all [B, T, D]."""
        return after

    def aimed(self, targets: "Targets", outputs: "Outputs", steps: "Tensor") -> "Targets":
        """Return the targets of the losses, for these outputs of the heads and `log_probs`, the log
        probabilities of the tokens, float32 [B, S, V], without gradients. `steps`, int32 [B], are
        the ACT steps that each row has taken. Called only in training. Only one technique may
        override it.
        """
        raise NotImplementedError

    def weighed(self, losses: "Tensor", steps: "Tensor", most: int) -> "Tensor":
        """Return the weighted losses of the rows, [B]. `steps`, int32 [B], are the ACT steps that
        each row has taken, of at most `most`. Called only in training.
        """
        return losses


TECHNIQUES = Registry("technique", Technique, None, "techniques", "arch.techniques", "NAME")
"""A name loads a `Technique`, which is its own schema."""


class TechniquesConfig(Schema):
    """Techniques by name. All others are left out."""

    @classmethod
    def further_fields(cls) -> dict[str, FieldInfo]:
        return TECHNIQUES.optional_fields()

    @property
    def active(self) -> dict[str, Technique]:
        """The chosen techniques by name, in the order of their names."""
        return dict(sorted(TECHNIQUES.chosen(self).items()))

    def acting(self, place: str) -> list[Technique]:
        """Return the techniques that override this method."""
        return list(self._acting(place).values())

    @property
    def in_evaluations(self) -> list[str]:
        """Names of the techniques that change the results of evaluations, too."""
        return list(self._acting("start", "moved"))

    def _acting(self, *places: str) -> dict[str, Technique]:
        def acts(one: Technique) -> bool:
            return any(getattr(type(one), p) != getattr(Technique, p) for p in places)

        return {name: one for name, one in self.active.items() if acts(one)}

    @model_validator(mode="after")
    def _agree(self) -> Self:
        only_one = {"depth_at": "depth of a step", "start": "start of latents", "aimed": "targets"}
        for place, decided in only_one.items():
            if len(names := self._acting(place)) > 1:
                raise ValueError(f"{' and '.join(names)} all set the {decided}; choose one")
        return self
