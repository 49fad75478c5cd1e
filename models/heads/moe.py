"""A token head of experts and a router."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.config import RecurrenceConfig
from models.heads.base import Outputs, TokenHead
from models.layers import CastedLinear, trunc_normal_


class MixtureOfExperts(TokenHead):
    """E matrices [V, D], the experts. A router weights their logits for each cell by a softmax.

    Only the `top_k` largest weights are kept and scaled to sum 1. A single one is not scaled, or
    the router would learn nothing (arXiv:2101.03961, 2.1). All experts are computed: V is small.
    The balance loss (2.2 there) of a row is E * sum_e f_e P_e, with f_e the share of cells that
    choose e first and P_e the mean weight of e; it is 1 when balanced.
    """

    loss_names = ("lm", "balance")

    def __init__(self, config: RecurrenceConfig, vocab_size: int, embedding: nn.Module) -> None:
        super().__init__()
        lm, D = config.heads.lm, config.hidden_size
        self.top_k = lm.top_k
        self.router = CastedLinear(D, lm.num_experts)
        experts = torch.empty(lm.num_experts, vocab_size, D)
        self.experts = nn.Parameter(trunc_normal_(experts, std=D**-0.5))
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if lm.bias else None

    def forward(self, hidden: Tensor, puzzle: Tensor | None = None) -> Tensor:
        return self.outputs(hidden)["logits"]

    def outputs(self, hidden: Tensor, puzzle: Tensor | None = None) -> Outputs:
        scores = self.router(hidden)
        weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))
        num_experts = weights.shape[-1]
        first = F.one_hot(weights.argmax(-1), num_experts).to(weights.dtype)
        balance = num_experts * (first.mean(-2) * weights.mean(-2)).sum(-1)
        return {"logits": self._mix(hidden, weights), "balance": balance}

    def _mix(self, hidden: Tensor, weights: Tensor) -> Tensor:
        if self.top_k is not None and self.top_k < weights.shape[-1]:
            values, chosen = weights.topk(self.top_k, dim=-1)
            weights = torch.zeros_like(weights).scatter(-1, chosen, values)
            if self.top_k > 1:
                weights = weights / weights.sum(-1, keepdim=True)
        matrices = self.experts.to(hidden.dtype)
        logits = F.linear(hidden, matrices.flatten(0, 1)).unflatten(-1, matrices.shape[:2])
        mixed = torch.einsum("...ev,...e->...v", logits, weights.to(hidden.dtype))
        return mixed if self.bias is None else mixed + self.bias.to(hidden.dtype)
