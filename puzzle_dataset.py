"""Batches from built data sets: random ones for training, all rows in order for evaluation.

The training batch at (iteration, position) is a pure function of (seed, iteration, position).
Batches carry no state, so a run can resume anywhere. Every rank draws the same global batch and
reads only its own slice. In the order of the data flow:

    PuzzleDataset   one or several built folders, opened and checked
    TrainBatches    one iteration = `epochs_per_iter` epochs; each epoch is a new permutation of the
                    groups; each group drawn gives one random puzzle; each puzzle gives random
                    examples, without replacement, until it has no more or the batch is full
    EvalBatches     the rows of each set in order, the last batch padded

An iteration takes several sets (or folders) one after the other. Each has its own batches and drops
its own incomplete last batch, as in the published loaders of HRM and TRM.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from itertools import islice
from pathlib import Path

import numpy as np

from dataset.format.files import is_folder, read_json
from dataset.format.reading import fingerprint, load_metadata, load_split, parse_names
from dataset.format.schema import (
    IDENTIFIERS_NAME,
    IGNORE_LABEL_ID,
    METADATA_NAME,
    LabelField,
    LazyArcSet,
    PuzzleDatasetMetadata,
    PuzzleSet,
)
from dataset.kinds import KINDS
from dataset.kinds.base import kind_named, only_kind_with
from runtime.errors import DatasetError
from runtime.streams import Stream, random_words
from runtime.text import quoted

# The purpose of a draw: the highest word of its counter in `Stream.BATCHES`.
_GROUPS, _EXAMPLES, _SHIFTS, _REPEATS = 0, 1, 2, 3
_DRAWS_PER_CHUNK = 2**15


@dataclass(frozen=True)
class Batch:
    """One rank's slice of a batch: b = global_batch_size / world_size rows.

    Args:
        inputs, labels: int32 [b, S] token ids; ignored labels are -100.
        puzzle_identifiers: int32 [b].
        fields: the requested label fields by name, int32 [b, S] or [b, S, channels]; unknown values
            are -100.
    """

    inputs: np.ndarray
    labels: np.ndarray
    puzzle_identifiers: np.ndarray
    fields: dict[str, np.ndarray] = field(default_factory=dict)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all arrays, including the fields, by name."""
        cells = {"inputs": self.inputs, "labels": self.labels}
        return cells | {"puzzle_identifiers": self.puzzle_identifiers} | self.fields


@dataclass(frozen=True)
class BatchRows:
    """The rows of a global batch in their set, int64 [B], their identifiers, int32 [B], and the
    (iteration, position) that they were drawn for.
    """

    set_name: str
    rows: np.ndarray
    puzzle_identifiers: np.ndarray
    address: tuple[int, int]


