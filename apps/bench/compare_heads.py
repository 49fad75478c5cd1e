"""Compare all heads on the same small Sudoku run: python scripts/compare_heads.py [--steps N].

Each configuration `heads=NAME` trains the same small model on generated 4 x 4 Sudokus. Prints, for
each, the heads' parameters, their operations and logits for one puzzle, the time of a training
step, and what was right on puzzles that were not trained on: the table of docs/heads.md.

`--task open` leaves every other puzzle so few clues that its answer cannot be told, so that the
heads which say how sure the model is have something to learn; `--task maze` trains on mazes of
4 x 4 cells, with the fields that the maze builder writes. On Sudokus the digits to be written stand
in for actions, and the colours of the digits for pixels.
"""

import argparse
import math
import sys
import time
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from dataset.format.schema import ARC_PALETTE, ARC_PIXELS
from dataset.maze.generator import generate_mazes
from dataset.maze.rules import NUM_ACTIONS, maze_pixels, path_actions, solve
from dataset.sudoku.generator import generate_puzzles
from dataset.sudoku.symmetries import augment_sudoku
from evaluation.think import think
from models.act import ACTCarry, ACTLossHead
from models.config import DataFacts
from models.heads.base import Examples
from models.metrics import mean_metrics
from models.registry import build_model
from runtime.streams import Address, Stream
from training.config.composition import load_config
from training.config.schema import TrainConfig
from training.config.source import CONFIG_DIR

# Those of `arch=lattice` need its candidate sets: no other trunk takes them.
HEADS = sorted({path.stem for path in (CONFIG_DIR / "heads").glob("*.yaml")} - {"lattice"})
TASKS = ("sudoku", "open", "maze")
SMALL = (
    *("arch=mixer", "arch.hidden_size=64", "arch.num_heads=2", "arch.L_cycles=2"),
    *("arch.puzzle_emb_ndim=64", "arch.forward_dtype=float32"),
)
BATCH_SIZE = 64
VOCAB_SIZE = 6  # of mazes as of 4 x 4 Sudokus


class ExampleSet(NamedTuple):
    """Training and test examples, with the fields `actions` and `pixels`."""

    facts: DataFacts
    train: Examples
    test: Examples


class Outcome(NamedTuple):
    """What a run gave; operations and bytes are those of the heads, for one puzzle."""

    parameters: int
    flop: int
    part_flop: int  # of the token head, for the cells that change and the tokens that stand there
    logits_bytes: int
    ms_per_step: float
    metrics: dict[str, float]
    constant: dict[str, float]  # what the best constant predictor gets


def make_task(name: str) -> ExampleSet:
    """Generate a task: the same each time."""
    drawn: dict[str, Any] = {"seed": 0, "stream": Stream.SUBSAMPLE, "size": 4, "taken": set()}
    if name == "maze":
        # More than a run sees.
        mazes, _ = generate_mazes(20_200, min_length=3, workers=1, **drawn)
        answers, _ = solve(mazes)
        return _task(mazes, answers, path_actions(answers), maze_pixels(answers), num_test=200)
    found, _ = generate_puzzles(300, min_clues=7, max_clues=9, min_rating=0, **drawn)
    questions, answers = found.questions + 1, found.answers + 1
    if name == "open":
        hidden = np.random.Generator(np.random.Philox(1)).random(questions.shape) < 0.95
        hidden[::2] = False
        questions = np.where(hidden, 1, questions).astype(np.uint8)
    # The test puzzles come first; nothing is an image of anything else.
    test = augment_sudoku(questions[:100], answers[:100], 0, seed=1)
    train = augment_sudoku(questions[100:], answers[100:], 19, seed=1)
    inputs, labels = (np.concatenate(both) for both in zip(test, train, strict=True))
    digits = np.where(inputs == labels, 0, labels - 1)
    rgb = np.array([list(bytes.fromhex(colour[1:])) for colour in ARC_PALETTE])
    return _task(inputs, labels, digits, rgb[labels.astype(np.int64) - 1], num_test=100)


def _task(*arrays: np.ndarray, num_test: int) -> ExampleSet:
    """Make a task of inputs, labels, actions and pixels."""
    names = ("inputs", "labels", "actions", "pixels", "puzzle_identifiers")
    values = [torch.from_numpy(a.astype(np.int32)) for a in (*arrays, np.zeros(len(arrays[0])))]
    tensors = dict(zip(names, values, strict=True))
    fields = {"actions": (NUM_ACTIONS, 0), "pixels": (ARC_PIXELS.num_classes, ARC_PIXELS.channels)}
    return ExampleSet(
        DataFacts(VOCAB_SIZE, arrays[0].shape[1], 1, fields),
        train={name: value[num_test:] for name, value in tensors.items()},
        test={name: value[:num_test] for name, value in tensors.items()},
    )


def settings_of(heads: str) -> list[str]:
    """Return the overrides that choose heads by their file, and the loss that they need."""
    softmax = heads in ("adaptive", "hierarchical")
    return [f"heads={heads}", f"loss=act_{'softmax' if softmax else 'stablemax'}"]


