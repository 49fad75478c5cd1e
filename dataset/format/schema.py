"""The contents of a built data set: the keys of `dataset.json` and the arrays of a set.

docs/data_format.md describes the format. A group is one original puzzle with its augmentations. A
puzzle is one of these and holds one or several examples. This is the published format of HRM
(arXiv:2506.21734). Any integer dtype can be read, because published Sudoku sets hold int64.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass as checked_dataclass

from dataset.format.files import read_json_object
from runtime.errors import DatasetError
from runtime.text import quoted, shown

MANIFEST_NAME = "manifest.json"
AUGMENTATIONS_NAME = "augmentations.npy"
METADATA_NAME = "dataset.json"
IDENTIFIERS_NAME = "identifiers.json"
BLANK_NAME = "<blank>"  # The name of identifier 0.
TEST_PUZZLES_NAME = "test_puzzles.json"

IGNORE_LABEL_ID = -100
"""The value of ignored labels after reading, torch's `ignore_index`."""

SET_FIELDS = ("inputs", "labels", "puzzle_identifiers", "puzzle_indices", "group_indices")
RATINGS = "ratings"
LAZY_ARC_FIELDS = (*SET_FIELDS, "source_indices")
LAZY_ARC: Final = "lazy_arc"
"""The value of the key `format` in dataset.json; sets in the published format lack this key."""

ARC_SIDE = 30
"""Rows and columns of an ARC canvas, and the longest side of a grid."""
ARC_NUM_COLOURS = 10
ARC_BORDER_TOKEN, ARC_FIRST_COLOUR_TOKEN = 1, 2
"""The border below and on the right of a grid; colour 0, followed by the other nine."""
ARC_VOCAB_SIZE = ARC_FIRST_COLOUR_TOKEN + ARC_NUM_COLOURS

ARC_PALETTE = (
    *("#000000", "#0074D9", "#FF4136", "#2ECC40", "#FFDC00"),
    *("#AAAAAA", "#F012BE", "#FF851B", "#7FDBFF", "#870C25"),
)
"""Colours 0 to 9 as ARC's own site shows them."""

LAZY_ARC_FACTS: dict[str, Any] = {
    "pad_id": 0,
    "ignore_label_id": 0,
    "vocab_size": ARC_VOCAB_SIZE,
    "seq_len": ARC_SIDE**2,
}
"""The keys with fixed values in dataset.json of lazy sets."""

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
# No `__`: otherwise two pairs of set and field could have the same file name.
_LABEL_FIELD_NAME = re.compile(r"(?=.{1,100}\Z)[a-z][a-z0-9]*(_[a-z0-9]+)*")
_LARGEST = 2**31 - 1

_Integer = Annotated[int, Field(strict=True)]
_Count = Annotated[_Integer, Field(ge=0, le=_LARGEST)]
_Size = Annotated[_Integer, Field(ge=1, le=_LARGEST)]
_VocabSize = Annotated[_Integer, Field(ge=1, le=2**20)]  # Each has a row in a model's tables.
_Mean = Annotated[float, Field(strict=True, ge=0, le=_LARGEST)]


@checked_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class LabelField:
    """A label field: an additional label of each cell, declared in `fields` of dataset.json.

    Args:
        num_classes: values are 0 to num_classes - 1.
        channels: values of each cell, along an additional axis; 0: one value and no such axis.
        unknown_label: cells with this label, or with an ignored one, have no value.
        derived: the field has no file but is computed from the labels (only ARC_PIXELS in the
            format "lazy_arc").
    """

    num_classes: Annotated[_Integer, Field(ge=1, le=256)]
    channels: Annotated[_Integer, Field(ge=0, le=256)] = 0
    unknown_label: _Count | None = None
    derived: Annotated[bool, Field(strict=True)] = False


ARC_PIXELS_NAME = "pixels"
ARC_PIXELS = LabelField(num_classes=256, channels=3, unknown_label=ARC_BORDER_TOKEN, derived=True)
"""Red, green and blue of the label's colour in ARC_PALETTE; unknown outside the grid."""


