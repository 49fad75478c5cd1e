"""Batches from built data sets: random ones for training, all rows in order for evaluation.

The training batch at (iteration, position) is a pure function of (seed, iteration, position):
nothing is carried from batch to batch, so a run resumes anywhere, and every rank draws the same
global batch and reads only its own slice of it. In the order in which data flows:

    PuzzleDataset   one or several built folders, opened and checked
    TrainBatches    one iteration = `epochs_per_iter` epochs; each epoch is a fresh permutation of
                    the groups; each group drawn gives one random puzzle, and of it up to as many
                    random examples as the batch still has room for, without replacement
    EvalBatches     the rows of each set in order, the last batch padded

Several sets (or folders) are taken one after the other inside an iteration, each with its own
batches and its own incomplete last batch dropped, as the published loaders of HRM and TRM do.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from itertools import islice
from pathlib import Path

import numpy as np

from dataset.format.reading import fingerprint, load_metadata, load_split
from dataset.format.schema import (
    IGNORE_LABEL_ID,
    METADATA_NAME,
    LabelField,
    LazyArcSet,
    PuzzleDatasetMetadata,
    PuzzleSet,
)
from dataset.kinds import KINDS
from dataset.kinds.base import kind_named, kinds_with
from runtime.errors import DatasetError
from runtime.streams import Stream, random_words

# What a draw is for: the highest word of its counter in `Stream.BATCHES`.
_GROUPS, _EXAMPLES, _SHIFTS = 0, 1, 2
_DRAWS_PER_CHUNK = 2**15


@dataclass(frozen=True)
class Batch:
    """The rows of one rank, always b = global_batch_size / world_size of them.

    Args:
        inputs, labels: int32 [b, S] token ids; labels are -100 where ignored.
        puzzle_identifiers: int32 [b].
        fields: the further labels asked for, by name, int32 [b, S] or [b, S, channels], -100 where
            unknown.
    """

    inputs: np.ndarray
    labels: np.ndarray
    puzzle_identifiers: np.ndarray
    fields: dict[str, np.ndarray] = field(default_factory=dict)

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays by name, the fields beside the others."""
        cells = {"inputs": self.inputs, "labels": self.labels}
        return cells | {"puzzle_identifiers": self.puzzle_identifiers} | self.fields


@dataclass(frozen=True)
class BatchRows:
    """Where a batch comes from: int64 [B] rows of a set, int32 [B] their identifiers."""

    set_name: str
    rows: np.ndarray
    puzzle_identifiers: np.ndarray


