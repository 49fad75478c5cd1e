"""Nearest answer: of several right answers, a puzzle is trained on the one nearest to the model's
answer; ours.

A model that is trained on one of several answers learns their mean, whose cells do not go together.
The nearest one lets it settle on the answer that it tends to, in each step anew.
"""

from typing import TYPE_CHECKING

from models.technique import TECHNIQUES, Technique

if TYPE_CHECKING:
    from torch import Tensor

    from models.heads.base import Outputs, Targets


class NearestAnswer(Technique):
    field: str = "answers"
    """field of the data set: several right answers to each puzzle"""

    @property
    def reads_field(self) -> str:
        return self.field

    def aimed(self, targets: "Targets", outputs: "Outputs", steps: "Tensor") -> "Targets":
        answers = targets.examples[self.field]  # [B, S, answers]
        likely = outputs["log_probs"].gather(-1, answers.long()).sum(1)
        nearest = likely.argmax(-1).view(-1, 1, 1).expand(-1, answers.shape[1], 1)
        labels = answers.gather(-1, nearest).squeeze(-1)
        return targets.of({**targets.examples, "labels": labels}, outputs["logits"])


TECHNIQUES.add(
    "nearest_answer", NearestAnswer, text="of several answers, the nearest is the target"
)
