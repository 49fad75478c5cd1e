"""The puzzle embedding: a large table of which each step touches a few rows.

The table is a float32 buffer outside the parameters. The rows of the batch are copied to a leaf
that receives the gradient; `training.optim.sparse_sign_sgd` sends it back to the table.
"""

import torch
from torch import Tensor, nn

from models.layers import trunc_normal_


class CastedSparseEmbedding(nn.Module):
    """Table float32 [num, width] with a gradient leaf, `local_weights` [B, width]: the rows of the
    last training batch, whose identifiers are `local_ids` (int64 [B]).
    """

    weights: Tensor
    local_weights: Tensor
    local_ids: Tensor

    def __init__(self, num_rows: int, width: int, init_std: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        table = trunc_normal_(torch.empty(num_rows, width), std=init_std)
        self.register_buffer("weights", table)
        self.prepare(0)

    def prepare(self, batch_size: int) -> None:
        """Allocate the leaf for `batch_size` rows. The shapes stay fixed from then on."""
        device, width = self.weights.device, self.weights.shape[1]
        leaf = torch.zeros(batch_size, width, device=device).requires_grad_()
        self.register_buffer("local_weights", leaf, persistent=False)
        ids = torch.zeros(batch_size, dtype=torch.int64, device=device)
        self.register_buffer("local_ids", ids, persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Map integer ids [B] to [B, width] in the forward dtype, through the leaf where a gradient
        is wanted.
        """
        if not (self.training and torch.is_grad_enabled()):
            return self.weights[ids].to(self.dtype)
        with torch.no_grad():
            self.local_weights.copy_(self.weights[ids])
            self.local_ids.copy_(ids)
        return self.local_weights.to(self.dtype)

    def rows_in_use(self, ids: Tensor) -> Tensor:
        """Return again what `forward` returned for these ids."""
        if not self.training:
            return self.weights[ids].to(self.dtype)
        # A copy: the next `forward` overwrites the leaf, maybe before this one's backward.
        return self.local_weights.to(self.dtype, copy=True)
