"""Every head learns from its YAML alone: its own metric gets at least halfway from the best
constant predictor to perfect.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from apps.bench import compare_heads
from dataset.maze.rules import GOAL, PATH, START

# Where half of the puzzles cannot be solved there is something to say of one's own answer.
OWN = {
    "action": ("maze", ["action_accuracy"]),
    "attention": ("sudoku", ["attention_precision"]),
    "confidence": ("open", ["confidence_accuracy"]),
    "enhanced": ("open", ["confidence_accuracy", "q_halt_accuracy", "attention_precision"]),
    "halt": ("open", ["halt_accuracy"]),
    "pixel": ("sudoku", ["pixel_accuracy"]),
    "sage": ("open", ["halt_accuracy", "confidence_accuracy"]),
}
CASES = [(name, *OWN.get(name, ("sudoku", ["accuracy"]))) for name in compare_heads.HEADS]
CASES += [
    ("standard", "open", ["q_halt_accuracy"]),
    ("sage", "maze", ["action_accuracy", "pixel_accuracy"]),
    # Here the cells that change are not just the empty ones.
    ("attention", "maze", ["attention_precision"]),
]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def tasks() -> dict[str, Any]:
    return {name: compare_heads.make_task(name) for name in compare_heads.TASKS}


@pytest.mark.slow
@pytest.mark.parametrize(("heads", "task", "metrics"), CASES)
def test_every_head_learns(
    heads: str, task: str, metrics: list[str], tasks: dict[str, Any]
) -> None:
    outcome = compare_heads.compare(tasks[task], heads, steps=500 if task == "maze" else 300)
    for metric in metrics:
        constant, reached = outcome.constant[metric], outcome.metrics[metric]
        assert reached >= (constant + 1) / 2, (metric, constant, reached)


def test_moves_lead_along_the_path(tasks: dict[str, Any]) -> None:
    maze = tasks["maze"].test
    steps = {1: (1, 0), 2: (0, -1), 3: (0, 1), 4: (-1, 0)}
    grids = (maze[name].view(-1, 4, 4).numpy() for name in ("inputs", "labels", "actions"))
    for inputs, labels, actions in zip(*grids, strict=True):
        cell, seen = tuple(np.argwhere(inputs == START)[0]), 0
        while labels[cell] != GOAL:
            down, right = steps[int(actions[cell])]
            cell, seen = (cell[0] + down, cell[1] + right), seen + 1
        assert seen == (actions > 0).sum() == (labels == PATH).sum() + 1


def test_constants_are_those_of_the_labels(tasks: dict[str, Any]) -> None:
    task = tasks["sudoku"]
    model, seconds = compare_heads.train(task, compare_heads.settings_of("standard"), steps=2)
    assert len(seconds) == 2
    constant = compare_heads.constants(model, task.test)
    assert constant["accuracy"] == pytest.approx(0.25)
    # What is not empty has no action.
    clues = (task.test["inputs"] == task.test["labels"]).float().mean().item()
    assert constant["action_accuracy"] == pytest.approx(clues)
    exact = compare_heads.measure(model, task.test)["exact_accuracy"]
    assert constant["halt_accuracy"] == max(exact, 1 - exact)
    assert all(0 < value <= 1 and math.isfinite(value) for value in constant.values())
