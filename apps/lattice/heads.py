"""The heads of `arch=lattice` besides its token head (arXiv:2605.08605). They predict for each
candidate whether it stays, and for the puzzle whether its solution has been struck.

Their targets come from the labels and the candidates that the model was shown.
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

# The latent with the candidates that the model was shown: bool [B, S, V].
CANDIDATES = "z_candidates"


def solution_in(candidates: Tensor, labels: Tensor) -> Tensor:
    """Return bool [B, S, V], true for candidates that are their cell's label, int [B, S]."""
    label = F.one_hot(labels.clamp_min(0).long(), candidates.shape[-1]).bool()
    return label & candidates & (labels >= 0).unsqueeze(-1)


def solution_gone(candidates: Tensor, labels: Tensor) -> Tensor:
    """Return bool [B], true if the label of some cell is no candidate any more."""
    return ((labels >= 0) & ~solution_in(candidates, labels).any(-1)).any(-1)


class CandidatesHead(AuxiliaryHead):
    """Predicts the candidates that stay: maps states of cells [B, S, D], or of digits [B, S, N, D],
    to logits [B, S, V]. Loss: weighted binary cross entropy, the mean over cells and tokens.

    The targets are the shown candidates that are in the solution. Metrics: `kept`, the share of the
    targets with a logit above 0; `struck`, the share of all other shown candidates below it.
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
    """Predicts whether a token of the solution has been struck: a logit [B] from the first
    position. Loss: binary cross entropy. Metric: `accuracy`.
    """

    reads_cells = False

    def compare(self, logits: Tensor, targets: Targets) -> tuple[Tensor, dict[str, Tensor]]:
        gone = solution_gone(targets.examples[CANDIDATES], targets.examples["labels"])
        losses = binary_cross_entropy(logits, gone.to(logits.dtype))
        return losses, {"accuracy": ((logits > 0) == gone).float()}
