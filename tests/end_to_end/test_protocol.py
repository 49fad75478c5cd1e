"""Whole runs of the protocol, on tiny data."""

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dataset import build_maze_dataset, build_sudoku_dataset

ROOT = Path(__file__).resolve().parents[2]
# Started processes import the modules of this tree.
HERE = {"PYTHONPATH": str(ROOT)}

pytestmark = pytest.mark.slow


@pytest.fixture
def settings(tiny_settings: list[str]) -> list[str]:
    return [line for line in tiny_settings if not line.startswith(("checkpoint_path", "data_path"))]


def kill_when(process: Any, said: str) -> str:
    """Read the output of a process until it has the text, then kill it. Return the output."""
    text = ""
    for line in process.stdout:
        text += line
        if said in line:
            break
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    return text


def scores(run_python: Any, folder: Path, *settings: str) -> dict[str, Any]:
    """Run the protocol in a folder, and return the content of its file."""
    command = ("scripts/protocol.py", f"folder={folder}", *settings)
    finished = run_python(*command, env=HERE, timeout=300)
    assert finished.code == 0, finished.err
    return without_hours(folder)


def without_hours(folder: Path) -> dict[str, Any]:
    content = json.loads((folder / "protocol.json").read_bytes())
    assert content["hours"]["train"] > 0
    return {key: value for key, value in content.items() if key not in ("hours", "name")}


def test_a_killed_protocol_ends_in_the_same_figures(
    start: Callable[..., Any], run_python: Any, settings: list[str], files_of: Any, tmp_path: Path
) -> None:
    data = tmp_path / "sudoku"
    flags = "--source=generate --size=4 --subsample-size=30 --test-size=20 --num-aug=3"
    selected = (*flags.split(), "--selection-size=10", f"--output-dir={data}")
    assert build_sudoku_dataset.main(selected) == 0
    own = [*settings, "arch=trm", "evaluators=[sudoku]", "seed=0,1", f"data_path={data}"]

    def command(folder: str) -> list[str]:
        return ["scripts/protocol.py", f"folder={tmp_path / folder}", *own]

    whole = run_python(*command("whole"), env=HERE, timeout=300)
    assert whole.code == 0, whole.err
    for said in ("[1/2] seed-0: finished", "[1/2] checkpoint-step_"):
        assert said in kill_when(start(*command("killed"), env=HERE), said)
        assert not (tmp_path / "killed" / "protocol.json").exists()
    again = run_python(*command("killed"), env=HERE, timeout=300)
    assert again.code == 0, again.err
    assert "2 of 2 jobs are already finished" in again.out
    content = without_hours(tmp_path / "killed")
    assert content == without_hours(tmp_path / "whole")

    assert (content["num_checkpoints"], content["num_selection_puzzles"]) == (4, 10)
    assert (content["num_training_puzzles"], content["num_test_examples"]) == (30, 20)
    for one in content["seeds"]:
        evaluated = files_of(tmp_path / "whole" / "train" / f"seed-{one['seed']}").eval_records
        scores = {record["step"]: record["eval/exact_accuracy"] for record in evaluated}
        assert one["selection"] == max(scores.values()) == scores[one["step"]]
        assert one["test"]["count"] == 20  # Not the selection puzzles.
    row = (tmp_path / "killed" / "protocol.md").read_text()
    assert row in again.out
    assert re.search(r"\| \d+\.\d\d ± \d+\.\d\d \| [\d,]+ \| 30 training puzzles; 2 seeds; ", row)


def test_mazes_have_a_lenient_score_too(
    run_python: Any, settings: list[str], tmp_path: Path
) -> None:
    data = tmp_path / "mazes"
    flags = "--source=generate --size=4 --min-length=3 --subsample-size=16 --test-size=8"
    selected = (*flags.split(), "--selection-size=4", f"--output-dir={data}")
    assert build_maze_dataset.main(selected) == 0
    own = (f"data_path={data}", "evaluators=[maze]", "seed=0")
    content = scores(run_python, tmp_path / "scores", *own, *settings)
    assert content["scores"].keys() == {"exact", "any shortest path"}
    lenient, exact = (content["scores"][name]["mean"] for name in ("any shortest path", "exact"))
    assert lenient >= exact
    assert content["scores"]["exact"]["std"] is None


def test_arc_tasks_are_scored_by_votes_on_the_last_checkpoint(
    run_python: Any, settings: list[str], arc_data: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "scores"
    own = (f"data_path={arc_data}", "evaluators=[arc]", "seed=0")
    more = ("selection=last", "global_batch_size=6")
    content = scores(run_python, folder, *settings, *own, *more)
    assert content["scores"].keys() == {"pass@1", "pass@2"}
    steps = [int(path.name[5:]) for path in (folder / "train" / "run").glob("step_*")]
    assert content["seeds"][0]["step"] == max(steps)
    assert content["seeds"][0]["selection"] is None
    assert '"eval/' not in (folder / "train" / "run" / "metrics.jsonl").read_text()
    assert "; last checkpoint; " in (folder / "protocol.md").read_text()
