"""Answers that start at their own solution, with some cells wrong."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from models.losses import IGNORE_LABEL_ID
from models.techniques.anchors import Anchors
from runtime.streams import Address
from tests.unit.models import tiny
from tests.unit.models.tiny import ARCHS, latents, small_inner

ANCHORED = {"techniques": {"anchors": {}}}


def anchors(
    step: int = 0, rows: int = 4000, cells: int = 30, seed: int = 0, **share: float
) -> np.ndarray:
    technique = Anchors(**{"prob": 0.25, "corruption": 0.4} | share)
    found = technique.draw(Address(seed, step, rows, range(rows), 1, cells))["anchors"][0]
    assert (found.dtype, found.shape) == (np.int32, (rows, cells))
    return found


def test_the_anchors_are_pinned() -> None:
    """The draws stay the same, so that a resumed run continues."""
    found = anchors(2, 4, 6, seed=1, prob=0.5, corruption=1.0)
    assert found[[0, 2, 3]].tolist() == [[2, 1, 2, 5, 4, 3], [0, 1, 4, 3, 4, 5], [1, 5, 2, 5, 4, 5]]
    assert (found[1] == -1).all()
    # A rank draws its own rows alone.
    own = Anchors(prob=0.5, corruption=1.0).draw(Address(1, 2, 4, range(2, 4), 2, 6))["anchors"]
    assert own.tolist() == found[2:, None].tolist()
    drawn = {anchors(step, 9, seed=seed).tobytes() for step in range(9) for seed in (0, 1)}
    assert len(drawn) == 18


def test_a_row_has_a_share_of_its_own_and_every_cell_is_as_likely() -> None:
    found = anchors(prob=1.0)
    wrong = found != np.arange(30)
    # One corrupted cell in 30 takes its own token and stays right.
    shares = wrong.mean(1) * 30 / 29
    # Uniform up to 0.4, with a wider spread because a row has few cells.
    assert shares.mean() == pytest.approx(0.2, abs=0.01)
    spread = 0.4**2 / 12 + (0.2 - 0.4**2 / 3) / 30
    assert shares.var() == pytest.approx(spread, rel=0.1)
    assert wrong.mean(0) == pytest.approx(np.full(30, 0.2 * 29 / 30), abs=5 * np.sqrt(0.2 / 4000))
    taken = np.bincount(found[wrong], minlength=30) / wrong.sum()
    assert taken == pytest.approx(np.full(30, 1 / 30), abs=0.005)
    assert (anchors(prob=1.0, corruption=0.0) == np.arange(30)).all()


def solution_of(inputs: list[int], labels: list[int], sources: list[int]) -> list[int]:
    """Compute the corrupted solution of a row, one cell after the other."""
    pairs = list(zip(inputs, labels, strict=True))
    own = [given if label == IGNORE_LABEL_ID else label for given, label in pairs]
    tokens = []
    for cell, source in enumerate(sources):
        is_open = own[cell] != inputs[cell]
        tokens.append(own[source] if is_open else own[cell])
    return tokens


@pytest.mark.parametrize("settings", [*ARCHS, {"puzzle_emb_ndim": 0}])
def test_an_anchored_answer_is_the_embedded_solution(settings: dict[str, Any]) -> None:
    inner = small_inner(**settings)
    examples, S, P = tiny.make_examples(), tiny.FACTS.seq_len, inner.num_prefix
    examples["labels"][:, 1] = examples["inputs"][:, 1]
    sources = torch.tensor([[3, 3, 0, 3, 1], [0, 1, 2, 3, 4], [-1] * S], dtype=torch.int32)
    before = latents(inner)
    new, drawn = torch.tensor([True, True, True]), {"anchors": sources}
    after = Anchors().begun(inner, new, new.int(), before, examples, drawn)
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


def test_only_rows_with_a_new_example_are_anchored_and_only_in_training() -> None:
    model = tiny.make_model(**ANCHORED)
    own = torch.arange(tiny.FACTS.seq_len, dtype=torch.int32).repeat(3, 1)
    own[2] = -1
    least = torch.zeros(3, dtype=torch.int32)
    offered = tiny.make_examples()
    carry, _ = model.model(model.initial_carry(offered), offered)
    carry.halted[:] = torch.tensor([True, False, True])
    as_usual, _ = model.model(carry, tiny.make_examples(1), {"min_steps": least})
    anchored, _ = model.model(carry, tiny.make_examples(1), {"min_steps": least, "anchors": own})
    for name, z in anchored.inner.items():
        same = [torch.equal(*rows) for rows in zip(z, as_usual.inner[name], strict=True)]
        assert same == [False, True, True]
    assert torch.equal(anchored.steps, as_usual.steps)


def test_the_start_gives_the_embedding_no_gradient() -> None:
    gradients = []
    for anchors in (None, torch.zeros(3, tiny.FACTS.seq_len, dtype=torch.int32)):
        model = tiny.make_model(H_cycles=1, L_cycles=1, no_ACT_continue=True, **ANCHORED)
        examples = tiny.make_examples() | {"inputs": torch.zeros(3, 5, dtype=torch.int32)}
        examples["labels"][:] = 3
        noise = {"min_steps": torch.zeros(3, dtype=torch.int32)}
        noise |= {"anchors": anchors} if anchors is not None else {}
        model(model.initial_carry(examples), examples, noise).loss.backward()
        gradients.append(tiny.inner_of(model).embed_tokens.embedding_weight.grad)
    # The input alone, token 0, has one.
    assert all(g[0].abs().max() > 0 and not g[1:].any() for g in gradients)
    assert not torch.equal(*gradients)
