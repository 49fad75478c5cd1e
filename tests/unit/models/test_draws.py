"""Random numbers that depend on a row's key and not on its batch."""

import pytest
import torch
from torch import Tensor

from models.draws import BATCH_DRAWS, ROW_KEYS, RowDraws, noise_table
from tests.unit.models import tiny

TABLE = noise_table(torch.device("cpu"))
LIKE = torch.zeros(4, 5, 64)
KEYS, STEPS = torch.tensor([7, 8, 2**32 - 1, 7]), torch.tensor([1, 1, 1, 2], dtype=torch.int32)


def drawn(rows: Tensor, number: int = 0) -> Tensor:
    draws = RowDraws(TABLE, KEYS[rows], STEPS[rows])
    return [draws.normal(LIKE[rows]) for _ in range(number + 1)][number]


def test_a_row_draws_the_same_in_any_place_and_company() -> None:
    whole = drawn(torch.arange(4), 2)
    for rows in ([0], [3, 1], [2, 2, 0]):
        assert torch.equal(drawn(torch.tensor(rows), 2), whole[rows])


def test_keys_steps_and_draws_all_tell_numbers_apart() -> None:
    seen = torch.cat([drawn(torch.arange(4), number) for number in range(3)]).flatten(1)
    assert len(seen.unique(dim=0)) == 12
    # Windows at near places would be shifted copies.
    assert len(seen.unique()) > 0.99 * seen.numel()


def test_they_are_normal_and_starts_are_cut() -> None:
    keys = torch.arange(200)
    draws = RowDraws(TABLE, keys, torch.ones_like(keys))
    like = torch.zeros(200, 5, 64)
    normal, cut = draws.normal(like), draws.cut_normal(like, 0.5)
    assert normal.mean().abs() < 0.02
    assert normal.std().item() == pytest.approx(1.0, rel=0.02)
    assert normal.abs().max() > 3
    assert cut.abs().max() <= 1.0
    assert cut.std().item() == pytest.approx(0.5 * 0.8796, rel=0.02)
    assert draws.normal(like.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["random_starts", "damped_noise"])
@pytest.mark.parametrize("mlp_t", [False, True])
def test_a_model_whose_rows_have_keys_asks_torch_for_no_numbers(name: str, mlp_t: bool) -> None:
    model = tiny.make_model(forward_dtype="float64", mlp_t=mlp_t, techniques={name: {}}).eval()
    examples = tiny.make_examples()
    examples[ROW_KEYS] = torch.arange(len(examples["inputs"]))

    def think(rows: list[int]) -> Tensor:
        offered = {name: values[rows] for name, values in examples.items()}
        carry = model.initial_carry(offered)
        for _ in range(2):
            carry = model(carry, offered, measured=False).carry
        return model.model.answer_of(carry)

    before = torch.get_rng_state()
    with torch.no_grad():
        whole, two = think([0, 1, 2]), think([2, 0])
    torch.testing.assert_close(two, whole[[2, 0]], rtol=1e-9, atol=1e-9)
    assert torch.equal(torch.get_rng_state(), before)
    del examples[ROW_KEYS]  # As in training, where torch draws again.
    with torch.no_grad():
        think([0, 1, 2])
    assert not torch.equal(torch.get_rng_state(), before)
    assert model.model.inner.draws is BATCH_DRAWS
