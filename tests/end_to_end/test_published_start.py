"""`pretrain.py` from published weights has the losses of the published trainer."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from training.checkpoint.tensors import load_tensors

PUBLISHED = Path(__file__).resolve().parent.parent / "parity" / "published_format"

LOSSES, FINAL_WEIGHTS = 5e-5, 1e-4
EXPECTED = json.loads((PUBLISHED / "expected_train.json").read_text())


@pytest.fixture
def start_folder(tmp_path: Path) -> Path:
    """The published start as a downloaded folder: weights and all_config.yaml."""
    folder = tmp_path / "published"
    folder.mkdir()
    shutil.copy(PUBLISHED / "init_step_0", folder / "step_0")
    config = yaml.safe_load((PUBLISHED / "checkpoint" / "all_config.yaml").read_text())
    config["arch"] |= EXPECTED["arch"]
    (folder / "all_config.yaml").write_text(yaml.safe_dump(config))
    return folder


def test_the_published_losses_step_by_step(
    start_folder: Path, train: Callable[[Sequence[str]], None], files_of: Any, tmp_path: Path
) -> None:
    """Our command line repeats the published run of 14 steps."""
    places = {
        "load_checkpoint": start_folder / "step_0",
        "data_path": PUBLISHED / "data",
        "checkpoint_path": tmp_path / "run",
    }
    arch = {f"arch.{key}": value for key, value in EXPECTED["arch"].items()}
    settings = (EXPECTED["overrides"] | arch | places).items()
    host = ["device=cpu", "num_threads=1", "logger.name=jsonl"]
    train([*(f"{key}={value}" for key, value in settings), *host])
    run, trace = files_of(tmp_path / "run"), EXPECTED["trace"]
    assert [record["step"] for record in run.train_records] == [row["step"] for row in trace]
    for record, row in zip(run.train_records, trace, strict=True):
        for name in ("lm_loss", "q_halt_loss", "q_continue_loss"):
            assert record[f"train/{name}"] == pytest.approx(row[name], abs=LOSSES), row["step"]
        assert record["train/lr"] == pytest.approx(row["lr"], rel=1e-12)
        assert record["train/count"] == row["count"] == row["halted"]
        counted = {"accuracy", "exact_accuracy", "q_halt_accuracy", "steps"}
        assert {name for name in counted if f"train/{name}" in record} == (
            counted if row["count"] else set()
        )
        if row["count"]:
            assert record["train/exact_accuracy"] == row["exact"]
            assert record["train/steps"] == row["carry_steps"]
    final = load_tensors(run.folder / f"step_{len(trace)}" / "model.safetensors")
    with np.load(PUBLISHED / "expected_final.npz") as expected:
        assert final.keys() == expected.keys()
        for name in expected:
            difference = np.abs(final[name].numpy() - expected[name]).max()
            assert difference <= FINAL_WEIGHTS, name


def test_an_average_is_evaluated_and_saved_beside_the_weights(
    run: Any, run_evaluation: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    files = run("ema=true", "ema_rate=0.8", "epochs=4")
    assert "(averaged weights): " in capsys.readouterr().out
    folder = files.folder / f"step_{files.steps[-1]}"
    model, average = (load_tensors(folder / f"{n}.safetensors") for n in ("model", "ema"))
    assert average.keys() < model.keys()
    assert all(not model[name].equal(value) for name, value in average.items())
    figures = {}
    for weights in ("averaged", "last"):
        own = [f"checkpoint={files.folder}", f"weights={weights}"]
        result = run_evaluation(tmp_path / f"{weights}.json", *own)
        assert result["weights"] == weights
        figures[weights] = result["metrics"]
    (record,) = files.eval_records
    for name, value in figures["averaged"].items():
        assert record[f"eval/{name}"] == pytest.approx(value, abs=1e-6), name
    assert figures["last"]["lm_loss"] != figures["averaged"]["lm_loss"]


def test_with_frozen_weights_the_puzzle_embedding_learns(run: Any, tasks_data: Path) -> None:
    common = [f"data_path={tasks_data}", "puzzle_emb_lr=0.1"]
    start = run(*common, "max_steps=1", name="start").folder
    files = run(*common, f"load_checkpoint={start}", "freeze_weights=true")
    before = load_tensors(start / "step_1" / "model.safetensors")
    after = load_tensors(files.folder / f"step_{files.steps[-1]}" / "model.safetensors")
    changed = {name for name, value in after.items() if not value.equal(before[name])}
    assert changed == {"model.inner.puzzle_emb.weights"}
    losses = [record["eval/lm_loss"] for record in files.eval_records]
    assert losses[-1] < losses[0]
    assert not any("grad_norm" in name for name in files.train_records[0])
