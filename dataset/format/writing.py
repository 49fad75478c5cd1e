"""Write data sets: checked as on reading, and put in place in one step when they are complete."""

import contextlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dataset.format import layout
from dataset.format.checks import check_augmentations, check_fields, check_set, check_totals
from dataset.format.files import file_sha256, json_sha256, write_array, write_json
from dataset.format.layout import METADATA_NAME
from dataset.format.schema import (
    LAZY_ARC,
    RATINGS,
    LabelField,
    LazyArcSet,
    PuzzleDatasetMetadata,
    PuzzleSet,
)
from runtime import files
from runtime.errors import DatasetError

_DTYPES = {"inputs": np.uint8, "labels": np.uint8, RATINGS: np.int64}


def write_split(
    split_dir: Path, metadata: PuzzleDatasetMetadata, sets: Mapping[str, PuzzleSet]
) -> None:
    """Write one split: inputs, labels and further labels as uint8, ratings as int64, the rest as
    int32.

    Everything is checked first, as on reading; each file is fsynced. Of lazy sets all but their
    augmentations is written: see `write_augmentations`.

    Args:
        split_dir: DIR/train or DIR/test; it is created.
        sets: the arrays by the names in `metadata.sets`.
    Raises:
        DatasetError: the arrays contradict `metadata` or do not fit their dtypes.
    """
    split_dir = Path(split_dir)
    if tuple(sets) != metadata.sets:
        raise DatasetError(f"{split_dir}: sets {list(sets)} given, {list(metadata.sets)} announced")
    for name, arrays in sets.items():
        if isinstance(arrays, LazyArcSet) != (metadata.format == LAZY_ARC):
            raise DatasetError(f"{split_dir}: set {name} has another format than its metadata")
        if (arrays.ratings is not None) != metadata.ratings:
            says = "no ratings, but its metadata promise them"
            if not metadata.ratings:
                says = "ratings, but its metadata do not say so"
            raise DatasetError(f"{split_dir}: set {name} has {says}")
        paths = layout.array_paths(split_dir, name, metadata)
        check_set(arrays, metadata, paths, check_values=True)
        further = layout.field_paths(split_dir, name, metadata)
        if arrays.fields.keys() != further.keys():
            found = f"has the fields {sorted(arrays.fields)}, announced are {sorted(further)}"
            raise DatasetError(f"{split_dir}: set {name} {found}")
        check_fields(arrays, metadata, further, check_values=further)
    check_totals(metadata, sets, split_dir / METADATA_NAME)

    split_dir.mkdir(parents=True, exist_ok=True)
    for name, arrays in sets.items():
        for part, path in layout.array_paths(split_dir, name, metadata).items():
            write_array(path, getattr(arrays, part), _DTYPES.get(part, np.int32))
        for part, path in layout.field_paths(split_dir, name, metadata).items():
            write_array(path, arrays.fields[part], np.uint8)
    files.write_bytes(split_dir / METADATA_NAME, metadata.to_json().encode())
    files.fsync(split_dir)


