"""A plan's bytes beside those of real steps on this CPU; bytes and times beside an H100's."""

from collections.abc import Callable
from typing import Any

import pytest

from apps.bench.plan import Plan, PlanSettings, accelerator
from apps.bench.plan_tracing import trace
from dataset.format.schema import PuzzleDatasetMetadata
from training.config.composition import load_config
from training.config.schema import TrainConfig

SUDOKU = PuzzleDatasetMetadata(0, 0, 0, 11, 81, 1, 1000, 1.0, ("all",))
MAZE = PuzzleDatasetMetadata(0, 0, 0, 6, 900, 1, 1000, 1.0, ("all",))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "data", "rows"),
    [
        (recipe, data, rows)
        for recipe, data, sizes in (
            ("hrm_sudoku_extreme_1k", SUDOKU, (4, 8)),
            ("trm_sudoku_extreme_1k_mlp", SUDOKU, (2, 8)),
            ("trm_sudoku_extreme_1k_att", SUDOKU, (2, 8)),
            ("trm_maze_30x30_hard_1k", MAZE, (1, 2)),
            ("sic_sudoku_extreme_1k", SUDOKU, (2, 4)),
            ("dec_sudoku_demo", SUDOKU, (4, 16)),
        )
        for rows in sizes
    ],
)
def test_bytes_of_recipes(
    recipe: str, data: PuzzleDatasetMetadata, rows: int, step_on_cpu: Callable[..., Any]
) -> None:
    config = load_config(TrainConfig, "cfg_pretrain", [f"experiment={recipe}"])
    costs, real = trace(config, data, None, rows, "cpu"), step_on_cpu(config, data, rows)
    foreseen = sum(costs.parts.values()) + max(costs.passes[2].max(), costs.update[2].max())
    assert foreseen == pytest.approx(real.kept + real.more, rel=0.15)


# From docs/benchmarks.md: milliseconds of a compiled and of an eager step, MB of tensors (eager).
@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "rows", "compiled", "eager", "size"),
    [
        ("hrm_sudoku_extreme_1k", 768, 81.4, 196.2, 11101),
        ("trm_sudoku_extreme_1k_mlp", 768, 123.2, 241.1, 30631),
        ("trm_sudoku_extreme_1k_att", 768, 101.2, 246.7, 20146),
        ("trm_maze_30x30_hard_1k_1gpu", 128, 142.0, 299.2, 22804),
        ("sic_sudoku_extreme_1k", 384, 103.8, 210.6, 14166),
        ("dec_sudoku_extreme_1k", 256, 99.4, 228.1, 21716),
        ("dec_sudoku_extreme_1k_cpu", 128, 20.5, 75.9, 762),
        ("dec_sudoku_extreme_1k_cpu", 512, 22.5, 52.8, 2811),
    ],
)
def test_a_plan_tells_what_an_h100_took(
    settings: str, rows: int, compiled: float, eager: float, size: float
) -> None:
    given = [f"experiment={settings}", f"global_batch_size={rows}"]
    own = PlanSettings(gpu="h100")
    plan = Plan(load_config(TrainConfig, "cfg_pretrain", given), own, accelerator(own))
    memory = plan.memory(rows, rows)
    assert memory["in all"] - memory["allocator's margin"] == pytest.approx(size * 1e6, rel=0.12)
    fast, slow = 1e3 * sum(plan.step(1).values())
    assert 0.65 * compiled < fast < 1.05 * compiled
    assert eager < 1.1 * slow < 1.65 * eager
