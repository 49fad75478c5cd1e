import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from dataset.format.disk import write_split
from dataset.format.schema import PuzzleDatasetMetadata, PuzzleSet
from evaluation.metrics import SetResult
from evaluation.runner import evaluate
from models.losses import ACTLossHead, LossOutput
from puzzle_dataset import EvalBatches, PuzzleDataset
from runtime.ranks import Ranks
from training.data import data_facts

ALONE = Ranks("cpu")


def values_of(result: SetResult) -> dict[str, float]:
    return {name: estimate.value for name, estimate in result.metrics.items()}


def one_by_one(model: ACTLossHead, dataset: PuzzleDataset, name: str) -> dict[str, float]:
    """The obvious evaluation: a row at a time, every ACT step, means in Python."""
    arrays = dataset.sets[name]
    sums: dict[str, float] = {}
    counted = 0
    for puzzle in range(arrays.num_puzzles):
        for row in range(arrays.puzzle_indices[puzzle], arrays.puzzle_indices[puzzle + 1]):
            labels = torch.tensor(arrays.labels[row].astype(np.int32))[None]
            labels[labels == dataset.metadata.ignore_label_id] = -100
            examples = {
                "inputs": torch.tensor(arrays.inputs[row].astype(np.int32))[None],
                "labels": labels,
                "puzzle_identifiers": torch.tensor([arrays.puzzle_identifiers[puzzle]]),
            }
            model.eval()
            with torch.no_grad():
                step: LossOutput | None = None
                carry = model.initial_carry(examples)
                for _ in range(model.model.halt_max_steps):
                    step = model(carry, examples)
                    carry = step.carry
            assert step is not None
            for key, value in step.metrics.items():
                sums[key] = sums.get(key, 0.0) + float(value)
            counted += bool((labels != -100).any())
    assert sums.pop("count") == counted
    return {
        key: value / (arrays.num_examples if key.endswith("loss") else counted)
        for key, value in sums.items()
    }


@pytest.mark.parametrize("batch_size", [1, 5, 24, 64])
def test_equals_one_row_at_a_time(
    make_model: Callable[..., ACTLossHead], tasks_data: Path, batch_size: int
) -> None:
    dataset = PuzzleDataset([tasks_data], "test")
    model = make_model(data_facts(dataset.metadata, dataset.fields))
    batches = EvalBatches(dataset, global_batch_size=batch_size)
    result = evaluate(model, model, batches, ALONE)["all"]
    assert (result.num_examples, result.count) == (24, 24)
    expected = one_by_one(model, dataset, "all")
    assert values_of(result) == pytest.approx(expected, abs=1e-6)
    assert 0 < expected["accuracy"] < 1


def test_counts_do_not_depend_on_the_batch_size(
    make_model: Callable[..., ACTLossHead], tasks_data: Path
) -> None:
    dataset = PuzzleDataset([tasks_data], "test")
    model = make_model(data_facts(dataset.metadata, dataset.fields))
    results = [
        evaluate(model, model, EvalBatches(dataset, global_batch_size=size), ALONE)["all"]
        for size in (3, 7, 24, 100)
    ]
    for name in ("exact_accuracy", "accuracy", "q_halt_accuracy", "steps"):
        assert len({result.metrics[name] for result in results}) == 1


def test_all_steps_are_taken_whatever_q_says(
    make_model: Callable[..., ACTLossHead], sudoku_data: Path
) -> None:
    dataset = PuzzleDataset([sudoku_data], "test")
    model = make_model(data_facts(dataset.metadata, dataset.fields), halt_max_steps=4)
    with torch.no_grad():
        model.state_dict()["model.inner.q_head.bias"].copy_(torch.tensor([50.0, -50.0]))
    result = evaluate(model, model, EvalBatches(dataset, global_batch_size=4), ALONE)["all"]
    assert values_of(result)["steps"] == 4.0


def test_the_compiled_form_is_what_runs(
    make_model: Callable[..., ACTLossHead], sudoku_data: Path
) -> None:
    dataset = PuzzleDataset([sudoku_data], "test")
    model = make_model(data_facts(dataset.metadata, dataset.fields))
    calls = []

    def forward(*arguments: object) -> LossOutput:
        calls.append(torch.is_grad_enabled())
        return model(*arguments)

    evaluate(forward, model, EvalBatches(dataset, global_batch_size=4), ALONE)
    assert calls == [False] * 3 * 3  # three batches of three ACT steps


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_of_the_model_is_put_back(
    make_model: Callable[..., ACTLossHead], sudoku_data: Path, training: bool
) -> None:
    dataset = PuzzleDataset([sudoku_data], "test")
    model = make_model(data_facts(dataset.metadata, dataset.fields)).train(training)
    modes = []
    model.register_forward_pre_hook(lambda module, _: modes.append(module.training))
    evaluate(model, model, EvalBatches(dataset, global_batch_size=16), ALONE)
    assert modes == [False] * 3
    assert model.training is training


def test_rows_without_labels_and_empty_sets(
    make_model: Callable[..., ACTLossHead], tasks_data: Path, tmp_path: Path
) -> None:
    source = PuzzleDataset([tasks_data], "test")
    labels = np.array(source.sets["all"].labels)
    labels[[2, 11]] = 0
    full = dataclasses.replace(source.sets["all"], labels=labels)
    none, start = np.zeros(0, np.int32), np.zeros(1, np.int32)
    empty = PuzzleSet(full.inputs[:0], labels[:0], none, start, start)
    metadata: PuzzleDatasetMetadata = dataclasses.replace(source.metadata, sets=("all", "none"))
    write_split(tmp_path / "test", metadata, {"all": full, "none": empty})
    dataset = PuzzleDataset([tmp_path], "test")
    model = make_model(data_facts(dataset.metadata, dataset.fields))
    results = evaluate(model, model, EvalBatches(dataset, global_batch_size=7), ALONE)
    assert list(results) == ["all", "none"]
    assert (results["all"].num_examples, results["all"].count) == (24, 22)
    assert values_of(results["all"]) == pytest.approx(one_by_one(model, dataset, "all"), abs=1e-6)
    assert results["none"] == SetResult(0, 0, {})


def test_max_examples_takes_the_first_rows(
    make_model: Callable[..., ACTLossHead], sudoku_data: Path
) -> None:
    dataset = PuzzleDataset([sudoku_data], "test")
    model = make_model(data_facts(dataset.metadata, dataset.fields))
    batches = EvalBatches(dataset, global_batch_size=4, max_examples=6)
    result = evaluate(model, model, batches, ALONE)["all"]
    assert (result.num_examples, result.count) == (6, 6)
