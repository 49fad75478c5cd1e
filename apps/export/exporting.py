"""Take a trained model out of Python: python scripts/export.py RUN out.onnx

RUN is a run's folder (its newest good checkpoint), a checkpoint in it, a published step_N file, or
hf://OWNER/NAME. out.onnx takes puzzles and a number of ACT steps, and answers in float32.

The file is tried first in ONNX Runtime and compared with the same steps here: where they differ by
more than the rounding of float32 explains, it is not kept. docs/export.md
"""

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from dataset.command_line import Parser, run_command
from evaluation.puzzles import kind_of
from runtime.errors import ConfigError, disk_errors
from runtime.files import sha256
from runtime.registry import import_plugins
from runtime.text import run_named
from training.checkpoint.published import average_of
from training.checkpoint.store import MANIFEST
from training.checkpoint.trained_model import TrainedModel, find_trained_model
from training.tracking import warn

if TYPE_CHECKING:
    from apps.export.step import ExportedStep
    from apps.export.trial import Tried
    from models.act import ACTLossHead

_PACKAGES = ("onnx", "onnxruntime", "onnxscript")


def main(arguments: Sequence[str] | None = None) -> int:
    """Export what the command line asks for; return the exit code."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog="export.py", description=__doc__, formatter_class=raw)
    parser.add_argument("run", type=run_named, metavar="RUN", help="the trained model")
    parser.add_argument("output", type=Path, metavar="OUTPUT", help="the file, .onnx")
    which = "the moving average, where there is one (default), or those of the last step"
    parser.add_argument("--weights", choices=["averaged", "last"], default="averaged", help=which)
    tried = "data whose test puzzles the file is tried with (default: the run's)"
    parser.add_argument("--data", metavar="FOLDER", help=tried)
    own = "modules of yours that register parts of the model, as in plugins=[A,B]"
    parser.add_argument("--plugins", type=names_in, default=[], metavar="A,B", help=own)
    options = parser.parse_all(arguments)
    return run_command(lambda: export(options))


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
    techniques = trained.run.arch.techniques
    for name, technique in techniques.active.items():
        if technique.draws_numbers and technique in techniques.acting("moved"):
            why = f"techniques.{name} draws random numbers in each update"
            raise ConfigError(f"{trained.weights} cannot be exported: {why}")
    averaged = options.weights == "averaged" and trained.has_average

    from apps.export import trial, writing
    from apps.export.step import ExportedStep

    tried = trial.read_puzzles(trained, options.data)
    with written_beside(output) as path:
        step, exact = (
            ExportedStep(load(trained, tried, dtype, averaged=averaged).model)
            for dtype in ("float32", "float64")
        )
        facts = facts_of(trained, step, tried, averaged=averaged)
        writing.write_onnx(step, path, facts)
        compared = trial.compare(trial.opened(path), step, exact, tried.arrays)
        size = sum(written.stat().st_size for written in path.parent.iterdir())
    of_table = ""
    if (table := step.act.inner.puzzle_emb) is not None and table.weights.nbytes > 1e6:
        of_table = f", {table.weights.nbytes / 1e6:,.2f} of them the puzzle embedding"
    return (
        f"{output}: the recurrence of arch={facts['arch']}, {size / 1e6:,.2f} MB{of_table}\n"
        f"tried with {tried.source}, one alone and three at once\n\n{compared}"
    )


def names_in(text: str) -> list[str]:
    """Return the names in a list as the settings of other commands write it."""
    return text.strip("[]").split(",")


def require_output(output: Path) -> None:
    """Raise ConfigError where there can be no such file, or a package is missing."""
    if output.suffix != ".onnx":
        raise ConfigError(f"{output}: expected a name that ends in .onnx")
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
    temporary = tempfile.TemporaryDirectory
    with (
        disk_errors(output, ConfigError),
        temporary(prefix=f".{output.name}.", dir=output.parent) as folder,
    ):
        yield Path(folder, output.name)
        # What the file refers to, with a longer name, is there before it.
        for path in sorted(Path(folder).iterdir(), reverse=True):
            path.replace(output.with_name(path.name))


def load(trained: TrainedModel, tried: "Tried", dtype: str, *, averaged: bool) -> "ACTLossHead":
    """Load the model, which is to compute in `dtype` on the CPU."""
    import torch

    arch = trained.run.arch.model_copy(update={"forward_dtype": dtype, "attention": "auto"})
    return trained.load(arch, tried.facts, tried.source, torch.device("cpu"), averaged=averaged)


def facts_of(
    trained: TrainedModel, step: "ExportedStep", tried: "Tried", *, averaged: bool
) -> dict[str, str]:
    """Return what the file says of itself."""
    inner, logits = step.act.inner, step(step.zeros(1))["logits"]
    _, seq_len, vocab_size = logits.shape
    kind = None
    with suppress(ValueError):
        kind = kind_of(tried.facts, [evaluator.name for evaluator in trained.run.active_evaluators])
    source = trained.weights
    if not trained.is_published:
        source = source / MANIFEST
    elif averaged:
        source = average_of(source)
    facts: dict[str, object] = {
        "arch": trained.run.arch.name,
        "puzzles": kind.key if kind else "",
        "seq_len": seq_len,
        "vocab_size": vocab_size,
        "num_puzzle_identifiers": 0 if inner.puzzle_emb is None else len(inner.puzzle_emb.weights),
        "num_steps": step.act.eval_max_steps,
        "checkpoint": "/".join(trained.weights.resolve().parts[-2:]),
        "checkpoint_sha256": sha256(source),
        "weights": "averaged" if averaged else "last",
    }
    if step.starts is not None:
        facts |= step.starts.exported_facts
    return {name: str(value) for name, value in facts.items()}
