"""The published commands for Sudoku, from the download to a resumed run, on real puzzles.

Batch, width and length are smaller and the rate is higher, so that a model learns in 30 steps.
Everything else is as in the published READMEs.
"""

import gzip
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from dataset import build_sudoku_dataset

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("PUZZLE_DATA_DIR" not in os.environ, reason="PUZZLE_DATA_DIR is not set"),
]

SMALLER = """compile=false global_batch_size=16 arch.hidden_size=64 arch.num_heads=2 lr=1e-3
    lr_warmup_steps=5 eval_max_examples=32 checkpoint_interval=20 num_threads=1 device=cpu
    logger=jsonl"""
HRM = (
    "epochs=20000 eval_interval=2000 lr=1e-4 puzzle_emb_lr=1e-4 weight_decay=1.0 "
    "puzzle_emb_weight_decay=1.0"
)
TRM = (
    "arch=trm evaluators=[] epochs=50000 eval_interval=5000 lr=1e-4 puzzle_emb_lr=1e-4 "
    "weight_decay=1.0 puzzle_emb_weight_decay=1.0 arch.L_layers=2 arch.H_cycles=3 "
    "arch.L_cycles=6 ema=True"
)
COMMANDS = {
    "hrm": f"data_path=DATA {HRM}",
    "hrm on full sudoku": "data_path=DATA epochs=100 eval_interval=10 lr_min_ratio=0.1 lr=3e-4 "
    "puzzle_emb_lr=3e-4 weight_decay=0.1 puzzle_emb_weight_decay=0.1 "
    "arch.loss.loss_type=softmax_cross_entropy arch.L_cycles=8 arch.halt_max_steps=8 "
    "arch.pos_encodings=learned",
    "trm mlp": f"data_paths=[DATA] {TRM} arch.mlp_t=True arch.pos_encodings=none",
    "trm attention": f"data_paths=[DATA] {TRM}",
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published data set, built by the published command from a stand-in for the Hub."""
    hub = tmp_path_factory.mktemp("hub")
    source = Path(os.environ["PUZZLE_DATA_DIR"]) / "sudoku-extreme-1k"
    for split in ("train", "test"):
        packed = (source / f"{split}.csv.gz").read_bytes()
        (hub / f"{split}.csv").write_bytes(gzip.decompress(packed))

    def hf_hub_download(repository: str, name: str, repo_type: str) -> str:
        assert (repository, repo_type) == ("sapientinc/sudoku-extreme", "dataset")
        return str(hub / name)

    stand_in = types.ModuleType("huggingface_hub")
    stand_in.__dict__["hf_hub_download"] = hf_hub_download
    folder = tmp_path_factory.mktemp("data") / "sudoku-extreme-1k-aug-1000"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "huggingface_hub", stand_in)
        command = ["--output-dir", str(folder), "--subsample-size", "1000", "--num-aug", "1000"]
        assert build_sudoku_dataset.main(command) == 0
    return folder


@pytest.mark.parametrize("name", COMMANDS)
def test_a_published_command_trains_and_resumes(
    name: str, built: Path, train: Any, files_of: Any, tmp_path: Path
) -> None:
    command = f"{COMMANDS[name]} {SMALLER}".replace("DATA", str(built)).split()
    for folder, stop in (("run", 25), ("run", 30), ("whole", 30)):
        train([*command, f"checkpoint_path={tmp_path / folder}", f"max_steps={stop}"])
    files = files_of(tmp_path / "run")
    assert files.digest(30) == files_of(tmp_path / "whole").digest(30)
    losses = [record["train/lm_loss"] for record in files.train_records]
    assert len(losses) == 30
    # It falls by at least 0.23; the noise of the mean is 0.01.
    assert sum(losses[-5:]) / 5 < sum(losses[:5]) / 5 - 0.1
