"""TRM whose z_L is a fixed point of its update, given the puzzle and the answer.

Source: "Solve the Loop", arXiv:2605.12466; github.com/jacobfa/Attractor, trm_deq.py. A solver
without gradients finds the point, and only the last plain updates have gradients (with one: the
one-step estimate of the implicit gradient), so memory does not grow with the solver's updates.

Two things differ from that code. There, the slots of the history hold zeros and old points in a
wrong order from the third update on, which throws z_L back to nearly 0; here they hold the last
points. And there, all puzzles of a batch stop together; here each one for itself, so its answer
does not depend on the others.

Shape letters: B batch, m points in the history, n numbers in the state of a puzzle.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from apps.attractor.config import AttractorConfig
from models.config import DataFacts
from models.recurrence import Latents, Rotary
from models.trm.model import TRMInner


class AttractorInner(TRMInner):
    """TRM's schedule, with a solver and a few updates in each cycle."""

    def __init__(self, config: AttractorConfig, facts: DataFacts) -> None:
        super().__init__(config, facts)
        self.config = config

    def cycle(self, latents: Latents, injected: Tensor, rotary: Rotary) -> Latents:
        """Solve z_L = net(z_L + z_H + input), update it last_cycles times; z_H = net(z_H + z_L)."""
        z_H, context = latents["z_H"], latents["z_H"] + injected

        def update(z: Tensor) -> Tensor:
            return self.L_level(z + context, rotary)

        solved = fixed_point(update, latents["z_L"], self.L_cycles, self.config)
        z_L = self.replaced(latents["z_L"], solved)
        for _ in range(self.config.last_cycles):
            z_L = self.moved(z_L, update(z_L))
        return {"z_H": self.moved(z_H, self.L_level(z_H + z_L, rotary)), "z_L": z_L}


@torch.no_grad()
def fixed_point(
    update: Callable[[Tensor], Tensor], start: Tensor, steps: int, config: AttractorConfig
) -> Tensor:
    """Return a point near z = update(z) for each row of `start`, [B, ...], after at most `steps`
    updates, by Anderson acceleration, in float32 or wider.
    """
    wide = torch.promote_types(start.dtype, torch.float32)
    points = [start.flatten(1).to(wide)]
    values = [update(start).flatten(1).to(wide)]
    for _ in range(steps - 1):
        point = _mixed(points, values, config.regularization)
        value = update(point.view(start.shape).to(start.dtype)).flatten(1).to(wide)
        moved = (values[-1] - points[-1]).norm(dim=1, keepdim=True)
        is_done = moved < config.tolerance * values[-1].norm(dim=1, keepdim=True)
        points = [*points, torch.where(is_done, points[-1], point)][-config.history :]
        values = [*values, torch.where(is_done, values[-1], value)][-config.history :]
    return points[-1].view(start.shape).to(start.dtype)


def _mixed(points: list[Tensor], values: list[Tensor], ridge: float) -> Tensor:
    """Return the mean of the values [B, n], with weights of sum 1 that make the same mean of the
    residuals smallest.
    """
    images = torch.stack(values, dim=1)
    residuals = images - torch.stack(points, dim=1)
    unit = torch.eye(len(points), device=images.device, dtype=images.dtype)
    squares = residuals @ residuals.mT + ridge * unit
    # Gauss-Jordan for squares @ weights = 1. No pivots are needed: squares are positive definite.
    rows = torch.cat((squares, torch.ones_like(squares[..., :1])), dim=-1)
    for i in range(len(points)):
        pivot = rows[:, i : i + 1] / rows[:, i : i + 1, i : i + 1]
        rows = rows - (rows[..., i : i + 1] - unit[:, i : i + 1]) * pivot
    weights = rows[..., -1:] / rows[..., -1:].sum(1, keepdim=True)
    return (weights * images).sum(1)
