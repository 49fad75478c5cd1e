"""Files of `apps.export.writing`, run beside the model that they were made of.

Needs the packages of the extra `export`.
"""

import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import torch

from apps.export.step import ExportedStep
from models.act import ACTLossHead
from models.config import DataFacts
from models.draws import BATCH_DRAWS
from models.heads.base import NEVER
from puzzle_dataset import EvalBatches, PuzzleDataset
from runtime.errors import CheckpointError, ConfigError
from runtime.text import in_columns
from training.checkpoint.trained_model import TrainedModel
from training.data import data_facts, require_folder

NUM_TRIED = 4
"""Puzzles that a file is tried with: one alone, and three others at once."""

Arrays = dict[str, np.ndarray]
# Gives what there is after so many ACT steps on puzzles.
Run = Callable[[Arrays, int], Arrays]

_BATCHES = (slice(0, 1), slice(1, NUM_TRIED))
# The file rounds as often as float32 here does, in another order. So its logits are expected to be
# about as far from the exact ones; this factor is for chance, which the recurrence magnifies.
_ALLOWED = 32


class Tried(NamedTuple):
    """Puzzles that a file is tried with.

    Attributes:
        source: where they come from.
        arrays: inputs int32 [4, S] and puzzle_identifiers int32 [4]; None: there are none.
        facts: of their data set; None: there are none.
    """

    source: str
    arrays: Arrays | None = None
    facts: DataFacts | None = None


def read_puzzles(trained: TrainedModel, folder: str | None) -> Tried:
    """Read the first test puzzles of a folder, or of the run's data where they are here.

    Raises:
        ConfigError: nothing says how large the model's puzzles are.
        DatasetError: names the folder or file at fault.
    """
    folders = [folder] if folder else trained.run.data_folders("test")
    if folder:
        require_folder(folder, None)
    elif not folders or not all((Path(each) / "test").is_dir() for each in folders):
        if trained.recorded_facts is None:
            unsaid = f"{trained.weights} does not say how large its puzzles are"
            raise ConfigError(f"{unsaid}: add --data FOLDER")
        absent = f" ({', '.join(folders)} is not here)" if folders else ""
        return Tried(f"{NUM_TRIED} rows of random tokens{absent}")
    known = trained.run.data_folders("train")
    dataset = PuzzleDataset(folders, "test", check_values=False, numbered_as=known)
    _, batch, _, _ = next(iter(EvalBatches(dataset, global_batch_size=NUM_TRIED)))
    arrays = {"inputs": batch.inputs, "puzzle_identifiers": batch.puzzle_identifiers}
    source = f"{NUM_TRIED} test puzzles of {', '.join(folders)}"
    return Tried(source, arrays, data_facts(dataset.metadata, kind=dataset.kind))


def opened(path: Path, step: ExportedStep, *, one_step: bool) -> Run:
    """Open a file, .onnx or .pt2."""
    if path.suffix == ".pt2":
        return program_at(path, step)
    return session_at(path, step, one_step=one_step)


