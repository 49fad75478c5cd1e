"""Build one data set of several kinds of puzzles, for one model that learns them all.

    python dataset/build_mixed_dataset.py --output-dir data/mixed \\
        --parts data/latin-square,data/futoshiki,data/queens

Each puzzle lies in the upper left corner of a board of the largest size; the rest is padding. All
kinds use the same tokens, and a puzzle's identifier, its row of the puzzle embedding, tells its
kind. Training puzzles form one set in which each kind has about as many groups: those of smaller
parts are repeated. Test puzzles form a set for each kind. Label fields, ratings and selection
puzzles are left out.
"""

import sys
from collections.abc import Sequence
from math import isqrt
from pathlib import Path

import numpy as np

from dataset.command_line import Parser, command_of, flag, run_tool
from dataset.format.files import is_folder, write_json
from dataset.format.reading import fingerprint, load_split
from dataset.format.schema import (
    BLANK_NAME,
    IDENTIFIERS_NAME,
    METADATA_NAME,
    PuzzleDatasetMetadata,
    PuzzleSet,
)
from dataset.format.writing import IDS, atomic_build, write_manifest, write_split
from dataset.kinds import KINDS
from dataset.kinds.base import only_kind_with
from dataset.kinds.mixed import MIXED
from runtime.errors import DatasetError

SPLITS = ("train", "test")
Parts = list[tuple[PuzzleDatasetMetadata, PuzzleSet]]
"""A split of each part: its metadata, and its sets as one."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and build; return the exit code."""
    return run_tool(lambda: make(arguments))


def make(arguments: Sequence[str] | None) -> str:
    """Build with this command line and return a summary.

    Raises:
        DatasetError: a part cannot be read or joined, or two parts are of the same kind.
    """
    parser = Parser(prog=Path(__file__).name, description=str(__doc__).partition("\n\n")[0])
    parser.add_argument("--output-dir", **flag("folder to write", Path), required=True)
    parts = flag("folders of data sets, each of another kind", metavar="A,B,...")
    parser.add_argument("--parts", **parts, required=True)
    options = parser.parse_all(arguments)
    folders = [Path(folder) for folder in options.parts.split(",")]
    for folder in folders:
        if not is_folder(folder):
            raise DatasetError(f"--parts: {folder}: no such folder; build this data set first")
    splits = {split: [read_part(folder / split) for folder in folders] for split in SPLITS}
    trained = zip(splits["train"], folders, strict=True)
    kinds = [kind_of(metadata, folder) for (metadata, _), folder in trained]
    if len({*kinds}) < len(kinds):
        raise DatasetError(f"--parts: two of the same kind: {', '.join(kinds)}")
    read = [folder / split for folder in folders for split in SPLITS]
    sources = {str(folder): fingerprint(folder) for folder in read}
    with atomic_build(options.output_dir) as directory:
        counts = {}
        for split, parts in splits.items():
            sets = padded_sets(parts, kinds)
            counts[split] = {name: one.num_groups for name, one in sets.items()}
            if split == "train":
                sets = {"all": joined(balanced([*sets.values()]))}
            write_split(directory / split, metadata_of(parts, sets), sets)
        write_json(directory / IDENTIFIERS_NAME, [BLANK_NAME, *kinds])
        command = command_of(parser.prog, options)
        write_manifest(directory, command=command, seed=0, sources=sources, counts=counts)
    numbers = ", ".join(f"{number:,} of {kind}" for kind, number in counts["train"].items())
    return f"{options.output_dir}: written: training puzzles, {numbers}\n"


def read_part(split_dir: Path) -> tuple[PuzzleDatasetMetadata, PuzzleSet]:
    """Read a split of a part."""
    metadata, sets = load_split(split_dir, fields=())
    square = isqrt(metadata.seq_len) ** 2 == metadata.seq_len
    padded = metadata.pad_id == metadata.ignore_label_id == 0
    if not (square and padded and sets) or metadata.num_puzzle_identifiers > 1:
        accepted = "square grids, token 0 as padding and ignored label, one puzzle identifier"
        raise DatasetError(f"{split_dir / METADATA_NAME}: accepted in a mixed set: {accepted}")
    return metadata, joined([*sets.values()])


def kind_of(metadata: PuzzleDatasetMetadata, folder: Path) -> str:
    """Return the kind of a part; sets that do not name it have the only one that fits."""
    kind = metadata.kind or only_kind_with(metadata.seq_len, metadata.vocab_size) or "unknown"
    if kind not in KINDS:
        raise DatasetError(f"{folder}: its kind of puzzles is {kind}; accepted: {', '.join(KINDS)}")
    return kind


def padded_sets(parts: Parts, kinds: Sequence[str]) -> dict[str, PuzzleSet]:
    """Return the puzzles of each kind on boards of the largest size; identifiers count from 1."""
    side = max(isqrt(metadata.seq_len) for metadata, _ in parts)
    sets = {}
    for number, (kind, (metadata, arrays)) in enumerate(zip(kinds, parts, strict=True), start=1):
        rows = isqrt(metadata.seq_len)
        around = (0, 0), (0, side - rows), (0, side - rows)
        inputs, labels = (
            np.pad(boards.reshape(-1, rows, rows), around).reshape(-1, side * side)
            for boards in (arrays.inputs, arrays.labels)
        )
        identifiers = np.full(arrays.num_puzzles, number)
        sets[kind] = PuzzleSet(
            inputs, labels, identifiers, arrays.puzzle_indices, arrays.group_indices
        )
    return sets


def balanced(sets: Sequence[PuzzleSet]) -> list[PuzzleSet]:
    """Return the sets, each as often as gives it about as many groups as the largest has."""
    most = max(one.num_groups for one in sets)
    return [one for one in sets for _ in range(round(most / max(1, one.num_groups)))]


def joined(sets: Sequence[PuzzleSet]) -> PuzzleSet:
    """Return one set with the puzzles of all, in order, without fields and ratings."""

    def offsets(name: str) -> np.ndarray:
        lengths = [np.diff(getattr(one, name)) for one in sets]
        return np.concatenate([[0], np.concatenate(lengths).cumsum()])

    inputs, labels, identifiers = (
        np.concatenate([getattr(one, name) for one in sets])
        for name in ("inputs", "labels", "puzzle_identifiers")
    )
    return PuzzleSet(
        inputs, labels, identifiers, offsets("puzzle_indices"), offsets("group_indices")
    )


def metadata_of(parts: Parts, sets: dict[str, PuzzleSet]) -> PuzzleDatasetMetadata:
    """Return the metadata of a split; it has the largest vocabulary of the parts."""
    puzzles = sum(one.num_puzzles for one in sets.values())
    return PuzzleDatasetMetadata(
        **IDS,
        vocab_size=max(metadata.vocab_size for metadata, _ in parts),
        seq_len=max(metadata.seq_len for metadata, _ in parts),
        num_puzzle_identifiers=1 + len(parts),
        total_groups=sum(one.num_groups for one in sets.values()),
        mean_puzzle_examples=sum(one.num_examples for one in sets.values()) / max(1, puzzles),
        sets=tuple(sets),
        total_puzzles=puzzles,
        kind=MIXED.key,
    )


if __name__ == "__main__":
    sys.exit(main())
