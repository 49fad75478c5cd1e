"""A token head that the puzzle embedding changes."""

import pytest
import torch

from models.heads.puzzle.model import PuzzleAdapted
from tests.unit.models.heads.token_heads import WIDTH, B, D, V, build, inputs


def test_the_puzzle_changes_the_weights_of_its_row_alone() -> None:
    projection, (hidden, puzzle) = build("puzzle"), inputs()
    before = projection(hidden, puzzle)
    puzzle[1] += 1
    after = projection(hidden, puzzle)
    assert torch.equal(before[[0, 2]], after[[0, 2]])
    assert not torch.allclose(before[1], after[1])
    with pytest.raises(ValueError, match="needs the puzzle embedding"):
        projection(hidden)


def test_a_head_adapted_to_the_puzzle_learns_from_a_start_at_zero() -> None:
    torch.manual_seed(0)
    projection = PuzzleAdapted(D, V, puzzle_dim=WIDTH, rank=2)
    hidden, _ = inputs(torch.float32)
    logits = projection(hidden, torch.zeros(B, WIDTH))
    torch.testing.assert_close(logits, projection.base(hidden))
    (grad,) = torch.autograd.grad(logits.square().sum(), projection.up.weight)
    assert grad.any()
