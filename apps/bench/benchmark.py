"""Measure training, evaluation, data loading and the optimizers on the device at hand.

    python scripts/benchmark.py [--case NAME ...] [--isa ISA] [--compare OLD.json] [KEY=VALUE ...]
    python scripts/benchmark.py --ranks N [--case NAME ...] [KEY=VALUE ...]

Settings (KEY=VALUE, as for pretrain.py) change every case. Prints one table and writes one JSON.

`--compare` sets the times against those of an earlier file; `--ranks` compares training on N
processes of one thread with training on one.

Operations are counted from the model and reported as a rate, and as a share of the best rate that
plain square matrix products reach in the same run and number format: see `docs/benchmarks.md`.
"""

import argparse
import contextlib
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from dataset.format.schema import LabelField
from dataset.format.writing import write_puzzles
from models.heads.base import Examples
from models.operations import count_flop
from models.registry import arch_on_device
from puzzle_dataset import PuzzleDataset
from runtime.device import prepare_host, resolve_device
from runtime.errors import EXIT_INTERRUPTED, ConfigError, DatasetError, exit_code
from runtime.files import read_bounded, write_atomically
from runtime.ranks import Ranks
from training.config.composition import load_config
from training.config.schema import OptimizerConfig, TrainConfig
from training.data import data_facts
from training.optim.groups import build_optimizer, update_by
from training.step import build_learner
from training.stop_signals import StopSignals
from training.trainer import Feed, build_feed

CASES = {
    # The published HRM on 9 x 9 Sudoku: 81 cells and one position of puzzle embedding.
    "published": ("arch=hrm_v1", "global_batch_size=32"),
    "small": (
        *("arch=hrm_v1", "arch.hidden_size=128", "arch.num_heads=4"),
        *("arch.H_layers=2", "arch.L_layers=2", "global_batch_size=64"),
    ),
    # What `make demo` trained on 2026-11-22, written out, so that later figures compare with these.
    "demo": (
        *("arch=trm", "arch.H_cycles=1", "arch.L_cycles=4", "arch.L_layers=1", "arch.expansion=2"),
        *("arch.hidden_size=128", "arch.num_heads=4", "arch.mlp_t=true", "arch.pos_encodings=none"),
        *("arch.puzzle_emb_ndim=0", "arch.puzzle_emb_len=0", "arch.halt_max_steps=4"),
        *("global_batch_size=32", "lr=2.5e-3", "lr_min_ratio=0.0", "lr_warmup_steps=100"),
    ),
}

# Of mazes, in shape; a case that names no head which needs them does not read them.
SYNTHETIC_FIELDS = {
    "actions": LabelField(num_classes=5),
    "pixels": LabelField(num_classes=256, channels=3),
}

# oneDNN, which does torch's products on a CPU, reads this once, before its first product.
ISA_VARIABLE = "ONEDNN_MAX_CPU_ISA"
ISAS = ("AVX2", "AVX512_CORE", "AVX512_CORE_BF16", "AVX512_CORE_FP16", "AVX512_CORE_AMX")
_CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "bf16")

_WARM_UP_CALLS = 2
_MIN_SAMPLES = 3
_MAX_REPORT_BYTES = 2**22
_RANK_ROUNDS = 3  # of one process and then the ranks, each for its share of the time

# A time longer by this factor is called slower.
_SLOWER = 1.05
# Of the environment and of a case: where one of them differs, times cannot be compared; or they
# can, but the change of the code is not alone at work.
_SAME_MACHINE = ("cpu", "cpu_flags", "max_cpu_isa", "num_threads", "device")
_SAME_CASE = ("forward_dtype", "batch_size", "halt_max_steps", "parameters")
_ALSO_CHANGED = ("torch", "python", "system"), ("settings", "compiled")


class Effort(NamedTuple):
    """How long and how large to measure."""

    seconds: float = 10.0  # each measurement of the model; data and optimizers take a quarter
    product_sizes: tuple[int, ...] = (1024, 2048, 4096)
    num_groups: int = 1000
    views: int = 10


