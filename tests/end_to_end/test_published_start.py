"""`pretrain.py`, started from published weights, gives the losses of the published trainer."""

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


@pytest.fixture
def start_folder(tmp_path: Path) -> Path:
    """The published start as a folder that one downloads: weights and all_config.yaml."""
    folder = tmp_path / "published"
    folder.mkdir()
    shutil.copy(PUBLISHED / "init_step_0", folder / "step_0")
    config = yaml.safe_load((PUBLISHED / "checkpoint" / "all_config.yaml").read_text())
    expected = json.loads((PUBLISHED / "expected_train.json").read_text())
    config["arch"] |= expected["arch"]
    (folder / "all_config.yaml").write_text(yaml.safe_dump(config))
    return folder


@pytest.fixture
def settings(start_folder: Path) -> list[str]:
    """The published run of 14 steps as a command line of ours."""
    expected = json.loads((PUBLISHED / "expected_train.json").read_text())
    arch = {f"arch.{key}": value for key, value in expected["arch"].items()}
    return [
        *(f"{key}={value}" for key, value in (expected["overrides"] | arch).items()),
        f"load_checkpoint={start_folder / 'step_0'}",
        f"data_path={PUBLISHED / 'data'}",
        "device=cpu",
        "num_threads=1",
        "logger.name=jsonl",
    ]


def test_the_published_losses_step_by_step(
    settings: list[str], train: Callable[[Sequence[str]], None], files_of: Any, tmp_path: Path
) -> None:
    train([*settings, f"checkpoint_path={tmp_path / 'run'}"])
    run = files_of(tmp_path / "run")
    trace = json.loads((PUBLISHED / "expected_train.json").read_text())["trace"]
    assert [record["step"] for record in run.train_records] == [row["step"] for row in trace]
    for record, row in zip(run.train_records, trace, strict=True):
        for name in ("lm_loss", "q_halt_loss", "q_continue_loss"):
            assert record[f"train/{name}"] == pytest.approx(row[name], abs=LOSSES), row["step"]
        assert record["train/lr"] == pytest.approx(row["lr"], rel=1e-12)
        assert record["train/count"] == row["count"]
        counted = {"accuracy", "exact_accuracy", "q_halt_accuracy", "steps"}
        assert {name for name in counted if f"train/{name}" in record} == (
            counted if row["count"] else set()
        )
        if row["count"]:
            assert record["train/exact_accuracy"] == row["exact"]
    final = load_tensors(run.folder / f"step_{len(trace)}" / "model.safetensors")
    with np.load(PUBLISHED / "expected_final.npz") as expected:
        assert final.keys() == expected.keys()
        for name in expected:
            difference = np.abs(final[name].numpy() - expected[name]).max()
            assert difference <= FINAL_WEIGHTS, name


def test_an_average_is_what_is_evaluated_and_kept_beside_the_weights(
    tiny_settings: list[str],
    train: Callable[[Sequence[str]], None],
    files_of: Any,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    own = ["ema=true", "ema_rate=0.8", "epochs=4", f"checkpoint_path={tmp_path / 'run'}"]
    train([*tiny_settings, *own])
    assert "(averaged weights): " in capsys.readouterr().out
    run = files_of(tmp_path / "run")
    folder = run.folder / f"step_{run.steps[-1]}"
    model, average = (load_tensors(folder / f"{n}.safetensors") for n in ("model", "ema"))
    assert average.keys() < model.keys()
    assert all(not model[name].equal(value) for name, value in average.items())

    import evaluate

    figures = {}
    for weights in ("averaged", "last"):
        output = tmp_path / f"{weights}.json"
        evaluate.main([f"checkpoint={run.folder}", f"weights={weights}", f"output={output}"])
        result = json.loads(output.read_bytes())
        assert result["weights"] == weights
        figures[weights] = result["metrics"]
    (record,) = run.eval_records
    for name, value in figures["averaged"].items():
        assert record[f"eval/{name}"] == pytest.approx(value, abs=1e-6), name
    assert figures["last"]["lm_loss"] != figures["averaged"]["lm_loss"]


def test_frozen_weights_leave_the_puzzle_embedding_to_learn(
    tiny_settings: list[str],
    tasks_data: Path,
    train: Callable[[Sequence[str]], None],
    files_of: Any,
    tmp_path: Path,
) -> None:
    common = [*tiny_settings, f"data_path={tasks_data}", "puzzle_emb_lr=0.1"]
    train([*common, "max_steps=1", f"checkpoint_path={tmp_path / 'start'}"])
    frozen = [f"load_checkpoint={tmp_path / 'start'}", "freeze_weights=true"]
    train([*common, *frozen, f"checkpoint_path={tmp_path / 'run'}"])
    before = load_tensors(tmp_path / "start" / "step_1" / "model.safetensors")
    run = files_of(tmp_path / "run")
    after = load_tensors(run.folder / f"step_{run.steps[-1]}" / "model.safetensors")
    changed = {name for name, value in after.items() if not value.equal(before[name])}
    assert changed == {"model.inner.puzzle_emb.weights"}
    losses = [record["eval/lm_loss"] for record in run.eval_records]
    assert losses[-1] < losses[0]
    assert not any("grad_norm" in name for name in run.train_records[0])
