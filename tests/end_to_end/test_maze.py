"""Mazes from the builder to a trained model, and mazes that look like Sudokus."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apps.export import exporting
from apps.reports import solving as solve
from apps.reports.asking import kind_read_by
from dataset.build_maze_dataset import main as build
from dataset.build_sudoku_dataset import main as build_sudokus
from dataset.kinds import KINDS
from evaluation.puzzles import kind_of_data
from puzzle_dataset import PuzzleDataset
from runtime.errors import ConfigError
from training.checkpoint.trained_model import find_trained_model


def test_a_model_learns_mazes(run: Any, tmp_path: Path) -> None:
    data = tmp_path / "maze"
    flags = "--source=generate --size=6 --min-length=7 --aug --subsample-size=32 --test-size=8"
    assert build([*flags.split(), f"--output-dir={data}"]) == 0
    files = run(f"data_path={data}", "epochs=20", "eval_interval=10")
    losses = [record["train/lm_loss"] for record in files.train_records]
    assert len(losses) == 80
    assert np.mean(losses[-20:]) < 0.8 * np.mean(losses[:20])
    assert files.eval_records[-1]["eval/count"] == 8


@pytest.fixture(params=["sudoku", "maze"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def four_by_four(kind: str, tmp_path: Path) -> Path:
    """A maze of 16 cells and 6 tokens, like a Sudoku of 4 x 4."""
    folder = tmp_path / "data"
    flags = ["--source=generate", "--size=4", "--subsample-size=16", "--test-size=8"]
    flags += [f"--output-dir={folder}"]
    code = build([*flags, "--min-length=2"]) if kind == "maze" else build_sudokus(flags)
    assert code == 0
    return folder


def test_mazes_of_four_rows_are_no_sudokus(
    kind: str,
    four_by_four: Path,
    run: Any,
    run_evaluation: Any,
    tiny_settings: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = PuzzleDataset([four_by_four], "test")
    assert kind_of_data(data) is KINDS.load(kind)
    tiny_settings.remove("arch.H_layers=1")
    own = [f"data_path={four_by_four}", "epochs=4", "eval_interval=4"]
    for arch in (["arch=dec"], ["arch=lattice", "heads=lattice"]) if kind == "maze" else ():
        with pytest.raises(ConfigError, match=r"16 cells and 6 tokens \(kind maze\)"):
            run(*own, *arch)
    run(*own)
    trained = find_trained_model(tmp_path / "run", pytest.fail)
    assert kind_read_by(trained) is KINDS.load(kind)
    output = tmp_path / "found.json"
    checkpoint = f"checkpoint={tmp_path / 'run'}"
    run_evaluation(output, checkpoint, "save_records=true")
    assert json.loads((tmp_path / "found_records.json").read_bytes())["kind"] == kind
    capsys.readouterr()
    solve.main([checkpoint, "count=1", "device=cpu", "num_threads=1"])
    assert ("+-----+" in capsys.readouterr().out) == (kind == "sudoku")
    four_by_four.rename(tmp_path / "moved")
    assert kind_read_by(trained) is KINDS.load(kind)


@pytest.mark.slow
def test_an_exported_model_names_its_kind(
    kind: str, four_by_four: Path, run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(f"data_path={four_by_four}", "arch.H_cycles=1", "arch.L_cycles=1", "epochs=4")
    assert exporting.main([str(tmp_path / "run"), str(tmp_path / "x.onnx")]) == 0
    import onnxruntime

    session = onnxruntime.InferenceSession(tmp_path / "x.onnx")
    assert session.get_modelmeta().custom_metadata_map["puzzles"] == kind
