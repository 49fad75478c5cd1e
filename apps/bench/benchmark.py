"""Measure training, evaluation, data loading and the optimizers on the device at hand.

    python scripts/benchmark.py [--case NAME ...] [--compare OLD.json] [KEY=VALUE ...]

Settings (KEY=VALUE, as for pretrain.py) apply to every case. Prints a table and writes a JSON file.
`--compare` divides the times by the times in an earlier file.

Operations are counted from the model and reported as a rate, and as a share of the best rate that
square matrix products reach in the same run and number format: see `docs/benchmarks.md`.
"""

import argparse
import contextlib
import itertools
import json
import os
import platform
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from apps.bench.plan import FIELDS
from dataset.command_line import Parser, run_tool
from dataset.format.writing import write_puzzles
from models.layers import require_backend
from models.operations import act_step_flop, train_step_flop
from models.registry import arch_on_device
from puzzle_dataset import Batch, PuzzleDataset, TrainBatches
from runtime.compiler import cpu_flags
from runtime.device import prepare_host, resolve_device
from runtime.errors import ConfigError, disk_errors
from runtime.files import commit_of_clone, write_atomically
from runtime.peak import Timing, measure, product_rates
from runtime.ranks import Ranks
from runtime.text import in_columns, short
from training.config.composition import load_config
from training.config.schema import OptimizerConfig, TrainConfig
from training.data import train_batches
from training.optim.groups import build_optimizer, update_by
from training.step import Learner
from training.stop_signals import StopSignals

ROOT = Path(__file__).resolve().parents[2]
CASES = {
    # The published HRM on 9 x 9 Sudoku: 81 cells and one position of puzzle embedding.
    "published": ("arch=hrm_v1", "global_batch_size=32"),
    "small": (
        *("arch=hrm_v1", "arch.hidden_size=128", "arch.num_heads=4"),
        *("arch.H_layers=2", "arch.L_layers=2", "global_batch_size=64"),
    ),
    # The settings of `make demo` on 2026-11-22, fixed here so that figures stay comparable.
    "demo": (
        *("arch=trm", "arch.H_cycles=1", "arch.L_cycles=4", "arch.L_layers=1", "arch.expansion=2"),
        *("arch.hidden_size=128", "arch.num_heads=4", "arch.mlp_t=true", "arch.pos_encodings=none"),
        *("arch.puzzle_emb_ndim=0", "arch.puzzle_emb_len=0", "arch.halt_max_steps=4"),
        *("global_batch_size=32", "lr=2.5e-3", "lr_min_ratio=0.0", "lr_warmup_steps=100"),
    ),
    # For GPUs; not among the usual cases.
    "hrm": ("experiment=hrm_sudoku_extreme_1k",),
    "trm-mlp": ("experiment=trm_sudoku_extreme_1k_mlp",),
}
USUAL = ("published", "small", "demo")
# Groups of the synthetic data, and views of each.
_NUM_GROUPS, _VIEWS = 1000, 10
_CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "bf16")
# A time longer by this factor is marked as slower.
_SLOWER = 1.05
# A case that differs in one of these is not compared. If it differs in one of `_ALSO`, a note says
# that more than the code has changed.
_SAME_CASE = ("forward_dtype", "batch_size", "halt_max_steps", "parameters")
_ALSO = ("settings", "compiled")