class Timing(NamedTuple):
    """Wall-clock seconds of one call: the median and the best of `samples` samples."""

    median: float
    best: float
    samples: int


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, measure, print the table and write the JSON."""
    options = _parser().parse_intermixed_args(arguments)
    if options.isa is not None and os.environ.get(ISA_VARIABLE) != options.isa:
        environment = os.environ | {ISA_VARIABLE: options.isa}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
    named = {"num_threads": options.threads, "device": options.device, "compile": options.compile}
    settings = [f"{key}={value}" for key, value in named.items() if value is not None]
    try:
        output = Path(options.output)
        if output.is_dir() or not os.access(output.parent, os.W_OK):
            raise ConfigError(f"--output {output}: not a file that can be written here")
        earlier = options.compare and read_report(options.compare)
        names = options.case or list(CASES)
        cases = {name: (*CASES[name], *settings, *options.settings) for name in names}
        if options.as_rank:
            return measure_rank(cases[names[0]], options.seconds, *options.as_rank)
        if options.ranks:
            report, text = run_ranks(cases, options.seconds, options.ranks)
        else:
            report = run(cases, Effort(seconds=options.seconds), earlier)
            text = as_table(report)
        write_atomically(output, json.dumps(report, indent=1) + "\n")
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(EXIT_INTERRUPTED)
    except Exception as error:
        code = exit_code(error)
        if code is None:
            raise
        sys.stderr.write(f"benchmark.py: {error}\n")
        sys.exit(code)
    if earlier:
        text = f"{text}\n\n{comparison(earlier, report)}"
    sys.stdout.write(f"{text}\n\nwritten: {output}\n")


def run(
    cases: dict[str, tuple[str, ...]], effort: Effort, earlier: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Measure cases, each given by its settings; returns the JSON-ready report.

    The rate of plain matrix products is taken before and after each case; the best is the peak.

    Args:
        earlier: a report that this one is to be compared with.
    Raises:
        ConfigError: a configuration is wrong or cannot run on this device, or the earlier report
            is of another machine; all is checked first.
    """
    configs = {name: _runnable(settings) for name, settings in cases.items()}
    first = next(iter(configs.values()))
    prepare_host(first.num_threads)
    environment = describe_environment(first.device)
    if earlier:
        require_same_machine(earlier["environment"], environment)
    results: list[dict[str, Any]] = []
    rates: dict[str, dict[str, float]] = {}  # GFLOP/s by number format and width
    with tempfile.TemporaryDirectory() as folder:
        write_synthetic_data(Path(folder), effort.num_groups, effort.views)
        for name, config in configs.items():
            dataset = _open_data(Path(folder), list(config.arch.heads.fields.values()))
            prepare_host(config.num_threads)
            dtype = config.arch.forward_dtype
            with Ranks(config.device) as ranks:
                sys.stderr.write(f"{name}: matrix products in {dtype}\n")
                before = product_rates(dtype, ranks.device, effort)
                result = _measure_case(name, config, dataset, ranks, effort)
                results.append({"name": name, "settings": list(cases[name])} | result)
                after = product_rates(dtype, ranks.device, effort)
            best = rates.setdefault(dtype, {})
            for size, rate in [*before.items(), *after.items()]:
                best[str(size)] = max(best.get(str(size), 0.0), rate / 1e9)
    for result in results:
        peak = max(rates[result["forward_dtype"]].values())
        for line in result["lines"]:
            if line["gflop_per_second"] is not None:
                line["share_of_peak"] = line["gflop_per_second"] / peak
    return {"environment": environment, "product_gflop_per_second": rates, "cases": results}


def _runnable(settings: Sequence[str]) -> TrainConfig:
    """Return a configuration that fits this device."""
    config = load_config(TrainConfig, "cfg_pretrain", settings)
    device = resolve_device(config.device)
    own: dict[str, Any] = {"arch": arch_on_device(config.arch, device), "device": device}
    # A run's own choice goes by its length, and this one has none.
    if device == "cpu" and config.compile == "auto" and "compile=auto" not in settings:
        own["compile"] = False
    return config.model_copy(update=own)


