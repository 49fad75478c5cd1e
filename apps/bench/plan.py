"""Plan a training run; `scripts/plan.py` explains the settings. Only tracing loads torch."""

import json
import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dataset.format.schema import LabelField, PuzzleDatasetMetadata
from dataset.kinds.base import kinds_with
from puzzle_dataset import PuzzleDataset
from runtime.accelerators import ACCELERATORS, Accelerator
from runtime.errors import ConfigError, DatasetError
from runtime.schema import Count, CountOrZero, PositiveFloat, Schema, Size
from runtime.text import duration, in_columns
from training.config.composition import load_config
from training.config.entry_point import say
from training.config.explain import did_you_mean, validate
from training.config.overrides import parse_arguments, parse_overrides
from training.config.schema import TrainConfig
from training.config.source import CONFIG_DIR
from training.data import data_facts, published_total_steps, require_folder

GPUS = (1, 2, 4, 8, 64, 1000)
PER_MACHINE = 8
MARGIN, OF_CUDA = 0.1, 1e9  # Rounding and fragments, as a share; bytes of CUDA and its libraries.
SAVED_PER_SECOND = 1e9  # Bytes of a checkpoint: copied, hashed and written.
FIELDS = {"actions": LabelField(num_classes=5), "pixels": LabelField(num_classes=256, channels=3)}


class PlanSettings(Schema):
    """The plan's own settings, beside those of the training run."""

    gpu: str = ""
    gpus: Count = 1
    peak: PositiveFloat | None = None
    memory: PositiveFloat | None = None
    bandwidth: PositiveFloat | None = None
    link: PositiveFloat | None = None
    network: PositiveFloat = 50.0
    seq_len: Size | None = None
    vocab_size: Size | None = None
    num_puzzle_identifiers: Count | None = None
    total_groups: Count | None = None
    mean_puzzle_examples: PositiveFloat | None = None
    test_examples: CountOrZero | None = None


_FACTS = [*PlanSettings.model_fields][-6:]


class Pace(NamedTuple):
    """How close a run comes to the limits of its GPUs."""

    form: str  # Of the kernels, see `plan_tracing.Work`.
    products: float  # Share of the peak.
    memory: float  # Share of the memory's bandwidth.
    link: float  # Share of the bandwidth between GPUs.
    kernel: float  # Least seconds of a kernel.
    hop: float  # Least seconds of an exchange between two GPUs.
    row: float  # Seconds in which the host draws a row; 0: while the GPU works.

    def __str__(self) -> str:
        shares = f"{self.products:.0%} of the peak, {self.memory:.0%} of the bandwidth"
        return f"{shares}, {self.link:.0%} of the link, {self.kernel * 1e6:.0f} us a kernel"


PACES = (
    Pace("fused", 0.7, 0.85, 0.8, 3e-6, 5e-6, 0.0),
    Pace("alone", 0.4, 0.6, 0.5, 1e-5, 2e-5, 1 / 440_000),
)


def main(arguments: Sequence[str]) -> None:
    """Print the plan of a run. Raise ConfigError if the run does not fit into memory."""
    given = parse_overrides(parse_arguments(arguments).overrides)
    own = {o.key_or_group: o.value() for o in given if o.key_or_group in PlanSettings.model_fields}
    others = [line for line in arguments if line.partition("=")[0] not in own]
    settings = validate(PlanSettings, own | {"gpu": str(own.get("gpu", ""))})
    config = load_config(TrainConfig, "cfg_pretrain", others)
    gpu = accelerator(settings)
    config.check_world_size(settings.gpus)
    plan = Plan(config, settings, gpu)
    say("\n".join(plan.memory_lines()))
    plan.require_room()
    say("\n".join([*plan.time_lines(), *plan.growth_lines(), *plan.assumptions()]))


def accelerator(settings: PlanSettings) -> Accelerator:
    """Return the GPU; raise ConfigError if it is not in the table and peak or memory is missing."""
    found = ACCELERATORS.get(settings.gpu.lower().replace(" ", ""))
    if found is None:
        if settings.peak is None or settings.memory is None:
            near = did_you_mean(settings.gpu, ACCELERATORS, "gpu=") or ";"
            known = f"not in the table{near} Known: {', '.join(ACCELERATORS)}"
            asked = "for another GPU add peak=TFLOP/s (dense bfloat16) and memory=GB"
            raise ConfigError(f"gpu={settings.gpu}: {known}; {asked}")
        # Unless given: a byte of the memory for 200 operations, and PCIe 4.0.
        found = Accelerator(settings.gpu or "GPU", "", 0, 0, settings.peak * 5e9, 32e9)
    units = {"peak": 1e12, "memory": 1e9, "bandwidth": 1e9, "link": 1e9}
    given = {name: (getattr(settings, name) or 0) * unit for name, unit in units.items()}
    return found._replace(**{name: value for name, value in given.items() if value})


