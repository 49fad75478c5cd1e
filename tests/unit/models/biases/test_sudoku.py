"""The attention bias for the row, column and box that two cells of a Sudoku share."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from dataset.sudoku.rules import layout_of
from models.biases.sudoku.model import SudokuBias
from models.config import DataFacts
from models.hrm.config import HRMConfig
from models.layers import Attention
from models.registry import build_model
from models.trm.config import TRMConfig
from runtime.errors import ConfigError
from tests.unit.models import tiny
from training.config.composition import load_config
from training.config.schema import TrainConfig
from training.optim.groups import build_optimizer, groups_of
from training.optim.muon import MUON

FACTS = DataFacts(vocab_size=6, seq_len=16, num_puzzle_identifiers=3)
WAYS = ["nothing", "row", "column", "box", "box and row", "box and column", "cell"]


def way(size: int, first: int, second: int) -> str:
    """Return the names of the units that two cells share."""
    if first == second:
        return "cell"
    row, column, box = layout_of(size).cell_units[first] == layout_of(size).cell_units[second]
    named = [name for name, shared in (("box", box), ("row", row), ("column", column)) if shared]
    return " and ".join(named) or "nothing"


def random_bias(num_heads: int, seq_len: int, num_prefix: int) -> SudokuBias:
    bias = SudokuBias(num_heads, seq_len, num_prefix)
    torch.manual_seed(0)
    torch.nn.init.normal_(bias.weight)
    return bias


@pytest.mark.parametrize("size", [4, 6, 9])
def test_two_cells_get_what_their_way_to_lie_has_learned(size: int) -> None:
    N, S, P = 3, size * size, 2
    bias = random_bias(N, S, P)
    table, found = bias.weight.view(len(WAYS), N), bias(torch.float32)
    assert found.shape == (N, P + S, P + S)
    expected = torch.zeros_like(found)
    for first in range(S):
        for second in range(S):
            index = WAYS.index(way(size, first, second))
            expected[:, P + first, P + second] = table[index]
    assert torch.equal(found, expected)


@pytest.mark.parametrize("backend", ["auto", "math"])
def test_attention_adds_it_to_the_scores(backend: str) -> None:
    N, T, K = 2, 18, 4
    module = Attention(N * K, N, backend, random_bias(N, 16, 2))
    x = torch.randn(3, T, N * K)
    q, k, v = ((x @ part.T).view(3, T, N, K) for part in module.qkv_proj.weight.chunk(3))
    assert module.bias is not None
    out = torch.zeros_like(q)
    for n in range(N):
        scores = q[:, :, n] @ k[:, :, n].mT / math.sqrt(K) + module.bias(x.dtype)[n]
        out[:, :, n] = scores.softmax(-1) @ v[:, :, n]
    twin = out.reshape(3, T, N * K) @ module.o_proj.weight.T
    torch.testing.assert_close(module(x), twin, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(module(x), twin, rtol=1e-5, atol=1e-6)


def model_of(**settings: Any) -> Any:
    torch.manual_seed(0)
    kind = TRMConfig if settings.get("name") == "trm" else HRMConfig
    config = kind.model_validate(tiny.TINY | {"forward_dtype": "float32"} | settings)
    model = build_model(config, FACTS)
    model.prepare(2)
    return model


def first_step(model: Any) -> Any:
    generator = torch.Generator().manual_seed(1)
    cells = torch.randint(1, 6, (2, 2, 16), generator=generator, dtype=torch.int32)
    ids = torch.tensor([1, 2], dtype=torch.int32)
    examples = {"inputs": cells[0], "labels": cells[1], "puzzle_identifiers": ids}
    return model(model.initial_carry(examples), examples)


@pytest.mark.parametrize("name", ["hrm", "trm"])
def test_a_model_starts_as_without_it_and_learns_it(name: str) -> None:
    plain, biased = model_of(name=name), model_of(name=name, attention_bias="sudoku")
    more = biased.state_dict().keys() - plain.state_dict().keys()
    assert {key.rpartition(".self_attn.")[2] for key in more} == {"bias.weight"}
    output, expected = first_step(biased), first_step(plain)
    torch.testing.assert_close(output.outputs["logits"], expected.outputs["logits"])
    output.loss.backward()
    gradients = {key: p.grad for key, p in biased.named_parameters() if key in more}
    # One gradient for each block; the answer at position 0, no cell, depends on all of it.
    for gradient in gradients.values():
        assert isinstance(gradient, Tensor)
        assert (gradient != 0).all()


# Optimizers


def test_it_is_stepped_as_a_bias(sudoku_data: Path) -> None:
    settings = [f"data_path={sudoku_data}", "arch.attention_bias=sudoku"]
    for name in ("grouped", "muon"):
        config = load_config(TrainConfig, "cfg_pretrain", [*settings, f"optimizer={name}"])
        model = build_model(config.arch, FACTS)
        of_bias = [
            p for key, p in model.named_parameters() if key.endswith("self_attn.bias.weight")
        ]
        assert len(of_bias) == 8
        optimizer = build_optimizer(config.optimizer, groups_of(model, config), (0.9, 0.95))
        for group in optimizer.param_groups:
            if any(p is own for p in group["params"] for own in of_bias):
                assert group["weight_decay"] == 0.0 or name == "muon"
                assert not group.get(MUON)


# Refused combinations


def test_it_needs_attention() -> None:
    told = "attention_bias=sudoku with mlp_t=true: there is no attention"
    with pytest.raises(ValidationError, match=told):
        TRMConfig(attention_bias="sudoku", mlp_t=True)


@pytest.mark.parametrize("seq_len", [9, 100, 900])
def test_data_that_are_no_sudoku_are_refused(seq_len: int) -> None:
    config = HRMConfig(attention_bias="sudoku")
    with pytest.raises(
        ConfigError, match=f"^arch.attention_bias=sudoku: it is for Sudoku .* have {seq_len} cells"
    ):
        build_model(config, DataFacts(6, seq_len, 1))


def test_data_of_another_kind_are_refused_by_its_name() -> None:
    config = HRMConfig(attention_bias="sudoku")
    with pytest.raises(ConfigError, match=r"81 cells and 11 tokens \(kind latin_square\)$"):
        config.require_data(DataFacts(11, 81, 1, kind="latin_square"))