def _measure_case(
    name: str, config: TrainConfig, dataset: PuzzleDataset, ranks: Ranks, effort: Effort
) -> dict[str, Any]:
    """Return what the JSON says of a case. In an evaluation an example takes all ACT steps."""
    device, batch_size, arch = ranks.device, config.global_batch_size, config.arch
    flop = count_flop(arch, data_facts(dataset.metadata, dataset.fields))
    trainer = StepTrainer(config, dataset, ranks)
    model, batches = trainer.learner.model, endless(trainer.feed)
    lines: list[dict[str, Any]] = []

    def add(activity: str, timing: Timing, steps: int = 0, flop: int | None = None) -> None:
        rate = batch_size / timing.median
        lines.append(
            {
                "activity": activity,
                "milliseconds": timing.median * 1e3,
                "best_milliseconds": timing.best * 1e3,
                "samples": timing.samples,
                "examples_per_second": rate / steps if steps else None,
                "gflop_per_second": None if flop is None else rate * flop / 1e9,
                "share_of_peak": None,  # The peak is known at the end.
            }
        )

    sys.stderr.write(f"{name}: train step\n")
    if on_cuda := device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    model.train()
    timing = measure(lambda: trainer.step(next(batches)), effort.seconds, device)
    memory = torch.cuda.max_memory_allocated(device) / 2**20 if on_cuda else None
    add("train step", timing, 1, flop.train_step)

    sys.stderr.write(f"{name}: evaluation\n")
    timing = measure(evaluation_step(trainer, next(batches)), effort.seconds, device)
    add("evaluation, ACT step", timing, arch.halt_max_steps, flop.act_step)

    sys.stderr.write(f"{name}: data and optimizers\n")
    add("data loading", measure(lambda: next(batches), effort.seconds / 4, device), 1)
    for activity, step in optimizer_steps(trainer):
        add(activity, measure(step, effort.seconds / 4, device))
    return {
        "forward_dtype": arch.forward_dtype,
        "compiled": trainer.learner.compiling.form,
        "batch_size": batch_size,
        "halt_max_steps": arch.halt_max_steps,
        "parameters": sum(p.numel() for p in model.parameters()),
        "flop_per_example": flop._asdict(),
        "peak_memory_mib": memory,
        "lines": lines,
    }


class StepTrainer:
    """The training loop of `pretrain.py`, one step at a time; it saves and logs nothing."""

    def __init__(self, config: TrainConfig, dataset: PuzzleDataset, ranks: Ranks) -> None:
        self.learner = build_learner(config, config.arch, dataset, ranks)
        self.feed = build_feed(config, dataset, ranks)
        self.num_steps = 0

    def step(self, batch: Examples) -> None:
        """Do what the training loop does for a batch."""
        self.num_steps += 1
        self.learner.step(self.num_steps, batch, StopSignals())
        self.learner.outcomes.check()
        if self.learner.metrics.full:
            self.learner.metrics.drain()


def evaluation_step(trainer: StepTrainer, examples: Examples) -> Callable[[], None]:
    """Return a call that runs one ACT step on a batch as an evaluation does: no head is read."""
    carry = trainer.learner.model.eval().initial_carry(examples)

    def step() -> None:
        nonlocal carry
        with torch.no_grad():
            carry = trainer.learner.forward(carry, examples, measured=False).carry

    return step


