import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluation import outputs
from evaluation.measure import evaluate
from evaluation.outputs import OutputError, Outputs, write_json_files
from models.act import ACTLossHead
from puzzle_dataset import EvalBatches, PuzzleDataset
from runtime.ranks import Ranks

ALONE = Ranks("cpu")
FORMATS = {
    "inputs": ("int32", (24, 9)),
    "labels": ("int32", (24, 9)),
    "puzzle_identifiers": ("int32", (24,)),
    "preds": ("uint8", (24, 9)),
    "logits": ("float32", (24, 9, 8)),
    "q_halt_logits": ("float32", (24,)),
    "q_continue_logits": ("float32", (24,)),
}
Make = Callable[..., ACTLossHead]


@pytest.fixture
def batches(tasks_data: Path) -> EvalBatches:
    return EvalBatches(PuzzleDataset([tasks_data], "test"), global_batch_size=5)


def save_all(model: ACTLossHead, batches: EvalBatches, folder: Path) -> dict[str, np.ndarray]:
    with Outputs(folder, list(FORMATS), batches, ALONE) as save:
        evaluate(model, model, batches, ALONE, save=save)
    return {field: np.load(folder / f"all__{field}.npy") for field in FORMATS}


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_files_hold_every_row_in_test_order(
    make_model: Make, batches: EvalBatches, tmp_path: Path
) -> None:
    # NumPy has no bfloat16.
    model = make_model(batches.dataset, forward_dtype="bfloat16")
    saved = save_all(model, batches, tmp_path / "outputs")
    assert names_in(tmp_path / "outputs") == {f"all__{field}.npy" for field in FORMATS}
    arrays = batches.dataset.sets["all"]
    assert np.array_equal(saved["inputs"], arrays.inputs)
    labels = arrays.labels.astype(np.int32)
    assert np.array_equal(saved["labels"], np.where(labels == 0, -100, labels))
    ids = np.repeat(arrays.puzzle_identifiers, np.diff(arrays.puzzle_indices))
    assert np.array_equal(saved["puzzle_identifiers"], ids)
    assert {field: (a.dtype.name, a.shape) for field, a in saved.items()} == FORMATS
    assert np.array_equal(saved["preds"], saved["logits"].argmax(-1))
    for field, values in saved.items():  # And no padding behind them.
        assert (tmp_path / "outputs" / f"all__{field}.npy").stat().st_size == 128 + values.nbytes


def test_an_evaluation_that_fails_leaves_older_files_alone(
    make_model: Make, batches: EvalBatches, tmp_path: Path
) -> None:
    model = make_model(batches.dataset)
    before = save_all(model, batches, tmp_path)
    with pytest.raises(ZeroDivisionError), Outputs(tmp_path, list(FORMATS), batches, ALONE) as save:
        evaluate(lambda *_, **__: 1 / 0, model, batches, ALONE, save=save)  # type: ignore[arg-type]
    assert names_in(tmp_path) == {f"all__{field}.npy" for field in FORMATS}
    for field, array in before.items():
        assert np.array_equal(np.load(tmp_path / f"all__{field}.npy"), array)


def test_a_full_disk_is_an_error_that_leaves_nothing(
    make_model: Make, batches: EvalBatches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = np.ascontiguousarray, []

    def failing(*given: Any) -> np.ndarray:
        calls.append(given)
        if len(calls) > 10:
            raise OSError(28, "No space left on device")
        return real(*given)

    monkeypatch.setattr(outputs.np, "ascontiguousarray", failing)
    with pytest.raises(OutputError, match="No space left"):
        save_all(make_model(batches.dataset), batches, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_becomes_full_at_the_end_leaves_all_older_files_alone(
    make_model: Make, batches: EvalBatches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, calls = make_model(batches.dataset), itertools.count()
    for field in FORMATS:
        (tmp_path / f"all__{field}.npy").write_text("old")

    def fail(descriptor: int) -> None:
        if next(calls):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OutputError, match="No space left"):
        save_all(model, batches, tmp_path)
    assert names_in(tmp_path) == {f"all__{field}.npy" for field in FORMATS}
    assert {path.read_text() for path in tmp_path.iterdir()} == {"old"}


def test_json_files_replace_older_ones(tmp_path: Path) -> None:
    write_json_files(tmp_path / "new", {"a.json": lambda: [1]}, ALONE)
    write_json_files(tmp_path / "new", {"a.json": lambda: [2], "b.json": dict}, ALONE)
    found = {path.name: json.loads(path.read_text()) for path in (tmp_path / "new").iterdir()}
    assert found == {"a.json": [2], "b.json": {}}


def test_a_file_that_cannot_be_written_is_named(batches: EvalBatches, tmp_path: Path) -> None:
    (tmp_path / "b.json").mkdir()
    with pytest.raises(OutputError, match=r"b\.json: Is a directory"):
        write_json_files(tmp_path, {"a.json": dict, "b.json": dict}, ALONE)
    assert names_in(tmp_path) == {"b.json"}
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="file"):
        write_json_files(tmp_path / "file", {"a.json": dict}, ALONE)
    with pytest.raises(OutputError, match="file"):
        Outputs(tmp_path / "file", ["preds"], batches, ALONE)
