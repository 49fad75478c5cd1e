"""What `dataset.json` declares, and the arrays of a set."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from dataset.format.arrays import parse_json_object
from runtime.errors import DatasetError
from runtime.text import quoted

IGNORE_LABEL_ID = -100
"""What a label equal to `ignore_label_id` becomes when it is read (torch's own `ignore_index`)."""

SET_FIELDS = ("inputs", "labels", "puzzle_identifiers", "puzzle_indices", "group_indices")
LAZY_ARC_FIELDS = (*SET_FIELDS, "source_indices")
LAZY_ARC = "lazy_arc"
"""Value of the key `format` in dataset.json; sets of the published format have no such key."""

ARC_SIDE = 30
"""Rows and columns of the canvas that holds an ARC grid, and the longest side of one."""
ARC_BORDER_TOKEN, ARC_FIRST_COLOUR_TOKEN = 1, 2
"""What ends a grid below and on the right; colour 0 (the other nine follow)."""

LAZY_ARC_FACTS = {"pad_id": 0, "ignore_label_id": 0, "vocab_size": 12, "seq_len": 900}
"""What dataset.json says of every lazy set."""

_OPTIONAL_KEYS = ("total_puzzles", "format", "fields")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
# Without `__`, so that no set and field share a file with another set and field.
_LABEL_FIELD_NAME = re.compile(r"(?=.{1,100}\Z)[a-z][a-z0-9]*(_[a-z0-9]+)*")
_MAX_CLASSES, _MAX_CHANNELS = 256, 256
_MAX_VOCAB_SIZE = 2**20  # Each token has a row in a model's tables.
_LARGEST_INT32 = 2**31 - 1


@dataclass(frozen=True)
class LabelField:
    """A further label of each cell, as `fields` of dataset.json declares it.

    A cell whose label is ignored has none, nor one whose label is `unknown_label`: IGNORE_LABEL_ID
    stands there when it is read.

    num_classes: values are 0 to num_classes - 1, at most 256. channels: values of each cell, which
    have an axis of their own; 0 is one value without that axis. unknown_label: a token, or None.
    derived: there is no file, the values are made from the labels when they are read (ARC_PIXELS in
    the format "lazy_arc" alone). The metadata that holds it checks it.
    """

    num_classes: int
    channels: int = 0
    unknown_label: int | None = None
    derived: bool = False

    def to_json(self) -> dict[str, Any]:
        """The value in dataset.json; what has its default is left out."""
        values: dict[str, Any] = {"num_classes": int(self.num_classes)}
        if self.channels:
            values["channels"] = int(self.channels)
        if self.unknown_label is not None:
            values["unknown_label"] = int(self.unknown_label)
        if self.derived:
            values["derived"] = True
        return values


ARC_PIXELS_NAME = "pixels"
ARC_PIXELS = LabelField(num_classes=256, channels=3, unknown_label=ARC_BORDER_TOKEN)
"""Red, green and blue of the label's colour in the palette of ARC; unknown outside the grid."""


@dataclass(frozen=True)
class PuzzleDatasetMetadata:
    """What `dataset.json` says about one split.

    pad_id, ignore_label_id (None: no label is ignored) and vocab_size are about tokens, seq_len is
    in cells, blank_identifier_id and num_puzzle_identifiers are about puzzle identifiers.
    total_groups, total_puzzles (None in sets of the older format) and mean_puzzle_examples
    (examples per puzzle) are over all sets of the split. format is None for the published format,
    or "lazy_arc". fields are the further labels of each cell, by name; in the format "lazy_arc" all
    are derived, elsewhere none.

    Raises: DatasetError: a field has the wrong type or is out of range.
    """

    pad_id: int
    ignore_label_id: int | None
    blank_identifier_id: int
    vocab_size: int
    seq_len: int
    num_puzzle_identifiers: int
    total_groups: int
    mean_puzzle_examples: float
    sets: tuple[str, ...]
    total_puzzles: int | None = None
    format: str | None = None
    fields: Mapping[str, LabelField] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _require_integer("vocab_size", self.vocab_size, 1, _MAX_VOCAB_SIZE)
        for name in ("seq_len", "num_puzzle_identifiers"):
            _require_integer(name, getattr(self, name), 1, _LARGEST_INT32)
        _require_integer("total_groups", self.total_groups, 0, _LARGEST_INT32)
        _require_integer("pad_id", self.pad_id, 0, self.vocab_size - 1)
        _require_integer(
            "blank_identifier_id", self.blank_identifier_id, 0, self.num_puzzle_identifiers - 1
        )
        if self.ignore_label_id is not None:
            _require_integer("ignore_label_id", self.ignore_label_id, -(2**31), _LARGEST_INT32)
        if self.total_puzzles is not None:
            _require_integer("total_puzzles", self.total_puzzles, 0, _LARGEST_INT32)
        mean = self.mean_puzzle_examples
        is_number = isinstance(mean, int | float | np.number) and not isinstance(mean, bool)
        if not is_number or not 0 <= mean <= _LARGEST_INT32:
            raise DatasetError(
                f"mean_puzzle_examples is {quoted(mean)}, expected a number from 0 to"
                f" {_LARGEST_INT32}"
            )
        names = self.sets
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
            raise DatasetError(f"sets is {quoted(names)}, expected a list of names")
        for name in names:
            require_plain_name(name)
        if len(set(names)) != len(names):
            raise DatasetError(f"sets is {quoted(list(names))}, expected every name once")
        object.__setattr__(self, "sets", tuple(names))
        if self.format not in (None, LAZY_ARC):
            raise DatasetError(
                f"format is {quoted(self.format)}, expected {LAZY_ARC!r} or no such key"
            )
        if self.format == LAZY_ARC:
            for name, expected in LAZY_ARC_FACTS.items():
                if getattr(self, name) != expected:
                    raise DatasetError(
                        f"{name} is {getattr(self, name)}, expected {expected} in the format"
                        f" {LAZY_ARC}"
                    )
        self._check_fields()

    def _check_fields(self) -> None:
        for name, declared in self.fields.items():
            if not _LABEL_FIELD_NAME.fullmatch(name) or name in LAZY_ARC_FIELDS:
                raise DatasetError(
                    f"field name {quoted(name)}, expected words of small letters and digits joined"
                    f" by '_', and none of {', '.join(LAZY_ARC_FIELDS)}"
                )
            key = f"fields.{name}"
            _require_integer(f"{key}.num_classes", declared.num_classes, 1, _MAX_CLASSES)
            _require_integer(f"{key}.channels", declared.channels, 0, _MAX_CHANNELS)
            if declared.unknown_label is not None:
                limit = self.vocab_size - 1
                _require_integer(f"{key}.unknown_label", declared.unknown_label, 0, limit)
            if not isinstance(declared.derived, bool):
                raise DatasetError(
                    f"{key}.derived is {quoted(declared.derived)}, expected true or false"
                )
            if self.format == LAZY_ARC:
                expected = replace(ARC_PIXELS, derived=True)
                if name != ARC_PIXELS_NAME or declared != expected:
                    raise DatasetError(
                        f"{key} is {declared.to_json()}, but the format {LAZY_ARC} has only"
                        f" {ARC_PIXELS_NAME} {expected.to_json()}"
                    )
            elif declared.derived:
                raise DatasetError(f"{key} is derived, accepted only in the format {LAZY_ARC}")

    def to_json(self) -> str:
        """The text of `dataset.json`; what is None or has no entries is left out, but for
        `ignore_label_id`.
        """
        values: dict[str, Any] = asdict(self)
        for name, value in values.items():
            if isinstance(value, np.integer):
                values[name] = int(value)
        values["mean_puzzle_examples"] = float(self.mean_puzzle_examples)
        values["sets"] = list(self.sets)
        values["fields"] = {name: declared.to_json() for name, declared in self.fields.items()}
        for name in _OPTIONAL_KEYS:
            if values[name] is None or values[name] == {}:
                del values[name]
        return json.dumps(values, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, source: str | Path) -> PuzzleDatasetMetadata:
        """Read the text of `dataset.json`; unknown keys are ignored.

        Raises: DatasetError: no JSON object, or a key is missing or mistyped; names `source`.
        """
        values = parse_json_object(text, source)
        known = {field.name for field in fields(cls)}
        missing = sorted(known - set(_OPTIONAL_KEYS) - values.keys())
        if missing:
            raise DatasetError(f"{source}: missing {', '.join(missing)}")
        try:
            values["fields"] = _parse_label_fields(values.get("fields", {}))
            return cls(**{name: value for name, value in values.items() if name in known})
        except DatasetError as error:
            raise DatasetError(f"{source}: {error}") from None


@dataclass(frozen=True)
class PuzzleSet:
    """The arrays of one set.

    inputs, labels: integer [examples, seq_len], memory-mapped when read from disk.
    puzzle_identifiers: integer [puzzles].
    puzzle_indices: integer [puzzles + 1]; puzzle p holds examples puzzle_indices[p] to [p + 1].
    group_indices: integer [groups + 1]; group g holds puzzles group_indices[g] to [g + 1].
    fields: the further labels by name, uint8 [examples, seq_len] or [examples, seq_len, channels],
        memory-mapped when read from disk; derived ones are not among them.
    """

    inputs: np.ndarray
    labels: np.ndarray
    puzzle_identifiers: np.ndarray
    puzzle_indices: np.ndarray
    group_indices: np.ndarray
    fields: Mapping[str, np.ndarray] = field(default_factory=dict, kw_only=True)

    @property
    def num_examples(self) -> int:
        return len(self.inputs)

    @property
    def num_puzzles(self) -> int:
        return len(self.puzzle_identifiers)

    @property
    def num_groups(self) -> int:
        return len(self.group_indices) - 1


@dataclass(frozen=True)
class LazyArcSet(PuzzleSet):
    """Original ARC grids, and what each puzzle does to them: rows are made when they are read.

    inputs, labels: uint8 [stored, 900], the pairs of each task in the top left corner of the
        canvas; labels of pad_id only where the output is not known.
    source_indices: integer [groups + 1]; all puzzles of group g have, in this order, the stored
        pairs source_indices[g] to [g + 1]. puzzle_indices counts the examples so made.
    augmentations: uint8 [puzzles, 10], the view and the new colours of 1 to 9 of each puzzle.
    """

    source_indices: np.ndarray
    augmentations: np.ndarray

    @property
    def num_examples(self) -> int:
        return int(self.puzzle_indices[-1]) if len(self.puzzle_indices) else 0


def require_plain_name(name: str) -> None:
    """Raise DatasetError unless a set's name, which begins names of files, is a plain one."""
    if not _PLAIN_NAME.fullmatch(name):
        raise DatasetError(
            f"set name {quoted(name)}, expected letters, digits, '_', '-' and '.', the first one"
            " neither '-' nor '.'"
        )


def _parse_label_fields(values: Any) -> dict[str, LabelField]:
    if not isinstance(values, dict):
        raise DatasetError(f"fields is {quoted(values)}, expected an object")
    known = sorted(field.name for field in fields(LabelField))
    parsed = {}
    for name, declared in values.items():
        # Unless the name is one, it may hold anything, line breaks too.
        key = f"fields.{name}" if _LABEL_FIELD_NAME.fullmatch(name) else f"field {quoted(name)}"
        if not isinstance(declared, dict) or "num_classes" not in declared:
            raise DatasetError(f"{key} is {quoted(declared)}, expected an object with num_classes")
        unknown = sorted(declared.keys() - set(known))
        if unknown:
            raise DatasetError(
                f"{key} has the key {quoted(unknown[0])}; accepted: {', '.join(known)}"
            )
        parsed[name] = LabelField(**declared)
    return parsed


def _require_integer(name: str, value: Any, low: int, high: int) -> None:
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_integer or not low <= value <= high:
        raise DatasetError(f"{name} is {quoted(value)}, expected an integer from {low} to {high}")