def optimizer_steps(trainer: StepTrainer) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the optimizers by name, each with a call that makes one step on random gradients."""
    learner = trainer.learner
    learner.bucket.flat.normal_()
    no_skip = torch.zeros((), dtype=torch.bool, device=learner.ranks.device)
    betas, groups = (learner.config.beta1, learner.config.beta2), learner.config.optimizer.groups
    for label, config in (
        ("AdamATan2 step", OptimizerConfig(name="adam_atan2", groups=groups)),
        ("AdamW step", OptimizerConfig(name="adamw", groups=groups)),
    ):
        update = update_by(build_optimizer(config, learner.groups, betas), learner.bucket, None)
        norms = torch.ones(len(learner.groups), device=learner.ranks.device)
        yield label, partial(update, norms, no_skip, 1.0)
    if learner.sparse is not None:
        leaf = learner.sparse.embedding.local_weights
        leaf.grad = torch.randn_like(leaf)
        yield "SparseSignSGD step", partial(learner.sparse.step, no_skip)


def product_rates(dtype: str, device: torch.device, effort: Effort) -> dict[int, float]:
    """Return the best FLOP/s of square matrix products by width; takes half of `effort.seconds`."""
    rates = {}
    for size in effort.product_sizes:
        a, b = (torch.randn(size, size, device=device).to(getattr(torch, dtype)) for _ in range(2))
        out = torch.empty_like(a)
        seconds = effort.seconds / 2 / len(effort.product_sizes)
        timing = measure(lambda a=a, b=b, out=out: torch.mm(a, b, out=out), seconds, device)
        rates[size] = 2 * size**3 / timing.best
    return rates


def measure(call: Callable[[], object], seconds: float, device: torch.device) -> Timing:
    """Time `call` for about `seconds`, after a few calls that warm caches and compile.

    On CUDA ten calls make a sample, with the device waited for at both ends, so that the host can
    run ahead as it does in training.
    """
    calls = 10 if device.type == "cuda" else 1
    wait = partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None
    for _ in range(_WARM_UP_CALLS):
        call()
    wait()
    samples: list[float] = []
    start = time.perf_counter()
    while len(samples) < _MIN_SAMPLES or time.perf_counter() - start < seconds:
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        wait()
        samples.append((time.perf_counter() - begin) / calls)
    return Timing(statistics.median(samples), min(samples), len(samples))


def write_synthetic_data(folder: Path, num_groups: int, views: int) -> None:
    """Write a training split of random 9 x 9 grids: `num_groups` puzzles with `views` views each.
    Neither grids nor fields obey a rule: time depends on their shapes alone.
    """
    rng = np.random.Generator(np.random.Philox(0))
    shape = (num_groups * views, 81)
    labels = rng.integers(2, 11, shape, dtype=np.uint8)
    inputs = np.where(rng.random(shape) < 0.6, 1, labels).astype(np.uint8)
    fields = {}
    for name, declared in SYNTHETIC_FIELDS.items():
        size = (*shape, declared.channels) if declared.channels else shape
        fields[name] = declared, rng.integers(declared.num_classes, size=size, dtype=np.uint8)
    write_puzzles(folder / "train", inputs, labels, vocab_size=11, views=views, fields=fields)


def _open_data(folder: Path, fields: list[str]) -> PuzzleDataset:
    try:
        return PuzzleDataset([folder], "train", fields=fields)
    except DatasetError:
        known = ", ".join(SYNTHETIC_FIELDS)
        text = f"arch.heads reads the fields {', '.join(fields)}; accepted here: {known}"
        raise ConfigError(text) from None


def endless(feed: Feed) -> Iterator[Examples]:
    for iteration in itertools.count():
        with contextlib.closing(feed.iterate(iteration)) as batches:
            for _, batch in batches:
                yield batch


def describe_environment(device: str) -> dict[str, Any]:
    """Describe what the figures depend on beside the settings."""
    cpu: dict[str, str] = {}
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
        pairs = (line.partition(":") for line in lines)
        cpu = {key.strip(): value.strip() for key, _, value in pairs}
    flags = (cpu.get("flags") or cpu.get("Features") or "").split()
    commit = None
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    # Without git, or not in a clone, there is no commit to name.
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        commit = subprocess.check_output(
            command, cwd=Path(__file__).resolve().parent, stderr=subprocess.DEVNULL, text=True
        ).strip()
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpu": cpu.get("model name", platform.processor() or platform.machine()),
        "cpu_flags": [name for name in _CPU_FLAGS if name in flags],
        "max_cpu_isa": os.environ.get(ISA_VARIABLE),
        "num_threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "commit": commit,
    }


def as_table(report: dict[str, Any]) -> str:
    """Lay out a report for people."""
    machine = report["environment"]
    limit = f", at most {machine['max_cpu_isa']}" if machine["max_cpu_isa"] else ""
    head = [
        f"torch {machine['torch']}, {machine['num_threads']} threads, {machine['cpu']}"
        f" ({' '.join(machine['cpu_flags'])}{limit}), device {machine['device']}"
    ]
    for dtype, rates in report["product_gflop_per_second"].items():
        sizes = ", ".join(f"{size}: {rate:.0f}" for size, rate in rates.items())
        head.append(f"matrix products in {dtype}, GFLOP/s by width: {sizes}")
    rows = [("case", "activity", "ms", "examples/s", "GFLOP/s", "of peak")]
    for case in report["cases"]:
        flop, memory = case["flop_per_example"]["train_step"] / 1e9, case["peak_memory_mib"]
        compiled = f", {case['compiled']} compiled" if case["compiled"] else ""
        head.append(
            f"{case['name']}: {case['parameters']:,} parameters, batch {case['batch_size']},"
            f" {case['forward_dtype']}{compiled},"
            f" {flop:.3g} GFLOP an example and train step,"
            f" {case['halt_max_steps']} ACT steps in evaluation"
            + ("" if memory is None else f", {memory:.0f} MiB")
        )
        for line in case["lines"]:
            share = "" if line["share_of_peak"] is None else f"{line['share_of_peak']:.1%}"
            rates = _number(line["examples_per_second"]), _number(line["gflop_per_second"])
            milliseconds = f"{line['milliseconds']:.3f}"
            rows.append((case["name"], line["activity"], milliseconds, *rates, share))
    return "\n".join([*head, "", *_columns(rows)])


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Align a table, its title first; the first two columns stand on the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    layout = "  ".join(f"{{:{'<' if i < 2 else '>'}{width}}}" for i, width in enumerate(widths))
    title, *lines = (layout.format(*row).rstrip() for row in rows)
    return [title, "-" * len(title), *lines]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.{0 if value >= 100 else 1}f}"


def read_report(path: Path) -> dict[str, Any]:
    """Read what an earlier run has written.

    Raises:
        ConfigError: it is no such file.
    """
    try:
        report = json.loads(read_bounded(path, _MAX_REPORT_BYTES))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--compare {path}: {error}") from None
    parts = {"environment", "product_gflop_per_second", "cases"}
    if not isinstance(report, dict) or not parts <= report.keys():
        raise ConfigError(f"--compare {path}: is not what this script writes without --ranks")
    return report


def require_same_machine(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Raise ConfigError where the times of two environments say nothing about the code."""
    if differing := _differing(old, new, _SAME_MACHINE):
        raise ConfigError(f"--compare: the earlier file is of another machine: {differing}")