@checked_dataclass(frozen=True)
class PuzzleDatasetMetadata:
    """The content of `dataset.json` for one split; docs/data_format.md explains the keys.

    Args:
        ignore_label_id: the ignored label, or None if none is ignored.
        vocab_size: the limit of tokens and pad_id, which are smaller.
        num_puzzle_identifiers: the limit of puzzle identifiers and blank_identifier_id.
        total_groups: counted over all sets of the split, like total_puzzles and
            mean_puzzle_examples.
        format: None for the published format, or "lazy_arc".
        kind: the kind of puzzles, a name in `dataset.kinds.KINDS`, or None if unknown. It does not
            count for the fingerprint.
    Raises:
        ValueError: a value has the wrong type or is out of range (`read` raises DatasetError).
    """

    pad_id: _Count
    ignore_label_id: Annotated[_Integer, Field(ge=-(2**31), le=_LARGEST)] | None
    blank_identifier_id: _Count
    vocab_size: _VocabSize
    seq_len: _Size
    num_puzzle_identifiers: _Size
    total_groups: _Count
    mean_puzzle_examples: _Mean
    sets: Annotated[tuple[str, ...], Field(min_length=1)]
    total_puzzles: _Count | None = None
    format: Literal["lazy_arc"] | None = None
    fields: dict[str, LabelField] = field(default_factory=dict)
    ratings: Annotated[bool, Field(strict=True)] = False
    kind: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,99}$")] | None = None

    @model_validator(mode="after")
    def _check_together(self) -> PuzzleDatasetMetadata:
        tokens, identifiers = self.vocab_size, self.num_puzzle_identifiers
        _require_below("pad_id", self.pad_id, tokens)
        _require_below("blank_identifier_id", self.blank_identifier_id, identifiers)
        for name in self.sets:
            if not _PLAIN_NAME.fullmatch(name):  # File names begin with it.
                plain = "letters, digits, '_', '-' and '.', not starting with '-' or '.'"
                raise ValueError(f"set name {quoted(name)}, expected {plain}")
        if len(set(self.sets)) != len(self.sets):
            raise ValueError(f"sets is {quoted(list(self.sets))}, expected every name once")
        facts = {**LAZY_ARC_FACTS, "ratings": False} if self.format else {}
        for name, expected in facts.items():
            if (found := getattr(self, name)) != expected:
                required = f"expected {expected} in the format {LAZY_ARC}"
                raise ValueError(f"{name} is {found}, {required}")
        for name, declared in self.fields.items():
            self._check_field(name, declared)
        return self

    def _check_field(self, name: str, declared: LabelField) -> None:
        taken = (*LAZY_ARC_FIELDS, *([RATINGS] if self.ratings else []))
        if not _LABEL_FIELD_NAME.fullmatch(name) or name in taken:
            plain = f"lower-case words joined by '_', not {', '.join(taken)}"
            raise ValueError(f"field name {quoted(name)}, expected {plain}")
        key = f"fields.{name}"
        _require_below(f"{key}.unknown_label", declared.unknown_label or 0, self.vocab_size)
        if self.format is None and declared.derived:
            raise ValueError(f"{key} is derived, but only the format {LAZY_ARC} allows this")
        if self.format == LAZY_ARC and (name, declared) != (ARC_PIXELS_NAME, ARC_PIXELS):
            only = f"{ARC_PIXELS_NAME} {ARC_PIXELS}"
            raise ValueError(f"{key} is {declared}, but the format {LAZY_ARC} has only {only}")

    def to_json(self) -> str:
        """Return the text of `dataset.json`, without keys that have their default value."""
        values = TypeAdapter(PuzzleDatasetMetadata).dump_python(self, exclude_defaults=True)
        return json.dumps(values, indent=2) + "\n"

    def array_paths(self, split_dir: Path, set_name: str) -> dict[str, Path]:
        """Return the files of a set by array name; label fields come last."""
        names = [*(LAZY_ARC_FIELDS if self.format else SET_FIELDS)]
        names += [RATINGS] if self.ratings else []
        names += [name for name, declared in self.fields.items() if not declared.derived]
        return {name: split_dir / f"{set_name}__{name}.npy" for name in names}

    def files(self, split_dir: Path, label_fields: Collection[str] | None = None) -> list[Path]:
        """Return the files of a split, with only the named label fields (None: all)."""
        files = [split_dir / METADATA_NAME]
        for set_name in self.sets:
            for name, path in self.array_paths(split_dir, set_name).items():
                if label_fields is None or name not in self.fields or name in label_fields:
                    files.append(path)
        return [*files, split_dir.parent / AUGMENTATIONS_NAME] if self.format else files

    @classmethod
    def read(cls, path: Path) -> PuzzleDatasetMetadata:
        """Read `dataset.json`; unknown keys are ignored.

        Raises:
            DatasetError: the file is not a JSON object, or a key is missing or has a wrong value.
        """
        values = read_json_object(path)
        known = [each.name for each in fields(cls) if each.name in values]
        try:
            return cls(**{name: values[name] for name in known})
        except ValidationError as error:
            raise DatasetError(f"{path}: {_problem(error)}") from None