class PuzzleDataset:
    """One split of one or several built data sets, opened and checked.

    Several folders must agree in vocabulary, sequence length, pad, ignore and blank ids. The
    identifiers of each folder are shifted by the number of identifiers in all folders before it.
    (The published TRM loader adds up the numbers but does not shift, so different puzzles share an
    embedding.) Set NAME of folder i > 0 is called NAMEi, as in that loader.

    Attributes:
        metadata: the joint metadata of all folders; its `sets` are the keys of `sets`.
        identifier_offsets: the shift of the identifiers of each folder.
    Args:
        paths: folders with `split`/dataset.json.
        fields: names of the label fields to put in batches; each folder must declare them.
        check_values: also check every token and the manifest's hashes. If several processes open
            the same folders, one of them is enough.
        numbered_as: the folders that a model was trained on, in order. `paths` then get the same
            shifts as in training.
    Raises:
        DatasetError: names the wrong file.
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
                    raise DatasetError(f"{self.split_dirs[i]}: two sets are called {key!r}")
                identifiers = sets[name].puzzle_identifiers.astype(np.int64)
                shifted = (identifiers + self.identifier_offsets[i]).astype(np.int32)
                self.sets[key] = dataclasses.replace(sets[name], puzzle_identifiers=shifted)
        num_puzzles = [sum(each.num_puzzles for each in sets.values()) for _, sets in opened]
        self.metadata = _merge(parts, num_puzzles, tuple(self.sets), total)

    @cached_property
    def kind(self) -> str | None:
        """The kind of the puzzles by name, as in dataset.json.

        Published sets do not name it there. For them it is the one kind that can have this number
        of cells and tokens, or None if several or none can.

        Raises:
            DatasetError: the kind cannot have this number of cells and tokens.
        """
        seq_len, vocab_size = self.metadata.seq_len, self.metadata.vocab_size
        if (name := self.metadata.kind) is None:
            return only_kind_with(seq_len, vocab_size)
        if name in KINDS and not kind_named(name).fits(seq_len, vocab_size):
            problem = f"kind {name!r} cannot have {seq_len} cells and {vocab_size} tokens"
            raise DatasetError(f"{self.split_dirs[0] / METADATA_NAME}: {problem}")
        return name

    def require_names_of(
        self, trained: Sequence[Path | str], names_file: Path | None = None
    ) -> None:
        """Check that each identifier has the same name as in training, because each name has its
        own row of the puzzle embedding. Folders without identifiers.json are not compared.

        Args:
            trained: the folders that a model was trained on; several are not compared.
            names_file: all names in the model's puzzle embedding, instead of those in `trained`.
        Raises:
            DatasetError: an identifier has another name there.
        """
        if names_file is None and len(trained) == 1:
            names_file = Path(trained[0]) / IDENTIFIERS_NAME
        if names_file is None or self.metadata.num_puzzle_identifiers == 1:
            return
        for split_dir, offset in zip(self.split_dirs, self.identifier_offsets, strict=True):
            here = split_dir.parent / IDENTIFIERS_NAME
            is_same = here.resolve() == names_file.resolve()
            if is_same or not os.path.exists(here) or not os.path.exists(names_file):
                continue
            names, known = (parse_names(read_json(path), path) for path in (here, names_file))
            pairs = zip(names, known[offset:], strict=False)
            for number, (name, other) in enumerate(pairs):
                if name != other:
                    found = f"identifier {number} is {quoted(name)}, but {quoted(other)}"
                    problem = "the model would take the puzzle embedding of another puzzle"
                    raise DatasetError(f"{here}: {found} in {names_file}: {problem}")

    def fingerprint(self) -> str:
        """Return the sha256 (hex) over the content of all files, in the order of the paths."""
        parts = "\n".join(fingerprint(split_dir) for split_dir in self.split_dirs)
        return hashlib.sha256(parts.encode()).hexdigest()

    def read(
        self,
        set_name: str,
        rows: np.ndarray | slice,
        identifiers: np.ndarray,
        shifts: np.ndarray | None = None,
    ) -> Batch:
        """Read rows of a set as a batch; ignored labels and unknown field values become -100.

        Args:
            rows: int64 [b], or a slice.
            identifiers: the batch's puzzle identifiers, int32 [b].
            shifts: random words that move the grids of a lazy set inside the canvas, uint64 [b]. 0
                or None: no move.
        """
        arrays, metadata = self.sets[set_name], self.metadata
        if isinstance(arrays, LazyArcSet):
            # Imported here because it loads the slow compiler.
            from dataset.arc.lazy import colour_pixels, read_rows

            inputs, labels = read_rows(arrays, rows, shifts)
            # Pixels are the only field of lazy sets.
            derived = {name: colour_pixels(labels) for name in self.fields}
            return Batch(inputs, labels, identifiers, derived)
        labels = arrays.labels[rows].astype(np.int32)
        if metadata.ignore_label_id is not None:
            labels[labels == metadata.ignore_label_id] = IGNORE_LABEL_ID
        stored = {}
        for name in self.fields:
            stored[name] = arrays.fields[name][rows].astype(np.int32)
            unknown = metadata.fields[name].unknown_label  # None equals no label.
            stored[name][(labels == IGNORE_LABEL_ID) | (labels == unknown)] = IGNORE_LABEL_ID
        return Batch(arrays.inputs[rows].astype(np.int32), labels, identifiers, stored)


class TrainBatches:
    """The endless stream of training batches, addressed by (iteration, position).

    Args:
        global_batch_size: rows of all ranks together, a multiple of world_size.
        epochs_per_iter: epochs in one iteration; a batch may span several epochs of it.
        rank: this process reads rows [rank * b, (rank + 1) * b) of each global batch.
        max_batches: end each iteration after this many batches (None: no limit).
        repeated: replace all batches by the first `repeated` of iteration 0, again and again, each
            time in a new order: in a fixed one a slot that halts every few steps would miss some.
    Raises:
        ValueError: global_batch_size is not a multiple of world_size.
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
        max_batches: int | None = None,
        repeated: int | None = None,
    ) -> None:
        self.dataset, self.epochs_per_iter = dataset, epochs_per_iter
        self._seed, self._max_batches = seed, max_batches or sys.maxsize
        self.global_batch_size = global_batch_size
        self.local_batch_size = _local_batch_size(global_batch_size, world_size)
        self._local = slice(rank * self.local_batch_size, (rank + 1) * self.local_batch_size)
        self._samplers = {
            name: _GroupSampler(arrays, seed, number)
            for number, (name, arrays) in enumerate(dataset.sets.items())
            if arrays.num_groups
        }
        self._repeated = [drawn for _, drawn in islice(self._draw(0, 0), repeated or 0)]

    def steps_per_iteration(self, iteration: int) -> int:
        """Return the number of full batches in an iteration, without reading rows."""
        number = sum(walk.num_batches() for _, walk in self._walks(iteration))
        return min(number, self._max_batches)

    def sets_without_batch(self) -> list[str]:
        """Return the names of the sets that do not fill one batch in the first iteration."""
        return [name for name, walk in self._walks(0) if next(walk.spans(0), None) is None]

    def iterate(self, iteration: int, start: int = 0) -> Iterator[tuple[int, Batch]]:
        """Yield (position, this rank's batch) from `start` to the end of the iteration."""
        for position, drawn in self.iterate_rows(iteration, start):
            name, own = drawn.set_name, self._local
            shifts = self._samplers[name].draw_shifts(*drawn.address, drawn.rows)
            own_shifts = None if shifts is None else shifts[own]
            rows, identifiers = drawn.rows[own], drawn.puzzle_identifiers[own]
            yield position, self.dataset.read(name, rows, identifiers, own_shifts)

    def iterate_rows(self, iteration: int, start: int = 0) -> Iterator[tuple[int, BatchRows]]:
        """Yield (position, rows of the global batch) like `iterate`, without reading the rows."""
        for position, drawn in self._draw(iteration, start):
            if position >= self._max_batches:
                return
            yield position, self._repeated_at(iteration, position) or drawn

    def _draw(self, iteration: int, start: int) -> Iterator[tuple[int, BatchRows]]:
        position = 0
        for name, walk in self._walks(iteration):
            identifiers = self.dataset.sets[name].puzzle_identifiers
            skipped = min(start - position, walk.num_batches()) if start > position else 0
            position += skipped
            for span in walk.spans(skipped):
                rows, puzzles = walk.rows(*span)
                ids = identifiers[puzzles]
                yield position, BatchRows(name, rows, ids, (iteration, position))
                position += 1

    def _repeated_at(self, iteration: int, position: int) -> BatchRows | None:
        """Return the batch that `repeated` puts at a position, or None if nothing is repeated."""
        if not (number := len(self._repeated)):
            return None
        turn, place = divmod(position, number)
        counter = (turn * number, iteration, 0, _REPEATS)  # No two turns share a word.
        order = random_words(self._seed, Stream.BATCHES, counter, number).argsort()
        return self._repeated[order[place]]

    def _walks(self, iteration: int) -> Iterator[tuple[str, _IterationWalk]]:
        epochs, batch_size = self.epochs_per_iter, self.global_batch_size
        for name, sampler in self._samplers.items():
            yield name, _IterationWalk(sampler, iteration, epochs, batch_size)


