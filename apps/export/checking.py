"""Check files of `apps.export.writing` against the model.

Needs the packages of the extra `export`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import torch

from apps.export.step import ExportedStep
from models.config import DataFacts
from models.draws import BATCH_DRAWS
from models.heads.base import NEVER
from puzzle_dataset import EvalBatches, PuzzleDataset
from runtime.errors import CheckpointError, ConfigError
from runtime.text import in_columns, shown
from training.checkpoint.trained_model import TrainedModel
from training.data import data_facts, require_folder

SAMPLE_SIZE = 4
"""Puzzles that a file is checked with: one alone, and three others at once."""

Arrays = dict[str, np.ndarray]
# Takes puzzles and a number of ACT steps, and returns the outputs after them.
Run = Callable[[Arrays, int], Arrays]

_BATCHES = (slice(0, 1), slice(1, SAMPLE_SIZE))
# The file rounds as often as PyTorch in float32, but in another order. So its logits should be
# about as far from the exact ones. The factor allows for chance, which the recurrence magnifies.
_ALLOWED = 32


class Sample(NamedTuple):
    """Puzzles that a file is checked with.

    Attributes:
        source: their origin in words.
        facts: of their data set, or of the run's.
        arrays: inputs int32 [4, S] and puzzle_identifiers int32 [4].
    """

    source: str
    facts: DataFacts
    arrays: Arrays


def read_sample(trained: TrainedModel, folder: str | None) -> Sample:
    """Read the first test puzzles of a folder, or of the run's data if they are on this machine.

    Raises:
        ConfigError: the size of the model's puzzles is unknown.
        DatasetError: names the wrong folder or file.
    """
    folders = [folder] if folder else trained.run.data_folders("test")
    if folder:
        require_folder(folder, None)
    elif not folders or not all((Path(each) / "test").is_dir() for each in folders):
        if trained.facts is None:
            unknown = f"{trained.weights} does not say how large its puzzles are"
            raise ConfigError(f"{unknown}: add --data FOLDER")
        missing = f" ({', '.join(folders)} is not here)" if folders else ""
        source = f"{SAMPLE_SIZE} rows of random tokens{missing}"
        return Sample(source, trained.facts, random_puzzles(trained.facts))
    known = trained.run.data_folders("train")
    dataset = PuzzleDataset(folders, "test", check_values=False, numbered_as=known)
    _, batch, _, _ = next(iter(EvalBatches(dataset, global_batch_size=SAMPLE_SIZE)))
    arrays = {"inputs": batch.inputs, "puzzle_identifiers": batch.puzzle_identifiers}
    facts = data_facts(dataset.metadata, kind=dataset.kind)
    return Sample(f"{SAMPLE_SIZE} test puzzles of {', '.join(folders)}", facts, arrays)


def opened(path: Path, step: ExportedStep | None = None) -> Run:
    """Open a file in ONNX Runtime, with as many threads as torch has.

    Args:
        step: the step that the file makes; None: the file is a recurrence.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    with _running():
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    takes = [value.name for value in session.get_inputs()]
    gives = [value.name for value in session.get_outputs()]

    def once(given: Arrays) -> Arrays:
        taken = {name: given[name] for name in takes}
        with _running():
            values: Any = session.run(gives, taken)
        return dict(zip(gives, values, strict=True))

    def run(given: Arrays, num_steps: int) -> Arrays:
        outputs = once(given | {"num_steps": np.array(num_steps)})
        return outputs | {"answers": outputs["answers"][-1]}

    return run if step is None else _repeated(step, once)


@contextmanager
def _running() -> Iterator[None]:
    """Turn any error of ONNX Runtime, whose classes have no common base, into a ConfigError."""
    try:
        yield
    except Exception as error:
        reason = shown(str(error).strip().partition("\n")[0], 300)
        raise ConfigError(f"ONNX Runtime cannot run the exported file: {reason}") from error


def in_torch(step: ExportedStep) -> Run:
    """Return a function that makes the same steps in PyTorch."""

    @torch.no_grad()
    def once(given: Arrays) -> Arrays:
        outputs = step({name: torch.from_numpy(value) for name, value in given.items()})
        return {name: value.numpy() for name, value in outputs.items()}

    return _repeated(step, once)


def _repeated(step: ExportedStep, once: Callable[[Arrays], Arrays]) -> Run:
    """Return a function that makes several steps, each with the states of the one before."""

    def run(given: Arrays, num_steps: int) -> Arrays:
        size, outputs = len(given["inputs"]), Arrays()
        taken = {name: value.numpy() for name, value in step.zeros(size).items()}
        for name in taken.keys() & given:
            taken[name] = given[name].astype(taken[name].dtype)
        for number in range(num_steps):
            if "new" in taken:
                taken["new"] = np.full(size, number == 0)
            outputs = once(taken)
            taken |= {name: outputs[f"next_{name}"] for name in step.states}
        return outputs

    return run


def compare(run: Run, step: ExportedStep, exact: ExportedStep, puzzles: Arrays) -> str:
    """Return a table of the differences between a file and the model.

    Args:
        run: makes steps with the file.
        exact: the step in float64.
        puzzles: `Sample.arrays`.
    Raises:
        CheckpointError: the file is further from `exact` than rounding explains.
    """
    given = random_starts(step) | puzzles
    table = [["ACT steps", "file to float64", "PyTorch to float64", "equal tokens"]]
    for depth in (1, max(2, step.act.eval_max_steps)):
        (of_file, tokens), (here, expected), (right, _) = (
            _answered(one, given, depth) for one in (run, in_torch(step), in_torch(exact))
        )
        error, usual = (float(np.abs(logits - right).max()) for logits in (of_file, here))
        largest = np.abs(right[right > NEVER]).max(initial=0.0)
        allowed = _ALLOWED * max(usual, largest * np.finfo(np.float32).eps)
        if not error <= allowed:
            raise CheckpointError(
                f"the exported file is wrong and was discarded: at ACT step {depth} a logit is "
                f"{error:.1e} off; in PyTorch it is {usual:.1e} off in float32, and up to "
                f"{allowed:.1e} is allowed"
            )
        equal = f"{(tokens == expected).mean():.2%}"
        table.append([str(depth), f"{error:.1e}", f"{usual:.1e}", equal])
    return f"largest difference of a logit (PyTorch: in float32):\n{in_columns(table)}\n"


def _answered(run: Run, given: Arrays, num_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return all logits in float64, and all answers."""
    parts = [run({n: v[rows] for n, v in given.items()}, num_steps) for rows in _BATCHES]
    names = sorted(name for name in parts[0] if name.endswith("logits"))
    logits, answers = (
        [part[name].ravel() for part in parts for name in of] for of in (names, ["answers"])
    )
    return np.concatenate(logits, dtype=float), np.concatenate(answers)


def random_puzzles(facts: DataFacts) -> Arrays:
    """Return random tokens and puzzle identifiers."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, facts.num_puzzle_identifiers, SAMPLE_SIZE)
    tokens = rng.integers(0, facts.vocab_size, (SAMPLE_SIZE, facts.seq_len))
    return {"inputs": tokens.astype(np.int32), "puzzle_identifiers": ids.astype(np.int32)}


def random_starts(step: ExportedStep) -> Arrays:
    """Draw the starts of the states if they are inputs of the file; else return nothing."""
    if step.starts is None:
        return {}
    zeros = step.zeros(SAMPLE_SIZE)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return {name: step.starts.start(zeros[name], BATCH_DRAWS).numpy() for name in step.states}
