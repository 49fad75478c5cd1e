"""One optimizer step, whole and in parts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from puzzle_dataset import PuzzleDataset
from runtime.ranks import Ranks
from training.config.composition import load_config
from training.config.schema import TrainConfig
from training.feed import build_feed
from training.step import build_learner
from training.stop_signals import StopSignals


class Outcome(NamedTuple):
    """What some steps leave."""

    gradient: Tensor  # Of the last step.
    table: Tensor  # Of the puzzle embedding.
    carry: dict[str, Tensor]
    records: list[dict[str, Any]]
    sizes: set[int]  # Rows that passed through the model at once.


@pytest.fixture
def make_steps(tasks_data: Path, tiny_settings: list[str]) -> Callable[..., Outcome]:
    """Make four steps with 8 rows in float64, which change the puzzle embedding alone."""

    def make(*more: str) -> Outcome:
        settings = [*tiny_settings, f"data_path={tasks_data}", "arch.forward_dtype=float64"]
        settings += ["arch.halt_exploration_prob=0.5", "lr=0", "puzzle_emb_lr=0.1"]
        settings += ["arch.heads.q.init_std=1.0", "arch.heads.q.init_bias=0.0", "log_interval=4"]
        settings += ["diagnose_interval=4", *more]
        config = load_config(TrainConfig, "cfg_pretrain", settings)
        dataset, sizes = PuzzleDataset([tasks_data], "train"), set()
        with Ranks("cpu") as ranks:
            learner = build_learner(config, config.arch, dataset, ranks)
            learner.model.register_forward_pre_hook(lambda _, given: sizes.add(len(given[0].steps)))
            batches = build_feed(config, dataset, ranks).iterate(0)
            for step, (_, batch) in zip(range(1, 5), batches, strict=False):
                learner.step(step, batch, StopSignals())
            embedding = learner.model.puzzle_embedding
            assert embedding is not None
            gradient, carry = learner.bucket.flat, learner.carry.tensors()
            return Outcome(gradient, embedding.weights, carry, learner.metrics.drain(), sizes)

    return make


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        ([], 4),
        ([], 1),
        (["reduction=exact"], 1),
        (["arch.q_target=rows", "arch.q_target_every=2"], 2),
        (["arch.q_target=steps"], 2),
    ],
)
def test_micro_batches_make_the_step_of_the_whole_batch(
    make_steps: Callable[..., Outcome], settings: list[str], rows: int
) -> None:
    whole, parts = make_steps(*settings), make_steps(*settings, f"micro_batch_size={rows}")
    assert (whole.sizes, parts.sizes) == ({2 if "reduction=exact" in settings else 8}, {rows})
    # Gradients are added in float32, everything else is computed in float64.
    bound = 2.0**-20 * whole.gradient.abs().max().item()
    torch.testing.assert_close(parts.gradient, whole.gradient, rtol=1e-5, atol=bound)
    assert whole.table.abs().max() > 0.1
    torch.testing.assert_close(parts.table, whole.table, rtol=0, atol=1e-6)
    torch.testing.assert_close(parts.carry, whole.carry, rtol=1e-9, atol=1e-9)
    for own, expected in zip(parts.records, whole.records, strict=True):
        assert own == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert any("diagnose/entropy" in record for record in parts.records)
