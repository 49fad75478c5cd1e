"""Tensors that lie back to back in memory, so that one pass goes over all of them."""

from collections.abc import Sequence

import torch
from torch import Tensor


def joined(tensors: Sequence[Tensor]) -> Tensor | None:
    """Return one view [numbers] of all `tensors` where they lie back to back, otherwise None."""
    first, end = tensors[0].detach(), tensors[0].data_ptr()
    for tensor in tensors:
        if tensor.data_ptr() != end or not tensor.is_contiguous():
            return None
        end += tensor.nbytes
    # Two allocations may be neighbours by chance.
    if tensors[-1].untyped_storage().data_ptr() != first.untyped_storage().data_ptr():
        return None
    return first.as_strided((sum(tensor.numel() for tensor in tensors),), (1,))


def join(tensors: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Return all `tensors` (of one dtype and device) as one [numbers], and each as a view of it:
    themselves if they lie back to back, otherwise copies.
    """
    if (whole := joined(tensors)) is not None:
        return whole, list(tensors)
    whole = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
    parts = whole.split([tensor.numel() for tensor in tensors])
    return whole, [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]
