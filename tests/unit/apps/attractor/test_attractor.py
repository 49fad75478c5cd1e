"""TRM with a fixed point in place of its inner updates."""

from typing import Any

import pytest
import torch
from torch import Tensor

from apps.attractor.config import AttractorConfig
from apps.attractor.model import fixed_point
from models.config import DataFacts
from tests.unit.models.tiny import shaken

SMALL: Any = {"hidden_size": 8, "num_heads": 2, "expansion": 1, "L_layers": 1, "H_cycles": 2}
SMALL |= {"puzzle_emb_ndim": 0, "halt_max_steps": 3, "forward_dtype": "float64"}


def slowly_solved(update: Any, start: Tensor, steps: int, history: int, ridge: float) -> Tensor:
    """Anderson acceleration of a single row [n], by the bordered equations of the source."""
    points, values = [start], [update(start)]
    for _ in range(steps - 1):
        X, F = torch.stack(points[-history:]), torch.stack(values[-history:])
        m, G = len(X), F - X
        bordered = torch.ones(m + 1, m + 1, dtype=X.dtype)
        bordered[0, 0] = 0
        bordered[1:, 1:] = G @ G.T + ridge * torch.eye(m, dtype=X.dtype)
        right = torch.zeros(m + 1, dtype=X.dtype)
        right[0] = 1
        weights = torch.linalg.solve(bordered, right)[1:]
        points.append(weights @ F)
        values.append(update(points[-1]))
    return points[-1]


@pytest.mark.parametrize(("steps", "history"), [(1, 5), (2, 5), (4, 5), (9, 3), (6, 1)])
def test_the_solver_follows_the_equations(steps: int, history: int) -> None:
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(12, 12, generator=generator) * 0.2
    start = torch.randn(3, 12, generator=generator)

    def update(z: Tensor) -> Tensor:
        return torch.tanh(z @ matrix.to(z.dtype) + 0.5)

    config = AttractorConfig(**SMALL, history=history, tolerance=0.0)
    found = fixed_point(update, start, steps, config)
    for row, z in zip(found, start.double(), strict=True):
        expected = slowly_solved(update, z, steps, history, config.regularization)
        torch.testing.assert_close(row.double(), expected, rtol=1e-3, atol=1e-4)


def test_it_gets_nearer_than_plain_updates_and_stops_row_by_row() -> None:
    matrix = torch.linspace(-0.95, 0.95, 6).diag()

    def update(z: Tensor) -> Tensor:
        return z @ matrix + 1

    start = torch.zeros(2, 6)
    exact = 1 / (1 - matrix.diagonal())
    start[1] = exact
    far = {}
    for history in (1, 5):
        config = AttractorConfig(**SMALL, history=history, regularization=1e-6, tolerance=1e-5)
        found = fixed_point(update, start, 12, config)
        far[history] = float((found[0] - exact).norm())
        assert torch.equal(found[1], start[1])  # It was there from the start.
    assert far[5] < 0.1 * far[1]


def outputs(rows: Tensor, **settings: Any) -> Tensor:
    model = shaken(AttractorConfig(**SMALL | settings), DataFacts(6, 9, 1)).eval()
    batch = {"inputs": rows, "labels": rows, "puzzle_identifiers": torch.zeros(len(rows)).int()}
    first = model(model.initial_carry(batch), batch)
    return model(first.carry, batch).outputs["logits"]


def test_a_rows_answer_does_not_depend_on_the_others() -> None:
    rows = torch.randint(1, 6, (4, 9), generator=torch.Generator().manual_seed(0)).int()
    alone = torch.cat([outputs(row[None], tolerance=0.2) for row in rows])
    torch.testing.assert_close(outputs(rows, tolerance=0.2), alone, rtol=1e-4, atol=1e-4)


def test_gradients_come_from_the_last_updates_alone() -> None:
    model = shaken(AttractorConfig(**SMALL), DataFacts(6, 9, 1))
    seen: list[bool] = []
    level = model.model.inner.L_level
    level.register_forward_hook(lambda *_: seen.append(torch.is_grad_enabled()))
    rows = torch.ones(2, 9).int()
    batch = {"inputs": rows, "labels": rows, "puzzle_identifiers": torch.zeros(2).int()}
    model(model.initial_carry(batch), batch)
    config = model.model.inner.config
    solver, plain = config.L_cycles, config.last_cycles + 1
    assert seen == [False] * (solver + plain) + [False] * solver + [True] * plain