def train(task: ExampleSet, settings: list[str], *, steps: int) -> tuple[ACTLossHead, list[float]]:
    """Train a small model on rows of the task drawn at random, with torch's AdamW; return it and
    the seconds of each step.
    """
    lr = 3e-3
    config = load_config(TrainConfig, "cfg_pretrain", ["data_path=none", *SMALL, *settings])
    torch.manual_seed(0)
    model = build_model(config.arch, task.facts).train()
    model.prepare(BATCH_SIZE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.1)
    rng = np.random.Generator(np.random.Philox(0))
    names = ("inputs", "labels", "puzzle_identifiers", *config.arch.heads.fields.values())
    seconds: list[float] = []
    carry: ACTCarry | None = None
    for step in range(steps):
        rows = torch.from_numpy(rng.integers(len(task.train["inputs"]), size=BATCH_SIZE))
        examples = {name: task.train[name][rows] for name in names}
        carry = carry or model.initial_carry(examples)
        at = Address(0, step, BATCH_SIZE, range(BATCH_SIZE), 1, task.facts.seq_len)
        drawn = {name: torch.from_numpy(rows[0]) for name, rows in model.model.draw(at).items()}
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, (step + 1) / 30) * (1 - step / steps)
        began = time.perf_counter()
        output = model(carry, examples, drawn)
        carry = output.carry
        optimizer.zero_grad()
        (output.loss / BATCH_SIZE).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - began)
    return model.eval(), seconds


def measure(model: ACTLossHead, examples: Examples) -> dict[str, float]:
    """Return the metrics after all ACT steps, as an evaluation reports them."""
    with torch.no_grad():
        sums = {key: sum_.item() for key, sum_ in think(model, model, examples).metrics.items()}
    means = mean_metrics(sums, len(examples["inputs"]))
    del means["count"]
    return means


def constants(model: ACTLossHead, examples: Examples) -> dict[str, float]:
    """Return what the best constant predictors get.

    Tokens and fields: always the most frequent one; attention: always the same order of cells, the
    most often changed first; what says whether the model is right: always the same.
    """
    labels, metrics = examples["labels"], measure(model, examples)
    changes = (labels != examples["inputs"]).float()
    order = changes.mean(0).argsort(descending=True).argsort()
    hits = (order < changes.sum(-1, keepdim=True)) & (changes > 0)
    precision = hits.sum(-1) / changes.sum(-1).clamp_min(1)
    exact, right = metrics["exact_accuracy"], metrics["accuracy"]
    channels = [_most_frequent(channel) for channel in examples["pixels"].unbind(-1)]
    return {
        "accuracy": _most_frequent(labels),
        "q_halt_accuracy": max(exact, 1 - exact),
        "halt_accuracy": max(exact, 1 - exact),
        "confidence_accuracy": max(right, 1 - right),
        "attention_precision": precision.mean().item(),
        "action_accuracy": _most_frequent(examples["actions"]),
        "pixel_accuracy": float(np.mean(channels)),
    }


def compare(task: ExampleSet, heads: str, *, steps: int) -> Outcome:
    """Train with `heads=HEADS` and measure."""
    model, seconds = train(task, settings_of(heads), steps=steps)
    one = {name: value[:1] for name, value in task.test.items()}
    with torch.no_grad():
        carry = model.initial_carry(one)
        inner = model.model.inner
        _, states = inner(carry.inner, one)
        with FlopCounterMode(display=False) as counter:
            outputs = inner.read(states, one)
        changes = (one["inputs"][0] != one["labels"][0]).nonzero().squeeze(-1)
        tokens = one["labels"][0, changes].unique()
        with FlopCounterMode(display=False) as part_counter:
            inner.lm_head.read_part(inner.answer(states, one), cells=changes, tokens=tokens)
    auxiliary = [name for name in inner.heads if name not in ("lm", "q")]
    logits = [outputs["logits"], *(outputs[f"{name}_logits"] for name in auxiliary)]
    return Outcome(
        parameters=sum(p.numel() for name, p in model.named_parameters() if "_head." in name),
        flop=counter.get_total_flops(),
        part_flop=part_counter.get_total_flops(),
        logits_bytes=sum(values.numel() * values.element_size() for values in logits),
        ms_per_step=float(np.median(seconds)) * 1e3,
        metrics=measure(model, task.test),
        constant=constants(model, task.test),
    )


def _most_frequent(values: Tensor) -> float:
    return values.unique(return_counts=True)[1].max().item() / values.numel()


def main() -> None:
    """Compare the heads asked for and print a Markdown table."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--heads", nargs="+", choices=HEADS, default=HEADS, metavar="NAME")
    parser.add_argument("--task", choices=TASKS, default="sudoku")
    parser.add_argument("--steps", type=int, default=300, help="training steps (default 300)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    task = make_task(options.task)
    sys.stdout.write(
        "| heads | parameters | FLOP | FLOP of a part | logits, bytes | ms a step | exact "
        "| metrics of its own |\n|---|---:|---:|---:|---:|---:|---:|---|\n"
    )
    for name in options.heads:
        outcome = compare(task, name, steps=options.steps)
        own = ", ".join(
            f"{key} {value:.3f} ({outcome.constant.get(key, math.nan):.3f})"
            for key, value in outcome.metrics.items()
            if not key.endswith("_loss") and key not in ("exact_accuracy", "steps")
        ).replace(" (nan)", "")
        sys.stdout.write(
            f"| {name} | {outcome.parameters:,} | {outcome.flop:,} "
            f"| {outcome.part_flop:,} | {outcome.logits_bytes:,} "
            f"| {outcome.ms_per_step:.1f} | {outcome.metrics['exact_accuracy']:.3f} | {own} |\n"
        )
        sys.stdout.flush()
