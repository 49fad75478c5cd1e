"""What is recorded is what the model computed, and the model stays as it was."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from apps.attractor.config import AttractorConfig
from apps.dec.config import DECConfig
from apps.inside import recording
from apps.inside.recording import Recorder, recordable
from apps.nca.config import NCAConfig
from evaluation.think import all_steps, steps
from models.act import ACTLossHead
from models.layers import Attention
from models.registry import build_model
from puzzle_dataset import EvalBatches, PuzzleDataset
from runtime.errors import ConfigError
from training.data import data_facts

Make = Callable[..., ACTLossHead]


@pytest.fixture
def sudokus(sudoku_data: Path) -> PuzzleDataset:
    return PuzzleDataset([sudoku_data], "test")


def examples_of(sudokus: PuzzleDataset, rows: int) -> dict[str, torch.Tensor]:
    _, batch, *_ = next(iter(EvalBatches(sudokus, global_batch_size=rows)))
    return {name: torch.from_numpy(values) for name, values in batch.arrays().items()}


def record(model: ACTLossHead, names: list[str], sudokus: PuzzleDataset) -> list[Any]:
    """Return (carry, record) of each ACT step on one puzzle."""
    model.eval()
    recorder, found = Recorder(model, names), []
    with torch.no_grad(), recorder.recording():
        for _, carry in steps(model, model, all_steps(model, examples_of(sudokus, 1))):
            found.append((carry, recorder.take()))
    return found


def test_latents_and_their_updates(make_model: Make, sudokus: PuzzleDataset) -> None:
    model = make_model(sudokus, H_cycles=2, L_cycles=3)
    names = ["z_H", "z_L", "z_H.updates", "z_L.updates"]
    found = record(model, names, sudokus)
    assert len(found) == model.model.halt_max_steps
    for carry, one in found:
        assert set(one) == set(names)
        for name in ("z_H", "z_L"):
            assert np.array_equal(one[name], carry.inner[name][0].numpy())
            assert np.array_equal(one[f"{name}.updates"][-1], one[name])
        assert len(one["z_H.updates"]) == 2
        assert len(one["z_L.updates"]) == 6
        moves = np.abs(np.diff(one["z_L.updates"], axis=0)).sum((1, 2))
        assert (moves > 0).all()


def test_states_of_digits(sudokus: PuzzleDataset) -> None:
    """DEC's updates have another layout inside a step."""
    config = DECConfig(hidden_size=32, H_cycles=1, L_cycles=2, forward_dtype="float32")
    model = build_model(config, data_facts(sudokus.metadata, ()))
    for _, one in record(model, ["z_L", "z_L.updates"], sudokus):
        assert one["z_L"].shape == (4 * 16, 32)
        assert np.array_equal(one["z_L.updates"][-1], one["z_L"])


@pytest.mark.parametrize(
    "config",
    [
        AttractorConfig(hidden_size=32, num_heads=2, L_layers=1, H_cycles=2, puzzle_emb_ndim=0),
        NCAConfig(L_cycles=4, keeps="answers"),
    ],
)
def test_a_latent_that_is_replaced_in_a_step(config: Any, sudokus: PuzzleDataset) -> None:
    small = config.model_copy(update={"forward_dtype": "float32", "halt_max_steps": 2})
    model = build_model(small, data_facts(sudokus.metadata, ()))
    for _, one in record(model, ["z_L", "z_L.updates"], sudokus):
        assert len(one["z_L.updates"]) == 4
        assert np.array_equal(one["z_L.updates"][-1], one["z_L"])


def test_attention_is_that_of_the_layers(make_model: Make, sudokus: PuzzleDataset) -> None:
    model = make_model(sudokus)
    layers = [one for one in model.modules() if isinstance(one, Attention)]
    seen: dict[int, tuple[Any, torch.Tensor]] = {}

    def note(number: int) -> Callable[..., None]:
        return lambda layer, given, result: seen.update({number: (given, result)})

    for number, layer in enumerate(layers):
        layer.register_forward_hook(note(number))
    *_, (_, last) = record(model, ["attention"], sudokus)
    weights = torch.from_numpy(last["attention"])
    assert weights.shape == (len(layers), 2, 17, 17)  # A prefix of one position, 16 cells.
    assert torch.allclose(weights.sum(-1), torch.ones(len(layers), 2, 17), atol=1e-5)
    for number, layer in enumerate(layers):
        given, result = seen[number]
        v = layer.projected(*given)[2]
        out = torch.einsum("nts,bsnk->btnk", weights[number], v).reshape(result.shape)
        assert torch.allclose(layer.o_proj(out), result, atol=1e-5)


def test_the_model_stays_as_it_was(make_model: Make, sudokus: PuzzleDataset) -> None:
    model = make_model(sudokus)
    plain = [carry.inner["z_H"] for _, carry in _plain(model, sudokus)]
    before = {*vars(model.model.inner)}
    found = record(model, recordable(model), sudokus)
    assert {*vars(model.model.inner)} == before
    for module in model.modules():
        assert not module._forward_hooks
    for z_H, (carry, _) in zip(plain, found, strict=True):
        assert torch.equal(z_H, carry.inner["z_H"])


def _plain(model: ACTLossHead, sudokus: PuzzleDataset) -> list[Any]:
    model.eval()
    with torch.no_grad():
        return [*steps(model, model, all_steps(model, examples_of(sudokus, 1)))]


def test_an_unknown_name_is_told_the_known_ones(make_model: Make, sudokus: PuzzleDataset) -> None:
    model = make_model(sudokus, mlp_t=True, pos_encodings="none")
    with pytest.raises(ConfigError, match=r"record=z_h: this model has z_H, z_L.*did you mean z_"):
        Recorder(model, ["z_h"])
    with pytest.raises(ConfigError, match="record=attention: this model has z_H"):
        Recorder(model, ["attention"])


def test_what_fits_is_kept(
    make_model: Make, sudokus: PuzzleDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(recording, "warn", told.append)
    each = 17 * 32 * 4
    monkeypatch.setattr(recording, "host_memory_left", lambda: 2 * 2 * each + 100)
    found = record(make_model(sudokus), ["z_H"], sudokus)
    assert [len(one) for _, one in found] == [1, 1, 0]
    assert len(told) == 1
    assert "3 steps need 6.53e-06 GB" in told[0]
    assert "2 steps are kept" in told[0]
