"""Of several right answers, the nearest is the target."""

from typing import Any

import pytest
import torch

from models.act import AIMED_LABELS, ACTCarry
from models.config import DataFacts
from models.heads.base import Targets
from models.techniques.nearest_answer import NearestAnswer
from models.trm.config import TRMConfig
from tests.unit.models.tiny import shaken

ANSWERS = torch.tensor([[[2, 4, 3], [3, 2, 3], [4, 3, 2]]] * 2)  # [B=2, S=3, three answers]


def test_each_row_takes_the_answer_that_its_logits_are_nearest_to() -> None:
    logits = torch.zeros(2, 3, 5)
    logits[0, range(3), [4, 2, 2]] = 1.0  # two cells of the second answer, one of the third
    logits[1, range(3), [3, 3, 2]] = 1.0
    examples = {"labels": ANSWERS[..., 0], "inputs": ANSWERS[..., 0] * 0, "answers": ANSWERS}
    targets = Targets.of(examples, logits)
    outputs = {"logits": logits, "log_probs": logits.log_softmax(-1)}
    aimed = NearestAnswer().aimed(targets, outputs, torch.zeros(2))
    assert aimed.examples["labels"].tolist() == [[4, 2, 3], [3, 3, 2]]
    assert not targets.whole_right.any()
    assert aimed.whole_right.tolist() == [False, True]
    assert aimed.right.sum(-1).tolist() == [2, 3]


@pytest.mark.parametrize(("loss_type", "nearest"), [("stablemax", 3), ("softmax", 2)])
def test_the_nearest_answer_is_the_likeliest_under_the_loss(loss_type: str, nearest: int) -> None:
    settings: Any = {"hidden_size": 8, "num_heads": 2, "puzzle_emb_ndim": 0}
    settings |= {"loss": {"loss_type": f"{loss_type}_cross_entropy"}}
    config = TRMConfig(**settings, techniques={"nearest_answer": {}})
    model = shaken(config, DataFacts(5, 2, 1, fields={"answers": (5, 2)})).train()
    answers = torch.tensor([[[2, 3], [2, 3]]])  # [B=1, S=2, two answers]
    # Softmax: 4 + 0 > 1.5 + 1.5; stablemax: (4 + 1) * (0 + 1) < (1.5 + 1) * (1.5 + 1).
    logits = torch.zeros(1, 2, 5)
    logits[0, 0, 2], logits[..., 3] = 4.0, 1.5
    examples = {"labels": answers[..., 0], "answers": answers}
    carry = ACTCarry({}, torch.ones(1), torch.ones(1), examples)
    judged = model.model.judge([], carry, {"logits": logits})
    assert judged.outputs[AIMED_LABELS].tolist() == [[nearest, nearest]]


def test_it_acts_in_training_only() -> None:
    settings: Any = {"hidden_size": 8, "num_heads": 2, "puzzle_emb_ndim": 0, "halt_max_steps": 2}
    settings |= {"forward_dtype": "float64", "techniques": {"nearest_answer": {}}}
    config = TRMConfig(**settings)
    assert config.fields == {"techniques.nearest_answer": "answers"}
    facts = DataFacts(5, 3, 1, fields={"answers": (5, 3)})
    model = shaken(config, facts)
    ids = torch.zeros(2, dtype=torch.int32)
    examples = {"inputs": torch.ones(2, 3), "labels": ANSWERS[..., 0], "answers": ANSWERS}
    examples = {name: value.int() for name, value in examples.items()}
    examples["puzzle_identifiers"] = ids
    other = {**examples, "labels": ANSWERS[..., 1].int()}
    losses = {}
    for training in (True, False):
        model.train(training)
        found = [model(model.initial_carry(one), one).metrics for one in (examples, other)]
        losses[training] = [one["lm_loss"].item() for one in found]
    assert losses[True][0] == losses[True][1]
    assert losses[False][0] != losses[False][1]
