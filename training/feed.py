"""The training batches of a rank as tensors on its device: drawn ahead, small sets kept there."""

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing

import numpy as np
import torch
from torch import Tensor

from dataset.format.schema import IGNORE_LABEL_ID, LazyArcSet, PuzzleDatasetMetadata
from models.heads.base import Examples
from puzzle_dataset import Batch, BatchRows, PuzzleDataset, TrainBatches
from runtime.ahead import ahead
from runtime.ranks import Ranks
from training.config.schema import TrainConfig
from training.data import train_batches

# What the sets that are kept on the device take there at most, in all: docs/data.md names it.
_ROOM_BYTES = 2**30


class Feed:
    """Yields what `batches` would, as tensors on the device of `ranks`.

    Args:
        ahead: batches that a thread draws in advance; it makes no call of torch.
        keep: hold small sets on the device, and take the rows of batches there.
    """

    def __init__(self, batches: TrainBatches, ranks: Ranks, *, ahead: int, keep: bool) -> None:
        self.batches, self._ranks, self._ahead = batches, ranks, ahead
        self._kept = keep_small_sets(batches.dataset, ranks.device) if keep else {}

    def iterate(
        self, iteration: int, start: int = 0
    ) -> Generator[tuple[int, Examples], None, None]:
        """Yield (position, examples) from `start` to the end of the iteration. Whoever stops before
        closes it, which ends the thread.
        """
        with closing(ahead(self._drawn(iteration, start), self._ahead)) as drawn:
            for position, batch in drawn:
                yield position, self._examples(batch)

    def _drawn(self, iteration: int, start: int) -> Iterator[tuple[int, Batch | BatchRows]]:
        """Yield this rank's batches, of sets on the device only their rows."""
        for position, rows in self.batches.iterate_rows(iteration, start):
            if rows.set_name in self._kept:
                yield position, self.batches.own(rows)
            else:
                yield position, self.batches.read(iteration, position, rows)

    def _examples(self, batch: Batch | BatchRows) -> Examples:
        if isinstance(batch, Batch):
            return self._ranks.on_device(batch.arrays())
        named = {"rows": batch.rows, "puzzle_identifiers": batch.puzzle_identifiers}
        given = self._ranks.on_device(named)
        return self._kept[batch.set_name].read(given.pop("rows")) | given


class KeptSet:
    """The tokens of a set, by name, on a device: inputs, labels and fields of `metadata`."""

    def __init__(
        self,
        tokens: Mapping[str, np.ndarray],
        metadata: PuzzleDatasetMetadata,
        device: torch.device,
    ) -> None:
        self._tokens = {name: torch.tensor(array, device=device) for name, array in tokens.items()}
        self._metadata = metadata

    def read(self, rows: Tensor) -> Examples:
        """Return rows, int64 [b] on the device, as `PuzzleDataset.read` does, but for the puzzle
        identifiers.
        """
        taken = {name: kept.index_select(0, rows).int() for name, kept in self._tokens.items()}
        labels, ignored = taken["labels"], self._metadata.ignore_label_id
        if ignored is not None:
            labels.masked_fill_(labels == ignored, IGNORE_LABEL_ID)
        for name in taken.keys() - {"inputs", "labels"}:
            values, token = taken[name], self._metadata.fields[name].unknown_label
            unknown = labels == IGNORE_LABEL_ID
            if token is not None:
                unknown |= labels == token
            per_cell = (*labels.shape, *[1] * (values.ndim - labels.ndim))
            values.masked_fill_(unknown.view(per_cell), IGNORE_LABEL_ID)
        return taken


def keep_small_sets(dataset: PuzzleDataset, device: torch.device) -> dict[str, KeptSet]:
    """Copy sets of uint8 arrays to the device, in their order, as far as there is room."""
    kept, room = {}, _ROOM_BYTES
    for name, arrays in dataset.sets.items():
        tokens = {"inputs": arrays.inputs, "labels": arrays.labels, **arrays.fields}
        size = sum(array.nbytes for array in tokens.values())
        plain = all(array.dtype == np.uint8 for array in tokens.values())
        if plain and size <= room and not isinstance(arrays, LazyArcSet):
            kept[name] = KeptSet(tokens, dataset.metadata, device)
            room -= size
    return kept


def build_feed(config: TrainConfig, train_set: PuzzleDataset, ranks: Ranks) -> Feed:
    """Return the batches of this rank as the settings ask for them on its device."""
    batches = train_batches(config, train_set, ranks.rank, ranks.world_size)
    return Feed(batches, ranks, ahead=config.batches_ahead, keep=config.data_on_device)