def comparison(old: dict[str, Any], new: dict[str, Any]) -> str:
    """Lay out the times of a report divided by those of an earlier one of the same machine."""
    environment, case = _ALSO_CHANGED
    differing = _differing(old["environment"], new["environment"], environment)
    notes = [f"note: not the code alone has changed: {differing}"] if differing else []
    rows = [("case", "activity", "old ms", "new ms", "new / old", "")]
    for dtype, rates in new["product_gflop_per_second"].items():
        if before := old["product_gflop_per_second"].get(dtype):
            ratio = max(before.values()) / max(rates.values())
            rows.append(("", f"matrix products, {dtype}", "", "", f"{ratio:.3f}", _verdict(ratio)))
    before_by_name = {each["name"]: each for each in old["cases"]}
    for after in new["cases"]:
        name, before = after["name"], before_by_name.get(after["name"])
        if before is None:
            notes.append(f"{name}: not in the earlier file")
        elif differing := _differing(before, after, _SAME_CASE):
            notes.append(f"{name}: not compared, it is another case there: {differing}")
        else:
            if differing := _differing(before, after, case):
                notes.append(f"note: {name}: {differing}")
            times = {line["activity"]: line["milliseconds"] for line in before["lines"]}
            for line in after["lines"]:
                if line["activity"] in times:
                    was, now = times[line["activity"]], line["milliseconds"]
                    shown = f"{was:.3f}", f"{now:.3f}", f"{now / was:.3f}", _verdict(now / was)
                    rows.append((name, line["activity"], *shown))
    return "\n".join(
        [f"compared with commit {old['environment']['commit']}", *notes, *_columns(rows)]
    )


def _verdict(ratio: float) -> str:
    return "SLOWER" if ratio > _SLOWER else "faster" if ratio < 1 / _SLOWER else ""


def _differing(old: dict[str, Any], new: dict[str, Any], keys: Sequence[str]) -> str:
    changes = [f"{key} {old.get(key)} -> {new[key]}" for key in keys if old.get(key) != new[key]]
    return "; ".join(changes)


