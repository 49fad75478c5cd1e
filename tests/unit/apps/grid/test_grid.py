"""The recurrence that treats colours alike and knows the grid."""

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from apps.grid.config import NUM_TOKENS, GridConfig
from models.config import DataFacts
from models.heads.base import Examples
from runtime.errors import ConfigError
from tests.unit.models.tiny import inner_of, shaken

SMALL: Any = {"hidden_size": 8, "num_heads": 2, "H_cycles": 2, "L_cycles": 2, "halt_max_steps": 3}
SMALL |= {"puzzle_emb_ndim": 6, "forward_dtype": "float64"}
SIDE = 5


def model_of(side: int = SIDE, vocab_size: int = 12, **settings: Any) -> Any:
    facts = DataFacts(vocab_size, side * side, 4, kind="arc")
    model = shaken(GridConfig(**SMALL | settings), facts).eval()
    if model.puzzle_embedding is not None:
        generator = torch.Generator().manual_seed(3)
        model.puzzle_embedding.weights.normal_(generator=generator)
    return model


def examples_of(vocab_size: int = 12) -> Examples:
    generator = torch.Generator().manual_seed(0)
    canvas = torch.zeros(3, SIDE, SIDE, dtype=torch.int32)
    canvas[:, :3, :4] = torch.randint(2, vocab_size, (3, 3, 4), generator=generator)
    canvas[:, 3, :4] = canvas[:, :3, 4] = 1
    cells = canvas.flatten(1)
    return {"inputs": cells, "labels": cells, "puzzle_identifiers": torch.arange(1, 4).int()}


def answer(model: Any, examples: Examples) -> dict[str, Tensor]:
    """Return the outputs after two ACT steps."""
    first = model(model.initial_carry(examples), examples)
    return model(first.carry, examples).outputs


def test_permuted_colours_permute_the_answer() -> None:
    model, examples = model_of(), examples_of()
    plain = answer(model, examples)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    tokens = torch.cat((torch.arange(3), order + 3))
    renamed = examples | {
        name: tokens[examples[name].long()].int() for name in ("inputs", "labels")
    }
    rows = model.puzzle_embedding.weights.unflatten(-1, (NUM_TOKENS, -1))
    rows[:, tokens[1:] - 1] = rows.clone()
    permuted = answer(model, renamed)
    moved = permuted["logits"][..., tokens]
    torch.testing.assert_close(moved, plain["logits"], rtol=0, atol=1e-10)
    torch.testing.assert_close(permuted["q_halt_logits"], plain["q_halt_logits"])
    assert (plain["logits"].argmax(-1) > 0).all()  # Padding is never predicted.
    # With other vectors of the puzzle the answer is another one.
    rows.zero_()
    assert not torch.allclose(answer(model, renamed)["logits"], permuted["logits"], atol=1e-3)


def test_rows_and_columns_border_and_black_are_told_apart() -> None:
    model, examples = model_of(puzzle_emb_ndim=0), examples_of()
    plain = answer(model, examples)["logits"]
    turned = examples | {"inputs": examples["inputs"].view(-1, SIDE, SIDE).mT.flatten(1)}
    back = answer(model, turned)["logits"].unflatten(1, (SIDE, SIDE)).transpose(1, 2).flatten(1, 2)
    assert not torch.allclose(back, plain, atol=1e-3)
    for one, other in ((1, 2), (2, 3)):
        tokens = torch.arange(12)
        tokens[one], tokens[other] = other, one
        swapped = answer(model, examples | {"inputs": tokens[examples["inputs"].long()].int()})
        assert not torch.allclose(swapped["logits"][..., tokens], plain, atol=1e-3)


def test_a_change_reaches_neighbours_and_lines() -> None:
    # After one update a cell has seen only what a block mixes directly.
    model = inner_of(model_of())
    block = model.L_level.layers[0]
    x = torch.randn(NUM_TOKENS, SIDE * SIDE, 8, dtype=torch.float64)
    changed = x.clone()
    changed[4, 12] += 1.0  # Token 4 in the middle.
    for part in (block.row, block.column, block.all, block.others):
        (part.proj if hasattr(part, "proj") else part).weight.data.zero_()
    moved = (block(changed, None) - block(x, None)).abs().amax(-1) > 1e-9
    near = torch.zeros(SIDE, SIDE, dtype=torch.bool)
    near[1:4, 1:4] = True
    assert moved[4].tolist() == near.flatten().tolist()
    assert not moved[[0, 1, 2, 3, 5]].any()
    with torch.no_grad():
        block.row.weight.normal_()
        moved = (block(changed, None) - block(x, None)).abs().amax(-1) > 1e-9
        near[2] = True
        assert moved[4].tolist() == near.flatten().tolist()
        block.others.proj.weight.normal_()
        moved = (block(changed, None) - block(x, None)).abs().amax(-1) > 1e-9
        assert moved[:, 12].all()


def test_the_same_weights_fit_other_canvases_and_vocabularies() -> None:
    large = model_of()
    small = model_of(side=7, vocab_size=6)
    small.load_state_dict(large.state_dict())
    examples = examples_of(vocab_size=6)
    canvas = torch.zeros(3, 7, 7, dtype=torch.int32)
    canvas[:, :SIDE, :SIDE] = examples["inputs"].view(3, SIDE, SIDE)
    own = {name: canvas.flatten(1) for name in ("inputs", "labels")}
    found = answer(small, examples | own)["logits"]
    assert found.shape == (3, 49, 6)


def test_training_moves_all_weights_and_the_vectors_of_the_puzzles() -> None:
    model, examples = model_of().train(), examples_of()
    model.prepare(3)
    carry = model.initial_carry(examples)
    model(carry, examples).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name
    moved = model.puzzle_embedding.local_weights.grad
    assert moved.shape == (3, NUM_TOKENS * 6)
    assert (moved != 0).any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mlp_t": True}, "mlp_t=True has no meaning with name=grid; use False"),
        ({"pos_encodings": "rope"}, "pos_encodings=rope has no meaning with name=grid; use none"),
        ({"puzzle_emb_len": 2}, "puzzle_emb_len=2 has no meaning"),
        ({"puzzle_emb_ndim": 9}, "puzzle_emb_ndim=9: .*at most hidden_size=8"),
        ({"heads": {"lm": {"name": "tied"}}}, "arch=grid shares one row among all digits"),
        ({"loss": {"label_smoothing": 0.1}}, "but arch=grid predicts digits only; use 0"),
    ],
)
def test_settings_without_meaning_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        GridConfig(**SMALL | settings)


def test_other_puzzles_are_refused() -> None:
    with pytest.raises(ConfigError, match="grid reads arc puzzles, and these are sudoku"):
        GridConfig().require_data(DataFacts(11, 81, 1, kind="sudoku"))
    with pytest.raises(ConfigError, match="grid reads square grids; 200 cells form none"):
        GridConfig().require_data(DataFacts(12, 200, 1, kind="arc"))
    with pytest.raises(ConfigError, match="reads at most 12 tokens; the data have 13"):
        GridConfig().require_data(DataFacts(13, 25, 1))
    GridConfig(puzzle_emb_ndim=0).require_data(DataFacts(13, 25, 1))
