"""Q: is the answer right (q_halt), and will it be right after more steps (q_continue)?"""

import torch
from torch import Tensor

from models.config import RecurrenceConfig
from models.heads.base import Answer, HaltingRule, Head, Measured, Outputs, Targets
from models.layers import CastedLinear, trunc_normal_, widened
from models.losses import binary_cross_entropy


class QHead(Head, CastedLinear):
    """Predicts the logits q_halt and q_continue, [B], from the first position (arXiv:2506.21734).

    Q starts near "never right, never stop" (weight 0, bias -5), so that the first bootstrapped
    targets are near 0 and stable. Metric: `q_halt_accuracy`, whether q_halt >= 0 matches a wholly
    right answer. As published, a sequence without labels counts as right in the loss. With only one
    ACT step there is nothing to choose, so q_continue has no loss (`learns_continue`).
    """

    name = "q"
    metric_names = ("q_halt_accuracy",)

    def __init__(self, config: RecurrenceConfig) -> None:
        super().__init__(config.hidden_size, 2, bias=True)
        q = config.heads.q
        assert q is not None
        assert self.bias is not None
        with torch.no_grad():
            trunc_normal_(self.weight, std=q.init_std)
            self.bias.fill_(q.init_bias)
        self.rule = HaltingRule(compares=not config.no_ACT_continue)
        self.learns_continue = not config.no_ACT_continue and config.halt_max_steps > 1
        self.loss_names = ("q_halt", "q_continue") if self.learns_continue else ("q_halt",)

    def read(self, answer: Answer) -> Outputs:
        """Return q_halt_logits and q_continue_logits, [B] each, in float32 (float64 stays)."""
        logits = widened(self(answer.first))
        return {"q_halt_logits": logits[:, 0], "q_continue_logits": logits[:, 1]}

    def target_of_continue(self, next_answer: Answer, last_step: Tensor) -> Tensor:
        """Return the target of q_continue [B], between 0 and 1, from the answer of one more ACT
        step. `last_step`, bool [B], marks slots whose only choice there is to halt.
        """
        q_halt, q_continue = self.read(next_answer).values()
        return torch.where(last_step, q_halt, torch.maximum(q_halt, q_continue)).sigmoid()

    def measure(self, outputs: Outputs, targets: Targets) -> Measured:
        q_halt = outputs["q_halt_logits"]
        right = targets.whole_right.to(q_halt.dtype)
        losses = {"q_halt": binary_cross_entropy(q_halt, right)}
        if "target_q_continue" in outputs:
            target = outputs["target_q_continue"].to(q_halt.dtype)
            losses["q_continue"] = binary_cross_entropy(outputs["q_continue_logits"], target)
        if "weight_q_continue" in outputs:
            losses["q_continue"] = losses["q_continue"] * outputs["weight_q_continue"]
        return Measured(losses, {"q_halt_accuracy": (q_halt >= 0) == targets.whole_right})
