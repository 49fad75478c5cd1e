"""What scripts/gpu_programme.py times: our code, the published code, and the machine they run on.

    python -m scripts.gpu_speed machine DEVICE
    python -m scripts.gpu_speed ours NAME SECONDS KEY=VALUE ...
    python -m scripts.gpu_speed published FOLDER NAME SECONDS KEY=VALUE ...

Settings are those of pretrain.py. The JSON goes to the file named in $RESULT, in the form of
scripts/benchmark.py, whose functions measure both codes in the same way.
"""

import contextlib
import importlib
import importlib.metadata
import importlib.util
import json
import os
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.cuda import nccl
from torch.optim import AdamW, Optimizer

from apps.bench import benchmark
from models.architectures import ArchConfig
from models.config import AttentionBackend, DataFacts
from models.layers import require_backend
from models.operations import train_step_flop
from models.registry import arch_on_device
from models.technique import TechniquesConfig
from runtime.compiler import choose_compiling
from runtime.device import prepare_host, resolve_device
from runtime.errors import ConfigError
from runtime.files import write_atomically
from training.config.composition import load_config
from training.config.schema import TrainConfig

# Architecture -> module and class of the published model, in a package that is called as ours.
PUBLISHED = {
    "hrm": ("models.hrm.hrm_act_v1", "HierarchicalReasoningModel_ACTV1"),
    "trm": ("models.recursive_reasoning.trm", "TinyRecursiveReasoningModel_ACTV1"),
}
SUDOKU = DataFacts(vocab_size=11, seq_len=81, num_puzzle_identifiers=1)


def main(arguments: Sequence[str]) -> None:
    """Measure what the arguments name and write the JSON."""
    what, *rest = arguments
    report = {"machine": machine, "ours": ours, "published": published}[what](*rest)
    write_atomically(Path(os.environ["RESULT"]), json.dumps(report, indent=1))


def machine(device: str) -> dict[str, Any]:
    """Describe the machine."""
    kind = resolve_device(device)
    facts = benchmark.describe_environment(kind)
    facts |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    if kind == "cuda":
        properties = torch.cuda.get_device_properties(0)
        facts["memory_gib"] = round(properties.total_memory / 2**30, 1)
        facts["multiprocessors"] = properties.multi_processor_count
        facts["nccl"] = ".".join(map(str, nccl.version()))
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            facts["triton"] = importlib.metadata.version("triton")
    backends = []
    for backend in get_args(AttentionBackend):
        with contextlib.suppress(ConfigError):
            require_backend(backend, torch.device(kind))
            backends.append(backend)
    return {"machine": facts | {"attention": " ".join(backends)}}


def ours(name: str, seconds: str, *settings: str) -> dict[str, Any]:
    """Measure a configuration as `scripts/benchmark.py` does its cases."""
    device = resolve_device(load_config(TrainConfig, "cfg_pretrain", settings).device)
    # A large GPU needs large products to show its rate.
    sizes = (2048, 4096, 8192) if device == "cuda" else (64,)
    effort = benchmark.Effort(seconds=float(seconds), product_sizes=sizes)
    return benchmark.run({name: settings}, effort)