class PuzzleDataset:
    """One split of one or several built data sets, opened and checked.

    Several folders must agree in vocabulary, sequence length, pad, ignore and blank ids. The
    identifiers of each folder are shifted by the number of identifiers of those before it. (The
    published TRM loader adds up the counts without shifting, so that different puzzles share an
    embedding.) Set NAME of folder i > 0 is called NAMEi, as there.

    Attributes:
        metadata: of all folders together; its `sets` are the keys of `sets`.
        identifier_offsets: of each folder, by how much its identifiers are shifted.
    Args:
        paths: folders that hold `split`/dataset.json.
        fields: names of the further labels that batches shall hold; each folder must declare them.
        check_values: also read every token once and compare the manifest's hashes; processes
            beside one that does this may do without.
        numbered_as: the folders that a model was trained on, in their order. Folders of `paths`
            that are among them have their identifiers shifted as there.
    Raises:
        DatasetError: names the file at fault.
    """

    def __init__(
        self,
        paths: Sequence[Path | str],
        split: str,
        *,
        fields: Sequence[str] = (),
        check_values: bool = True,
        numbered_as: Sequence[Path | str] = (),
    ) -> None:
        if not paths:
            raise DatasetError("no data path given")
        self.fields = wanted = tuple(dict.fromkeys(fields))
        self.split_dirs = [Path(path) / split for path in paths]
        opened = [load_split(p, fields=wanted, check_values=check_values) for p in self.split_dirs]
        parts = [metadata for metadata, _ in opened]
        for metadata, split_dir in zip(parts, self.split_dirs, strict=True):
            _require_agreement(parts[0], metadata, wanted, split_dir / METADATA_NAME)

        counts = [metadata.num_puzzle_identifiers for metadata in parts]
        self.identifier_offsets, total = _identifier_offsets(paths, counts, numbered_as)
        self.sets: dict[str, PuzzleSet] = {}
        for name in dict.fromkeys(name for metadata in parts for name in metadata.sets):
            for i, (_, sets) in enumerate(opened):
                if name not in sets:
                    continue
                key = f"{name}{i}" if i else name
                if key in self.sets:
                    raise DatasetError(f"{self.split_dirs[i]}: there are two sets {key!r}")
                identifiers = sets[name].puzzle_identifiers.astype(np.int64)
                shifted = (identifiers + self.identifier_offsets[i]).astype(np.int32)
                self.sets[key] = dataclasses.replace(sets[name], puzzle_identifiers=shifted)
        num_puzzles = [sum(each.num_puzzles for each in sets.values()) for _, sets in opened]
        self.metadata = _merge(parts, num_puzzles, tuple(self.sets), total)

    @cached_property
    def kind(self) -> str | None:
        """The name of the puzzles' kind, as dataset.json says; of sets that say none, such as the
        published ones, the kind that has so many cells and tokens. None: not just one.

        Raises:
            DatasetError: puzzles of that kind have other cells or tokens.
        """
        seq_len, vocab_size = self.metadata.seq_len, self.metadata.vocab_size
        if (name := self.metadata.kind) is None:
            kinds = kinds_with(seq_len, vocab_size)
            return kinds[0].key if len(kinds) == 1 else None
        if name in KINDS and not kind_named(name).fits(seq_len, vocab_size):
            found = f"kind is {name!r}, which {seq_len} cells and {vocab_size} tokens are not"
            raise DatasetError(f"{self.split_dirs[0] / METADATA_NAME}: {found}")
        return name

    def fingerprint(self) -> str:
        """sha256 (hex) over the content of all files, in the order of the paths."""
        parts = "\n".join(fingerprint(split_dir) for split_dir in self.split_dirs)
        return hashlib.sha256(parts.encode()).hexdigest()

    def read(
        self,
        set_name: str,
        rows: np.ndarray | slice,
        identifiers: np.ndarray,
        shifts: np.ndarray | None = None,
    ) -> Batch:
        """Read rows of a set as a batch; ignored labels and unknown values of fields become -100.

        Args:
            rows: int64 [b], or a slice.
            identifiers: int32 [b], as the batch shall hold them.
            shifts: uint64 [b], for each row of a lazy set the random word that moves its grids
                inside the canvas (0 does not, as None).
        """
        arrays, metadata = self.sets[set_name], self.metadata
        if isinstance(arrays, LazyArcSet):
            # Imported here because it loads the compiler: only who reads such a set waits for it.
            from dataset.arc.lazy import colour_pixels, read_rows

            inputs, labels = read_rows(arrays, rows, shifts)
            # Pixels are the only field that such a set can declare.
            derived = {name: colour_pixels(labels) for name in self.fields}
            return Batch(inputs, labels, identifiers, derived)
        labels = arrays.labels[rows].astype(np.int32)
        if metadata.ignore_label_id is not None:
            labels[labels == metadata.ignore_label_id] = IGNORE_LABEL_ID
        stored = {}
        for name in self.fields:
            stored[name] = arrays.fields[name][rows].astype(np.int32)
            unknown = metadata.fields[name].unknown_label  # None is equal to no label.
            stored[name][(labels == IGNORE_LABEL_ID) | (labels == unknown)] = IGNORE_LABEL_ID
        return Batch(arrays.inputs[rows].astype(np.int32), labels, identifiers, stored)


