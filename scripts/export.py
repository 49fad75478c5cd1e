"""Take a trained model out of Python: python scripts/export.py RUN out.onnx

RUN is a run's folder (its newest good checkpoint), a checkpoint in it, or a published step_N file.
out.onnx takes puzzles and a number of ACT steps, and answers in float32. With --one-step it is one
ACT step, which takes and gives the states; out.pt2 is such a step for torch.export.load.

The file is tried first, in ONNX Runtime or PyTorch, and compared with the model here: where they
differ by more than the rounding of float32 explains, it is not kept. docs/export.md
"""

import argparse
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dataset.command_line import Parser
from models.config import DataFacts, is_sudoku
from puzzle_dataset import EvalBatches, PuzzleDataset
from runtime.errors import EXIT_INTERRUPTED, CheckpointError, ConfigError, disk_errors, exit_code
from runtime.files import sha256
from runtime.plugins import import_plugins
from runtime.process import print_error
from runtime.text import in_columns
from training.checkpoint.published import average_of
from training.checkpoint.store import MANIFEST
from training.checkpoint.trained_model import TrainedModel, find_trained_model
from training.data import data_facts, require_folder
from training.tracking import warn

if TYPE_CHECKING:
    from models.act import ACTLossHead
    from models.exported import ExportedStep

Arrays = dict[str, np.ndarray]
# Gives what there is after so many ACT steps on puzzles.
Run = Callable[[Arrays, int], Arrays]

_PACKAGES = ("onnx", "onnxruntime", "onnxscript")
# The file is tried with one puzzle, and with three others.
_NUM_TRIED, _BATCHES = 4, (slice(0, 1), slice(1, 4))
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Export what the command line asks for; return the exit code."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog="export.py", description=__doc__, formatter_class=raw)
    parser.add_argument("run", type=Path, metavar="RUN", help="the trained model")
    parser.add_argument("output", type=Path, metavar="OUTPUT", help="the file, .onnx or .pt2")
    parser.add_argument("--one-step", action="store_true", help="one ACT step, as .pt2 always is")
    which = "the moving average, where there is one (default), or those of the last step"
    parser.add_argument("--weights", choices=["averaged", "last"], default="averaged", help=which)
    tried = "data whose test puzzles the file is tried with (default: the run's)"
    parser.add_argument("--data", metavar="FOLDER", help=tried)
    own = "modules of yours that register parts of the model, as in plugins=[A,B]"
    parser.add_argument("--plugins", type=names_in, default=[], metavar="A,B", help=own)
    options = parser.parse_all(arguments)
    try:
        sys.stdout.write(export(options))
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return EXIT_INTERRUPTED
    except Exception as error:
        if (code := exit_code(error)) is None:
            raise
        print_error(str(error))
        return code
    return 0


def export(options: argparse.Namespace) -> str:
    """Write the file, try it, and return what is to be said of it.

    Raises:
        ConfigError: the file cannot be written, or the model not be exported.
        CheckpointError: the model is missing or damaged, or the file differs from it.
        DatasetError: the puzzles cannot be read.
    """
    output: Path = options.output
    require_output(output)
    import_plugins(options.plugins)
    trained = find_trained_model(options.run, warn)
    if trained.run.arch.noise:
        drawn = f"arch.noise={trained.run.arch.noise:g} draws random numbers in each update"
        raise ConfigError(f"{trained.weights} cannot be exported: {drawn}")
    tried = read_puzzles(trained, options.data)
    averaged = options.weights == "averaged" and trained.has_average
    with written_beside(output) as path:
        say(f"reading {trained.weights}")
        model = load(trained, tried, "float32", averaged=averaged)

        from models.exported import ExportedStep
        from training.checkpoint.exported import write_onnx, write_program

        step = ExportedStep(model.model)
        facts = facts_of(trained, step, averaged=averaged)
        say(f"writing {output}")
        one_step = options.one_step or output.suffix == ".pt2"
        if output.suffix == ".pt2":
            write_program(step, path, facts)
            run = program_at(path, step)
        else:
            write_onnx(step, path, facts, one_step=one_step)
            run = session_at(path, step, one_step=one_step)
        say(f"trying it with {tried.source}")
        exact = load(trained, tried, "float64", averaged=averaged)
        compared = compare(run, model, exact, step, tried)
        size = sum(written.stat().st_size for written in path.parent.iterdir())
    what = "one ACT step" if one_step else "the recurrence"
    of_table = ""
    if (table := model.puzzle_embedding) is not None and table.weights.nbytes > 1e6:
        of_table = f", {table.weights.nbytes / 1e6:,.2f} of them the puzzle embedding"
    return (
        f"{output}: {what} of arch={facts['arch']}, {size / 1e6:,.2f} MB{of_table}\n"
        f"tried with {tried.source}, one alone and three at once\n\n{compared}"
    )


