"""Mazes from the builder to a trained model."""

from pathlib import Path
from typing import Any

import numpy as np

from dataset.build_maze_dataset import main as build


def test_a_model_learns_mazes(run: Any, tmp_path: Path) -> None:
    data = tmp_path / "maze"
    flags = "--source=generate --size=6 --min-length=7 --aug --subsample-size=32 --test-size=8"
    assert build([*flags.split(), f"--output-dir={data}"]) == 0
    files = run(f"data_path={data}", "epochs=20", "eval_interval=10")
    losses = [record["train/lm_loss"] for record in files.train_records]
    assert len(losses) == 80
    assert np.mean(losses[-20:]) < 0.8 * np.mean(losses[:20])
    assert files.eval_records[-1]["eval/count"] == 8