def describe_data(
    config: TrainConfig, settings: PlanSettings
) -> tuple[PuzzleDatasetMetadata, int, str]:
    """Return the metadata, the examples of an evaluation, and where they come from: settings, the
    folder, or else the file of data=NAME in `config/`. Raise DatasetError if a fact is missing.
    """
    facts: dict[str, Any] = {"num_puzzle_identifiers": 1, "mean_puzzle_examples": 1.0}
    fields = {name: FIELDS[name] for name in config.arch.heads.fields.values() if name in FIELDS}
    paths, named, source = config.train_paths, config.data, "not on this machine: as given"
    if all(Path(path).is_dir() for path in paths):
        found = PuzzleDataset(paths, "train", check_values=False).metadata
        facts, fields = {name: getattr(found, name) for name in _FACTS[:-1]}, found.fields
        size = sum(file.stat().st_size for path in paths for file in Path(path).rglob("*.*"))
        source = f"{size / 1e6:,.0f} MB"
        with suppress(DatasetError):  # There is no such split.
            tests = PuzzleDataset(config.test_paths, str(config.eval_split), check_values=False)
            facts["test_examples"] = sum(each.num_examples for each in tests.sets.values())
    elif named and paths == [named.path] and (CONFIG_DIR / f"data/{named.name}.yaml").exists():
        text = (CONFIG_DIR / f"data/{named.name}.yaml").read_text()
        facts |= {name: json.loads(value) for name, value in re.findall(r"(\w+)=([\d.]+)", text)}
        size = "".join(re.findall(r"^#   size +(.*)", text, re.MULTILINE))
        source = f"{size}; not on this machine: as data={named.name} tells"
    facts |= settings.model_dump(include={*_FACTS}, exclude_none=True)
    if missing := " ".join(f"{name}=" for name in _FACTS[:-1] if name not in facts):
        try:
            require_folder(paths[0], named)
        except DatasetError as error:
            raise DatasetError(f"{error}; or describe it: {missing}") from None
    tests = facts.get("test_examples", 0) if config.eval_split else 0
    fixed = {"pad_id": 0, "ignore_label_id": 0, "blank_identifier_id": 0, "sets": ("all",)}
    known: dict[str, Any] = {name: facts[name] for name in _FACTS[:-1]} | fixed
    return (
        PuzzleDatasetMetadata(**known, fields=fields),
        min(tests, config.eval_max_examples or tests),
        source,
    )


def seconds(kernels: np.ndarray, gpu: Accelerator, pace: Pace) -> dict[str, float]:
    """Return the time of kernels, float64 [2, kernels] (operations, moved bytes), by the limit that
    each of them meets.
    """
    rates = np.array([[gpu.peak * pace.products], [gpu.bandwidth * pace.memory]])
    times = np.vstack([kernels / rates, np.full(kernels.shape[1], pace.kernel)])
    which, limits = times.argmax(0), ("products", "memory", "launches")
    return {name: float(times[i, which == i].sum()) for i, name in enumerate(limits)}


def between(first: Any, second: Any, x: float) -> Any:
    """Return first + (second - first) * x for equal structures of numbers."""
    if isinstance(first, dict):
        return {key: between(first[key], second[key], x) for key in first}
    if isinstance(first, tuple):
        return type(first)(*(between(a, b, x) for a, b in zip(first, second, strict=True)))
    return first + (second - first) * x


