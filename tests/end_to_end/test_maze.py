"""Mazes from the builder to a trained model."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dataset.build_maze_dataset import main as build


def test_a_model_learns_mazes(
    tiny_settings: list[str],
    train: Callable[[Sequence[str]], None],
    files_of: Callable[[Path], Any],
    tmp_path: Path,
) -> None:
    flags = ["--source=generate", "--size=6", "--min-length=7", "--aug"]
    data = tmp_path / "maze"
    assert build([*flags, "--subsample-size=32", "--test-size=8", f"--output-dir={data}"]) == 0
    train([*tiny_settings, f"data_path={data}", "epochs=20", "eval_interval=10"])
    run = files_of(tmp_path / "run")
    losses = [record["train/lm_loss"] for record in run.train_records]
    assert len(losses) == 80
    assert np.mean(losses[-20:]) < 0.8 * np.mean(losses[:20])
    assert run.eval_records[-1]["eval/count"] == 8
