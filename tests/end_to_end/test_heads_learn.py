"""Every head learns with only its YAML file: its metric gets at least halfway from the best
constant predictor to perfect.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataset import build_maze_dataset, build_sudoku_dataset
from training.config.source import CONFIG_DIR

SUDOKU = "--size=4 --subsample-size=200 --num-aug=19 --test-size=100 --min-clues=7 --max-clues=9"
MAZE = "--size=4 --subsample-size=20000 --test-size=200 --min-length=3 --pixels"
SMALL = (
    *("arch=mixer", "arch.hidden_size=64", "arch.num_heads=2", "arch.L_cycles=2", "seed=0"),
    *("arch.puzzle_emb_ndim=64", "arch.forward_dtype=float32", "global_batch_size=64"),
    *(
        "optimizer.name=adamw",
        "lr=3e-3",
        "lr_min_ratio=0",
        "lr_warmup_steps=30",
        "weight_decay=0.1",
    ),
    *("device=cpu", "num_threads=1", "compile=false", "logger=jsonl", "evaluators=[]"),
    "checkpoint_interval=null",
)
# The heads of `arch=lattice` need its candidate sets; no other architecture has them.
HEADS = {path.stem for path in (CONFIG_DIR / "heads").glob("*.yaml")} - {"lattice", "sage"}
# Half of these puzzles cannot be solved, so that a head can learn when an answer is wrong.
CASES = [(heads, "sudoku", {"accuracy": 0.625}) for heads in sorted(HEADS)] + [
    ("action", "maze", {"action_accuracy": 0.877}),
    ("attention", "sudoku", {"attention_precision": 0.776}),
    # Here the cells that change are not only the empty ones.
    ("attention", "maze", {"attention_precision": 0.679}),
    ("confidence", "open", {"confidence_accuracy": 0.826}),
    ("enhanced", "open", {"confidence_accuracy": 0.826, "q_halt_accuracy": 0.75}),
    ("halt", "open", {"halt_accuracy": 0.75}),
    ("pixel", "maze", {"pixel_accuracy": 0.708}),
    ("sage", "maze", {"action_accuracy": 0.877, "pixel_accuracy": 0.708}),
    ("standard", "open", {"q_halt_accuracy": 0.75}),
]
FIELDS = {"action", "pixel"}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data sets: Sudokus, the same with few clues in every other puzzle, and mazes."""
    folder = tmp_path_factory.mktemp("tasks")
    for task, build, flags in (
        ("sudoku", build_sudoku_dataset.main, SUDOKU),
        ("maze", build_maze_dataset.main, MAZE),
    ):
        own = [f"--output-dir={folder / task}", "--source=generate", "--seed=0", *flags.split()]
        assert build(own) == 0
    whole = shutil.ignore_patterns("manifest.json")  # It reports sums.
    shutil.copytree(folder / "sudoku", folder / "open", ignore=whole)
    for path in (folder / "open").glob("t*/all__inputs.npy"):
        inputs = np.load(path)
        hidden = np.random.default_rng(1).random(inputs.shape) < 0.95
        hidden[::2] = False
        np.save(path, np.where(hidden, 1, inputs).astype(np.uint8))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("heads", "task", "wanted"), CASES)
def test_every_head_learns(
    heads: str,
    task: str,
    wanted: dict[str, float],
    tasks: Path,
    train: Any,
    files_of: Any,
    tmp_path: Path,
) -> None:
    if heads in FIELDS:
        task = "maze"
    softmax = "softmax" if heads in ("adaptive", "hierarchical") else "stablemax"
    own = [f"heads={heads}", f"loss=act_{softmax}", f"data_path={tasks / task}"]
    length = (
        ("epochs=2", "eval_interval=2") if task == "maze" else ("epochs=96", "eval_interval=96")
    )
    train([*SMALL, *own, *length, f"checkpoint_path={tmp_path / 'run'}"])
    (found,) = files_of(tmp_path / "run").eval_records
    for metric, least in wanted.items():
        assert found[f"eval/{metric}"] >= least, (metric, found)