def names_in(text: str) -> list[str]:
    """Return the names in a list as the settings of other commands write it."""
    return text.strip("[]").split(",")


def require_output(output: Path) -> None:
    """Raise ConfigError where there can be no such file, or a package is missing."""
    if output.suffix not in (".onnx", ".pt2"):
        raise ConfigError(f"{output}: expected a name that ends in .onnx or .pt2")
    if output.is_dir():
        raise ConfigError(f"{output}: is a folder, expected a file")
    for name in _PACKAGES:
        if find_spec(name) is None:
            raise ConfigError(f"{name} is not installed (pip install '.[export]')")


@contextmanager
def written_beside(output: Path) -> Iterator[Path]:
    """Yield where to write a file, in a hidden folder beside `output`; what is in the folder after
    the block is moved out of it. After an error nothing is left.

    Raises:
        ConfigError: the disk refuses.
    """
    with disk_errors(output, ConfigError):
        folder = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
        try:
            yield folder / output.name
            # What the file refers to, with a longer name, is there before it.
            for path in sorted(folder.iterdir(), reverse=True):
                path.replace(output.with_name(path.name))
        finally:
            shutil.rmtree(folder, ignore_errors=True)


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
        return Tried(f"{_NUM_TRIED} rows of random tokens{absent}")
    known = trained.run.data_folders("train")
    dataset = PuzzleDataset(folders, "test", check_values=False, numbered_as=known)
    _, batch, _, _ = next(iter(EvalBatches(dataset, global_batch_size=_NUM_TRIED)))
    arrays = {"inputs": batch.inputs, "puzzle_identifiers": batch.puzzle_identifiers}
    source = f"{_NUM_TRIED} test puzzles of {', '.join(folders)}"
    return Tried(source, arrays, data_facts(dataset.metadata))


def load(trained: TrainedModel, tried: Tried, dtype: str, *, averaged: bool) -> "ACTLossHead":
    """Load torch and the model, which is to compute in `dtype` on the CPU."""
    import torch

    data = tried.facts or trained.recorded_facts
    assert data is not None  # Of `read_puzzles`.
    arch = trained.run.arch.model_copy(update={"forward_dtype": dtype, "attention": "auto"})
    return trained.load(arch, data, tried.source, torch.device("cpu"), averaged=averaged)


def facts_of(trained: TrainedModel, step: "ExportedStep", *, averaged: bool) -> dict[str, str]:
    """Return what the file says of itself."""
    inner, logits = step.act.inner, step(step.zeros(1))["logits"]
    _, seq_len, vocab_size = logits.shape
    kinds = [evaluator.name for evaluator in trained.run.active_evaluators]
    if not kinds and is_sudoku(seq_len, vocab_size):
        kinds = ["sudoku"]
    source = trained.weights
    if not trained.is_published:
        source = source / MANIFEST
    elif averaged:
        source = average_of(source)
    facts: dict[str, object] = {
        "arch": trained.run.arch.name,
        "puzzles": ",".join(kinds),
        "seq_len": seq_len,
        "vocab_size": vocab_size,
        "num_puzzle_identifiers": 0 if inner.puzzle_emb is None else len(inner.puzzle_emb.weights),
        "num_steps": step.act.eval_max_steps,
        "checkpoint": "/".join(trained.weights.resolve().parts[-2:]),
        "checkpoint_sha256": sha256(source),
        "weights": "averaged" if averaged else "last",
    }
    if step.starts_are_given:
        facts["init_std"] = inner.init_std
    return {name: str(value) for name, value in facts.items()}


def session_at(path: Path, step: "ExportedStep", *, one_step: bool) -> Run:
    """Open an ONNX file in ONNX Runtime, with as many threads as torch has."""
    import onnxruntime
    import torch

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


def program_at(path: Path, step: "ExportedStep") -> Run:
    """Open a file of torch.export."""
    import torch

    with warnings.catch_warnings(action="ignore"):  # Of torch 2.11, on how it reads its own files.
        module = torch.export.load(path).module()

    def run(given: Arrays) -> Arrays:
        with torch.no_grad():
            outputs = module({name: torch.from_numpy(value) for name, value in given.items()})
        return {name: value.numpy() for name, value in outputs.items()}

    return partial(repeated, run, step)