class Plan:
    """A run on some GPUs. Two steps are traced, because all costs are linear in a step's rows."""

    def __init__(self, config: TrainConfig, settings: PlanSettings, gpu: Accelerator) -> None:
        from apps.bench.plan_tracing import trace

        self.config, self.gpu, self.gpus = config, gpu, settings.gpus
        self.network = settings.network * 1e9
        self.data, self.tests, self.source = describe_data(config, settings)
        kinds = kinds_with(self.data.seq_len, self.data.vocab_size)
        kind = kinds[0].key if len(kinds) == 1 else None
        config.arch.require_data(data_facts(self.data, kind=kind))
        self.rows = config.global_batch_size // self.gpus
        self.micro = self.rows // config.num_parts(self.gpus)  # Rows that pass at once.
        first, second = (trace(config, self.data, kind, self.micro * n, self.gpus) for n in (1, 2))
        self.costs = lambda rows: between(first, second, rows / self.micro - 1)
        counted = (config.epochs, self.data.total_groups, self.data.mean_puzzle_examples)
        steps = published_total_steps(*counted, config.global_batch_size)
        self.steps = min(steps, config.max_steps or steps)
        skipped = min(config.min_eval_interval, config.num_iterations - 1)
        self.evaluations = config.num_iterations - skipped if self.tests else 0

    def memory(self, rows: int, micro: int) -> dict[str, float]:
        """Return the bytes on a GPU with `rows` rows, `micro` of which pass through at once."""
        parts = dict(self.costs(rows).parts)
        parts["gradients"] *= self.config.num_shards(self.gpus)
        # Between micro-batches the new carry waits beside the old one.
        waiting = parts["carry"] if micro < rows else 0
        parts["activations"] = max(self.costs(micro).activations + waiting, self.costs(rows).update)
        parts["allocator's margin"] = MARGIN * sum(parts.values()) + OF_CUDA
        return parts

    def takes(self, rows: int, micro: int) -> float:
        """Return the sum of `memory`."""
        return sum(self.memory(rows, micro).values())

    def require_room(self) -> None:
        """Raise ConfigError, with the smallest change that helps, if the run does not fit."""
        if (takes := self.takes(self.rows, self.micro)) <= self.gpu.memory:
            return
        change = f"micro_batch_size=1 still takes {self.takes(self.rows, 1) / 1e9:,.2f} GB"
        for size in range(self.micro, 0, -1):
            smaller = self.config.model_copy(update={"micro_batch_size": size})
            with suppress(ConfigError):
                smaller.check_world_size(self.gpus)
                if self.takes(self.rows, size) <= self.gpu.memory:
                    change = f"it fits with micro_batch_size={size}"
                    break
        said = f"the run takes {takes / 1e9:,.2f} GB on a GPU with {self.gpu.memory / 1e9:g} GB"
        raise ConfigError(f"{said}; {change}")

    def _form(self, pace: Pace) -> str:
        return "alone" if self.config.compile is False else pace.form

    def step(self, gpus: int, pace: Pace) -> dict[str, float]:
        """Return the seconds of a step by part. Nothing hides the sum of the gradients."""
        rows, costs = math.ceil(self.config.global_batch_size / gpus), self.costs(self.rows)
        micro = min(self.micro, rows) if self.micro < self.rows else rows
        passes = seconds(self.costs(micro).passes[self._form(pace)], self.gpu, pace)
        parts = {name: one * math.ceil(rows / micro) for name, one in passes.items()}
        parts["update"] = sum(seconds(costs.updating["alone"], self.gpu, pace).values())
        beyond = PER_MACHINE * self.network if gpus > PER_MACHINE else self.gpu.link
        sent = (2 * costs.reduced + costs.gathered) * (gpus - 1) / gpus
        parts["all-reduce"] = sent / (min(self.gpu.link, beyond) * pace.link)
        parts["all-reduce"] += 4 * math.log2(gpus) * pace.hop
        return parts | {"data": self.config.global_batch_size * pace.row}

    def run(self, gpus: int, pace: Pace) -> dict[str, float]:
        """Return the seconds of the whole run by part."""
        config = self.config
        size = config.eval_batch_size or config.global_batch_size
        kernels = self.costs(math.ceil(size / gpus)).evaluating[self._form(pace)]
        act_steps = math.ceil(self.tests / size) * config.arch.halt_max_steps * self.evaluations
        saves = self.steps // (config.checkpoint_interval or self.steps + 1) + self.evaluations
        return {
            "training": self.steps * sum(self.step(gpus, pace).values()),
            "evaluations": act_steps * sum(seconds(kernels, self.gpu, pace).values()),
            "saving": saves * self.checkpoint() / SAVED_PER_SECOND,
        }

    def checkpoint(self) -> float:
        """Return the bytes of a checkpoint, which holds the carry of all ranks."""
        parts = self.costs(self.rows).parts
        kept = ("weights", "puzzle table", "optimizer", "EMA")
        return sum(parts[name] for name in kept) + parts["carry"] * self.gpus

    def memory_lines(self) -> list[str]:
        """Return the lines about model, data, memory and disk."""
        config, data, parts = self.config, self.data, self.memory(self.rows, self.micro)
        width, numbers = config.arch.puzzle_emb_ndim, round(self.costs(self.rows).parameters)
        table = f", puzzle table {data.num_puzzle_identifiers:,} x {width}" if width else ""
        sizes = [
            (f"  {name}", f"{part / 1e6:,.0f} MB") for name, part in parts.items() if part > 5e5
        ]
        most = bisect_right(range(1, 2**24), self.gpu.memory, key=lambda n: self.takes(n, n))
        kept = config.keep_last + config.keep_best
        kept += self.evaluations if config.checkpoint_every_eval else 1
        return [
            f"{config.arch.name}: {numbers:,} parameters{table}",
            f"data: {', '.join(config.train_paths)}, {self.source}",
            f"\nmemory of {self.gpu.name}, with {self.rows} rows, {self.micro} of them at once",
            in_columns([*sizes, ("  in all", f"{sum(parts.values()) / 1e6:,.0f} MB")]),
            f"largest batch that fits: {most:,} rows a GPU, {most * self.gpus:,} in all; "
            f"micro_batch_size is {'not ' * (most >= self.rows)}needed",
            f"disk: {kept} checkpoints of {self.checkpoint() / 1e6:,.0f} MB",
        ]

    def time_lines(self) -> list[str]:
        """Return the lines about a step and the whole run."""
        flop = self.costs(self.rows).passes["alone"][0].sum() / 1e12
        ends = [sum(self.run(self.gpus, pace).values()) for pace in PACES]
        hours = " to ".join(f"{end * self.gpus / 3600:,.1f}" for end in ends)
        return [
            f"\na step, ms: {flop * self.gpus:,.2f} TFLOP in all, {flop:,.2f} on each GPU",
            _ranges([self.step(self.gpus, pace) for pace in PACES], lambda s: f"{s * 1e3:,.2f}"),
            f"\n{self.steps:,} steps and {self.evaluations} evaluations of {self.tests:,} examples",
            _ranges([self.run(self.gpus, pace) for pace in PACES], duration),
            f"{hours} GPU-hours",
        ]

    def growth_lines(self) -> list[str]:
        """Return how the time changes with the number of GPUs, and why it stops falling."""
        rows = [("  GPUs", "rows", "fast", "slow", "faster", "efficiency", "most of it", "")]
        batch, last = self.config.global_batch_size, "it pays up to the last of these"
        alone = math.prod(sum(self.run(1, pace).values()) for pace in PACES)
        for gpus in GPUS:
            ends = [sum(self.run(gpus, pace).values()) for pace in PACES]
            speed = math.sqrt(alone / math.prod(ends))
            costs = Counter[str]()
            for pace in PACES:
                costs.update({n: self.steps * one for n, one in self.step(gpus, pace).items()})
                costs.update({"saving": self.run(gpus, pace)["saving"]})
            most = max(costs, key=costs.__getitem__)
            note = f"needs global_batch_size={-(-batch // gpus) * gpus}" if batch % gpus else ""
            shares = f"{speed:.1f} x", f"{speed / gpus:.0%}", most, note
            fast_end, slow_end = map(duration, ends)
            rows.append((f"  {gpus}", f"{-(-batch // gpus)}", fast_end, slow_end, *shares))
            if speed < gpus / 2 and last.startswith("it"):
                last = f"{gpus} GPUs do not pay: efficiency is below a half, most of it is {most}"
        return ["", in_columns(rows), last]

    def assumptions(self) -> list[str]:
        """Return the assumptions behind the figures."""
        gpu, dtype = self.gpu, self.config.arch.forward_dtype
        limits = f"{gpu.peak / 1e12:,.0f} TFLOP/s dense bfloat16, {gpu.bandwidth / 1e9:,.0f} GB/s"
        slower = f"; forward_dtype={dtype} has a lower peak" if dtype != "bfloat16" else ""
        links = f"link {gpu.link / 1e9:.0f} GB/s, network {self.network / 1e9:.0f} GB/s a GPU"
        return [
            f"\nassumed: {gpu.name} has {limits}, {links}{slower};",
            f"  fast: {PACES[0]}, one kernel between two products (compiled);",
            f"  slow: {PACES[1]}, a kernel for each operation (not compiled), waits for data;",
            f"  {PER_MACHINE} GPUs a machine; attention in a fused kernel unless attention=math;",
            "  memory as if nothing is compiled; starting and compiling are not counted",
        ]


def _ranges(parts: Sequence[Mapping[str, float]], text: Any) -> str:
    """Return the parts of both paces and their sums as a table."""
    fast, slow = (one | {"in all": sum(one.values())} for one in map(dict, parts))
    return in_columns([(f"  {n}", text(fast[n]), "to", text(slow[n])) for n in fast])
