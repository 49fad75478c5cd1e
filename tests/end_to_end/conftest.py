from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def files(files_of: Any, tmp_path: Path) -> Any:
    """The files in the folder of `run`, also after an error."""
    return files_of(tmp_path / "run")


@pytest.fixture
def run_on_ranks(start_ranks: Callable[..., Any]) -> Callable[..., None]:
    """Run an entry point on several ranks of this machine. All must succeed."""

    def run(world_size: int, *arguments: str) -> None:
        for process in start_ranks(*[arguments] * world_size):
            _, err = process.communicate(timeout=120)
            assert process.returncode == 0, err

    return run


@pytest.fixture
def lattice_run(tiny_settings: list[str], train: Callable[..., Any], tmp_path: Path) -> Path:
    """A run with a model that strikes and guesses a little."""
    tiny_settings.remove("arch.H_layers=1")
    more = ["arch=lattice", "heads=lattice", "arch.loops=2", "arch.symmetry=digits"]
    more += ["arch.pos_encodings=none", "arch.units=true", "arch.views=none"]
    more += ["arch.contradiction_above=0.9", "epochs=64", "eval_interval=null"]
    train([*tiny_settings, *more])
    return tmp_path / "run"


@pytest.fixture(scope="session")
def save_run() -> Callable[..., Path]:
    """Make a run's folder with one checkpoint of random weights."""
    import torch

    from models.registry import build_model
    from puzzle_dataset import PuzzleDataset
    from training.checkpoint.store import MODEL, RunState, save_checkpoint
    from training.checkpoint.tensors import model_tensors, write_tensors
    from training.config.schema import TrainConfig
    from training.data import data_facts

    def save(run_dir: Path, data_path: Path, *, step: int = 12, **heads: Any) -> Path:
        arch = {"H_layers": 1, "L_layers": 1, "hidden_size": 32, "num_heads": 2, "expansion": 1.0}
        arch |= {"puzzle_emb_ndim": 0, "halt_max_steps": 3, "forward_dtype": "float32"}
        arch |= {"heads": heads}
        optimizer = {"groups": {"all": {"params": ["*"]}}}
        data = {"data_path": str(data_path), "global_batch_size": 4}
        config = TrainConfig.model_validate({"arch": arch, "optimizer": optimizer, **data})
        facts = data_facts(PuzzleDataset([data_path], "test").metadata)
        torch.manual_seed(0)
        model = build_model(config.arch, facts)
        with torch.no_grad():
            for name, value in model.named_parameters():
                if "q_head.weight" in name:
                    value.normal_()
        run_dir.mkdir(exist_ok=True)
        state = RunState(step=step, config=config.model_dump(mode="json"), facts=facts.to_dict())
        save_checkpoint(run_dir, state, {MODEL: partial(write_tensors, model_tensors(model))})
        return run_dir

    return save
