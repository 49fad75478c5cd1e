import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from dataset import build_puzzle_dataset
from dataset.format.schema import PuzzleSet
from dataset.format.writing import write_split
from dataset.kinds.queens import QUEENS
from evaluation.measure import evaluate
from evaluation.metrics import SetResult
from evaluation.records import Answers
from models.act import ACTLossHead, LossOutput
from puzzle_dataset import EvalBatches, PuzzleDataset
from runtime.ranks import Ranks

Make = Callable[..., ACTLossHead]


@pytest.fixture
def tasks(tasks_data: Path) -> PuzzleDataset:
    return PuzzleDataset([tasks_data], "test")


@pytest.fixture
def sudokus(sudoku_data: Path) -> PuzzleDataset:
    return PuzzleDataset([sudoku_data], "test")


def measure(
    model: ACTLossHead, dataset: PuzzleDataset, batch_size: int, max_examples: int | None = None
) -> dict[str, SetResult]:
    batches = EvalBatches(dataset, global_batch_size=batch_size, max_examples=max_examples)
    return dict(evaluate(model, model, batches, Ranks("cpu")).sets)


def values_of(result: SetResult) -> dict[str, float]:
    return {name: estimate.value for name, estimate in result.metrics.items()}


def one_by_one(model: ACTLossHead, dataset: PuzzleDataset) -> dict[str, float]:
    """Evaluate in the obvious way: one row at a time, every ACT step, means in Python."""
    arrays = dataset.sets["all"]
    sums: dict[str, float] = {}
    ids = np.repeat(arrays.puzzle_identifiers, np.diff(arrays.puzzle_indices))
    model.eval()
    for row, identifier in enumerate(ids):
        labels = torch.tensor(arrays.labels[row].astype(np.int32))[None]
        labels[labels == dataset.metadata.ignore_label_id] = -100
        examples = {
            "inputs": torch.tensor(arrays.inputs[row].astype(np.int32))[None],
            "labels": labels,
            "puzzle_identifiers": torch.tensor([identifier]),
        }
        with torch.no_grad():
            step = model(model.initial_carry(examples), examples)
            for _ in range(model.model.halt_max_steps - 1):
                step = model(step.carry, examples)
        for key, value in step.metrics.items():
            sums[key] = sums.get(key, 0.0) + float(value)
    counted = sums.pop("count")
    assert counted == (arrays.labels != dataset.metadata.ignore_label_id).any(axis=1).sum()
    return {key: v / (len(ids) if key.endswith("loss") else counted) for key, v in sums.items()}


@pytest.mark.parametrize("batch_size", [1, 5, 24, 64])
def test_equals_one_row_at_a_time(make_model: Make, tasks: PuzzleDataset, batch_size: int) -> None:
    model = make_model(tasks)
    result = measure(model, tasks, batch_size)["all"]
    assert (result.num_examples, result.count) == (24, 24)
    expected = one_by_one(model, tasks)
    assert values_of(result) == pytest.approx(expected, abs=1e-6)
    assert 0 < expected["accuracy"] < 1


def test_all_steps_are_taken_whatever_q_says(make_model: Make, sudokus: PuzzleDataset) -> None:
    model = make_model(sudokus, halt_max_steps=4)
    with torch.no_grad():
        model.state_dict()["model.inner.q_head.bias"].copy_(torch.tensor([50.0, -50.0]))
    # Also with only the first rows.
    result = measure(model, sudokus, 4, max_examples=6)["all"]
    assert (result.num_examples, result.count, values_of(result)["steps"]) == (6, 6, 4.0)


def test_the_compiled_form_is_what_runs(make_model: Make, sudokus: PuzzleDataset) -> None:
    model = make_model(sudokus)
    calls = []

    def forward(*arguments: object, **settings: object) -> LossOutput:
        calls.append(torch.is_grad_enabled() or model.training)
        return model(*arguments, **settings)

    evaluate(forward, model, EvalBatches(sudokus, global_batch_size=4), Ranks("cpu"))
    assert calls == [False] * 3 * 3  # three batches of three ACT steps


def test_rows_without_labels_and_empty_sets(
    make_model: Make, tasks: PuzzleDataset, tmp_path: Path
) -> None:
    labels = np.array(tasks.sets["all"].labels)
    labels[[2, 11]] = 0
    full = dataclasses.replace(tasks.sets["all"], labels=labels)
    none, start = np.zeros(0, np.int32), np.zeros(1, np.int32)
    empty = PuzzleSet(full.inputs[:0], labels[:0], none, start, start)
    metadata = dataclasses.replace(tasks.metadata, sets=("all", "none"))
    write_split(tmp_path / "test", metadata, {"all": full, "none": empty})
    dataset = PuzzleDataset([tmp_path], "test")
    model = make_model(dataset)
    results = measure(model, dataset, 7)
    assert list(results) == ["all", "none"]
    assert (results["all"].num_examples, results["all"].count) == (24, 22)
    assert values_of(results["all"]) == pytest.approx(one_by_one(model, dataset), abs=1e-6)
    assert results["none"] == SetResult(0, 0, {})


def test_any_of_several_right_answers_is_right_in_the_records(
    make_model: Make, tmp_path: Path
) -> None:
    flags = "--kind queens --size 8 --subsample-size 1 --test-size 5"
    build_puzzle_dataset.make([*flags.split(), f"--output-dir={tmp_path / 'q'}"])
    queens = PuzzleDataset([tmp_path / "q"], "test")
    model, rows = make_model(queens), queens.sets["all"]
    boards = [board.reshape(8, 8) for board in rows.inputs.astype(np.uint8)]
    solutions = [[one.reshape(-1) for one in QUEENS.solutions(board)] for board in boards]
    others = [
        [one for one in own if (one != label).any()] or own
        for own, label in zip(solutions, rows.labels, strict=True)
    ]
    preds = np.array([own[0] for own in others])
    preds[0] = 1  # No queen at all.
    logits = torch.nn.functional.one_hot(torch.tensor(preds).long(), 3).float()
    model.model.inner.heads["lm"].read = lambda _: {"logits": logits}  # type: ignore
    batches, ranks = EvalBatches(queens, global_batch_size=5), Ranks("cpu")
    found = evaluate(model, model, batches, ranks, answers=Answers(3, QUEENS))
    same = (preds == rows.labels).all(1)
    assert not same[1:].all()
    assert found.records["all"]["exact_accuracy"].tolist() == same.tolist()
    assert found.records["all"]["valid"].tolist() == [0, 1, 1, 1, 1]
    assert found.records["all"]["right_after_1"].tolist() == [0, 1, 1, 1, 1]
    failures = found.answers["all"]["failures"]
    assert {one["index"] for part in failures.values() for one in part} == {0}
    wrong = int((rows.labels[0] != 1).sum())
    assert found.answers["all"]["confusion"][2] == [0, wrong, int((preds == 2).sum())]
