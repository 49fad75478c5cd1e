"""Plan a training run; `scripts/plan.py` explains the settings. Only tracing loads torch."""

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from dataset.format.schema import LabelField, PuzzleDatasetMetadata
from dataset.kinds.base import only_kind_with
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
from training.data import ended_iterations, eval_limit, open_data, require_folders, scheduled_steps

GPUS = (1, 2, 4, 8, 64, 1000)
PER_MACHINE = 8
MARGIN, OF_CUDA = 0.1, 1e9  # Rounding and fragments, as a share; bytes of CUDA and its libraries.
# Float64 [2], of a fast and of a slow run: shares of the peak, and of the bandwidth of memory and
# links; seconds that an exchange waits; seconds to draw a row (0: while the GPU works).
PEAK, BANDWIDTH = np.array([0.7, 0.4]), np.array([0.85, 0.6])
WAIT, ROW = np.array([3e-6, 1e-5]), np.array([0, 1 / 440_000])
# Seconds in which the host starts what belongs to a product (compiled), or one operation (eager),
# measured beside an H100.
COMPILED, EAGER = 60e-6, 45e-6
_FACT = r"(\w+)=([\d.]+)"
# Shaped like the fields of mazes and colourings, for heads and techniques that need them.
FIELDS = {
    "actions": LabelField(num_classes=5),
    "answers": LabelField(num_classes=7, channels=4),
    "arrivals": LabelField(num_classes=256, channels=2),
    "closer": LabelField(num_classes=16),
    "pixels": LabelField(num_classes=256, channels=3),
}


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
    total_groups: Count | None = None
    num_puzzle_identifiers: Count = 1
    mean_puzzle_examples: PositiveFloat = 1.0
    test_examples: CountOrZero = 0


def main(arguments: Sequence[str]) -> None:
    """Print the plan of a run. Raise ConfigError if the run does not fit into memory."""
    given = parse_overrides(parse_arguments(arguments).overrides)
    own = {o.key_or_group: o.value() for o in given if o.key_or_group in PlanSettings.model_fields}
    others = [line for line in arguments if line.partition("=")[0] not in own]
    settings = validate(PlanSettings, own | {"gpu": str(own.get("gpu", ""))})
    config, gpu = load_config(TrainConfig, "cfg_pretrain", others), accelerator(settings)
    config.check_world_size(settings.gpus)
    plan = Plan(config, settings, gpu)
    say("\n".join(plan.memory_lines()))
    plan.require_room()
    say("\n".join([*plan.time_lines(), *plan.growth_lines()]))


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
    given = settings.model_dump(include={*units}, exclude_none=True)
    return found._replace(**{name: value * units[name] for name, value in given.items()})


def describe_data(
    config: TrainConfig, settings: PlanSettings
) -> tuple[PuzzleDatasetMetadata, int, str]:
    """Return the metadata, the examples of an evaluation, and where they come from: the folder, or
    the file of data=NAME in `config/`, or the settings. Raise DatasetError if a fact is missing.
    """
    names, known = [*PlanSettings.model_fields][-6:], config.data
    given = settings.model_dump(include={*names}, exclude_unset=True, exclude_none=True)
    try:
        require_folders(config)
    except DatasetError as error:
        facts, source = settings.model_dump(include={*names}), "not here: as given"
        if known and config.train_paths == [known.path]:
            file = CONFIG_DIR / f"data/{known.name}.yaml"
            text = file.read_text() if file.exists() else ""
            facts |= {n: float(x) if "." in x else int(x) for n, x in re.findall(_FACT, text)}
            sizes = re.findall(r"^#   size +(.*)", text, re.MULTILINE)
            source = "; ".join([*sizes, f"not here: as data={known.name} tells"])
        facts |= given
        if missing := " ".join(f"{name}=" for name in names if facts[name] is None):
            raise DatasetError(f"{error}; or describe it: {missing}") from None
        sizes, used = [facts.pop("test_examples")], config.arch.fields.values()
        if unknown := " and ".join(sorted({*used} - FIELDS.keys())):
            raise DatasetError(f"{error}; it alone can tell the shape of {unknown}") from None
        fields = {name: FIELDS[name] for name in used}
        data = PuzzleDatasetMetadata(0, 0, 0, **facts, sets=("all",), fields=fields)
    else:
        train, test = open_data(config, check_values=False, warn=say)
        sizes = [each.num_examples for each in test.sets.values()] if test else []
        if "test_examples" in given:
            sizes = [given.pop("test_examples")]
        data, source = replace(train.metadata, **given), "on this machine"
    tests = sum(len(range(size)[: eval_limit(config)]) for size in sizes)
    return data, tests if config.eval_split else 0, source


