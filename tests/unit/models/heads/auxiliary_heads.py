"""Auxiliary heads and targets to try them with."""

import torch
from torch import Tensor

from models.config import DataFacts
from models.heads.auxiliary import AuxiliaryHead
from models.heads.base import Answer, Examples, Targets
from models.heads.config import AUXILIARY_HEADS
from models.hrm.config import HRMConfig
from models.losses import IGNORE_LABEL_ID

B, S, P, D = 4, 6, 2, 6
CLASSES, CHANNELS = 3, 2
NONE = IGNORE_LABEL_ID

FACTS = DataFacts(5, S, 1, fields={"a": (CLASSES, 0), "p": (CLASSES, CHANNELS)})
FIELDS = {"action": {"field": "a"}, "pixel": {"field": "p"}}


def make_examples() -> Examples:
    """The last row has no labels and no fields; the first changes nothing."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(5, (B, S), generator=generator)
    labels = torch.randint(5, (B, S), generator=generator)
    labels[0] = inputs[0]
    labels[1, ::2] = NONE
    actions = torch.randint(CLASSES, (B, S), generator=generator)
    pixels = torch.randint(CLASSES, (B, S, CHANNELS), generator=generator)
    for field in (labels, actions, pixels):
        field[-1] = NONE
    actions[1, 3:] = pixels[2, 1] = NONE
    return {"inputs": inputs, "labels": labels, "a": actions, "p": pixels}


def make_targets(examples: Examples) -> Targets:
    labelled = examples["labels"] != NONE
    right = labelled & (torch.rand(B, S, generator=torch.Generator().manual_seed(1)) < 0.5)
    right[0] = True
    return Targets(examples, labelled, right, right.sum(-1) == labelled.sum(-1))


def fresh(name: str, detach: bool = False) -> AuxiliaryHead:
    torch.manual_seed(0)
    heads = {name: {"detach": detach, **FIELDS.get(name, {})}}
    config = HRMConfig.model_validate({"hidden_size": D, "num_heads": 1, "heads": heads})
    return AUXILIARY_HEADS.load(name)(name, config, FACTS)


def build(name: str, detach: bool = False) -> AuxiliaryHead:
    head = fresh(name, detach).double()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_()
    return head


def states() -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(B, P + S, D, generator=generator, dtype=torch.float64, requires_grad=True)


def logits_of(head: AuxiliaryHead, states: Tensor) -> Tensor:
    return head.read(Answer(states, P))[f"{head.name}_logits"]


def loss_of(head: AuxiliaryHead, states: Tensor, targets: Targets) -> Tensor:
    measured = head.measure(head.read(Answer(states, P)), targets)
    assert tuple(measured.losses) == head.loss_names == (head.name,)
    return measured.losses[head.name]
