"""The files of a built data set, as docs/data.md describes them: what `dataset.json` declares, and
the arrays of a set.

A group is one original puzzle with its augmentations, a puzzle is one augmentation of it, and a
puzzle holds one or several examples. This is the published format of HRM (arXiv:2506.21734); on
reading, any integer dtype is accepted, because published Sudoku sets hold int64.
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
BLANK_NAME = "<blank>"  # That of identifier 0.
TEST_PUZZLES_NAME = "test_puzzles.json"

IGNORE_LABEL_ID = -100
"""What a label equal to `ignore_label_id` becomes when it is read (torch's own `ignore_index`)."""

SET_FIELDS = ("inputs", "labels", "puzzle_identifiers", "puzzle_indices", "group_indices")
RATINGS = "ratings"
LAZY_ARC_FIELDS = (*SET_FIELDS, "source_indices")
LAZY_ARC: Final = "lazy_arc"
"""Value of the key `format` in dataset.json; sets of the published format have no such key."""

ARC_SIDE = 30
"""Rows and columns of the canvas that holds an ARC grid, and the longest side of one."""
ARC_NUM_COLOURS = 10
ARC_BORDER_TOKEN, ARC_FIRST_COLOUR_TOKEN = 1, 2
"""What ends a grid below and on the right; colour 0 (the other nine follow)."""
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
"""What dataset.json says of every lazy set."""

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
# Without `__`, so that no set and field share a file with another set and field.
_LABEL_FIELD_NAME = re.compile(r"(?=.{1,100}\Z)[a-z][a-z0-9]*(_[a-z0-9]+)*")
_LARGEST = 2**31 - 1

_Integer = Annotated[int, Field(strict=True)]
_Count = Annotated[_Integer, Field(ge=0, le=_LARGEST)]
_Size = Annotated[_Integer, Field(ge=1, le=_LARGEST)]
_VocabSize = Annotated[_Integer, Field(ge=1, le=2**20)]  # Each has a row in a model's tables.
_Mean = Annotated[float, Field(strict=True, ge=0, le=_LARGEST)]


@checked_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class LabelField:
    """A further label of each cell, as `fields` of dataset.json declares it.

    Args:
        num_classes: values are 0 to num_classes - 1.
        channels: values of each cell, which have an axis of their own; 0: one without it.
        unknown_label: cells with this token, or an ignored one, as their label have no value.
        derived: there is no file, the values are made from the labels when they are read
            (ARC_PIXELS in the format "lazy_arc" alone).
    """

    num_classes: Annotated[_Integer, Field(ge=1, le=256)]
    channels: Annotated[_Integer, Field(ge=0, le=256)] = 0
    unknown_label: _Count | None = None
    derived: Annotated[bool, Field(strict=True)] = False


ARC_PIXELS_NAME = "pixels"
ARC_PIXELS = LabelField(num_classes=256, channels=3, unknown_label=ARC_BORDER_TOKEN, derived=True)
"""Red, green and blue of the label's colour in the palette of ARC; unknown outside the grid."""


@checked_dataclass(frozen=True)
class PuzzleDatasetMetadata:
    """What `dataset.json` says about one split; docs/data.md has the keys.

    Args:
        ignore_label_id: a label, or None: no label is ignored.
        vocab_size: tokens, and pad_id, are below it.
        num_puzzle_identifiers: puzzle identifiers, and blank_identifier_id, are below it.
        total_groups: over all sets of the split, as total_puzzles and mean_puzzle_examples.
        format: None for the published format, or "lazy_arc".
        kind: of the puzzles, a name of `dataset.kinds.KINDS`; None: not said. It is no part of the
            data's fingerprint.
    Raises:
        ValueError: a value has the wrong type or is out of range (`read`: a DatasetError).
    """

    pad_id: _Count
    ignore_label_id: Annotated[_Integer, Field(ge=-(2**31), le=_LARGEST)] | None
    blank_identifier_id: _Count
    vocab_size: _VocabSize
    seq_len: _Size
    num_puzzle_identifiers: _Size
    total_groups: _Count
    mean_puzzle_examples: _Mean
    sets: tuple[str, ...]
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
            if not _PLAIN_NAME.fullmatch(name):  # It begins names of files.
                plain = "letters, digits, '_', '-' and '.', the first one neither '-' nor '.'"
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
            plain = "words of small letters and digits joined by '_'"
            raise ValueError(
                f"field name {quoted(name)}, expected {plain}, no {', no '.join(taken)}"
            )
        key = f"fields.{name}"
        _require_below(f"{key}.unknown_label", declared.unknown_label or 0, self.vocab_size)
        if self.format is None and declared.derived:
            raise ValueError(f"{key} is derived, accepted only in the format {LAZY_ARC}")
        if self.format == LAZY_ARC and (name, declared) != (ARC_PIXELS_NAME, ARC_PIXELS):
            only = f"{ARC_PIXELS_NAME} {ARC_PIXELS}"
            raise ValueError(f"{key} is {declared}, but the format {LAZY_ARC} has only {only}")

    def to_json(self) -> str:
        """The text of `dataset.json`, without what may be left out and is None or empty."""
        values = TypeAdapter(PuzzleDatasetMetadata).dump_python(self, exclude_defaults=True)
        return json.dumps(values, indent=2) + "\n"

    def array_paths(self, split_dir: Path, set_name: str) -> dict[str, Path]:
        """Return the files of a set by the names of the arrays, its fields behind the others."""
        names = [*(LAZY_ARC_FIELDS if self.format else SET_FIELDS)]
        names += [RATINGS] if self.ratings else []
        names += [name for name, declared in self.fields.items() if not declared.derived]
        return {name: split_dir / f"{set_name}__{name}.npy" for name in names}

    def files(self, split_dir: Path, label_fields: Collection[str] | None = None) -> list[Path]:
        """Return the files of a split; of its further labels only those named (None: all)."""
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
            DatasetError: no JSON object, or a key is missing or its value wrong; it names the file,
                the key and the value.
        """
        values = read_json_object(path)
        known = [each.name for each in fields(cls) if each.name in values]
        try:
            return cls(**{name: values[name] for name in known})
        except ValidationError as error:
            raise DatasetError(f"{path}: {_problem(error)}") from None


@dataclass(frozen=True)
class PuzzleSet:
    """The arrays of one set, the first two and the fields memory-mapped when read from disk.

    Args:
        inputs: integer [examples, seq_len].
        labels: integer [examples, seq_len].
        puzzle_identifiers: integer [puzzles].
        puzzle_indices: integer [puzzles + 1]; puzzle p holds examples puzzle_indices[p] to [p + 1].
        group_indices: integer [groups + 1]; group g holds puzzles group_indices[g] to [g + 1].
        fields: the further labels by name, uint8 [examples, seq_len] or [examples, seq_len,
            channels]; derived ones are not among them.
        ratings: integer [groups], how hard each original puzzle is; None: not known.
    """

    inputs: np.ndarray
    labels: np.ndarray
    puzzle_identifiers: np.ndarray
    puzzle_indices: np.ndarray
    group_indices: np.ndarray
    fields: Mapping[str, np.ndarray] = field(default_factory=dict, kw_only=True)
    ratings: np.ndarray | None = field(default=None, kw_only=True)

    def example_ratings(self) -> np.ndarray | None:
        """Return the rating of each example, that of its original: integer [examples]."""
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
    """Original ARC grids, and what each puzzle does to them: rows are made when they are read.

    Args:
        inputs: uint8 [stored, 900], the pairs of each task in the top left corner of the canvas.
        labels: the same; of pad_id only where the output is not known.
        puzzle_indices: counts the examples that are made.
        source_indices: integer [groups + 1]; all puzzles of group g have, in this order, the stored
            pairs source_indices[g] to [g + 1].
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
    """Say which value is the first to be refused, and why."""
    first = error.errors(include_url=False)[0]
    key = shown(".".join(map(str, first["loc"])))
    if not key:
        return str(first.get("ctx", {}).get("error", first["msg"]))  # One of ours, which says all.
    if first["type"] == "missing":
        return f"{key} is missing"
    if first["type"] == "unexpected_keyword_argument":
        accepted = ", ".join(each.name for each in fields(LabelField))
        return f"{key}: no such key; accepted: {accepted}"
    reason = first["msg"].lower().replace("tuple", "list")  # As it is called in JSON.
    return f"{key} is {quoted(first['input'])}: {reason}"