@dataclass(frozen=True)
class PuzzleSet:
    """The arrays of one set; inputs, labels and fields may be memory-mapped.

    Args:
        inputs: integer [examples, seq_len].
        labels: integer [examples, seq_len].
        puzzle_identifiers: integer [puzzles].
        puzzle_indices: integer [puzzles + 1]; puzzle p holds examples puzzle_indices[p] to [p + 1].
        group_indices: integer [groups + 1]; group g holds puzzles group_indices[g] to [g + 1].
        fields: the label fields by name, without derived ones: uint8 [examples, seq_len] or
            [examples, seq_len, channels].
        ratings: the difficulty of each original puzzle, integer [groups], or None if unknown.
    """

    inputs: np.ndarray
    labels: np.ndarray
    puzzle_identifiers: np.ndarray
    puzzle_indices: np.ndarray
    group_indices: np.ndarray
    fields: Mapping[str, np.ndarray] = field(default_factory=dict, kw_only=True)
    ratings: np.ndarray | None = field(default=None, kw_only=True)

    def example_ratings(self) -> np.ndarray | None:
        """Return the rating of each example's original puzzle, integer [examples]."""
        if self.ratings is None:
            return None
        return np.repeat(self.ratings, np.diff(self.puzzle_indices[self.group_indices]))

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
    """Original ARC grids and the augmentation of each puzzle; examples are made when read.

    Args:
        inputs: uint8 [stored, S], the pairs of each task in the top left corner of the canvas.
        labels: the same for the outputs; an unknown output is all pad_id.
        puzzle_indices: offsets into the examples made, not into the stored pairs.
        source_indices: integer [groups + 1]; each puzzle of group g has the stored pairs
            source_indices[g] to [g + 1], in this order.
        augmentations: uint8 [puzzles, 10], the view and the new colours of 1 to 9 of each puzzle.
    """

    source_indices: np.ndarray
    augmentations: np.ndarray

    @property
    def num_examples(self) -> int:
        return int(self.puzzle_indices[-1]) if len(self.puzzle_indices) else 0


def _require_below(key: str, value: int, limit: int) -> None:
    if value >= limit:
        raise ValueError(f"{key} is {value}, expected 0 to {limit - 1}")


def _problem(error: ValidationError) -> str:
    """Return the first wrong value and the reason."""
    first = error.errors(include_url=False)[0]
    key = shown(".".join(map(str, first["loc"])))
    if not key:
        return str(first.get("ctx", {}).get("error", first["msg"]))  # A full message of our own.
    if first["type"] == "missing":
        return f"{key} is missing"
    if first["type"] == "unexpected_keyword_argument":
        accepted = ", ".join(each.name for each in fields(LabelField))
        return f"{key}: no such key; accepted: {accepted}"
    reason = first["msg"].lower().replace("tuple", "list")  # JSON's word.
    return f"{key} is {quoted(first['input'])}: {reason}"