class Activity(NamedTuple):
    """A call to time, and the ACT steps and operations that it takes for an example."""

    name: str
    call: Callable[[], object]
    share: float = 1.0  # of the seconds of a measurement
    steps: int = 0  # 0: there is no rate of examples
    flop: int | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the cases of the command line; return the exit code."""
    options = _parser().parse_intermixed_args(arguments)
    return run_tool(lambda: report_on(options))


def report_on(options: argparse.Namespace) -> str:
    """Measure, print the table and write the JSON; return a line on the file."""
    if not os.access(options.output.parent, os.W_OK) or options.output.is_dir():
        raise ConfigError(f"--output {options.output}: this file cannot be written")
    earlier = options.compare and read_report(options.compare)
    cases = {name: (*CASES[name], *options.settings) for name in options.case or USUAL}
    report = run(cases, options.seconds)
    sys.stdout.write(f"{as_table(report, earlier)}\n\n")
    with disk_errors(options.output, ConfigError):
        write_atomically(options.output, json.dumps(report, indent=1) + "\n")
    return f"written: {options.output}\n"


def run(
    cases: Mapping[str, Sequence[str]], seconds: float, widths: Sequence[int] = ()
) -> dict[str, Any]:
    """Measure the cases, given by their settings, and return a report that can be written as JSON.

    The rate of matrix products is measured before and after each case; the best rate is the peak.

    Args:
        seconds: of each measurement of the model; data and optimizers take a quarter.
        widths: of the matrix products, unless the device decides them.
    Raises:
        ConfigError: settings are wrong or do not fit this device; all cases are checked first.
    """
    configs = {name: _runnable(settings) for name, settings in cases.items()}
    first = next(iter(configs.values()))
    prepare_host(first.num_threads)
    environment = describe_environment(first.device)
    # A large GPU reaches its best rate only with large products.
    widths = widths or ((2048, 4096, 8192) if first.device == "cuda" else (1024, 2048, 4096))
    results: list[dict[str, Any]] = []
    rates: dict[str, dict[str, float]] = {}  # GFLOP/s by number format and width
    for name, config in configs.items():
        prepare_host(config.num_threads)
        dtype, device = config.arch.forward_dtype, torch.device(config.device)
        rates_of = (dtype, device, widths, seconds / 2)
        before = product_rates(*rates_of)
        result = _measure_case(name, config, seconds)
        results.append({"name": name, "settings": list(cases[name])} | result)
        best = rates.setdefault(dtype, {})
        for size, rate in [*before.items(), *product_rates(*rates_of).items()]:
            best[str(size)] = max(best.get(str(size), 0.0), rate / 1e9)
    for result in results:
        peak = max(rates[result["forward_dtype"]].values())
        for line in result["lines"]:
            rate = line["gflop_per_second"]
            line["share_of_peak"] = None if rate is None else rate / peak
    return {"environment": environment, "product_gflop_per_second": rates, "cases": results}


def _runnable(settings: Sequence[str]) -> TrainConfig:
    """Return the configuration for this device."""
    config = load_config(TrainConfig, "cfg_pretrain", settings)
    device = resolve_device(config.device)
    require_backend(config.arch.kernel, torch.device(device), config.arch.forward_dtype)
    own: dict[str, Any] = {"arch": arch_on_device(config.arch, device), "device": device}
    # A run decides whether to compile by its length; a measurement has no length.
    if device == "cpu" and config.compile == "auto" and "compile=auto" not in settings:
        own["compile"] = False
    return config.model_copy(update=own)


def _measure_case(name: str, config: TrainConfig, seconds: float) -> dict[str, Any]:
    """Measure a case and return its entry in the JSON."""
    lines = []
    with stepping(config) as trainer:
        learner, device = trainer.learner, trainer.learner.ranks.device
        if on_cuda := device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        learner.model.train()
        flop = {
            "train_step": train_step_flop(config.arch, learner.facts),
            "act_step": act_step_flop(config.arch, learner.facts),
        }
        memory = None
        for activity in activities(trainer, flop):
            sys.stderr.write(f"{name}: {activity.name}\n")
            timing = measure(activity.call, activity.share * seconds, device)
            lines.append(line_of(activity, timing, config.global_batch_size))
            if on_cuda and memory is None:
                memory = torch.cuda.max_memory_allocated(device) / 2**20
        return {
            "forward_dtype": config.arch.forward_dtype,
            "compiled": learner.compiling.form,
            "batch_size": config.global_batch_size,
            "halt_max_steps": config.arch.halt_max_steps,
            "parameters": sum(p.numel() for p in learner.model.parameters()),
            "flop_per_example": flop,
            "peak_memory_mib": memory,
            "lines": lines,
        }


def line_of(activity: Activity, timing: Timing, batch_size: int) -> dict[str, Any]:
    """Return an activity's entry in the JSON."""
    rate = batch_size / timing.median
    return {
        "activity": activity.name,
        "milliseconds": timing.median * 1e3,
        "best_milliseconds": timing.best * 1e3,
        "samples": timing.samples,
        "examples_per_second": rate / activity.steps if activity.steps else None,
        "gflop_per_second": None if activity.flop is None else rate * activity.flop / 1e9,
    }


