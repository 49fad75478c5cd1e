"""What a technique may change in the loop of the papers, and the registry of techniques.

A technique is one class: its fields are its settings, and its methods act at the places named here.
Each of ours is a file of `models/techniques/`; a plug-in's may lie anywhere. HRM and TRM as
published have none. Nothing here imports torch: a configuration is checked before torch is loaded.
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
    from models.heads.base import Examples
    from models.recurrence import Latents, Recurrence
    from runtime.streams import Address

# H_cycles and L_cycles.
Depth = tuple[int, int]


class Former(NamedTuple):
    """A setting of `arch` that earlier versions had in a technique's place.

    Attributes:
        field: the setting that it is now; "": that the technique is named says it.
        off: its value in runs without the technique; `...`: it says nothing of that.
    """

    field: str
    off: object = ...


class Technique(Schema):
    """A change of the loop. Each method is a place where it may act; here they change nothing.

    A technique has no weights. Several act in the order of their names. The compiler traces the
    methods that act in a step.

    Attributes:
        former: its settings in earlier versions, by their keys below `arch`.
        gone: settings that it has no more, with the value that changed nothing.
    """

    former: ClassVar[dict[str, Former]] = {}
    gone: ClassVar[dict[str, object]] = {}

    # Checks, and what other parts must know, before anything runs.

    def require(self, arch: "RecurrenceConfig") -> None:
        """Raise ValueError if the architecture does not fit; the caller puts the key in front."""

    def require_rows(self, rows: int) -> None:
        """Raise ValueError if not this many rows can pass through at once in training, likewise."""

    @property
    def draws_numbers(self) -> bool:
        """Whether it uses `draws`: then each row of an evaluation gets a key to draw by."""
        return False

    @property
    def exported_facts(self) -> dict[str, object]:
        """What an exported file says of the starts that its caller must draw, by name."""
        return {}

    @property
    def rows_per_target(self) -> int:
        """One row in this many looks ahead for q_continue."""
        return 1

    # Called before each training step.

    def depth_at(self, share: float) -> Depth | None:
        """Return the cycles of a step before which this share of the run's steps is done; None:
        all. Only one technique may override it.
        """
        return None

    def draw(self, at: "Address") -> "dict[str, np.ndarray]":
        """Draw the random numbers of the step, [parts, ...] by name. `at` draws them with a stream
        number, which nothing else may use. `ahead`, int64 [parts, n], are the rows that look ahead
        for q_continue, if not all do: one in `rows_per_target`.
        """
        return {}

    # Called in each step. `start`, `begun` and `moved` run in evaluations, too.

    def start(self, z: "Tensor", draws: "Draws") -> "Tensor":
        """Return where a latent starts, of the shape and dtype of z [B, T, D]. Only one technique
        may override it.
        """
        raise NotImplementedError

    def begun(
        self,
        inner: "Recurrence",
        new: "Tensor",
        latents: "Latents",
        examples: "Examples",
        drawn: "Drawn",
    ) -> "Latents":
        """Return the latents [B, T, D] to begin a step with; `new`, bool [B], marks rows that have
        just taken their example.

        It runs in evaluations and exported models, too: there `drawn` is {}, and the examples may
        have no labels. Return the latents unchanged then.
        """
        return latents

    def moved(self, before: "Tensor", after: "Tensor", draws: "Draws") -> "Tensor":
        """Return a latent after an update that gives `after`, all [B, T, D]."""
        return after

    def weighed(self, losses: "Tensor", steps: "Tensor", most: int) -> "Tensor":
        """Return the losses of rows, [B], weighted; `steps`, int32 [B], counts the ACT steps that a
        row has taken of at most `most`. It runs in training alone.
        """
        return losses


TECHNIQUES = Registry("technique", Technique, None, "techniques", "arch.techniques", "NAME")
"""Behind each name stands a `Technique`, which is its own schema."""

_ONE_ALONE = {"depth_at": "how deep a step is", "start": "where latents start"}


class TechniquesConfig(Schema):
    """Techniques by name; those that are not named are left out."""

    @classmethod
    def further_fields(cls) -> dict[str, FieldInfo]:
        return TECHNIQUES.optional_fields()

    @property
    def active(self) -> dict[str, Technique]:
        """Those that are asked for, by name, in the order of their names."""
        return dict(sorted(TECHNIQUES.chosen(self).items()))

    def acting(self, place: str) -> list[Technique]:
        """Return those that act at a place, the name of a method."""
        active = self.active.values()
        return [one for one in active if getattr(type(one), place) != getattr(Technique, place)]

    @property
    def in_evaluations(self) -> list[str]:
        """Names of those that change what a model computes in evaluations, too: they override
        `start` or `moved`.
        """
        acting = [*self.acting("start"), *self.acting("moved")]
        return [name for name, technique in self.active.items() if technique in acting]

    @model_validator(mode="after")
    def _agree(self) -> Self:
        for place, decided in _ONE_ALONE.items():
            if len(self.acting(place)) > 1:
                names = [name for name, one in self.active.items() if one in self.acting(place)]
                raise ValueError(f"{' and '.join(names)} all say {decided}; choose one")
        return self