def seconds(kernels: np.ndarray, gpu: Accelerator, compiled: bool) -> dict[str, np.ndarray]:
    """Return the time of the kernels of a `Trace`, float64 [2], by the limit that each one meets.
    `host`: how much longer the host takes to start them all.

    Compiled (only in a fast run): all operations between two products are one kernel, which moves
    as many bytes as a product.
    """
    kernels, products = kernels[:2], kernels[:2, kernels[0] > 0]
    fast = np.hstack([products, products * [[0], [1]]]) if compiled else kernels
    both = []
    for pace, (flop, moved) in enumerate((fast, kernels)):
        times = np.stack([flop / PEAK[pace] / gpu.peak, moved / BANDWIDTH[pace] / gpu.bandwidth])
        both.append([times[i, times.argmax(0) == i].sum() for i in range(2)])
    parts = dict(zip(("products", "memory"), np.transpose(both), strict=True))
    starts = np.full(2, EAGER * kernels.shape[1])
    if compiled:
        starts[0] = COMPILED * products.shape[1]
    return parts | {"host": np.maximum(starts - sum(parts.values()), 0)}


class Plan:
    """A run on some GPUs. Two steps are traced, because all costs are linear in a step's rows."""

    def __init__(self, config: TrainConfig, settings: PlanSettings, gpu: Accelerator) -> None:
        from torch.utils._pytree import tree_map

        from apps.bench.plan_tracing import trace

        self.config, self.gpu, self.gpus = config, gpu, settings.gpus
        self.network, self.width = settings.network * 1e9, config.arch.puzzle_emb_width
        self.data, self.tests, self.source = describe_data(config, settings)
        kind = only_kind_with(self.data.seq_len, self.data.vocab_size)
        self.rows = config.global_batch_size // self.gpus
        self.micro = self.rows // config.num_parts(self.gpus)  # Rows that pass at once.
        few = max(self.micro, 2)  # torch computes a single row in another way.
        one, two = (trace(config, self.data, kind, rows, "cuda") for rows in (few, 2 * few))
        self.costs = lambda rows: tree_map(lambda a, b: a + (b - a) * (rows / few - 1), one, two)
        steps = scheduled_steps(config, self.data)
        self.steps = min(steps, config.max_steps or steps)
        evaluated = ended_iterations(config, steps) - config.num_unevaluated
        self.evaluations = max(evaluated, 0) if self.tests else 0

    def memory(self, rows: int, micro: int) -> dict[str, float]:
        """Return the bytes on a GPU with `rows` rows, `micro` of which pass through at once."""
        all_rows, at_once = self.costs(rows), self.costs(micro)
        parts = all_rows.parts
        parts["gradients"] *= self.config.num_shards(self.gpus)
        parts["activations"] = max(at_once.passes[2].max(), all_rows.update[2].max())
        parts["allocator's margin"] = MARGIN * sum(parts.values()) + OF_CUDA
        return parts | {"in all": sum(parts.values())}

    def require_room(self) -> None:
        """Raise ConfigError, with the smallest change that helps, if the run does not fit."""
        if (takes := self.memory(self.rows, self.micro)["in all"]) <= self.gpu.memory:
            return
        least = self.memory(self.rows, 1)["in all"]
        change = f"micro_batch_size=1 still takes {least / 1e9:,.2f} GB"
        of_shard = self.rows // self.config.num_shards(self.gpus)
        for size in (size for size in range(1, self.micro) if of_shard % size == 0):
            if self.memory(self.rows, size)["in all"] <= self.gpu.memory:
                change = f"it fits with micro_batch_size={size}"
        said = f"the run takes {takes / 1e9:,.2f} GB on a GPU with {self.gpu.memory / 1e9:g} GB"
        raise ConfigError(f"{said}; {change}")

    def step(self, gpus: int) -> dict[str, np.ndarray]:
        """Return the seconds of a step by part, float64 [2]. Nothing hides the all-reduce."""
        config, gpu, batch = self.config, self.gpu, self.config.global_batch_size
        rows = math.ceil(batch / gpus)
        micro = min(self.micro, rows) if self.micro < self.rows else rows
        costs = self.costs(micro)
        passes = seconds(costs.passes, gpu, config.compile is not False)
        parts = {name: one * math.ceil(rows / micro) for name, one in passes.items()}
        update = seconds(costs.update, gpu, False)
        parts["update"] = update["products"] + update["memory"]  # Its starts count as passes.
        sent = 2 * costs.parts["gradients"] + (batch * (4 * self.width + 8) if self.width else 0)
        link = min(gpu.link, PER_MACHINE * self.network) if gpus > PER_MACHINE else gpu.link
        waits = 8 * math.log2(gpus) * WAIT
        parts["all-reduce"] = waits + sent * (1 - 1 / gpus) / link / BANDWIDTH
        return parts | {"data": batch * ROW}

    def run(self, gpus: int) -> dict[str, np.ndarray]:
        """Return the seconds of the whole run by part, float64 [2]."""
        config = self.config
        size = config.eval_batch_size or config.global_batch_size
        costs = self.costs(math.ceil(size / gpus))
        act_step = seconds(costs.evaluation, self.gpu, config.compile is not False)
        taken = getattr(config.arch, "eval_steps", config.arch.halt_max_steps)
        act_steps = math.ceil(self.tests / size) * taken * self.evaluations
        return {
            "training": self.steps * sum(self.step(gpus).values(), np.zeros(2)),
            "evaluations": act_steps * sum(act_step.values(), np.zeros(2)),
        }

    def memory_lines(self) -> list[str]:
        """Return the lines about model, data, memory and disk."""
        config, gpu, costs = self.config, self.gpu, self.costs(self.rows)
        parts = self.memory(self.rows, self.micro).items()
        limits = range(1, 2**24)
        most = bisect_right(limits, gpu.memory, key=lambda rows: self.memory(rows, rows)["in all"])
        kept = config.keep_last + config.keep_best
        kept += self.evaluations if config.checkpoint_every_eval else 1
        # All but the gradients; of the carry, that of all ranks.
        size = sum(costs.parts.values()) - costs.parts["gradients"]
        size += costs.parts["carry"] * (self.gpus - 1)
        return [
            f"{config.arch.name}: {costs.parameters:,.0f} parameters beside the puzzle table",
            f"data: {', '.join(config.train_paths)}, {self.source}",
            f"\nmemory of {gpu.name}, with {self.rows} rows, {self.micro} of them at once",
            in_columns([(f"  {name}", f"{x / 1e6:,.0f} MB") for name, x in parts if x > 5e5]),
            f"largest batch that fits: {most:,} rows a GPU, {most * self.gpus:,} in all; "
            f"micro_batch_size is {'not ' * (most >= self.rows)}needed",
            f"disk: {kept} checkpoints of {size / 1e6:,.0f} MB",
        ]

    def time_lines(self) -> list[str]:
        """Return the lines about a step and the whole run."""
        flop = self.costs(self.rows).passes[0].sum() / 1e12
        run = self.run(self.gpus)
        fast, slow = sum(run.values(), np.zeros(2)) * self.gpus / 3600
        gpu, shares = self.gpu, "{:.0%} or {:.0%} of the peak, {:.0%} or {:.0%} of each bandwidth"
        limits = f"{gpu.peak / 1e12:,.0f} TFLOP/s dense bfloat16, {gpu.bandwidth / 1e9:,.0f} GB/s"
        links = f"link {gpu.link / 1e9:.0f} GB/s, network {self.network / 1e9:.0f} GB/s a GPU"
        return [
            f"\na step, ms: {flop * self.gpus:,.2f} TFLOP in all, {flop:,.2f} on each GPU",
            _ranges(self.step(self.gpus), lambda part: f"{part * 1e3:,.2f}"),
            f"\n{self.steps:,} steps and {self.evaluations} evaluations of {self.tests:,} examples",
            _ranges(run, duration),
            f"{fast:,.1f} to {slow:,.1f} GPU-hours",
            f"\nassumed: {gpu.name} has {limits}, {links}, {PER_MACHINE} GPUs a machine;",
            f"  fast or slow: {shares.format(*PEAK, *BANDWIDTH)};",
            f"  the host starts a compiled product and what follows it in {COMPILED * 1e6:.0f} us,",
            f"  an operation that is not compiled in {EAGER * 1e6:.0f} us;",
            "  fast is compiled: one kernel between two products, which moves as much as they do;",
            "  slow is not: a kernel for each operation, and the GPU waits for data;",
            "  attention is one kernel unless attention=math; memory as if nothing is compiled;",
            "  saving, starting and compiling are not counted",
        ]

    def growth_lines(self) -> list[str]:
        """Return how the time changes with the number of GPUs, and why it stops falling."""
        head = ("  GPUs", "rows", "fast", "slow", "faster", "efficiency", "most of it")
        rows: list[tuple[str, ...]] = [head]
        batch, last = self.config.global_batch_size, "it pays up to the last of these"
        alone = sum(self.run(1).values(), np.zeros(2))
        for gpus in GPUS:
            step, ends = self.step(gpus), sum(self.run(gpus).values(), np.zeros(2))
            speed = math.sqrt((alone / ends).prod())
            most = max(step, key=lambda part: step[part].sum())
            figures = f"{speed:.1f} x", f"{speed / gpus:.0%}", most
            rows.append((f"  {gpus}", f"{batch / gpus:g}", *map(duration, ends), *figures))
            if speed < gpus / 2 and last.startswith("it"):
                last = f"{gpus} GPUs do not pay: efficiency is below a half, most of it is {most}"
        return ["", in_columns(rows), last]


def _ranges(parts: Mapping[str, np.ndarray], text: Callable[[float], str]) -> str:
    """Return the parts of a fast and a slow run and their sums as a table."""
    rows = {**parts, "in all": sum(parts.values(), np.zeros(2))}.items()
    return in_columns([(f"  {n}", text(fast), "to", text(slow)) for n, (fast, slow) in rows])