class StepTrainer:
    """The training loop of `pretrain.py`, one step at a time; it saves and logs nothing."""

    def __init__(self, config: TrainConfig, dataset: PuzzleDataset, ranks: Ranks) -> None:
        self.learner = Learner(config, config.arch, dataset, ranks)
        self.batches = train_batches(config, dataset)
        self.num_steps = 0

    def step(self, batch: Batch) -> None:
        """Train on a batch, as the training loop does."""
        self.num_steps += 1
        self.learner.step(self.num_steps, batch, StopSignals())
        self.learner.outcomes.check()
        if self.learner.metrics.full:
            self.learner.metrics.drain()


@contextlib.contextmanager
def stepping(config: TrainConfig) -> Iterator[StepTrainer]:
    """Yield a trainer on synthetic data, which is deleted after the block."""
    with tempfile.TemporaryDirectory() as folder, Ranks(config.device) as ranks:
        write_synthetic_data(Path(folder))
        fields = list(config.arch.fields.values())
        yield StepTrainer(config, PuzzleDataset([Path(folder)], "train", fields=fields), ranks)


def activities(trainer: StepTrainer, flop: dict[str, int]) -> Iterator[Activity]:
    """Yield all activities of a case. In an evaluation each example takes all ACT steps."""
    learner, batches = trainer.learner, endless(trainer.batches)
    config = learner.config
    yield Activity("train step", lambda: trainer.step(next(batches)), 1, 1, flop["train_step"])
    call = evaluation_step(trainer, next(batches))
    yield Activity("evaluation, ACT step", call, 1, config.arch.halt_max_steps, flop["act_step"])
    yield Activity("data loading", lambda: next(batches), 0.25, 1)
    learner.bucket.flat.normal_()
    no_skip = torch.zeros((), dtype=torch.bool, device=learner.ranks.device)
    norms = torch.ones(len(learner.groups), device=learner.ranks.device)
    for title, name in (("AdamATan2", "adam_atan2"), ("AdamW", "adamw")):
        chosen = OptimizerConfig(name=name, groups=config.optimizer.groups)
        optimizer = build_optimizer(chosen, learner.groups, (config.beta1, config.beta2))
        update = update_by(optimizer, learner.bucket, None)
        yield Activity(f"{title} step", partial(update, norms, no_skip, 1.0), 0.25)
    if learner.sparse is not None:
        leaf = learner.sparse.embedding.local_weights
        leaf.grad = torch.randn_like(leaf)
        yield Activity("SparseSignSGD step", partial(learner.sparse.step, no_skip), 0.25)


def evaluation_step(trainer: StepTrainer, batch: Batch) -> Callable[[], None]:
    """Return a call that runs one ACT step on a batch as evaluations do, without reading heads."""
    examples = trainer.learner.ranks.on_device(batch.arrays())
    carry = trainer.learner.model.eval().initial_carry(examples)

    def step() -> None:
        nonlocal carry
        with torch.no_grad():
            carry = trainer.learner.forward(carry, examples, measured=False).carry

    return step


def write_synthetic_data(folder: Path) -> None:
    """Write a training split of random 9 x 9 grids. Grids and fields follow no rule: the time
    depends only on their shapes.
    """
    rng = np.random.Generator(np.random.Philox(0))
    shape = (_NUM_GROUPS * _VIEWS, 81)
    inputs, labels = rng.integers(2, 11, (2, *shape), dtype=np.uint8)
    fields = {}
    for name, declared in FIELDS.items():
        size = (*shape, declared.channels) if declared.channels else shape
        fields[name] = declared, rng.integers(declared.num_classes, size=size, dtype=np.uint8)
    write_puzzles(folder / "train", inputs, labels, vocab_size=11, views=_VIEWS, fields=fields)


def endless(batches: TrainBatches) -> Iterator[Batch]:
    for iteration in itertools.count():
        for _, batch in batches.iterate(iteration):
            yield batch


