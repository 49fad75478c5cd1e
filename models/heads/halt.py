"""A head that decides when to halt."""

import torch
import torch.nn.functional as F
from torch import Tensor

from models.config import DataFacts, RecurrenceConfig
from models.heads.auxiliary import AuxiliaryHead
from models.heads.base import Answer, HaltingRule, Outputs, Targets
from models.layers import CastedLinear


class HaltHead(AuxiliaryHead):
    """Predicts whether the whole answer is right: logits (go on, halt), [B, 2], from the first
    position. Loss: cross entropy. Metric: `accuracy`.

    In a model without Q it returns Q's outputs, too: q_halt is halt minus go on, without gradient,
    and q_continue is 0.
    """

    reads_cells = False

    def __init__(self, name: str, config: RecurrenceConfig, facts: DataFacts) -> None:
        super().__init__(name, config, facts)
        self.proj = CastedLinear(config.hidden_size, 2, bias=True)
        # It starts near "not right yet", like Q; random weights would halt rows at random.
        with torch.no_grad():
            assert self.proj.bias is not None
            self.proj.weight.zero_()
            self.proj.bias.copy_(torch.tensor([0.0, -5.0]))
        self.rule = HaltingRule(compares=False) if config.heads.q is None else None

    def forward(self, states: Tensor) -> Tensor:
        return self.proj(states)

    def read(self, answer: Answer) -> Outputs:
        outputs = super().read(answer)
        if self.rule is None:
            return outputs
        go_on, halt = outputs["halt_logits"].unbind(-1)
        q_halt = (halt - go_on).detach()
        return outputs | {"q_halt_logits": q_halt, "q_continue_logits": torch.zeros_like(q_halt)}

    def compare(self, logits: Tensor, targets: Targets) -> tuple[Tensor, dict[str, Tensor]]:
        classes = targets.whole_right.long()
        loss = F.cross_entropy(logits, classes, reduction="none")
        return loss, {"accuracy": (logits.argmax(-1) == classes).float()}
