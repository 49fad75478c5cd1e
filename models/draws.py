"""Random numbers that each row of a batch draws alone, whatever rows stand beside it.

Torch draws for a batch as a whole, so there a row's numbers depend on its place in it. Here a row
has a key, and each draw is a window of one long table of normal numbers (the table of
arXiv:1703.03864, section 2.1), at a place that follows from the key, the ACT step and the number
of the draw in the step. A window is one copy, which takes less time than drawing.
"""

import functools
import math

import torch
from torch import Tensor

ROW_KEYS = "row_keys"
"""The examples that have keys for their rows, int64 [B] from 0 to 2**32 - 1, draw by them."""

_TABLE_SIZE = 2**24
_GOLDEN = (math.sqrt(5) - 1) / 2


@functools.cache
def noise_table(device: torch.device) -> Tensor:
    """Return normal numbers, float32 [2**24], the same at each call and on each device."""
    return torch.randn(_TABLE_SIZE, generator=torch.Generator().manual_seed(0)).to(device)


def cut_normal(uniform: Tensor, std: float) -> Tensor:
    """Turn numbers spread evenly from -1 to 1 into normal ones of deviation `std`, cut at twice
    that.
    """
    return std * math.sqrt(2) * torch.erfinv(uniform * math.erf(math.sqrt(2)))


class Draws:
    """Random numbers for a step, which torch draws for the batch as a whole."""

    def normal(self, like: Tensor) -> Tensor:
        """Draw normal numbers of the shape and dtype of `like`, [B, ...] or [B * n, ...]."""
        return torch.randn_like(like)

    def cut_normal(self, like: Tensor, std: float) -> Tensor:
        """Draw the same of standard deviation `std`, cut at twice that."""
        uniform = torch.empty(like.shape, device=like.device).uniform_(-1, 1)
        return cut_normal(uniform, std).to(like.dtype)


BATCH_DRAWS = Draws()


class RowDraws(Draws):
    """The draws of a batch's rows in one ACT step, one after the other.

    Args:
        table: of `noise_table`.
        keys: int64 [B], of the rows.
        steps: integer [B], the ACT steps that they are at.
    """

    def __init__(self, table: Tensor, keys: Tensor, steps: Tensor) -> None:
        self._table, self._number = table, 0
        self._places = _stirred((keys + steps.long() * 0x9E3779B9) % 2**32)

    def normal(self, like: Tensor) -> Tensor:
        return self._window(like).to(like.dtype)

    def cut_normal(self, like: Tensor, std: float) -> Tensor:
        return cut_normal(torch.erf(self._window(like) * math.sqrt(0.5)), std).to(like.dtype)

    def _window(self, like: Tensor) -> Tensor:
        width = like.numel() // len(self._places)
        num_places = len(self._table) - width + 1
        # Windows of a step lie as far apart as they can.
        places = (self._places + int(self._number * _GOLDEN * num_places)) % num_places
        self._number += 1
        return self._table.unfold(0, width, 1)[places].view(like.shape)


def _stirred(x: Tensor) -> Tensor:
    """Return integers from 0 to 2**32 - 1 for others, so that near ones come to lie far apart.
    No product here leaves int64.
    """
    for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
        x = ((x ^ (x >> shift)) * factor) % 2**32
    return x ^ (x >> 15)