def repeated(
    run: Callable[[Arrays], Arrays], step: "ExportedStep", given: Arrays, num_steps: int
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


def think_here(model: "ACTLossHead", step: "ExportedStep", given: Arrays, num_steps: int) -> Arrays:
    """Make ACT steps with the model itself; a `Run` where the first two are known."""
    import torch

    tensors = {name: torch.from_numpy(value) for name, value in given.items()}
    examples = {name: tensors[name] for name in ("inputs", "puzzle_identifiers")}
    act, carry = model.model, model.initial_carry(examples)
    if step.starts_are_given:
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
    run: Run, model: "ACTLossHead", exact: "ACTLossHead", step: "ExportedStep", tried: Tried
) -> str:
    """Return in lines how far a file is from the model, and how long both take.

    Args:
        run: makes steps with the file.
        exact: the model in float64.
    Raises:
        CheckpointError: the file is further from `exact` than rounding explains.
    """
    import torch

    from models.heads.tokens import NEVER

    given = random_starts(step) | (tried.arrays or random_puzzles(step))
    batches = [{name: value[rows] for name, value in given.items()} for rows in _BATCHES]
    here, there = partial(think_here, model, step), partial(think_here, exact, step)
    depths = (1, max(2, model.model.eval_max_steps))
    heads = ("file to here", "file to float64", "here to float64")
    table = [["ACT steps", *heads, "equal tokens"]]
    for depth in depths:
        results = [[one(batch, depth) for batch in batches] for one in (run, here, there)]
        names = [name for name in results[0][0] if name.endswith("logits")]
        ours, theirs, right = (
            np.concatenate([each[name].ravel() for each in result for name in names], dtype=float)
            for result in results
        )
        tokens, expected, _ = (
            np.concatenate([each["answers"].ravel() for each in result]) for result in results
        )
        errors = [np.abs(a - b).max() for a, b in ((ours, theirs), (ours, right), (theirs, right))]
        largest = np.abs(right[right > NEVER]).max(initial=0.0)
        allowed = _ALLOWED * max(errors[2], largest * np.finfo(np.float32).eps)
        if not errors[1] <= allowed:
            raise CheckpointError(
                f"the file is wrong, and not kept: with {tried.source} a logit after {depth} ACT "
                f"steps is {errors[1]:.1e} off; here it is {errors[2]:.1e} off in float32, and up "
                f"to {allowed:.1e} is allowed"
            )
        shown = [f"{error:.1e}" for error in errors]
        table.append([str(depth), *shown, f"{(tokens == expected).mean():.2%}"])
    seconds = [seconds_of(one, batches[0], depths[-1]) / depths[-1] for one in (run, here)]
    return (
        f"largest difference of a logit (here: in PyTorch, float32):\n"
        f"{in_columns(table)}\n\n"
        f"seconds of an ACT step with one puzzle: {seconds[0]:.2g} in the file, {seconds[1]:.2g} "
        f"here ({torch.get_num_threads()} threads)\n"
    )


def random_puzzles(step: "ExportedStep") -> Arrays:
    """Return random tokens and identifiers."""
    inner, rng = step.act.inner, np.random.default_rng(0)
    (_, seq_len, vocab_size), table = step(step.zeros(1))["logits"].shape, inner.puzzle_emb
    ids = rng.integers(0, 1 if table is None else len(table.weights), _NUM_TRIED)
    tokens = rng.integers(0, vocab_size, (_NUM_TRIED, seq_len))
    return {"inputs": tokens.astype(np.int32), "puzzle_identifiers": ids.astype(np.int32)}


def random_starts(step: "ExportedStep") -> Arrays:
    """Return starts of the states, where the model has none of its own."""
    import torch

    from models.draws import cut_normal

    if not step.starts_are_given:
        return {}
    draws, zeros = torch.Generator().manual_seed(0), step.zeros(_NUM_TRIED)
    uniform = {
        name: torch.empty_like(zeros[name]).uniform_(-1, 1, generator=draws) for name in step.states
    }
    return {name: cut_normal(u, step.act.inner.init_std).numpy() for name, u in uniform.items()}


def seconds_of(run: Run, given: Arrays, num_steps: int) -> float:
    """Return how long a run takes."""
    began = time.perf_counter()
    run(given, num_steps)
    return time.perf_counter() - began


def say(text: str) -> None:
    """Tell on standard error what is being waited for."""
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