def published(folder: str, name: str, seconds: str, *settings: str) -> dict[str, Any]:
    """Measure the train step of the published code with the model and batch of a configuration:
    forward, backward and both optimizers on one batch that stays; no data, metrics or schedule.

    Attention is ours (through torch's SDPA) where flash-attn is missing. Operations are those
    counted for our model with its full look-ahead, whose products are the same.
    """
    config = load_config(TrainConfig, "cfg_pretrain", settings)
    device = torch.device(resolve_device(config.device))
    arch, size = arch_on_device(config.arch, device.type), config.global_batch_size
    flop = train_step_flop(arch.model_copy(update={"techniques": TechniquesConfig()}), SUDOKU)
    compiled = choose_compiling(config.compile, device.type).form is not False
    prepare_host(config.num_threads)
    step, parameters, optimizer = published_step(
        Path(folder), arch, size, device, compiled=compiled
    )
    activity = benchmark.Activity("train step", step, 1, 1, flop)
    timing = benchmark.measure(step, float(seconds), device)
    on_cuda = device.type == "cuda"
    case = {
        "name": name,
        "code": "published",
        "settings": list(settings),
        "forward_dtype": arch.forward_dtype,
        "compiled": compiled,
        "batch_size": size,
        "parameters": parameters,
        "optimizer": optimizer,
        "peak_memory_mib": torch.cuda.max_memory_allocated(device) / 2**20 if on_cuda else None,
        "lines": [benchmark.line_of(activity, timing, size)],
    }
    return {"product_gflop_per_second": {}, "cases": [case]}


def published_step(
    folder: Path, arch: ArchConfig, batch_size: int, device: torch.device, *, compiled: bool
) -> tuple[Callable[[], None], int, str]:
    """Return a call that makes a train step of the published code on random grids, the number of
    its parameters, and the name of their optimizer. From here on, `import models` finds theirs.
    """
    for module in [name for name in sys.modules if name.startswith("models.")]:
        del sys.modules[module]
    package = types.ModuleType("models")
    package.__path__ = [str(folder / "models")]
    sys.modules["models"] = package
    if not any(map(importlib.util.find_spec, ("flash_attn_interface", "flash_attn"))):
        stand_in = types.ModuleType("flash_attn")
        stand_in.flash_attn_func = _attend  # type: ignore[attr-defined]
        sys.modules["flash_attn"] = stand_in
    module, kind = PUBLISHED[arch.name]
    losses, sparse_embedding, theirs = (
        importlib.import_module(name)
        for name in ("models.losses", "models.sparse_embedding", module)
    )
    facts = {"vocab_size": 11, "seq_len": 81, "num_puzzle_identifiers": 1}
    settings = arch.model_dump() | facts | {"batch_size": batch_size}
    torch.manual_seed(0)
    with torch.device(device):
        loss_head = losses.ACTLossHead(getattr(theirs, kind)(settings), arch.loss.loss_type)
        grids = torch.randint(2, 11, (2, batch_size, 81), dtype=torch.int32)
        ids = torch.zeros(batch_size, dtype=torch.int32)
        batch = {"inputs": grids[0], "labels": grids[1], "puzzle_identifiers": ids}
        carry = loss_head.initial_carry(batch)
    loss_head.train()
    dense = _fused(list(loss_head.parameters()), device)
    sparse = sparse_embedding.CastedSparseEmbeddingSignSGD_Distributed(
        loss_head.model.puzzle_emb.buffers(), lr=1e-4, weight_decay=0.1, world_size=1
    )
    forward = torch.compile(loss_head, dynamic=False) if compiled else loss_head

    def step() -> None:
        nonlocal carry
        carry, loss, *_ = forward(return_keys=[], carry=carry, batch=batch)
        (loss / batch_size).backward()
        for optimizer in (dense, sparse):
            optimizer.step()
            optimizer.zero_grad()

    return step, sum(p.numel() for p in loss_head.parameters()), type(dense).__name__


def _fused(parameters: list[nn.Parameter], device: torch.device) -> Optimizer:
    """Return the AdamATan2 that the published code trains with, one kernel for all tensors; where
    its package does not load, torch's fused AdamW. Ours would step tensor by tensor here.
    """
    rates: dict[str, Any] = {"lr": 1e-4, "betas": (0.9, 0.95), "weight_decay": 0.1}
    if device.type == "cuda":
        with contextlib.suppress(ImportError):
            return importlib.import_module("adam_atan2").AdamATan2(parameters, **rates)
    return AdamW(parameters, **rates, fused=True)


def _attend(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    """Stand in for flash-attn: [B, T, N, K] to [B, T, N, K]."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)
