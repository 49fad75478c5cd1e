"""scripts/gpu_speed.py times the published code: here a stand-in with its names."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from apps.bench.gpu_speed import PUBLISHED, SUDOKU
from models.operations import train_step_flop
from tests.conftest import TINY_ARCH
from training.config.composition import load_config
from training.config.schema import TrainConfig

pytestmark = pytest.mark.gpu

MODEL = """
from flash_attn import flash_attn_func
import torch

class {kind}(torch.nn.Module):
    def __init__(self, settings):
        super().__init__()
        self.size = settings["batch_size"]
        self.lm_head = torch.nn.Linear(4, settings["vocab_size"])
        self.puzzle_emb = torch.nn.Module()
        self.puzzle_emb.weights = torch.nn.Buffer(torch.zeros(1, 4))

    def initial_carry(self, batch):
        return torch.randn(self.size, 82, 2, 2)

    def forward(self, carry, batch):
        carry = flash_attn_func(q=carry, k=carry, v=carry, causal=False)
        return carry, self.lm_head(carry.flatten(2)[:, 1:])
"""
LOSSES = """
import torch

class ACTLossHead(torch.nn.Module):
    def __init__(self, model, loss_type):
        super().__init__()
        assert loss_type == "stablemax_cross_entropy"
        self.model = model

    def initial_carry(self, batch):
        return self.model.initial_carry(batch)

    def forward(self, return_keys, carry, batch):
        carry, logits = self.model(carry, batch)
        labels = batch["labels"].long().flatten()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels)
        return carry, loss, {}, {}, False
"""
EMBEDDING = """
import torch

class CastedSparseEmbeddingSignSGD_Distributed(torch.optim.SGD):
    def __init__(self, buffers, lr, weight_decay, world_size):
        super().__init__(list(buffers), lr=lr, weight_decay=weight_decay)
"""


def test_published_code_is_timed(gpu: str, run_python: Any, tmp_path: Path) -> None:
    module, kind = PUBLISHED["hrm"]
    for path, source in {
        module: MODEL.format(kind=kind),
        "models.losses": LOSSES,
        "models.sparse_embedding": EMBEDDING,
    }.items():
        file = tmp_path / "theirs" / f"{path.replace('.', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    settings = [*TINY_ARCH, "global_batch_size=4", f"device={gpu}", "compile=false"]
    theirs = ["techniques=[sparse_look_ahead]", "arch.techniques.sparse_look_ahead.every=2"]
    command = ["-m", "scripts.gpu_speed", "published", str(tmp_path / "theirs"), "case", "0.01"]
    result, root = tmp_path / "result.json", str(Path(__file__).resolve().parents[2])
    path = ":".join([root, *filter(None, sys.path)])
    done = run_python(*command, *settings, *theirs, env={"RESULT": str(result), "PYTHONPATH": path})
    assert done.code == 0, done.err
    (case,) = json.loads(result.read_text())["cases"]
    assert (case["code"], case["batch_size"]) == ("published", 4)
    assert case["parameters"] == 4 * 11 + 11
    assert case["optimizer"] == "AdamW" or gpu == "cuda"
    (line,) = case["lines"]
    assert line["examples_per_second"] == pytest.approx(4e3 / line["milliseconds"])
    # The published look-ahead, whatever is asked of ours.
    config = load_config(TrainConfig, "cfg_pretrain", settings)
    flop = train_step_flop(config.arch, SUDOKU) / 1e9
    assert line["gflop_per_second"] == pytest.approx(line["examples_per_second"] * flop)
