"""What a technique may change in the loop of the papers, and the registry of techniques.

A technique is one class: its fields are its settings, and its methods act at the places named here.
Each of ours is a file of `models/techniques/`; a plug-in's may lie anywhere. HRM and TRM as
published have none. Nothing here imports torch: a configuration is checked before torch is loaded.
"""

import json
from collections.abc import Hashable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from pydantic import model_validator
from pydantic.fields import FieldInfo

from runtime.registry import Registry
from runtime.schema import Schema

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from models.act import ACT, Drawn
    from models.config import RecurrenceConfig
    from models.draws import Draws
    from models.heads.base import Examples
    from models.recurrence import Latents, Recurrence
    from runtime.streams import Address


class Former(NamedTuple):
    """A setting of `arch` that earlier versions had in a technique's place.

    Attributes:
        field: the setting that it is now; "": that the technique is named says it.
        off: its value in runs without the technique; `...`: it says nothing of that.
        also_off: a value that is gone, and made no difference but to the rounding of a training.
    """

    field: str
    off: Any = ...
    also_off: Any = ...


class Technique(Schema):
    """A change of the loop. Each method is a place where it may act; here they change nothing.

    A technique has no weights. Several act in the order of their names. The compiler traces the
    methods that act in a step.

    Attributes:
        former: its settings in earlier versions, by their keys below `arch`.
    """

    former: ClassVar[dict[str, Former]] = {}

    # Checks, and what other parts must know, before anything runs.

    def require(self, arch: "RecurrenceConfig") -> None:
        """Raise ValueError if the architecture does not fit; the caller puts the key in front."""

    def require_rows(self, rows: int) -> None:
        """Raise ValueError if this many rows cannot pass through the model at once in training; the
        caller puts the key in front.
        """

    def require_model(self, inner: "Recurrence") -> None:
        """Raise ValueError if the model does not fit; the caller puts the key in front."""

    @property
    def varies(self) -> str:
        """What differs from step to step, so that a CUDA graph cannot repeat a step; "": nothing
        does.
        """
        return ""

    @property
    def not_exported(self) -> str:
        """Why the model cannot be exported; "": it can. A technique that uses `draws` in `moved`
        must give a reason.
        """
        return ""

    @property
    def exported_facts(self) -> dict[str, object]:
        """What an exported file says of the starts that its caller must draw, by name."""
        return {}

    @property
    def draws_numbers(self) -> bool:
        """Whether it uses `draws`: then each row of an evaluation gets a key to draw by."""
        return False

    @property
    def rows_per_target(self) -> int:
        """One row in this many looks ahead for q_continue, on average over the steps."""
        return 1

    # Called before each training step.

    def form(self, step: int, share: float) -> Hashable:
        """Return what the compiled code of a step depends on. A step with a new form may be
        compiled, so the watch that ends hanging runs waits longer for it.

        Args:
            step: its number, from 1.
            share: of the run's steps, those before this one.
        """
        return None

    def set_depth(self, inner: "Recurrence", share: float) -> None:
        """Set the depth of the next step; `share` of the run's steps are done."""

    def draw(self, at: "Address") -> "dict[str, np.ndarray]":
        """Draw the random numbers of the step, [parts, ...] by name. `at` draws them with a stream
        number, which nothing else may use.
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

    def look_ahead(
        self,
        act: "ACT",
        latents: "Latents",
        examples: "Examples",
        last_step: "Tensor",
        drawn: "Drawn",
    ) -> "dict[str, Tensor]":
        """Return what `ACT.look_ahead` returns, in its place. Only one technique may override it.
        It runs in training alone, where q_continue is learned.
        """
        raise NotImplementedError

    def weighed(self, losses: "Tensor", steps: "Tensor", most: int) -> "Tensor":
        """Return the losses of rows, [B], weighted; `steps`, int32 [B], counts the ACT steps that a
        row has taken of at most `most`. It runs in training alone.
        """
        return losses


TECHNIQUES = Registry("technique", Technique, None, "techniques", "arch.techniques", "NAME")
"""Behind each name stands a `Technique`, which is its own schema."""

_ONE_ALONE = {"start": "where latents start", "look_ahead": "which rows look ahead"}


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


def with_techniques(arch: Mapping[str, Any], *, training: bool = True) -> dict[str, Any]:
    """Return the settings of an architecture that was saved, with techniques in place of the
    settings that they had in earlier versions. For `training` a value that is gone stays, so that
    it is reported as a difference.
    """
    arch = dict(arch)
    given = arch.get("techniques")
    techniques = dict(given) if isinstance(given, Mapping) else {}
    for name, former in _former().items():
        off = {key: row.off for key, row in former.items() if row.off is not ...}
        saved = off | {key: value for key in former for value in _taken(arch, key)}
        if not training:
            saved = {k: off.get(k) if v == former[k].also_off else v for k, v in saved.items()}
        if any(saved[key] != value for key, value in off.items()):
            techniques[name] = {
                row.field: saved[key] for key, row in former.items() if row.field and key in saved
            }
    return arch | ({"techniques": techniques} if techniques else {})


def present_name(key: str, value: object = None) -> str | None:
    """Return what to do with a setting of earlier versions; None: it was never another one.

    Args:
        value: as it was typed, or read from a file; None: not known.
    """
    given = [value]
    if isinstance(value, str):
        with suppress(ValueError):
            given.append(json.loads(value))
    for name, former in _former().items():
        if row := former.get(key.removeprefix("arch.")):
            if value is not None and row.off in given:
                return f"says that there is no {name}: leave it out"
            # The others stay off; their defaults may be those of the technique at work.
            fields = {other.field: other.off for other in former.values() if _is_off(name, other)}
            fields |= {row.field: "..."} if row.field else {}
            own = "".join(f" arch.techniques.{name}.{f}={fields[f]}" for f in sorted(fields))
            return f"is written techniques=[{name}]{own} now"
    return None


def _is_off(name: str, row: Former) -> bool:
    """Return whether a technique at work may have a field at the value that it has when off."""
    if not row.field or row.off is ...:
        return False
    try:
        TECHNIQUES[name].schema.model_validate({row.field: row.off})
    except ValueError:
        return False
    return True


def _former() -> dict[str, dict[str, Former]]:
    return {name: getattr(TECHNIQUES[name].schema, "former", {}) for name in TECHNIQUES}


def _taken(tree: dict[str, Any], key: str) -> list[Any]:
    """Take a dotted key out of a tree, whose sections stay as they are for others; returns its
    value, in a list, if it was there.
    """
    section, _, rest = key.partition(".")
    if not rest:
        return [tree.pop(section)] if section in tree else []
    if not isinstance(tree.get(section), Mapping):
        return []
    tree[section] = dict(tree[section])
    return _taken(tree[section], rest)
