"""Probes on tiny models with random weights: their parts agree with each other."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from apps.inside import probes
from apps.inside.config import EscapesConfig, FateConfig, InfluenceConfig, LyapunovConfig
from apps.inside.course import Course, course_of, joined
from dataset.format.schema import IGNORE_LABEL_ID
from dataset.kinds.maze import MAZE
from dataset.kinds.sudoku import SUDOKU
from evaluation.probes import ProbeConfig
from models.act import ACTLossHead
from puzzle_dataset import EvalBatches, PuzzleDataset
from runtime.errors import ConfigError
from runtime.ranks import Ranks

Make = Callable[..., ACTLossHead]
PLAIN = ProbeConfig(name="any")


@pytest.fixture
def sudokus(sudoku_data: Path) -> PuzzleDataset:
    return PuzzleDataset([sudoku_data], "test")


@pytest.fixture
def follow(make_model: Make, sudokus: PuzzleDataset) -> Callable[..., Course]:
    def run(**settings: object) -> Course:
        _, batch, *_ = next(iter(EvalBatches(sudokus, global_batch_size=10)))
        model = make_model(sudokus, **{"halt_max_steps": 6} | settings).eval()
        with torch.no_grad():
            return course_of(model, batch, SUDOKU, Ranks("cpu"), 0, 0)

    return run


@pytest.fixture(autouse=True)
def _no_gradients() -> object:
    with torch.no_grad():
        yield


def test_a_course_moves_as_the_model_did(follow: Callable[..., Course]) -> None:
    course = follow()
    assert len(course.latents) == 6
    moved = course.moved(joined(course.latents[2]), course.examples)
    assert torch.equal(moved, joined(course.latents[3]))
    cells = course.cells(course.latents[1])
    assert cells.shape == (10, 16, 64)  # Two latents of 32 in each cell.
    back = course.with_cells(course.latents[1], cells)
    assert all(torch.equal(back[name], z) for name, z in course.latents[1].items())
    other = course.with_cells(course.latents[1], cells + 1)
    assert torch.equal(course.cells(other), cells + 1)
    prefix = course.latents[1]["z_H"][:, :1]
    assert torch.equal(other["z_H"][:, :1], prefix)


def test_a_kind_with_many_answers_judges_by_its_rules(follow: Callable[..., Course]) -> None:
    course = follow()
    inputs, answers = course.batch.inputs, course.answers

    def holds(questions: np.ndarray, boards: np.ndarray) -> list[np.ndarray]:
        return [questions[:, 0] == boards[:, 1]]

    kind = cast(Any, SimpleNamespace(many_answers=True, holds=holds))
    right = replace(course, kind=kind).is_right(answers)
    assert np.array_equal(right.numpy(), answers[..., 1].numpy() == inputs[:, 0])


def test_the_last_answers_alone_are_judged(follow: Callable[..., Course]) -> None:
    judged = []

    def holds(questions: np.ndarray, boards: np.ndarray) -> list[np.ndarray]:
        judged.append(boards)
        return [np.ones(len(boards), bool)]

    course = replace(follow(), kind=cast(Any, SimpleNamespace(many_answers=True, holds=holds)))
    assert course.right.tolist() == [True] * 10
    assert np.array_equal(judged, course.answers[-1:].numpy())


def test_residual_and_fate(follow: Callable[..., Course]) -> None:
    course = follow()
    found = probes.residual(PLAIN, course)
    curve = found["residual"].values
    assert curve.shape == (10, 5)
    a, b = (joined(latents)[3] for latents in course.latents[:2])
    assert curve[3, 0] == pytest.approx(float((b - a).norm() / b.norm()), rel=1e-5)
    assert np.array_equal(found["last_residual"].values, curve[:, -1])
    told = probes.fate(FateConfig(name="fate", tolerance=10.0), course)
    assert set(told["fate"].values) == {"fixed"}  # Everything is near enough.
    answers = course.answers.numpy()
    for row, settled in enumerate(told["settled"].values.astype(int)):
        assert (answers[settled - 1 :, row] == answers[-1, row]).all()
        assert settled == 1 or (answers[settled - 2, row] != answers[-1, row]).any()


def test_the_answers_latent_reads_as_the_answer(follow: Callable[..., Course]) -> None:
    course = follow()
    labels = course.batch.labels
    found = probes.readout(PLAIN, course)
    shares = (course.answers.numpy() == labels).mean(-1).T
    assert np.allclose(found["z_H_cells"].values, shares)
    assert not np.allclose(found["z_L_cells"].values, shares)
    states = course.latents[-1]["z_H"]
    q = course.model.model.inner.read(states, course.examples)["q_halt_logits"].sigmoid()
    assert np.allclose(found["z_H_q"].values, q.numpy())
    assert not np.allclose(found["z_L_q"].values, q.numpy())


def test_influence_keeps_the_cells_apart(follow: Callable[..., Course]) -> None:
    course = follow()
    config = InfluenceConfig(name="influence", puzzles=2, at_step=3)
    maps = probes.influence(config, course)["influence"].values
    assert maps.shape == (2, 16, 16)
    assert (maps >= 0).all()
    assert (maps <= 1).all()
    assert maps.max() > 0
    # One column again, by hand: the state of cell 5 is moved.
    again = probes.influence_on(course, 1, 3, 0.5)
    assert np.array_equal(again, maps[1])
    still = probes.influence_on(course, 1, 3, 1e-12)
    assert still.max() < 1e-6


def test_escapes_are_tried_for_wrong_answers_only(
    follow: Callable[..., Course], monkeypatch: pytest.MonkeyPatch
) -> None:
    course = follow()
    right = torch.zeros(10, dtype=torch.bool)
    right[4] = True
    monkeypatch.setitem(course.__dict__, "right", right)
    found = probes.escapes(EscapesConfig(name="escapes", chains=2), course)
    assert set(found) == {"noise", "noise_any", "symmetry", "symmetry_any"}
    for column in found.values():
        assert np.isnan(column.values).tolist() == [row == 4 for row in range(10)]
    monkeypatch.setitem(course.__dict__, "right", torch.zeros(10, dtype=torch.bool))
    of_all = probes.escapes(EscapesConfig(name="escapes", chains=2), course)
    for name, column in found.items():  # Noise depends on the row alone.
        assert np.delete(of_all[name].values, 4).tolist() == np.delete(column.values, 4).tolist()
    monkeypatch.setitem(course.__dict__, "right", torch.ones(10, dtype=torch.bool))
    assert probes.escapes(EscapesConfig(name="escapes"), course) == {}


def test_escapes_to_any_of_many_answers_count(follow: Callable[..., Course]) -> None:
    def holds(questions: np.ndarray, boards: np.ndarray) -> list[np.ndarray]:
        assert questions.shape == boards.shape
        return [np.arange(len(boards)) % 2 == 0]

    kind = SimpleNamespace(many_answers=True, holds=holds, views=lambda size: None)
    course = replace(follow(), kind=cast(Any, kind))
    found = probes.escapes(EscapesConfig(name="escapes", chains=2), course)
    assert found["noise"].values[1::2].tolist() == [1.0, 0.0, 1.0, 0.0, 1.0]


def test_random_starts_are_a_way_out(follow: Callable[..., Course]) -> None:
    course = follow(techniques={"random_starts": {}})
    found = probes.escapes(EscapesConfig(name="escapes", chains=1), course)
    assert {"noise", "init", "symmetry"} <= set(found)


@pytest.mark.parametrize("name", ["random_starts", "damped_noise"])
def test_numbers_that_a_step_draws_depend_on_no_other_probe(
    follow: Callable[..., Course], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    course = follow(techniques={name: {}})
    right = torch.ones(10, dtype=torch.bool)
    right[:3] = False
    monkeypatch.setitem(course.__dict__, "right", right)
    expected = probes.stability(PLAIN, course)
    probes.escapes(EscapesConfig(name="escapes", chains=1), course)
    found = probes.stability(PLAIN, course)
    assert all(np.array_equal(found[key].values, column.values) for key, column in expected.items())
    again = probes._run(course, course.examples["inputs"])
    assert all(torch.equal(again[key], z) for key, z in course.latents[-1].items())


def test_no_more_views_are_tried_than_there_are(follow: Callable[..., Course]) -> None:
    course = replace(follow(), kind=MAZE)  # Mazes have eight views.
    assert "symmetry" in probes.escapes(EscapesConfig(name="escapes", chains=8), course)


def test_one_cell_is_left_open(
    follow: Callable[..., Course], monkeypatch: pytest.MonkeyPatch
) -> None:
    course, asked = follow(), []
    run = probes._run

    def watch(course: Course, inputs: torch.Tensor, start: object = None) -> object:
        asked.append(inputs)
        return run(course, inputs, start)  # type: ignore[arg-type]

    monkeypatch.setattr(probes, "_run", watch)
    probes.stability(PLAIN, course)
    labels = course.examples["labels"]
    assert torch.equal(asked[0], labels)
    assert torch.equal(asked[1], course.examples["inputs"])
    assert ((asked[2] != labels).sum(-1) == 1).all()
    assert (asked[2][asked[2] != labels] == 1).all()  # The token of an empty cell.


def test_cells_without_labels_keep_their_token(
    follow: Callable[..., Course], monkeypatch: pytest.MonkeyPatch
) -> None:
    course, asked = follow(), []
    course.examples["labels"][3] = IGNORE_LABEL_ID
    run = probes._run
    monkeypatch.setattr(probes, "_run", lambda *given: asked.append(given[1]) or run(*given))
    probes.stability(PLAIN, course)
    assert torch.equal(asked[0][3], course.examples["inputs"][3])
    assert min(inputs.min() for inputs in asked) >= 0


def test_influence_counts_the_puzzles_of_the_set(follow: Callable[..., Course]) -> None:
    course, config = follow(), InfluenceConfig(name="influence", puzzles=2)
    later = [replace(course, first_row=row) for row in (1, 2)]
    found = [probes.influence(config, one) for one in (course, *later)]
    assert [len(one["influence"].values) for one in found[:2]] == [2, 1]
    assert found[2] == {}
    with pytest.raises(ConfigError, match="influence needs 20 ACT steps, not 6; set steps=20"):
        probes.influence(InfluenceConfig(name="influence", at_step=20), course)


def test_what_a_model_cannot_answer(follow: Callable[..., Course]) -> None:
    with pytest.raises(ConfigError, match="add arch_overrides.forward_dtype=float32"):
        probes.lyapunov(LyapunovConfig(name="lyapunov"), follow(forward_dtype="bfloat16"))
    course = follow(halt_max_steps=1)
    with pytest.raises(ConfigError, match="residual needs 2 ACT steps, not 1"):
        probes.residual(PLAIN, course)
    with pytest.raises(ConfigError, match="set steps=16"):
        probes.fate(FateConfig(name="fate"), course)
    course = follow(techniques={"damped_noise": {}})
    with pytest.raises(ConfigError, match="each step of this model draws random numbers"):
        probes.influence(InfluenceConfig(name="influence"), course)
