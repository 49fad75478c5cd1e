"""Small ARC tasks and a tiny model."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.act import ACTLossHead
from models.config import DataFacts
from models.hrm.config import HRMConfig
from models.registry import build_model
from puzzle_dataset import PuzzleDataset
from runtime import files
from training.data import data_facts


def _task(rng: np.random.Generator, num_train: int, num_test: int) -> dict[str, Any]:
    def grid() -> list[list[int]]:
        return rng.integers(0, 10, rng.integers(3, 9, 2)).tolist()

    return {
        part: [{"input": grid(), "output": grid()} for _ in range(number)]
        for part, number in (("train", num_train), ("test", num_test))
    }


@pytest.fixture(scope="session")
def arc_tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of five random tasks, to be copied before a change.

    They lie in training, evaluation and Concept. `b` fills the canvas; `e` has two test pairs.
    """
    rng = np.random.default_rng(0)
    tasks = {
        "training/a": _task(rng, 3, 1),
        "training/b": _task(rng, 1, 1),
        "Concept/c": _task(rng, 2, 1),
        "evaluation/d": _task(rng, 3, 1),
        "evaluation/e": _task(rng, 2, 2) | {"name": "another"},
    }
    tasks["training/b"]["train"][0]["input"] = rng.integers(0, 10, (30, 28)).tolist()
    folder = tmp_path_factory.mktemp("arc") / "tasks"
    for name, task in tasks.items():
        path = folder / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(task))
    return folder


@pytest.fixture
def arc_folder(arc_tasks: Path, tmp_path: Path) -> Path:
    """Return a copy of `arc_tasks`."""
    return shutil.copytree(arc_tasks, tmp_path / "tasks")


@pytest.fixture(scope="session")
def lazy_arc(arc_tasks: Path) -> Path:
    """Return a lazy set of `arc_tasks` with 6 augmentations (35 puzzles); do not change it."""
    return _built(arc_tasks, "lazy")


@pytest.fixture(scope="session")
def materialized_arc(arc_tasks: Path) -> Path:
    """Return the same set in the published format."""
    return _built(arc_tasks, "materialized", "--materialize")


def _built(tasks: Path, name: str, *flags: str) -> Path:
    from dataset.build_arc_dataset import main

    output = tasks.with_name(name)
    arguments = ["--dataset-dirs", str(tasks), f"--output-dir={output}", "--num-aug=6"]
    assert main([*arguments, *flags]) == 0
    return output


@pytest.fixture(params=[1, 2, 3, 4])
def failing_flush(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Make one of the four flushes of two files find a full disk, and return its number.

    Flushes 3 and 4 come just before the files replace older ones.
    """
    left, flush = [request.param], files.flush

    def fail(file: files.BinaryIO) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        flush(file)

    monkeypatch.setattr(files, "flush", fail)
    return request.param


@pytest.fixture
def make_model() -> Callable[..., ACTLossHead]:
    """Build a tiny HRM in float32 for a data set or its facts, with random weights that answer
    differently at each ACT step.
    """

    def make(data: DataFacts | PuzzleDataset, **settings: object) -> ACTLossHead:
        sizes = {"H_layers": 1, "L_layers": 1, "hidden_size": 32, "num_heads": 2, "expansion": 1}
        rest = {"puzzle_emb_ndim": 32, "halt_max_steps": 3, "forward_dtype": "float32"}
        config = HRMConfig(**(sizes | rest | settings))  # type: ignore[arg-type]
        is_set = isinstance(data, PuzzleDataset)
        facts = data_facts(data.metadata, data.fields) if is_set else data
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(0)
            model = build_model(config, facts)
            for name, value in model.state_dict().items():
                if "q_head" in name or "puzzle_emb" in name:
                    value.normal_()
        return model

    return make
