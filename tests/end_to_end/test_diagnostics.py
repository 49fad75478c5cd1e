"""Diagnostics of training runs: they change no result, and warn of broken models but not of
healthy ones.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from models.registry import build_model
from runtime.errors import NonFiniteError


@pytest.fixture
def run(tiny_settings: list[str], train: Any, files_of: Any, tmp_path: Path, capsys: Any) -> Any:
    """Train in `tmp_path / name`. Return the files of the run and its warnings."""

    def run_with(*more: str, name: str = "run") -> Any:
        capsys.readouterr()
        train([*tiny_settings, *more, f"checkpoint_path={tmp_path / name}"])
        return files_of(tmp_path / name), warnings_in(capsys.readouterr().err)

    return run_with


def warnings_in(err: str) -> list[str]:
    lines = err.replace("\r", "\n").splitlines()
    return [line.removeprefix("warning: ") for line in lines if line.startswith("warning: ")]


# Records


def test_diagnoses_come_at_the_asked_interval(run: Any) -> None:
    files, warnings = run("diagnose_interval=5", "arch.halt_exploration_prob=0.5")
    assert warnings == []
    always = {"nonfinite", "logits_min", "logits_max", "top_token"}
    always |= {"top_token_share", "top_token_label_share", "cells_right", "rows_right", "halts"}
    for record in files.train_records:
        names = {name for name in record if name.startswith("diagnose/")}
        expected = {f"diagnose/{name}" for name in always} if record["step"] % 5 == 0 else set()
        assert names == expected
        assert all(math.isfinite(record[name]) for name in names)


def test_learned_weights_of_losses_are_recorded(run: Any) -> None:
    files, _ = run("arch.loss.weighting=uncertainty", "weight_decay=1", "diagnose_interval=8")
    first, last = (r for r in files.train_records if "diagnose/weight/lm" in r)
    weights = load_file(files.folder / f"step_{last['step']}" / "model.safetensors")
    for name in ("lm", "q_halt", "q_continue"):
        s = weights[f"log_variances.{name}"].item()
        weight = 1.0 if name == "lm" else 0.5
        assert last[f"diagnose/weight/{name}"] == pytest.approx(weight * math.exp(-s))
        assert last[f"diagnose/weight/{name}"] != first[f"diagnose/weight/{name}"]


def test_diagnosing_changes_no_bit(run: Any, tasks_data: Path) -> None:
    own = [f"data_path={tasks_data}", "arch.halt_exploration_prob=0.5", "arch.heads.lm.dropout=0.1"]
    quiet, _ = run(*own, "diagnose_interval=null", name="quiet")
    loud, _ = run(*own, "diagnose_interval=1", name="loud")
    assert not any("diagnose" in name for record in quiet.records for name in record)
    assert quiet.state(quiet.steps[-1])["diagnostics"] is None
    first, second = quiet.digest(), loud.digest()
    changed = {name for name in first if first[name] != second[name]}
    assert changed == {"metrics.jsonl", "diagnostics"}
    for own_record, other in zip(quiet.records, loud.records, strict=True):
        assert own_record == {k: v for k, v in other.items() if not k.startswith("diagnose/")}


# Warnings


@pytest.mark.parametrize(
    "more",
    [
        [],
        ["seed=1", "arch=trm"],
        ["data_path=tasks", "puzzle_emb_lr=0.1"],
        # This model solves its puzzles, so Q must learn to halt.
        ["epochs=140", "eval_interval=140", "arch.mlp_t=true", "loss=act_softmax", "lr=3e-3"],
    ],
)
def test_a_healthy_run_has_no_warning(run: Any, more: list[str], tasks_data: Path) -> None:
    own = [setting.replace("=tasks", f"={tasks_data}") for setting in more]
    files, warnings = run(*own, "diagnose_interval=1")
    assert warnings == []
    if "epochs=140" in own:
        right = [record["diagnose/rows_right"] for record in files.train_records]
        assert min(right[-10:]) == 1.0


LEARNS = ("arch.mlp_t=true", "loss=act_softmax", "lr=3e-3", "diagnose_interval=1")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("untaught", "head"),
    [
        (["arch.loss.weights.q_halt=0", "arch.loss.weights.q_continue=0"], "q_head"),
        # Without Q the halt head decides.
        (["heads=halt", "arch.heads.q=null", "arch.loss.weights.halt=0"], "halt_head"),
    ],
)
def test_a_head_that_never_halts_right_rows_is_reported(
    run: Any, untaught: list[str], head: str
) -> None:
    files, warnings = run(*LEARNS, *untaught, "epochs=200", "eval_interval=200")
    assert [record["diagnose/halts"] for record in files.train_records] == [0.0] * 200
    assert np.mean([record["diagnose/rows_right"] for record in files.train_records[-100:]]) > 0.9
    (warning,) = warnings
    assert f"{head} always continues: it halts 0.0% of the rows, although" in warning
    assert f"optimizer.groups.{head}.lr" in warning


def test_the_diagnosis_of_a_non_finite_step_names_the_values(
    run: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def build(config: Any, facts: Any) -> Any:
        model: Any = build_model(config, facts)
        torch.nn.init.constant_(model.model.inner.q_head.weight, math.nan)
        return model

    monkeypatch.setattr("training.step.build_model", build)
    with pytest.raises(NonFiniteError):
        run("diagnose_interval=1")
    (warning,) = warnings_in(capsys.readouterr().err)
    assert "after step 1 not finite: 8 Q logits, the gradient of group all" in warning
