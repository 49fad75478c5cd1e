"""The heads of `arch=lattice` beside its token head (arXiv:2605.08605): of each candidate whether
it stays, and of the whole puzzle whether its solution has been struck.

What they are compared with are the candidates that the model was shown, and the labels.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from models.config import DataFacts, RecurrenceConfig
from models.heads.auxiliary import AuxiliaryHead, CellLogitHead
from models.heads.base import Answer, Outputs, Targets
from models.heads.linear import Linear, LinearOfDigits
from models.layers import widened
from models.losses import binary_cross_entropy

# The latent that the answer is about: bool [B, S, V], what cells may still hold.
CANDIDATES = "z_candidates"


def solution_in(candidates: Tensor, labels: Tensor) -> Tensor:
    """Return bool [B, S, V], the candidate of each cell that is its label (int [B, S]), if it is
    there; none where there is no label.
    """
    label = F.one_hot(labels.clamp_min(0).long(), candidates.shape[-1]).bool()
    return label & candidates & (labels >= 0).unsqueeze(-1)


def solution_gone(candidates: Tensor, labels: Tensor) -> Tensor:
    """Return bool [B], where the label of a cell is none of its candidates any more."""
    return ((labels >= 0) & ~solution_in(candidates, labels).any(-1)).any(-1)


class CandidatesHead(AuxiliaryHead):
    """Which candidates stay: maps [B, S, D] to a logit for each token, [B, S, V], or the states of
    digits [B, S, N, D] to the same; weighted binary cross entropy, the mean over cells and tokens.

    The target are the candidates shown that are in the solution. Metrics: `kept`, the share of
    those that would stay; `struck`, of the others that were shown the share that would go.
    """

    metrics = ("kept", "struck")

    def __init__(self, name: str, config: RecurrenceConfig, facts: DataFacts) -> None:
        super().__init__(name, config, facts)
        own = config.heads.auxiliary[name]
        self.keep_weight, self.strike_weight = own.keep_weight, own.strike_weight
        linear = LinearOfDigits if config.has_digits else Linear
        self.proj = linear(config.hidden_size, facts.vocab_size, bias=True)

    def read(self, answer: Answer) -> Outputs:
        states = answer.of_tokens
        logits = self.proj(states.detach() if self.detach else states)
        return {f"{self.name}_logits": widened(logits)}

    def compare(self, logits: Tensor, targets: Targets) -> tuple[Tensor, dict[str, Tensor]]:
        shown = targets.examples[CANDIDATES]
        stays = solution_in(shown, targets.examples["labels"])
        losses = binary_cross_entropy(logits, stays.to(logits.dtype))
        losses = losses * torch.where(stays, self.keep_weight, self.strike_weight)
        with torch.no_grad():
            kept, goes = shown & (logits > 0), shown & ~stays
            metrics = {
                "kept": (kept & stays).sum((-2, -1)) / stays.sum((-2, -1)).clamp_min(1),
                "struck": (goes & ~kept).sum((-2, -1)) / goes.sum((-2, -1)).clamp_min(1),
            }
        return losses.mean((-2, -1)), metrics


class ContradictionHead(CellLogitHead):
    """Has a token of the solution been struck? A logit [B] from the first position; binary cross
    entropy. Metric: `accuracy`.
    """

    reads_cells = False

    def compare(self, logits: Tensor, targets: Targets) -> tuple[Tensor, dict[str, Tensor]]:
        gone = solution_gone(targets.examples[CANDIDATES], targets.examples["labels"])
        losses = binary_cross_entropy(logits, gone.to(logits.dtype))
        return losses, {"accuracy": ((logits > 0) == gone).float()}