def write_puzzles(
    split_dir: Path,
    inputs: np.ndarray,
    labels: np.ndarray,
    *,
    vocab_size: int,
    views: int = 1,
    fields: Mapping[str, tuple[LabelField, np.ndarray]] | None = None,
    ratings: np.ndarray | None = None,
    kind: str | None = None,
) -> None:
    """Write a split of puzzles that hold one example each and have no embedding of their own.

    Args:
        inputs: integer [puzzles, seq_len]; 0 is padding.
        labels: integer [puzzles, seq_len]; 0 is ignored.
        vocab_size: tokens and labels are below it.
        views: puzzles of a group, which stand together, the original first.
        fields: further labels by name, as they are declared and uint8 [puzzles, seq_len, ...].
        ratings: how hard each original is, integer [puzzles / views]; None: not known.
        kind: of the puzzles, a name of `dataset.kinds.KINDS`.
    Raises:
        DatasetError: as `write_split`.
    """
    num_puzzles, seq_len = inputs.shape
    further = fields or {}
    metadata = PuzzleDatasetMetadata(
        pad_id=0,
        ignore_label_id=0,
        blank_identifier_id=0,
        vocab_size=vocab_size,
        seq_len=seq_len,
        num_puzzle_identifiers=1,
        total_groups=num_puzzles // views,
        mean_puzzle_examples=1.0,
        sets=("all",),
        total_puzzles=num_puzzles,
        fields={name: declared for name, (declared, _) in further.items()},
        ratings=ratings is not None,
        kind=kind,
    )
    identifiers = np.zeros(num_puzzles, dtype=np.int32)
    starts = np.arange(num_puzzles + 1, dtype=np.int32)
    values = {name: values for name, (_, values) in further.items()}
    groups = starts[::views]
    arrays = PuzzleSet(inputs, labels, identifiers, starts, groups, fields=values, ratings=ratings)
    write_split(split_dir, metadata, {"all": arrays})


def write_augmentations(directory: Path, augmentations: np.ndarray) -> None:
    """Write DIR/augmentations.npy, which the lazy sets of all splits in DIR share.

    uint8 [identifiers, 10]: the view, then the new colours of 1 to 9.

    Raises:
        DatasetError: a view above 7, or colours that are no permutation; names the row.
    """
    path = Path(directory) / layout.AUGMENTATIONS_NAME
    check_augmentations(augmentations, len(augmentations), path)
    write_array(path, augmentations, np.uint8)


def write_manifest(
    directory: Path,
    *,
    command: Sequence[str],
    seed: int,
    sources: Mapping[str, str],
    counts: Mapping[str, Any],
) -> None:
    """Write DIR/manifest.json, last of all files: how the set was built, and what it consists of.

    No time, host or path enters it on its own: the same command gives the same bytes.

    Args:
        directory: the folder being built (with train/ and test/).
        command: what was asked for, without the output folder if the bytes shall not depend on it.
        sources: sha256 by name of each input file.
        counts: what was read, dropped and written.
    """
    directory = Path(directory)
    manifest_path = directory / layout.MANIFEST_NAME
    written = [p for p in sorted(directory.rglob("*")) if p.is_file() and p != manifest_path]
    manifest = {
        "command": list(command),
        "seed": int(seed),
        "sources": dict(sources),
        "counts": dict(counts),
        "files": {p.relative_to(directory).as_posix(): file_sha256(p) for p in written},
    }
    write_json(manifest_path, {**manifest, "sha256": json_sha256(manifest)})


@contextlib.contextmanager
def atomic_build(output_dir: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `output_dir` that takes its place when the block succeeds.

    A build that is killed leaves the old data set or the new one, never a mix. Whoever has the old
    set open keeps reading the old files. Temporary folders of killed builds are removed by the next
    build of the same folder; a lock tells them from those of a running one: see `runtime.files`.

    Raises:
        DatasetError: `output_dir` is a file, or a folder that holds something else than a data set;
            nothing is touched then.
    """
    output = Path(output_dir).resolve()
    _require_replaceable(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    files.clear_leftovers(output)
    with files.locked_sibling(output) as temporary:
        try:
            yield temporary
            files.fsync_tree(temporary)
            _require_replaceable(output)
            files.swap_into_place(temporary, output)
        finally:
            # Holds the half-built set after an error, the old set after an exchange, else nothing.
            shutil.rmtree(temporary, ignore_errors=True)


def _require_replaceable(output: Path) -> None:
    if not output.exists():
        return
    if not output.is_dir():
        raise DatasetError(f"{output}: exists and is not a folder")
    marks = (f"train/{METADATA_NAME}", f"test/{METADATA_NAME}", layout.MANIFEST_NAME)
    if any(output.iterdir()) and not any((output / mark).is_file() for mark in marks):
        raise DatasetError(f"{output}: exists and is not a data set; refusing to replace it")
