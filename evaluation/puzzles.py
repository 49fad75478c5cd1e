"""Read puzzles from data sets, files and typed text, and tell their kind. Imports no torch."""

from collections.abc import Iterator, Sequence

import numpy as np

from dataset.format.files import read_json
from dataset.format.reading import load_metadata, parse_names
from dataset.format.schema import BLANK_NAME, IDENTIFIERS_NAME, IGNORE_LABEL_ID, METADATA_NAME
from dataset.kinds import KINDS
from dataset.kinds.base import Kind, Puzzle, kind_named, kinds_with, known_kind
from models.config import DataFacts
from puzzle_dataset import PuzzleDataset
from runtime.errors import DatasetError


def kind_of(facts: DataFacts, evaluators: Sequence[str] = ()) -> Kind | None:
    """Return the kind of the puzzles; None if several kinds fit and neither the facts nor the names
    of `evaluators` tell which one.

    Raises:
        ValueError: no known kind fits.
    """
    if facts.kind:
        return kind_named(facts.kind)
    sizes = facts.seq_len, facts.vocab_size
    kinds = kinds_with(*sizes)
    if len(kinds) != 1:  # Puzzles on a canvas cut to them have fewer tokens than their kind.
        named = [kind for kind in map(KINDS.load, KINDS) if kind.key in evaluators]
        kinds = [kind for kind in named if kind.fits(*sizes)] or kinds
    if not kinds:
        *others, last = (kind.name for kind in map(KINDS.load, KINDS) if kind.is_published)
        known = f"{', '.join(others)} or {last} puzzles"
        raise ValueError(f"{facts.vocab_size} tokens and {facts.seq_len} cells are no {known}")
    return kinds[0] if len(kinds) == 1 else None


def kind_of_data(dataset: PuzzleDataset) -> Kind:
    """Return the kind of a data set's puzzles.

    Raises:
        DatasetError: no known kind fits, or several do.
    """
    metadata, path = dataset.metadata, dataset.split_dirs[0] / METADATA_NAME
    facts = DataFacts(metadata.vocab_size, metadata.seq_len, 1, kind=dataset.kind)
    try:
        kind = kind_of(facts)
    except ValueError as error:
        raise DatasetError(f"{path}: {error}") from None
    if kind is None:
        several = "several kinds of puzzles have this number of cells and tokens"
        raise DatasetError(f"{path}: {several}; add the name of the right one as its kind")
    return kind


def kind_of_many_answers(dataset: PuzzleDataset) -> Kind | None:
    """Return the puzzles' kind if they may have several right answers."""
    kind = known_kind(dataset.kind)
    return kind if kind and kind.many_answers else None


def parse_puzzle(text: str, kind: Kind | None) -> Puzzle:
    """Parse a puzzle. If `kind` is None, use the first kind that recognises the text.

    Raises:
        ValueError: the text is not a puzzle.
    """
    kinds: list[Kind] = list(map(KINDS.load, KINDS))
    guessed = next((one for one in kinds if one.recognises(text)), kinds[0])
    return (kind or guessed).parse(text)


def identifiers_of(dataset: PuzzleDataset) -> list[str]:
    """Return the name of each puzzle identifier of a data set.

    Raises:
        DatasetError: an identifiers.json is missing or broken.
    """
    names = [BLANK_NAME] * dataset.metadata.num_puzzle_identifiers
    for folder, offset in zip(dataset.split_dirs, dataset.identifier_offsets, strict=True):
        path = folder.parent / IDENTIFIERS_NAME
        found = parse_names(read_json(path), path)
        expected = load_metadata(folder).num_puzzle_identifiers
        if len(found) != expected:
            counted = f"num_puzzle_identifiers is {expected} in {folder / METADATA_NAME}"
            raise DatasetError(f"{path}: {len(found)} names, but {counted}")
        names[offset : offset + len(found)] = found
    return names


def puzzles_of(
    dataset: PuzzleDataset, kind: Kind, rows: slice | Sequence[int] | None = None
) -> Iterator[Puzzle]:
    """Yield all puzzles of a data set, or those with these row numbers, counted over its sets. A
    sequence of rows must be in ascending order.

    Raises:
        DatasetError: the puzzles are not of this kind, or an identifier has no name.
    """
    place = dataset.split_dirs[0]
    names = identifiers_of(dataset) if kind.is_named else []
    counts = [arrays.num_examples for arrays in dataset.sets.values()]
    wanted = rows if isinstance(rows, Sequence) else range(sum(counts))[rows or slice(None)]
    first = 0
    for (set_name, arrays), count in zip(dataset.sets.items(), counts, strict=True):
        own = np.array([row - first for row in wanted if first <= row < first + count], np.int64)
        first += count
        if not len(own):
            continue
        puzzles = np.searchsorted(arrays.puzzle_indices, own, side="right") - 1
        batch = dataset.read(set_name, own, arrays.puzzle_identifiers[puzzles])
        of_set = f"{set_name}, " if len(counts) > 1 else ""
        for row, inputs, labels, identifier in zip(
            own.tolist(), batch.inputs, batch.labels, batch.puzzle_identifiers.tolist(), strict=True
        ):
            try:
                question = kind.to_grid(inputs)
                known = (labels != IGNORE_LABEL_ID).any()
                target = kind.to_grid(np.maximum(labels, 0)) if known else None
            except ValueError as error:
                raise DatasetError(f"{place}: not {kind.name} puzzles: {error}") from None
            name = names[identifier] if kind.is_named else ""
            yield Puzzle(kind, question, target, identifier, name, row, f"{of_set}puzzle {row}")