def session_at(path: Path, step: ExportedStep, *, one_step: bool) -> Run:
    """Open an ONNX file in ONNX Runtime, with as many threads as torch has."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    takes = [value.name for value in session.get_inputs()]
    gives = [value.name for value in session.get_outputs()]

    def run(given: Arrays) -> Arrays:
        values: Any = session.run(gives, {name: given[name] for name in takes})
        return dict(zip(gives, values, strict=True))

    def recur(given: Arrays, num_steps: int) -> Arrays:
        outputs = run(given | {"num_steps": np.array(num_steps)})
        return outputs | {"answers": outputs["answers"][-1]}

    return partial(repeated, run, step) if one_step else recur


def program_at(path: Path, step: ExportedStep) -> Run:
    """Open a file of torch.export."""
    with warnings.catch_warnings(action="ignore"):  # Of torch 2.11, on how it reads its own files.
        module = torch.export.load(path).module()

    def run(given: Arrays) -> Arrays:
        with torch.no_grad():
            outputs = module({name: torch.from_numpy(value) for name, value in given.items()})
        return {name: value.numpy() for name, value in outputs.items()}

    return partial(repeated, run, step)


def repeated(
    run: Callable[[Arrays], Arrays], step: ExportedStep, given: Arrays, num_steps: int
) -> Arrays:
    """Make ACT steps with a file that makes one; a `Run` where the first two are known."""
    size, outputs = len(given["inputs"]), {}
    zeros = {name: value.numpy() for name, value in step.zeros(size).items()}
    given = {name: given.get(name, value) for name, value in zeros.items()}
    for number in range(num_steps):
        if "new" in given:
            given["new"] = np.full(size, number == 0)
        outputs = run(given)
        given |= {name: outputs[f"next_{name}"] for name in step.states}
    return outputs


def think_here(model: ACTLossHead, step: ExportedStep, given: Arrays, num_steps: int) -> Arrays:
    """Make ACT steps with the model itself; a `Run` where the first two are known."""
    tensors = {name: torch.from_numpy(value) for name, value in given.items()}
    examples = {name: tensors[name] for name in ("inputs", "puzzle_identifiers")}
    act, carry = model.model, model.initial_carry(examples)
    if step.starts is not None:
        starts = {latent: tensors[name].to(act.inner.dtype) for name, latent in step.states.items()}
        carry = replace(carry, inner=starts, halted=~carry.halted, examples=examples)
    with torch.no_grad():
        for _ in range(num_steps):
            carry = model(carry, examples, measured=False).carry
            carry = replace(carry, halted=torch.zeros_like(carry.halted))
        outputs = act.inner.read(act.answer_of(carry), carry.examples)
    outputs["answers"] = outputs["logits"].argmax(-1)
    return {name: value.numpy() for name, value in outputs.items()}


def compare(
    run: Run, model: ACTLossHead, exact: ACTLossHead, step: ExportedStep, tried: Tried
) -> str:
    """Return in lines how far a file is from the model, and how long both take.

    Args:
        run: makes steps with the file.
        exact: the model in float64.
    Raises:
        CheckpointError: the file is further from `exact` than rounding explains.
    """
    given = random_starts(step) | (tried.arrays or random_puzzles(step))
    batches = [{name: value[rows] for name, value in given.items()} for rows in _BATCHES]
    runs = (run, partial(think_here, model, step), partial(think_here, exact, step))
    distances = ("file to here", "file to float64", "here to float64")
    table = [["ACT steps", *distances, "equal tokens"]]
    depths = (1, max(2, model.model.eval_max_steps))
    for depth in depths:
        results = [[one(batch, depth) for batch in batches] for one in runs]
        errors = [f"{error:.1e}" for error in _errors(results, depth)]
        tokens, expected, _ = (
            np.concatenate([each["answers"].ravel() for each in result]) for result in results
        )
        table.append([str(depth), *errors, f"{(tokens == expected).mean():.2%}"])
    seconds = [seconds_of(one, batches[0], depths[-1]) / depths[-1] for one in runs[:2]]
    return (
        f"largest difference of a logit (here: in PyTorch, float32):\n"
        f"{in_columns(table)}\n\n"
        f"seconds of an ACT step with one puzzle: {seconds[0]:.2g} in the file, {seconds[1]:.2g} "
        f"here (threads: {torch.get_num_threads()})\n"
    )


def _errors(results: list[list[Arrays]], depth: int) -> list[float]:
    """Return the largest difference of a logit: file to here, file to float64, here to float64.

    Args:
        results: of the file, of the model, and of it in float64, for each batch.
    Raises:
        CheckpointError: the second is more than rounding explains.
    """
    names = [name for name in results[0][0] if name.endswith("logits")]
    ours, theirs, right = (
        np.concatenate([each[name].ravel() for each in result for name in names], dtype=float)
        for result in results
    )
    errors = [np.abs(a - b).max() for a, b in ((ours, theirs), (ours, right), (theirs, right))]
    largest = np.abs(right[right > NEVER]).max(initial=0.0)
    allowed = _ALLOWED * max(errors[2], largest * np.finfo(np.float32).eps)
    if not errors[1] <= allowed:
        raise CheckpointError(
            f"the file is wrong, and not kept: at ACT step {depth} a logit is "
            f"{errors[1]:.1e} off; here it is {errors[2]:.1e} off in float32, and up to "
            f"{allowed:.1e} is allowed"
        )
    return errors


def random_puzzles(step: ExportedStep) -> Arrays:
    """Return random tokens and identifiers."""
    inner, rng = step.act.inner, np.random.default_rng(0)
    (_, seq_len, vocab_size), table = step(step.zeros(1))["logits"].shape, inner.puzzle_emb
    ids = rng.integers(0, 1 if table is None else len(table.weights), NUM_TRIED)
    tokens = rng.integers(0, vocab_size, (NUM_TRIED, seq_len))
    return {"inputs": tokens.astype(np.int32), "puzzle_identifiers": ids.astype(np.int32)}


def random_starts(step: ExportedStep) -> Arrays:
    """Return starts of the states, where the model has none of its own."""
    if step.starts is None:
        return {}
    zeros = step.zeros(NUM_TRIED)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return {name: step.starts.start(zeros[name], BATCH_DRAWS).numpy() for name in step.states}


def seconds_of(run: Run, given: Arrays, num_steps: int) -> float:
    """Return how long a run takes."""
    began = time.perf_counter()
    run(given, num_steps)
    return time.perf_counter() - began
