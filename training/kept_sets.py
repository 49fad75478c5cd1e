"""Small data sets that live on a device, so that a batch is a choice of their rows."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from dataset.format.schema import IGNORE_LABEL_ID, LazyArcSet, PuzzleDatasetMetadata
from models.heads.base import Examples
from puzzle_dataset import PuzzleDataset

# What the sets that are kept on the device take there at most, in all: docs/data.md names it.
_ROOM_BYTES = 2**30


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
