"""Random numbers that do not depend on a row's place in its batch.

Torch draws for the whole batch at once. Here each row has a key, and each draw copies a window of
one long table of normal numbers (as in arXiv:1703.03864, section 2.1). The window's place depends
on the key, the ACT step and the number of the draw in the step. Copying is faster than drawing.
"""

import functools
import math

import torch
from torch import Tensor

ROW_KEYS = "row_keys"
"""Name of the row keys among the examples: int64 [B], from 0 to 2**32 - 1."""

_TABLE_SIZE = 2**24
_GOLDEN = (math.sqrt(5) - 1) / 2


@functools.cache
def noise_table(device: torch.device) -> Tensor:
    """Return normal numbers, float32 [2**24], the same at each call and on each device."""
    return torch.randn(_TABLE_SIZE, generator=torch.Generator().manual_seed(0)).to(device)


def cut_normal(uniform: Tensor, std: float) -> Tensor:
    """Turn uniform numbers in (-1, 1) into normal ones of deviation `std`, cut at 2 `std`."""
    return std * math.sqrt(2) * torch.erfinv(uniform * math.erf(math.sqrt(2)))


class Draws:
    """Random numbers of a step, drawn by torch for the whole batch."""

    def normal(self, like: Tensor) -> Tensor:
        """Draw normal numbers of the shape and dtype of `like`, [B, ...] or [B * n, ...]."""
        return torch.randn_like(like)

    def cut_normal(self, like: Tensor, std: float) -> Tensor:
        """Draw numbers of standard deviation `std` before they are cut at 2 `std`."""
        uniform = torch.empty(like.shape, device=like.device).uniform_(-1, 1)
        return cut_normal(uniform, std).to(like.dtype)


BATCH_DRAWS = Draws()


class RowDraws(Draws):
    """Random numbers of one ACT step, drawn for each row by its own key.

    Args:
        table: from `noise_table`.
        keys: int64 [B], the row keys.
        steps: integer [B], the number of this ACT step for each row.
    """

    def __init__(self, table: Tensor, keys: Tensor, steps: Tensor) -> None:
        self._table, self._number = table, 0
        self._places = _hashed((keys + steps.long() * 0x9E3779B9) % 2**32)

    def normal(self, like: Tensor) -> Tensor:
        return self._window(like).to(like.dtype)

    def cut_normal(self, like: Tensor, std: float) -> Tensor:
        return cut_normal(torch.erf(self._window(like) * math.sqrt(0.5)), std).to(like.dtype)

    def _window(self, like: Tensor) -> Tensor:
        width = like.numel() // len(self._places)
        num_places = len(self._table) - width + 1
        # The golden ratio keeps the windows of a step far apart.
        places = (self._places + int(self._number * _GOLDEN * num_places)) % num_places
        self._number += 1
        return self._table.unfold(0, width, 1)[places].view(like.shape)


def _hashed(x: Tensor) -> Tensor:
    """Return 32-bit hashes of integers from 0 to 2**32 - 1. No product overflows int64."""
    for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
        x = ((x ^ (x >> shift)) * factor) % 2**32
    return x ^ (x >> 15)