class EvalBatches:
    """All rows of each set in order, in batches of fixed shape; all ranks get equally many.

    Yields (set_name, batch, count, start): this rank's slice of the global batch with rows
    [start, start + count) of the set. The last batch is padded: inputs are pad_id, labels and
    fields -100, identifiers blank_identifier_id. Recognise padding by the labels or `count`, never
    by the identifier, because real puzzles may have it.

    Args:
        global_batch_size: rows of all ranks together, a multiple of world_size.
        max_examples: use only this many rows at the start of each set (None: all).
        spread: use rows that are spread evenly over each set instead.
    Raises:
        ValueError: global_batch_size is not a multiple of world_size.
    """

    def __init__(
        self,
        dataset: PuzzleDataset,
        *,
        global_batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        max_examples: int | None = None,
        spread: bool = False,
    ) -> None:
        self.dataset, self.global_batch_size, self._rank = dataset, global_batch_size, rank
        self._spread = spread
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
        rows = np.arange(first, last)
        if self._spread:
            rows = rows * arrays.num_examples // self.num_examples[name]
        puzzles = np.searchsorted(arrays.puzzle_indices, rows, side="right") - 1
        read = rows if self._spread else slice(first, last)
        batch = self.dataset.read(name, read, arrays.puzzle_identifiers[puzzles])
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
    """The random draws of a non-empty set: the order of groups, puzzles, examples, and shifts.

    Each epoch has its own range of the iteration's counter. In the first half of its words, word g
    is the sort key of group g; in the second half, word g chooses the puzzle of group g.
    """

    def __init__(self, arrays: PuzzleSet, seed: int, set_number: int) -> None:
        self.num_groups = arrays.num_groups
        self.puzzle_starts = arrays.puzzle_indices[:-1].astype(np.int64)
        self.puzzle_sizes = np.diff(arrays.puzzle_indices.astype(np.int64))
        group_indices = arrays.group_indices.astype(np.int64)
        self._group_starts = group_indices[:-1]
        self._group_puzzles = np.diff(group_indices).astype(np.uint64)
        self._seed, self._set_number = seed, set_number
        # Examples per puzzle if all puzzles have equally many, otherwise None.
        sizes = np.unique(self.puzzle_sizes)
        self.uniform_size = int(sizes[0]) if len(sizes) == 1 else None
        # Group g has the example slots slot_starts[g] to [g + 1], enough for its largest puzzle.
        largest = np.maximum.reduceat(self.puzzle_sizes, self._group_starts)
        self.slot_starts = np.concatenate([[0], np.cumsum(largest)])
        self._unshifted = None
        if isinstance(arrays, LazyArcSet):
            # Imported here because it loads the slow compiler.
            from dataset.arc.lazy import unshifted_rows

            self._unshifted = unshifted_rows(arrays, seed)

    def draw_groups(self, iteration: int, first: int, epochs: int) -> np.ndarray:
        """Return the groups in drawing order and their puzzles, int64 [2, epochs * num_groups]."""
        words = self._words(_GROUPS, iteration, first, epochs, 2 * self.num_groups)
        order_words, puzzle_words = words[:, : self.num_groups], words[:, self.num_groups :]
        # The group's number replaces the lowest bits of its word, so one sort gives the order.
        number_mask = np.uint64((1 << self.num_groups.bit_length()) - 1)
        numbers = np.arange(self.num_groups, dtype=np.uint64)
        ordered = np.sort((order_words & ~number_mask) | numbers, axis=1)
        groups = (ordered & number_mask).astype(np.int64)

        # The high half of the word times the number of puzzles, divided by 2**32.
        half = np.uint64(32)
        picks = ((puzzle_words >> half) * self._group_puzzles) >> half
        puzzles = self._group_starts + picks.astype(np.int64)
        return np.stack([groups.ravel(), np.take_along_axis(puzzles, groups, axis=1).ravel()])

    def draw_slots(self, iteration: int, first: int, epochs: int) -> np.ndarray:
        """Return sort keys for the examples of each puzzle drawn, uint64 [epochs, slots]."""
        return self._words(_EXAMPLES, iteration, first, epochs, int(self.slot_starts[-1]))

    def draw_shifts(self, iteration: int, position: int, rows: np.ndarray) -> np.ndarray | None:
        """Draw a word for each row of a global batch, uint64 [B]; 0: no move. `rows`: int64 [B]."""
        if self._unshifted is None:
            return None
        words = self._words(_SHIFTS, iteration, position, 1, len(rows))[0]
        nearest = np.minimum(np.searchsorted(self._unshifted, rows), len(self._unshifted) - 1)
        words[self._unshifted[nearest] == rows] = 0
        return words

    def _words(self, purpose: int, iteration: int, first: int, epochs: int, per: int) -> np.ndarray:
        blocks = -(-per // 4)  # Philox4x64 gives four words for each value of its counter.
        counter = (first * blocks, iteration, self._set_number, purpose)
        words = random_words(self._seed, Stream.BATCHES, counter, epochs * blocks * 4)
        return words.reshape(epochs, blocks * 4)[:, :per]


class _IterationWalk:
    """The batches of one set in one iteration, as spans of the groups drawn in all its epochs.

    Epochs are drawn in chunks. A batch may need the end of one chunk and the start of the next.
    """

    def __init__(self, sampler: _GroupSampler, iteration: int, epochs: int, batch: int) -> None:
        self._sampler, self._num_epochs, self._batch_size = sampler, epochs, batch
        # Groups per batch if this number is constant, otherwise None.
        self._width = sampler.uniform_size and -(-batch // sampler.uniform_size)
        self._epochs_per_chunk = max(1, _DRAWS_PER_CHUNK // sampler.num_groups)
        self._draw_groups = lru_cache(2)(partial(sampler.draw_groups, iteration))
        self._draw_slots = lru_cache(1)(partial(sampler.draw_slots, iteration))

    def num_batches(self) -> int:
        if self._width is None:
            return sum(1 for _ in self._spans_of_mixed_sizes())
        return self._num_epochs * self._sampler.num_groups // self._width

    def spans(self, first: int) -> Iterator[tuple[int, int]]:
        """Yield the half-open spans of drawn groups for batch `first` and all later batches."""
        width = self._width
        if width is None:
            return islice(self._spans_of_mixed_sizes(), first, None)
        return ((i * width, (i + 1) * width) for i in range(first, self.num_batches()))

    def rows(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows and the puzzles of the batch of a span, int64 [batch_size] each."""
        sampler = self._sampler
        groups, puzzles = self._drawn(begin, end)
        if sampler.uniform_size == 1:
            return sampler.puzzle_starts[puzzles], puzzles

        sizes = sampler.puzzle_sizes[puzzles]
        owner = np.repeat(np.arange(len(puzzles)), sizes)  # The drawn puzzle of each example.
        example = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        first_epoch, last_epoch = begin // sampler.num_groups, (end - 1) // sampler.num_groups
        epoch = np.arange(begin, end) // sampler.num_groups - first_epoch
        slots = self._draw_slots(first_epoch, last_epoch + 1 - first_epoch)
        words = slots[epoch[owner], sampler.slot_starts[groups[owner]] + example]

        # Shuffle the examples of each puzzle; only the last puzzle may have too many.
        shuffled = np.lexsort((words, owner))[: self._batch_size]
        puzzles = puzzles[owner[shuffled]]
        return sampler.puzzle_starts[puzzles] + example[shuffled], puzzles

    def _spans_of_mixed_sizes(self) -> Iterator[tuple[int, int]]:
        span_begin, filled = 0, 0  # Start of the current batch; its rows from earlier chunks.
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
        """Return the drawn groups and puzzles [begin, end) of this iteration, int64 [2, number]."""
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
    if first.kind != other.kind:  # Sets without a kind are of the one published kind that fits.
        found, expected = (
            each.kind or only_kind_with(each.seq_len, each.vocab_size) for each in (other, first)
        )
        if found and expected:
            pairs.append(("kind", found, expected))
    pairs += [(f"fields.{name}", _as_read(other)[name], _as_read(first)[name]) for name in fields]
    for name, found, expected in pairs:
        if found != expected:
            raise DatasetError(f"{path}: {name} is {found}, but {expected} in the first data path")


def _as_read(metadata: PuzzleDatasetMetadata) -> dict[str, LabelField]:
    """Return the declared fields with `derived` set to False, since batches ignore it."""
    fields = metadata.fields.items()
    return {name: dataclasses.replace(declared, derived=False) for name, declared in fields}


def _identifier_offsets(
    paths: Sequence[Path | str], counts: Sequence[int], numbered_as: Sequence[Path | str]
) -> tuple[list[int], int]:
    """Return the shift of the identifiers of each path, and the number of all identifiers."""
    own = np.cumsum([0, *counts]).tolist()
    wanted = [Path(path).resolve() for path in paths]
    trained = [Path(path).resolve() for path in numbered_as]
    if trained and max(counts) == 1 and (len(trained) == 1 or not {*wanted} & {*trained}):
        return [0] * len(counts), 1  # The blank puzzle.
    if len(trained) < 2 or wanted == trained:
        return own[:-1], own[-1]
    splits = [path / ("train" if is_folder(path / "train") else "test") for path in trained]
    numbers = [load_metadata(split).num_puzzle_identifiers for split in splits]
    there = np.cumsum([0, *numbers]).tolist()
    for path, count in zip(wanted, counts, strict=True):
        if path not in trained and count > 1:
            known = ", ".join(map(str, numbered_as))
            problem = "the model has no puzzle embeddings for this folder; it was trained on"
            raise DatasetError(f"{path}: {problem} {known}")
    return [there[trained.index(path)] if path in trained else 0 for path in wanted], there[-1]


def _merge(
    parts: list[PuzzleDatasetMetadata], num_puzzles: list[int], sets: tuple[str, ...], total: int
) -> PuzzleDatasetMetadata:
    means = [metadata.mean_puzzle_examples for metadata in parts]
    examples = sum(mean * count for mean, count in zip(means, num_puzzles, strict=True))
    first, *others = [_as_read(metadata) for metadata in parts]
    return dataclasses.replace(
        parts[0],
        sets=sets,
        format=None,  # Each set has its own format and ratings.
        ratings=False,
        num_puzzle_identifiers=total,
        total_groups=sum(metadata.total_groups for metadata in parts),
        total_puzzles=sum(num_puzzles),
        # One folder keeps its exact number, because the length of the schedule depends on it.
        mean_puzzle_examples=examples / max(1, sum(num_puzzles)) if others else means[0],
        fields={n: found for n, found in first.items() if all(o.get(n) == found for o in others)},
        kind=parts[0].kind if len({metadata.kind for metadata in parts}) == 1 else None,
    )