def describe_environment(device: str) -> dict[str, Any]:
    """Return the versions, machine and commit that the figures depend on."""
    file = Path("/proc/cpuinfo")
    cpu = re.search(r"(?m)^model name\s*:\s*(.+)", file.read_text() if file.exists() else "")
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpu": cpu[1] if cpu else platform.processor() or platform.machine(),
        "cpu_flags": [name for name in _CPU_FLAGS if name in cpu_flags()],
        # Read by OneDNN, which computes torch's matrix products on a CPU.
        "max_cpu_isa": os.environ.get("ONEDNN_MAX_CPU_ISA"),
        "num_threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "commit": commit_of_clone(ROOT) or None,
    }


def as_table(report: dict[str, Any], earlier: dict[str, Any] | None = None) -> str:
    """Return a report as text, with its times divided by the times of an earlier report."""
    machine, rates = report["environment"], report["product_gflop_per_second"]
    head = [", ".join(f"{key} {value}" for key, value in machine.items())]
    for dtype, by_size in rates.items():
        sizes = ", ".join(f"{size}: {rate:.0f}" for size, rate in by_size.items())
        head.append(f"matrix products in {dtype}, GFLOP/s by width: {sizes}")
    rows: list[tuple[str, ...]] = [
        ("case", "activity", "ms", "examples/s", "GFLOP/s", "of peak", "new / old", "")
    ]
    earlier = earlier or {"environment": machine, "product_gflop_per_second": {}, "cases": []}
    if changed := _changes(earlier["environment"], machine, tuple(machine)):
        head.append(f"note: more than the code has changed: {changed}")
    for dtype, before in earlier["product_gflop_per_second"].items():
        if dtype in rates:
            ratio = max(before.values()) / max(rates[dtype].values())
            rows.append(("", f"matrix products, {dtype}", *[""] * 4, *_verdict(ratio)))
    cases = {case["name"]: case for case in earlier["cases"]}
    for case in report["cases"]:
        name, before = case["name"], cases.get(case["name"], case)
        head.append(", ".join(f"{key} {case[key]}" for key in ("name", *_SAME_CASE, *_ALSO)))
        if changed := _changes(before, case, (*_SAME_CASE, *_ALSO)):
            head.append(f"note: {name}: {changed}")
        same = not _changes(before, case, _SAME_CASE)
        times = {line["activity"]: line["milliseconds"] for line in before["lines"] if same}
        for line in case["lines"]:
            now, share = line["milliseconds"], line["share_of_peak"]
            rates_of = line["examples_per_second"], line["gflop_per_second"]
            figures = ("" if rate is None else short(rate) for rate in rates_of)
            ratio = now / times.get(line["activity"], now)
            compared = _verdict(ratio) if case is not before and same else ("", "")
            percent = "" if share is None else f"{share:.1%}"
            rows.append((name, line["activity"], f"{now:.3f}", *figures, percent, *compared))
    return "\n".join([*head, "", in_columns(rows)])


def _verdict(ratio: float) -> tuple[str, str]:
    word = "SLOWER" if ratio > _SLOWER else "faster" if ratio < 1 / _SLOWER else ""
    return f"{ratio:.3f}", word


def _changes(old: dict[str, Any], new: dict[str, Any], keys: Sequence[str]) -> str:
    """Return the keys with different values as text, with both values."""
    pairs = ((key, old.get(key), new[key]) for key in keys)
    return "; ".join(f"{key} {was} -> {now}" for key, was, now in pairs if was != now)


def read_report(path: Path) -> dict[str, Any]:
    """Read the JSON file of an earlier benchmark.

    Raises:
        ConfigError: the file is missing, or this script did not write it.
    """
    try:
        report = json.loads(path.read_bytes())
        _ = report["environment"], report["product_gflop_per_second"], report["cases"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"--compare {path}: not a file of this script ({error})") from None
    return report


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        description=str(__doc__).split("\n")[0],
        epilog=f"cases: {', '.join(CASES)}; pretrain.py explains the settings",
    )
    usual = f"default: {', '.join(USUAL)}"
    parser.add_argument("--case", action="append", choices=tuple(CASES), help=usual)
    seconds = "length of each measurement (default 10)"
    parser.add_argument("--seconds", type=float, default=10.0, help=seconds)
    compare = "an earlier file from the same machine; times are divided by its times"
    parser.add_argument("--compare", type=Path, metavar="OLD.json", help=compare)
    default = Path("benchmark.json")
    parser.add_argument("--output", type=Path, default=default, help=f"default: {default}")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="for every case")
    return parser
