"""A rank's rows in parts: what each is given, and what is made of their results."""

from types import SimpleNamespace
from typing import Any, cast

import torch

from models.act import ACTCarry, Drawn
from models.heads.base import Examples
from runtime.ranks import Ranks
from training.parts import Parts, Pass


def in_parts(number: int, run: Any, *, in_order: bool = False) -> Parts:
    own = {"seed": 0, "num_shards": lambda _: 1, "num_parts": lambda _: number}
    config = cast(Any, SimpleNamespace(**own))
    bucket = cast(Any, SimpleNamespace(in_order=in_order, select=lambda shard: None))
    return Parts(config, Ranks("cpu"), bucket, None, run)


def test_rows_are_cut_and_joined_in_their_order() -> None:
    seen = []

    def run(carry: ACTCarry, offered: Examples, drawn: Drawn, step: int | None) -> Pass:
        seen.append((carry.steps.tolist(), offered["inputs"].tolist(), drawn["a"].tolist(), step))
        names = carry.examples | {"inputs": offered["inputs"]}
        moved = ACTCarry(carry.inner, carry.steps + 1, carry.halted, names)
        return Pass(moved, carry.steps.sum().float(), [{"count": drawn["a"].sum()}], [])

    cells, halted = torch.arange(4).view(4, 1), torch.tensor([True, False, True, False])
    carry = ACTCarry({"z_H": cells.float()}, torch.arange(4), halted, {"inputs": cells})
    drawn = {"a": torch.tensor([[5, 6], [7, 8]])}
    done = in_parts(2, run)(carry, {"inputs": 10 + cells}, drawn, 3)
    assert seen == [([0, 1], [[10], [11]], [5, 6], 3), ([2, 3], [[12], [13]], [7, 8], 3)]
    assert done.loss.item() == 6.0
    assert [metrics["count"].item() for metrics in done.metrics] == [11, 15]
    joined = done.carry.tensors()
    assert joined.keys() == carry.tensors().keys()
    assert joined["steps"].tolist() == [1, 2, 3, 4]
    assert joined["examples.inputs"].tolist() == [[10], [11], [12], [13]]
    assert torch.equal(joined["z_H"], cells.float())
    assert torch.equal(joined["halted"], halted)
