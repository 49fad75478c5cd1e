"""Where latents start, and how far an update moves them."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from models.carry import Exploration
from models.config import HRMConfig, TRMConfig
from models.losses import IGNORE_LABEL_ID
from models.recurrence import Recurrence
from models.registry import build_model
from tests.unit.models import tiny

ARCHS = [{}, {"name": "trm", "mlp_t": True, "pos_encodings": "none"}]


def inner_of(name: str = "hrm", **settings: Any) -> Recurrence:
    kind = TRMConfig if name == "trm" else HRMConfig
    torch.manual_seed(0)
    config = kind.model_validate(tiny.TINY | {"forward_dtype": "float32"} | settings)
    return build_model(config, tiny.FACTS).eval().model.inner


def latents(inner: Recurrence, rows: int = 3) -> dict[str, Tensor]:
    return {name: z + 1 for name, z in inner.empty_carry(rows).items()}


def test_random_starts_are_drawn_for_each_cell_and_only_where_a_row_begins() -> None:
    inner = inner_of(init="random", init_std=0.5, hidden_size=64)
    reset = torch.tensor([True, False, True])
    first, second = (inner.reset_carry(reset, latents(inner)) for _ in range(2))
    for name, z in first.items():
        assert torch.equal(z[1], torch.ones_like(z[1]))
        assert not torch.equal(z[0], z[2])
        assert not torch.equal(z[0, 0], z[0, 1])
        assert not torch.equal(z, second[name])
        assert z[0].abs().max() <= 1.0
        # Of a normal cut at two deviations.
        assert z[0].std().item() == pytest.approx(0.5 * 0.88, rel=0.1)


# Anchors


def solution_of(inputs: list[int], labels: list[int], sources: list[int]) -> list[int]:
    """The corrupted solution of a row, one cell after the other."""
    pairs = list(zip(inputs, labels, strict=True))
    own = [given if label == IGNORE_LABEL_ID else label for given, label in pairs]
    tokens = []
    for cell, source in enumerate(sources):
        is_open = own[cell] != inputs[cell]
        tokens.append(own[source] if is_open else own[cell])
    return tokens


@pytest.mark.parametrize("settings", [*ARCHS, {"puzzle_emb_ndim": 0}])
def test_an_anchored_answer_is_the_embedded_solution(settings: dict[str, Any]) -> None:
    inner = inner_of(**settings)
    examples, S, P = tiny.make_examples(), tiny.FACTS.seq_len, inner.num_prefix
    examples["labels"][:, 1] = examples["inputs"][:, 1]
    sources = torch.tensor([[3, 3, 0, 3, 1], [0, 1, 2, 3, 4], [-1] * S], dtype=torch.int32)
    before = latents(inner)
    after = inner.anchor(torch.tensor([True, True, True]), before, examples, sources)
    solutions = []
    for row in (0, 1):
        cells = [examples[name][row].tolist() for name in ("inputs", "labels")]
        solutions.append(solution_of(cells[0], cells[1], sources[row].tolist()))
        embedded = inner.embed_tokens(torch.tensor(solutions[row])) * math.sqrt(inner.hidden_size)
        torch.testing.assert_close(after["z_H"][row, P:], embedded)
        assert torch.equal(after["z_H"][row, :P], before["z_H"][row, :P])
    assert solutions[0] != examples["labels"][0].tolist()  # All its cells have labels.
    assert torch.equal(after["z_H"][2], before["z_H"][2])
    assert torch.equal(after["z_L"], before["z_L"])


def test_an_answer_without_errors_reads_as_its_labels() -> None:
    inner = inner_of(puzzle_emb_ndim=0)
    examples = tiny.make_examples()
    own = torch.arange(tiny.FACTS.seq_len, dtype=torch.int32).expand(3, -1)
    start = inner.anchor(torch.tensor([True] * 3), latents(inner), examples, own)["z_H"]
    nearest = (start @ inner.embed_tokens.embedding_weight.T).argmax(-1)
    labels, inputs = examples["labels"], examples["inputs"]
    assert torch.equal(nearest, torch.where(labels == IGNORE_LABEL_ID, inputs, labels).long())


def test_only_rows_with_a_new_example_are_anchored_and_only_in_training() -> None:
    model = tiny.make_model()
    own = torch.arange(tiny.FACTS.seq_len, dtype=torch.int32).repeat(3, 1)
    own[2] = -1
    least = torch.zeros(3, dtype=torch.int32)
    offered = tiny.make_examples()
    carry, _ = model.model(model.initial_carry(offered), offered)
    carry.halted[:] = torch.tensor([True, False, True])
    as_usual, _ = model.model(carry, tiny.make_examples(1), Exploration(least))
    anchored, _ = model.model(carry, tiny.make_examples(1), Exploration(least, anchors=own))
    for name, z in anchored.inner.items():
        same = [torch.equal(*rows) for rows in zip(z, as_usual.inner[name], strict=True)]
        assert same == [False, True, True]
    assert torch.equal(anchored.steps, as_usual.steps)


def test_the_start_gives_the_embedding_no_gradient() -> None:
    gradients = []
    for anchors in (None, torch.zeros(3, tiny.FACTS.seq_len, dtype=torch.int32)):
        model = tiny.make_model(H_cycles=1, L_cycles=1, no_ACT_continue=True)
        examples = tiny.make_examples() | {"inputs": torch.zeros(3, 5, dtype=torch.int32)}
        examples["labels"][:] = 3
        noise = Exploration(torch.zeros(3, dtype=torch.int32), anchors=anchors)
        model(model.initial_carry(examples), examples, noise).loss.backward()
        gradients.append(tiny.inner_of(model).embed_tokens.embedding_weight.grad)
    # The input alone, token 0, has one.
    assert all(g[0].abs().max() > 0 and not g[1:].any() for g in gradients)
    assert not torch.equal(*gradients)


@pytest.mark.parametrize("settings", ARCHS)
def test_an_update_moves_a_share_of_the_way(settings: dict[str, Any]) -> None:
    one = {"H_cycles": 1, "L_cycles": 1, **settings}
    whole, part = inner_of(**one), inner_of(**one, damping=0.75)
    examples = tiny.make_examples()
    before = latents(whole, len(examples["inputs"]))
    (full, _), (damped, _) = whole(before, examples), part(before, examples)
    # The first update; the second one sees where the first has led.
    expected = 0.25 * before["z_L"] + 0.75 * full["z_L"]
    torch.testing.assert_close(damped["z_L"], expected, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(damped["z_H"], full["z_H"])


@pytest.mark.parametrize("settings", ARCHS)
def test_noise_has_its_width_and_follows_the_seed(settings: dict[str, Any]) -> None:
    one = {"H_cycles": 1, "L_cycles": 1, "hidden_size": 64, **settings}
    quiet, noisy = inner_of(**one), inner_of(**one, noise=0.1)
    examples = tiny.make_examples()
    before = latents(quiet, len(examples["inputs"]))
    torch.manual_seed(5)
    moved = noisy(before, examples)[0]
    difference = moved["z_L"] - quiet(before, examples)[0]["z_L"]
    assert difference.std().item() == pytest.approx(0.1, rel=0.1)
    torch.manual_seed(5)
    again = noisy(before, examples)[0]
    assert all(torch.equal(z, again[name]) for name, z in moved.items())