class TrainBatches:
    """The endless stream of training batches, addressed by (iteration, position).

    Args:
        global_batch_size: rows of all ranks together, a multiple of world_size.
        epochs_per_iter: epochs in one iteration; batches run across the epochs inside it.
        rank: this process reads rows [rank * b, (rank + 1) * b) of each global batch.
    Raises:
        ValueError: global_batch_size is no multiple of world_size.
    """

    def __init__(
        self,
        dataset: PuzzleDataset,
        *,
        seed: int,
        global_batch_size: int,
        epochs_per_iter: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.dataset, self.epochs_per_iter = dataset, epochs_per_iter
        self.global_batch_size = global_batch_size
        self.local_batch_size = _local_batch_size(global_batch_size, world_size)
        self._local = slice(rank * self.local_batch_size, (rank + 1) * self.local_batch_size)
        self._samplers, self._shifts = {}, {}
        for number, (name, arrays) in enumerate(dataset.sets.items()):
            if arrays.num_groups:
                self._samplers[name] = _GroupSampler(arrays, seed, number)
            if isinstance(arrays, LazyArcSet):
                self._shifts[name] = _ShiftSampler(arrays, seed, number, global_batch_size)

    def steps_per_iteration(self, iteration: int) -> int:
        """Number of full batches in an iteration; reads no rows."""
        return sum(walk.num_batches() for _, walk in self._walks(iteration))

    def iterate(self, iteration: int, start: int = 0) -> Iterator[tuple[int, Batch]]:
        """Yield (position, this rank's batch) from `start` to the end of the iteration."""
        for position, drawn in self.iterate_rows(iteration, start):
            name, shifts = drawn.set_name, None
            if name in self._shifts:
                shifts = self._shifts[name].draw(iteration, position, drawn.rows)[self._local]
            own, identifiers = drawn.rows[self._local], drawn.puzzle_identifiers[self._local]
            yield position, self.dataset.read(name, own, identifiers, shifts)

    def iterate_rows(self, iteration: int, start: int = 0) -> Iterator[tuple[int, BatchRows]]:
        """Yield (position, rows of the global batch) like `iterate`, and read none of them."""
        position = 0
        for name, walk in self._walks(iteration):
            identifiers = self.dataset.sets[name].puzzle_identifiers
            skipped = min(start - position, walk.num_batches()) if start > position else 0
            position += skipped
            for span in walk.spans(skipped):
                rows, puzzles = walk.rows(*span)
                yield position, BatchRows(name, rows, identifiers[puzzles])
                position += 1

    def _walks(self, iteration: int) -> Iterator[tuple[str, _IterationWalk]]:
        epochs, batch_size = self.epochs_per_iter, self.global_batch_size
        for name, sampler in self._samplers.items():
            yield name, _IterationWalk(sampler, iteration, epochs, batch_size)


class EvalBatches:
    """All rows of each set in order, in batches of fixed shape; the same number on every rank.

    Yields (set_name, batch, count, start): this rank's slice of the global batch that holds rows
    [start, start + count) of the set. The last batch is padded with rows of pad_id, labels and
    fields -100, and blank_identifier_id: tell them by their labels or by `count`, never by the
    identifier, which real puzzles may have.

    Args:
        global_batch_size: rows of all ranks together, a multiple of world_size.
        max_examples: take the first rows of each set only (None: all).
    Raises:
        ValueError: global_batch_size is no multiple of world_size.
    """

    def __init__(
        self,
        dataset: PuzzleDataset,
        *,
        global_batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        max_examples: int | None = None,
    ) -> None:
        self.dataset, self.global_batch_size, self._rank = dataset, global_batch_size, rank
        self.local_batch_size = _local_batch_size(global_batch_size, world_size)
        self.num_examples = {
            name: len(range(arrays.num_examples)[:max_examples])
            for name, arrays in dataset.sets.items()
        }

    def __len__(self) -> int:
        return sum(-(-count // self.global_batch_size) for count in self.num_examples.values())

    def __iter__(self) -> Iterator[tuple[str, Batch, int, int]]:
        for name, num_examples in self.num_examples.items():
            for start in range(0, num_examples, self.global_batch_size):
                stop = min(start + self.global_batch_size, num_examples)
                first = min(start + self._rank * self.local_batch_size, stop)
                last = min(first + self.local_batch_size, stop)
                yield name, self._read_padded(name, first, last), stop - start, start

    def _read_padded(self, name: str, first: int, last: int) -> Batch:
        arrays, metadata = self.dataset.sets[name], self.dataset.metadata
        puzzles = np.searchsorted(arrays.puzzle_indices, np.arange(first, last), side="right") - 1
        batch = self.dataset.read(name, slice(first, last), arrays.puzzle_identifiers[puzzles])
        missing = self.local_batch_size - (last - first)
        if missing == 0:
            return batch

        def pad(array: np.ndarray, value: int) -> np.ndarray:
            rows = np.full((missing, *array.shape[1:]), value, array.dtype)
            return np.concatenate([array, rows])

        return Batch(
            pad(batch.inputs, metadata.pad_id),
            pad(batch.labels, IGNORE_LABEL_ID),
            pad(batch.puzzle_identifiers, metadata.blank_identifier_id),
            {name: pad(values, IGNORE_LABEL_ID) for name, values in batch.fields.items()},
        )


class _GroupSampler:
    """The draws of a set that is not empty: which groups in order, which puzzle, which examples.

    Each epoch owns a stretch of its iteration's counter. Word g of its first half orders group g,
    of its second half chooses the puzzle.
    """

    def __init__(self, arrays: PuzzleSet, seed: int, set_number: int) -> None:
        self.num_groups = arrays.num_groups
        self.puzzle_starts = arrays.puzzle_indices[:-1].astype(np.int64)
        self.puzzle_sizes = np.diff(arrays.puzzle_indices.astype(np.int64))
        group_indices = arrays.group_indices.astype(np.int64)
        self._group_starts = group_indices[:-1]
        self._group_puzzles = np.diff(group_indices).astype(np.uint64)
        self._seed, self._set_number = seed, set_number
        # Examples per puzzle where all have equally many, otherwise None.
        sizes = np.unique(self.puzzle_sizes)
        self.uniform_size = int(sizes[0]) if len(sizes) == 1 else None
        # Group g owns example slots slot_starts[g] to [g + 1], enough for its largest puzzle.
        largest = np.maximum.reduceat(self.puzzle_sizes, self._group_starts)
        self.slot_starts = np.concatenate([[0], np.cumsum(largest)])

    def draw_groups(self, iteration: int, first: int, epochs: int) -> np.ndarray:
        """Groups in the order drawn and the puzzle of each: int64 [2, epochs * num_groups]."""
        words = self._words(_GROUPS, iteration, first, epochs, 2 * self.num_groups)
        order_words, puzzle_words = words[:, : self.num_groups], words[:, self.num_groups :]
        # The group's number replaces the lowest bits of its word, so that one sort gives the order.
        number_mask = np.uint64((1 << self.num_groups.bit_length()) - 1)
        numbers = np.arange(self.num_groups, dtype=np.uint64)
        ordered = np.sort((order_words & ~number_mask) | numbers, axis=1)
        groups = (ordered & number_mask).astype(np.int64)

        # The high half of the word, times the count, over 2**32.
        half = np.uint64(32)
        picks = ((puzzle_words >> half) * self._group_puzzles) >> half
        puzzles = self._group_starts + picks.astype(np.int64)
        return np.stack([groups.ravel(), np.take_along_axis(puzzles, groups, axis=1).ravel()])

    def draw_slots(self, iteration: int, first: int, epochs: int) -> np.ndarray:
        """Words that order the examples of each puzzle drawn: uint64 [epochs, slots]."""
        return self._words(_EXAMPLES, iteration, first, epochs, int(self.slot_starts[-1]))

    def _words(self, purpose: int, iteration: int, first: int, epochs: int, per: int) -> np.ndarray:
        blocks = -(-per // 4)  # Philox4x64 gives four words for each value of its counter.
        counter = (first * blocks, iteration, self._set_number, purpose)
        words = random_words(self._seed, Stream.BATCHES, counter, epochs * blocks * 4)
        return words.reshape(epochs, blocks * 4)[:, :per]


class _ShiftSampler:
    """The words that shift the rows of a lazy ARC set in training batches."""

    def __init__(self, arrays: LazyArcSet, seed: int, set_number: int, batch_size: int) -> None:
        # Imported here because it loads the compiler: only who reads such a set waits for it.
        from dataset.arc.lazy import unshifted_rows

        self._unshifted = unshifted_rows(arrays, seed)
        self._seed, self._set_number = seed, set_number
        self._blocks = -(-batch_size // 4)

    def draw(self, iteration: int, position: int, rows: np.ndarray) -> np.ndarray:
        """Words for int64 [B] rows of a global batch: uint64 [B], 0 where a row must not move."""
        counter = (position * self._blocks, iteration, self._set_number, _SHIFTS)
        words = random_words(self._seed, Stream.BATCHES, counter, self._blocks * 4)[: len(rows)]
        nearest = np.minimum(np.searchsorted(self._unshifted, rows), len(self._unshifted) - 1)
        words[self._unshifted[nearest] == rows] = 0
        return words


class _IterationWalk:
    """The batches of one set in one iteration, as spans of the groups drawn in all its epochs.

    Epochs are drawn a chunk at a time; a batch may need the end of one and the start of the next.
    """

    def __init__(self, sampler: _GroupSampler, iteration: int, epochs: int, batch: int) -> None:
        self._sampler, self._num_epochs, self._batch_size = sampler, epochs, batch
        # How many groups make a batch, where they are always as many, otherwise None.
        self._width = sampler.uniform_size and -(-batch // sampler.uniform_size)
        self._epochs_per_chunk = max(1, _DRAWS_PER_CHUNK // sampler.num_groups)
        self._draw_groups = lru_cache(2)(partial(sampler.draw_groups, iteration))
        self._draw_slots = lru_cache(1)(partial(sampler.draw_slots, iteration))

    def num_batches(self) -> int:
        if self._width is None:
            return sum(1 for _ in self._spans_of_mixed_sizes())
        return self._num_epochs * self._sampler.num_groups // self._width

    def spans(self, first: int) -> Iterator[tuple[int, int]]:
        """Yield the half-open spans of groups drawn that fill batch `first` and those after it."""
        width = self._width
        if width is None:
            return islice(self._spans_of_mixed_sizes(), first, None)
        return ((i * width, (i + 1) * width) for i in range(first, self.num_batches()))

    def rows(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows and puzzles of the batch filled by a span: two int64 [batch_size]."""
        sampler = self._sampler
        groups, puzzles = self._drawn(begin, end)
        if sampler.uniform_size == 1:
            return sampler.puzzle_starts[puzzles], puzzles

        sizes = sampler.puzzle_sizes[puzzles]
        owner = np.repeat(np.arange(len(puzzles)), sizes)  # Which drawn puzzle offers each example.
        example = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        first_epoch, last_epoch = begin // sampler.num_groups, (end - 1) // sampler.num_groups
        epoch = np.arange(begin, end) // sampler.num_groups - first_epoch
        slots = self._draw_slots(first_epoch, last_epoch + 1 - first_epoch)
        words = slots[epoch[owner], sampler.slot_starts[groups[owner]] + example]

        # Shuffle the examples of each puzzle; only the last one may have more than there is room.
        shuffled = np.lexsort((words, owner))[: self._batch_size]
        puzzles = puzzles[owner[shuffled]]
        return sampler.puzzle_starts[puzzles] + example[shuffled], puzzles

    def _spans_of_mixed_sizes(self) -> Iterator[tuple[int, int]]:
        span_begin, filled = 0, 0  # The open batch, and what it holds from chunks before this one.
        for chunk in range(-(-self._num_epochs // self._epochs_per_chunk)):
            chunk_begin = chunk * self._epochs_per_chunk * self._sampler.num_groups
            ends = np.cumsum(self._sampler.puzzle_sizes[self._chunk(chunk)[1]])
            used = 0
            while True:
                last = int(ends.searchsorted(used + self._batch_size - filled))
                if last == len(ends):
                    break
                yield span_begin, chunk_begin + last + 1
                span_begin, filled, used = chunk_begin + last + 1, 0, int(ends[last])
            filled += int(ends[-1]) - used

    def _drawn(self, begin: int, end: int) -> np.ndarray:
        """Groups and puzzles [begin, end) of those drawn in this iteration: int64 [2, number]."""
        per_chunk = self._epochs_per_chunk * self._sampler.num_groups
        first = begin // per_chunk
        chunks = [self._chunk(n) for n in range(first, (end - 1) // per_chunk + 1)]
        drawn = chunks[0] if len(chunks) == 1 else np.concatenate(chunks, axis=1)
        return drawn[:, begin - first * per_chunk : end - first * per_chunk]

    def _chunk(self, chunk: int) -> np.ndarray:
        first = chunk * self._epochs_per_chunk
        return self._draw_groups(first, min(self._epochs_per_chunk, self._num_epochs - first))


def _local_batch_size(global_batch_size: int, world_size: int) -> int:
    if global_batch_size < 1 or global_batch_size % world_size:
        expected = f"a positive multiple of the {world_size} ranks"
        raise ValueError(f"global_batch_size is {global_batch_size}, expected {expected}")
    return global_batch_size // world_size


def _require_agreement(
    first: PuzzleDatasetMetadata, other: PuzzleDatasetMetadata, fields: Sequence[str], path: Path
) -> None:
    facts = ("vocab_size", "seq_len", "pad_id", "ignore_label_id", "blank_identifier_id")
    pairs = [(name, getattr(other, name), getattr(first, name)) for name in facts]
    pairs += [(f"fields.{name}", _as_read(other)[name], _as_read(first)[name]) for name in fields]
    for name, found, expected in pairs:
        if found != expected:
            raise DatasetError(f"{path}: {name} is {found}, but {expected} in the first data path")


def _as_read(metadata: PuzzleDatasetMetadata) -> dict[str, LabelField]:
    """The fields as batches hold them: whether they have a file makes no difference."""
    fields = metadata.fields.items()
    return {name: dataclasses.replace(declared, derived=False) for name, declared in fields}


def _identifier_offsets(
    paths: Sequence[Path | str], counts: Sequence[int], numbered_as: Sequence[Path | str]
) -> tuple[list[int], int]:
    """Return by how much the identifiers of each path are shifted, and the number of them all."""
    own = np.cumsum([0, *counts]).tolist()
    wanted = [Path(path).resolve() for path in paths]
    trained = [Path(path).resolve() for path in numbered_as]
    if len(trained) < 2 or wanted == trained or max(counts) == 1:
        return own[:-1], own[-1]
    splits = [path / ("train" if (path / "train").is_dir() else "test") for path in trained]
    numbers = [load_metadata(split).num_puzzle_identifiers for split in splits]
    there = np.cumsum([0, *numbers]).tolist()
    for path in wanted:
        if path not in trained:
            known = "which of its puzzle embeddings belong to these puzzles is not known"
            trained_on = "the model was trained on several folders, and this is none of them"
            raise DatasetError(f"{path}: {trained_on}: {known}")
    return [there[trained.index(path)] for path in wanted], there[-1]


def _merge(
    parts: list[PuzzleDatasetMetadata], num_puzzles: list[int], sets: tuple[str, ...], total: int
) -> PuzzleDatasetMetadata:
    means = [metadata.mean_puzzle_examples for metadata in parts]
    examples = sum(mean * count for mean, count in zip(means, num_puzzles, strict=True))
    first, *others = [_as_read(metadata) for metadata in parts]
    return dataclasses.replace(
        parts[0],
        sets=sets,
        format=None,  # Every set knows its own, and its ratings.
        ratings=False,
        num_puzzle_identifiers=total,
        total_groups=sum(metadata.total_groups for metadata in parts),
        total_puzzles=sum(num_puzzles),
        # Of one folder, exactly what its file says: the length of the schedule depends on it.
        mean_puzzle_examples=examples / max(1, sum(num_puzzles)) if others else means[0],
        fields={n: found for n, found in first.items() if all(o.get(n) == found for o in others)},
        kind=parts[0].kind if len({metadata.kind for metadata in parts}) == 1 else None,
    )
