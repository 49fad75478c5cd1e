"""A plan's bytes beside those of real steps: six recipes at two sizes, on this CPU."""

from collections.abc import Callable
from typing import Any

import pytest

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
