"""Blocks of metrics: the divisors of sums, and the values left out."""

import torch

from models.heads.schemas import GAPS
from models.metrics import mean_metrics
from runtime.ranks import Ranks
from training.step import MetricBlock

SUMS = {"count": 4.0, "accuracy": 3.0, "exact_accuracy": 1.0, "q_halt_accuracy": 2.0}
SUMS |= {"steps": 10.0, "lm_loss": 16.0, "q_halt_loss": 4.0, "q_continue_loss": 2.0}
# With a global batch of 8.
LOSSES = {"lm_loss": 2.0, "q_halt_loss": 0.5, "q_continue_loss": 0.25}


def tensors(**overrides: float) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(value) for name, value in (SUMS | overrides).items()}


def build(capacity: int = 3, num_shards: int = 1) -> MetricBlock:
    shapes = {"num_shards": num_shards, "global_batch_size": 8}
    return MetricBlock(capacity, tuple(SUMS), ("norm",), **shapes, ranks=Ranks("cpu"))


def record(block: MetricBlock, step: int, norm: float = 0.5, **overrides: float) -> None:
    block.record([tensors(**overrides)], torch.tensor([norm]), {"step": step, "train/lr": step})


def test_counted_metrics_are_shares_of_count_losses_of_the_batch() -> None:
    shares = {"accuracy": 0.75, "exact_accuracy": 0.25, "q_halt_accuracy": 0.5, "steps": 2.5}
    assert mean_metrics(SUMS, 8) == {"count": 4.0, **shares, **LOSSES}
    none = SUMS | dict.fromkeys(("count", "accuracy", "exact_accuracy", "steps"), 0.0)
    assert mean_metrics(none, 8) == {"count": 0.0, **LOSSES}


def test_what_a_head_combines_is_left_out_of_steps() -> None:
    sums = SUMS | dict.fromkeys(GAPS, 0.5) | {"confidence_accuracy": 3.0}
    assert mean_metrics(sums, 8) == mean_metrics(SUMS, 8) | {"confidence_accuracy": 0.75}


def test_a_record_for_every_step_in_order() -> None:
    block = build()
    record(block, 5, norm=0.25)
    record(block, 6, norm=0.75, count=0.0, lm_loss=24.0)
    first, second = block.drain()
    means = {f"train/{name}": value for name, value in mean_metrics(SUMS, 8).items()}
    assert first == {"step": 5, "train/lr": 5, **means, "norm": 0.25}
    assert (second["step"], second["train/lm_loss"], second["norm"]) == (6, 3.0, 0.75)
    assert second.keys().isdisjoint({"train/accuracy", "train/steps"})


def test_a_block_is_full_at_its_capacity_and_empty_when_drained() -> None:
    block = build(capacity=2)
    assert block.drain() == []
    for turn in range(3):
        assert not block.full
        record(block, 2 * turn + 1)
        assert not block.full
        record(block, 2 * turn + 2, lm_loss=8.0 * turn)
        assert block.full
        drained = block.drain()
        assert [r["step"] for r in drained] == [2 * turn + 1, 2 * turn + 2]
        assert [r["train/lm_loss"] for r in drained] == [2.0, float(turn)]
        assert block.drain() == []


def test_recording_keeps_a_copy_without_a_graph() -> None:
    block = build()
    norm = torch.tensor([1.0])
    sums = tensors() | {"lm_loss": torch.tensor(16.0, requires_grad=True) * 1}
    block.record([sums], norm, {"step": 1})
    norm.fill_(9.0)
    (drained,) = block.drain()
    assert (drained["norm"], drained["train/lm_loss"]) == (1.0, 2.0)


def test_shards_are_added_in_their_order() -> None:
    block = build(num_shards=4)
    for step, losses in enumerate(([1e8, 1.0, -1e8, 2.0], [1e8, -1e8, 1.0, 2.0])):
        shards = [tensors(lm_loss=loss) for loss in losses]
        block.record(shards, torch.tensor([0.5]), {"step": step})
    first, second = block.drain()
    assert first["train/count"] == 4 * SUMS["count"]
    assert first["train/accuracy"] == SUMS["accuracy"] / SUMS["count"]
    # ((1e8 + 1) - 1e8) + 2 in float32: the 1 is lost.
    assert first["train/lm_loss"] == 2.0 / 8
    assert second["train/lm_loss"] == 3.0 / 8