def run_ranks(
    cases: dict[str, tuple[str, ...]], seconds: float, num_ranks: int
) -> tuple[dict[str, Any], str]:
    """Measure training on `num_ranks` processes of one thread, and on one process of one thread
    with its share of the batch, in turns; returns the JSON-ready report and a table.

    Raises:
        ConfigError: a configuration is wrong, not for a CPU, or the batch cannot be shared.
    """
    rows = [("case", "", "ms a step", "examples/s")]
    results = []
    for name, settings in cases.items():
        config = _runnable((*settings, "num_threads=1"))
        config.check_world_size(num_ranks)
        if config.device != "cpu":
            raise ConfigError(
                f"--ranks measures on a CPU, not on {config.device}; use --device cpu"
            )
        batch = config.global_batch_size
        one, many = [], []
        for number in range(_RANK_ROUNDS):
            sys.stderr.write(f"{name}: round {number + 1} of {_RANK_ROUNDS}\n")
            share = (*settings, f"global_batch_size={batch // num_ranks}")
            one.append(_measured_by_ranks(name, share, seconds / _RANK_ROUNDS, 1))
            many.append(_measured_by_ranks(name, settings, seconds / _RANK_ROUNDS, num_ranks))
        alone, ranks = _medians(one), _medians(many)
        results.append({"name": name, "batch_size": batch, "one": alone, "ranks": ranks})
        step = ranks["step"]
        # Not less than nothing: the transfers are measured in steps of their own.
        waits = max(0.0, ranks["collectives"] - ranks["transfer"])
        for text, milliseconds, size in (
            (f"one process, batch {batch // num_ranks}", alone["step"], batch // num_ranks),
            (f"{num_ranks} ranks, batch {batch}", step, batch),
            ("of it moving gradients", ranks["transfer"], 0),
            ("of it waiting for the other ranks", waits, 0),
            ("of it sharing the machine", step - alone["step"] - ranks["transfer"] - waits, 0),
        ):
            rate = f"{size / milliseconds * 1e3:,.0f}" if size else ""
            rows.append((name, text, f"{milliseconds:.2f}", rate))
    report = {"environment": describe_environment("cpu"), "num_ranks": num_ranks, "cases": results}
    return report, "\n".join(_columns(rows))


def _medians(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}


def _measured_by_ranks(
    name: str, settings: Sequence[str], seconds: float, num_ranks: int
) -> dict[str, float]:
    """Return what `measure_rank` finds in processes of their own, under a launcher if several."""
    scripts = Path(__file__).resolve().parents[2] / "scripts"
    here = str(scripts / "benchmark.py")
    launcher = [str(scripts / "launch.py"), "--standalone", f"--nproc-per-node={num_ranks}"]
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "rank.json"
        data = Path(folder) / "data"
        write_synthetic_data(data, Effort().num_groups, Effort().views)
        own = ["--as-rank", str(data), str(output), f"--seconds={seconds}", f"--case={name}"]
        command = [*(launcher if num_ranks > 1 else []), here, *own, *settings]
        subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
        return json.loads(output.read_bytes())


class TimedRanks(Ranks):
    """Ranks that add up the seconds which they spend in collectives."""

    seconds = 0.0

    @contextlib.contextmanager
    def _collective(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        with super()._collective(name):
            yield
        self.seconds += time.perf_counter() - begin


def measure_rank(settings: Sequence[str], seconds: float, data: str, output: str) -> None:
    """Train on this rank, and write from the first one the median milliseconds of a step, of its
    collectives, and of adding up the gradients when no rank has to be waited for.
    """
    config = _runnable((*settings, "num_threads=1"))
    prepare_host(1)
    with TimedRanks(config.device) as ranks:
        dataset = _open_data(Path(data), list(config.arch.heads.fields.values()))
        trainer = StepTrainer(config, dataset, ranks)
        batches, flat = endless(trainer.feed), trainer.learner.bucket.flat
        first = measure(lambda: trainer.step(next(batches)), 0.0, ranks.device).median
        # All ranks must make as many.
        calls = ranks.broadcast_object(max(_MIN_SAMPLES, round(seconds / first)))
        steps, collectives, transfers = [], [], []
        for _ in range(calls):
            before = ranks.seconds
            steps.append(_seconds(lambda: trainer.step(next(batches))))
            collectives.append(ranks.seconds - before)
        for _ in range(calls):
            ranks.barrier()
            transfers.append(_seconds(lambda: ranks.sum_(flat)))
        timed = {"step": steps, "collectives": collectives, "transfer": transfers}
        found = {name: statistics.median(each) * 1e3 for name, each in timed.items()}
        if ranks.is_main:
            write_atomically(Path(output), json.dumps(found))


def _seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=str(__doc__).split("\n")[0],
        epilog=f"cases: {', '.join(CASES)}; settings are those of pretrain.py",
    )
    parser.add_argument("--case", action="append", choices=tuple(CASES), help="default: all")
    seconds = "of each measurement (default 10)"
    parser.add_argument("--seconds", type=_positive, default=Effort.seconds, help=seconds)
    parser.add_argument("--threads", type=int, help="CPU threads (num_threads=)")
    parser.add_argument("--device", help="auto, cpu or cuda (device=)")
    compiled = "auto, block, model or false (compile=); default on a CPU: false"
    parser.add_argument("--compile", help=compiled)
    isa = f"CPU instructions that products may use at most; restarts with {ISA_VARIABLE} set"
    parser.add_argument("--isa", type=str.upper, choices=ISAS, help=isa)
    compare = "an earlier file of the same machine: print times divided by those in it"
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--compare", type=Path, metavar="OLD.json", help=compare)
    ranks = "compare training on N processes of one thread with one that has its share of the batch"
    either.add_argument("--ranks", type=int, metavar="N", help=ranks)
    parser.add_argument("--as-rank", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--output", default="benchmark.json", help="default: benchmark.json")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="for every case")
    return parser


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")
    return value
