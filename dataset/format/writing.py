"""Writing data sets, and moving them into place in one step when they are complete."""

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dataset.format.files import file_sha256, json_sha256, write_array, write_json
from dataset.format.schema import (
    AUGMENTATIONS_NAME,
    IDENTIFIERS_NAME,
    MANIFEST_NAME,
    METADATA_NAME,
    RATINGS,
    TEST_PUZZLES_NAME,
    LabelField,
    PuzzleDatasetMetadata,
    PuzzleSet,
)
from runtime import files
from runtime.errors import REFUSALS, ConfigError, DatasetError, disk_errors

IDS: dict[str, Any] = dict.fromkeys(("pad_id", "ignore_label_id", "blank_identifier_id"), 0)
Fields = Mapping[str, tuple[LabelField, np.ndarray]]
"""Label fields by name: the declaration, and the values, uint8 [puzzles, seq_len, ...]."""
_OWN_NAMES = {MANIFEST_NAME, IDENTIFIERS_NAME, TEST_PUZZLES_NAME, AUGMENTATIONS_NAME}
_OWN_NAMES |= {"train", "test", "selection"}
_DTYPES = {"inputs": np.uint8, "labels": np.uint8, RATINGS: np.int64}


def write_split(
    split_dir: Path, metadata: PuzzleDatasetMetadata, sets: Mapping[str, PuzzleSet]
) -> None:
    """Write one split, DIR/train or DIR/test.

    Inputs, labels and fields become uint8, ratings int64, the rest int32. Reading, not
    writing, checks that the arrays match `metadata`.

    Args:
        sets: the arrays by the names in `metadata.sets`; lazy sets' augmentations are not written.
    Raises:
        DatasetError: a value does not fit its dtype.
    """
    split_dir.mkdir(parents=True, exist_ok=True)
    for name in metadata.sets:
        for part, path in metadata.array_paths(split_dir, name).items():
            field = sets[name].fields.get(part)
            if field is None:
                write_array(path, getattr(sets[name], part), _DTYPES.get(part, np.int32))
            else:
                write_array(path, field, np.uint8)
    files.write_bytes(split_dir / METADATA_NAME, metadata.to_json().encode())
    files.fsync(split_dir)


def write_puzzles(
    split_dir: Path,
    inputs: np.ndarray,
    labels: np.ndarray,
    *,
    vocab_size: int,
    views: int = 1,
    fields: Fields | None = None,
    ratings: np.ndarray | None = None,
    kind: str | None = None,
) -> None:
    """Write a split of puzzles with one example each and the same identifier.

    Args:
        inputs, labels: integer [puzzles, seq_len]; 0 is padding, and is ignored.
        views: puzzles of each group; they stand together, the original first.
        ratings: the difficulty of each original, integer [puzzles / views], or None if unknown.
        kind: the kind of puzzles, a name in `dataset.kinds.KINDS`.
    """
    (num_puzzles, seq_len), further = inputs.shape, fields or {}
    starts = np.arange(num_puzzles + 1)
    metadata = PuzzleDatasetMetadata(
        **IDS,
        num_puzzle_identifiers=1,
        vocab_size=int(vocab_size),
        seq_len=seq_len,
        total_groups=num_puzzles // views,
        mean_puzzle_examples=1.0,
        sets=("all",),
        total_puzzles=num_puzzles,
        fields={name: declared for name, (declared, _) in further.items()},
        ratings=ratings is not None,
        kind=kind,
    )
    arrays = PuzzleSet(
        inputs,
        labels,
        np.zeros(num_puzzles, int),
        starts,
        starts[::views],
        fields={name: values for name, (_, values) in further.items()},
        ratings=ratings,
    )
    write_split(split_dir, metadata, {"all": arrays})


def write_manifest(
    directory: Path,
    *,
    command: Sequence[str],
    seed: int,
    sources: Mapping[str, str],
    counts: Mapping[str, Any],
) -> None:
    """Write DIR/manifest.json, the last file of a build: its command, sources, counts and files.

    Args:
        command: the command, without the output folder if the bytes must not depend on it.
        sources: sha256 of each input file by name.
        counts: numbers of puzzles read, dropped and written.
    """
    written = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    manifest = {
        "command": list(command),
        "seed": seed,
        "sources": dict(sources),
        "counts": dict(counts),
        "files": {path.relative_to(directory).as_posix(): file_sha256(path) for path in written},
    }
    path = directory / MANIFEST_NAME
    write_json(path, {**manifest, "sha256": json_sha256(manifest)})


@contextlib.contextmanager
def atomic_build(output_dir: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `output_dir` that replaces it when the block succeeds.

    A killed build leaves the old data set or the new one, never a mix. Readers of the old set keep
    its files. The next build removes the leftovers of killed ones.

    Raises:
        DatasetError: `output_dir` is a file or a folder with anything but a data set, which is left
            alone; or the disk fails.
        ConfigError: the folder is not writable.
    """
    output = Path(output_dir).resolve()
    try:
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
                # After an error it holds the unfinished set, after an exchange the old one.
                shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        kind = ConfigError if error.errno in REFUSALS else DatasetError
        raise kind(f"{output_dir}: {error}") from error


def require_place(output_dir: Path) -> None:
    """Check, before long work, what `atomic_build` checks; raise what it raises. Create nothing."""
    output = Path(output_dir).resolve()
    with disk_errors(output, ConfigError):
        _require_replaceable(output)
        above = next(folder for folder in output.parents if folder.is_dir())
        if not os.access(above, os.W_OK):
            raise ConfigError(f"{output}: {above} is not writable")


def _require_replaceable(output: Path) -> None:
    if not output.exists():
        return
    if not output.is_dir():
        raise DatasetError(f"{output}: exists and is not a folder")
    names = {path.name for path in output.iterdir()}
    is_set = any((output / split / METADATA_NAME).is_file() for split in ("train", "test"))
    if names and not is_set:
        raise DatasetError(f"{output}: exists and is not a data set; choose another folder")
    inside = {
        f"{path.parent.name}/{path.name}"
        for path in output.glob("*/*")
        if path.name != METADATA_NAME and not path.match("*__*.npy")
    }
    if foreign := min((names - _OWN_NAMES) | inside, default=None):
        problem = f"{foreign} is no part of the data set and would be deleted"
        raise DatasetError(f"{output}: {problem}; move it, or choose another folder")
