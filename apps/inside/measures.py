"""Measures of a dynamical system: a state [B, F] and a function that moves it one step.

They know nothing of puzzles or models. B systems are measured at once; F numbers are a state.
"""

from collections.abc import Callable

import torch
from torch import Tensor

Move = Callable[[Tensor], Tensor]
"""Takes states [B, F] and returns them one step later."""

FATES = ("fixed", "cycle", "drift", "moving")
_STRAIGHT = 0.5  # A path is a drift if its ends are this far apart, as a share of its length.
_AS_LARGE = 0.5  # A drift's last step is at least this large, as a share of the first that is read.
_AT_ONCE = 81  # Changed systems that are moved together.
_WARM_UP = 4  # Steps before the exponent is measured: the difference turns to where it grows most.


def apart(before: Tensor, after: Tensor) -> Tensor:
    """Return the distance of states [..., F] as a share of the later one's norm, [...]."""
    return (after - before).norm(dim=-1) / after.norm(dim=-1).clamp_min(1e-12)


def residuals(path: Tensor) -> Tensor:
    """Return the change of the state in each step of a path [steps, B, F], [B, steps - 1]."""
    return torch.stack([apart(*pair) for pair in zip(path[:-1], path[1:], strict=True)], 1)


def fate(path: Tensor, tolerance: float, longest: int) -> tuple[Tensor, Tensor]:
    """Say how paths [steps, B, F] end; the last half of each is read.

    Returns:
        fate: int64 [B], an index of `FATES`. Fixed: each step changes the state by at most
            `tolerance` (see `apart`). Cycle: it comes back after at most `longest` steps, each
            time. Drift: it goes on in one direction, and its steps do not become smaller. Moving:
            none of these.
        period: int64 [B], the period of a cycle; 1 at a fixed point, else 0.
    """
    half = path[len(path) // 2 :]
    period = torch.zeros(path.shape[1], dtype=torch.int64, device=path.device)
    for steps in range(min(longest, len(half) - 1), 0, -1):
        pairs = zip(half[:-steps], half[steps:], strict=True)
        furthest = torch.stack([apart(*pair) for pair in pairs]).amax(0)
        period = torch.where(furthest <= tolerance, steps, period)
    pairs = zip(half[:-1], half[1:], strict=True)
    moves = torch.stack([(b - a).norm(dim=-1) for a, b in pairs])
    straight = (half[-1] - half[0]).norm(dim=-1) >= _STRAIGHT * moves.sum(0)
    # A single move is always straight.
    drifts = straight & (moves[-1] >= _AS_LARGE * moves[0]) & (len(moves) > 1)
    moving = torch.where(drifts, FATES.index("drift"), FATES.index("moving"))
    return torch.where(period > 0, (period > 1).long(), moving), period


def largest_lyapunov(move: Move, state: Tensor, size: float, steps: int) -> Tensor:
    """Return the largest Lyapunov exponent near states [B, F], float32 [B], per step, natural
    logarithm: a second start at a distance of `size` times the norm moves with the first, and is
    brought back to this distance after each step (Benettin et al. 1980, Meccanica 15, 9-30). Below
    0 nearby states come closer; above 0 they part.
    """
    distance = size * state.norm(dim=-1, keepdim=True)
    draws = torch.Generator().manual_seed(0)
    direction = torch.randn(state.shape, generator=draws).to(state)
    other = state + direction * (distance / direction.norm(dim=-1, keepdim=True))
    total = torch.zeros(len(state), device=state.device)
    for step in range(_WARM_UP + steps):
        state, other = move(state), move(other)
        found = (other - state).norm(dim=-1, keepdim=True).clamp_min(1e-30)
        if step >= _WARM_UP:
            total += (found / distance).log().squeeze(-1)
        other = state + (other - state) * (distance / found)
    return total / steps


def plane(paths: Tensor, shown: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return paths [steps, B, F] in the plane of their first two principal components, float32
    [steps, B, 2], and the share of their variance in it, []. Return `shown` instead, if it is
    given, in the same plane.
    """
    flat = paths.float().flatten(0, 1)
    centred = flat - flat.mean(0)
    # The products of all pairs, [n, n], have the same components, and n is smaller than F.
    values, vectors = torch.linalg.eigh(centred @ centred.T)
    top, found = values[-2:].flip(0).clamp_min(0), vectors[:, -2:].flip(1)
    shown = paths if shown is None else shown
    away = shown.float().flatten(0, 1) - flat.mean(0)
    places = away @ (centred.T @ found) / top.sqrt().clamp_min(1e-12)
    share = top.sum() / values.clamp_min(0).sum().clamp_min(1e-30)
    return places.unflatten(0, shown.shape[:2]), share


def influence(move: Move, states: Tensor, read: Move, size: float) -> Tensor:
    """Return how much each cell changes what another one answers a step later, [cells, cells]:
    [i, j] is half the sum of the changes of cell i's probabilities after the state of cell j was
    moved by `size` times its norm in a random direction.

    Args:
        move: moves states [n, cells, F] one step, for any n.
        states: one system's, [cells, F].
        read: returns the probabilities [n, cells, V] of states [n, cells, F].
    """
    cells = len(states)
    draws = torch.Generator().manual_seed(0)
    direction = torch.randn(states.shape, generator=draws).to(states)
    direction *= size * states.norm(dim=-1, keepdim=True) / direction.norm(dim=-1, keepdim=True)
    columns = list[Tensor]()
    for some in torch.arange(cells, device=states.device).split(_AT_ONCE):
        systems = states.repeat(1 + len(some), 1, 1)  # The first one is not changed.
        systems[some - some[0] + 1, some] += direction[some]
        after = read(move(systems))
        columns.append((after[1:] - after[:1]).abs().sum(-1).div(2))
    return torch.cat(columns).T
