"""The files of a built data set, as docs/data.md describes them.

A group is one original puzzle with its augmentations, a puzzle is one augmentation of it, and a
puzzle holds one or several examples. This is the published format of HRM (arXiv:2506.21734); on
reading, any integer dtype is accepted, because published Sudoku sets hold int64.
"""

from collections.abc import Collection
from pathlib import Path

from dataset.format.schema import (
    LAZY_ARC,
    LAZY_ARC_FIELDS,
    RATINGS,
    SET_FIELDS,
    PuzzleDatasetMetadata,
)

MANIFEST_NAME = "manifest.json"
AUGMENTATIONS_NAME = "augmentations.npy"
METADATA_NAME = "dataset.json"
IDENTIFIERS_NAME = "identifiers.json"
BLANK_NAME = "<blank>"  # That of identifier 0.
TEST_PUZZLES_NAME = "test_puzzles.json"


def array_paths(split_dir: Path, set_name: str, metadata: PuzzleDatasetMetadata) -> dict[str, Path]:
    """Return the files of a set by the names of the arrays, its fields behind the others."""
    names = [*(SET_FIELDS if metadata.format is None else LAZY_ARC_FIELDS)]
    names += [RATINGS] if metadata.ratings else []
    names += [name for name, declared in metadata.fields.items() if not declared.derived]
    return {name: split_dir / f"{set_name}__{name}.npy" for name in names}


def split_files(
    split_dir: Path, metadata: PuzzleDatasetMetadata, label_fields: Collection[str] | None = None
) -> list[Path]:
    """Files of a split; of its further labels only those named (None: all)."""
    files = [split_dir / METADATA_NAME]
    for name in metadata.sets:
        for part, path in array_paths(split_dir, name, metadata).items():
            if label_fields is None or part not in metadata.fields or part in label_fields:
                files.append(path)
    if metadata.format == LAZY_ARC:
        files.append(split_dir.parent / AUGMENTATIONS_NAME)
    return files
