"""Export a trained model to ONNX: python scripts/export.py RUN out.onnx

RUN is a run's folder (its newest good checkpoint), a checkpoint in it, a published step_N file, or
hf://OWNER/NAME. out.onnx takes puzzles and a number of ACT steps, and answers in float32.

The file is first run in ONNX Runtime and compared with PyTorch. If they differ by more than the
rounding of float32 explains, the file is deleted. See docs/export.md.
"""

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from dataset.command_line import Parser, run_tool
from evaluation.puzzles import kind_of
from runtime.errors import ConfigError, disk_errors
from runtime.files import sha256
from runtime.registry import import_plugins
from runtime.text import run_named
from training.checkpoint.published import average_of
from training.checkpoint.trained_model import TrainedModel, find_trained_model
from training.tracking import warn

if TYPE_CHECKING:
    from apps.export.checking import Sample
    from apps.export.step import ExportedStep
    from models.act import ACTLossHead

# Settings of a lattice that a program needs for a search.
_OF_SEARCH = ("strike_below", "contradiction_above", "guess", "guess_temperature")
_PACKAGES = ("onnx", "onnxruntime", "onnxscript")


def main(arguments: Sequence[str] | None = None) -> int:
    """Export what the command line asks for; return the exit code."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog="export.py", description=__doc__, formatter_class=raw)
    parser.add_argument("run", type=run_named, metavar="RUN", help="the trained model")
    parser.add_argument("output", type=Path, metavar="OUTPUT", help="the file to write, .onnx")
    weights = "the moving average if there is one (default), or the last step's weights"
    parser.add_argument("--weights", choices=["averaged", "last"], default="averaged", help=weights)
    data = "a data set with test puzzles to check the file with (default: the run's data)"
    parser.add_argument("--data", metavar="FOLDER", help=data)
    plugins = "modules of yours that register parts of the model, as in plugins=[A,B]"
    parser.add_argument("--plugins", type=names_in, default=[], metavar="A,B", help=plugins)
    single = "write one ACT step, with its states as inputs and outputs, not the recurrence"
    parser.add_argument("--single-step", action="store_true", help=single)
    options = parser.parse_all(arguments)
    return run_tool(lambda: export(options))


def export(options: argparse.Namespace) -> str:
    """Write the file, check it, and return the report for the terminal.

    Raises:
        ConfigError: the file cannot be written, the model cannot be exported, or ONNX Runtime
            cannot run the file.
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

    from apps.export import checking, writing
    from apps.export.step import ExportedStep

    sample = checking.read_sample(trained, options.data)
    with written_beside(output) as path:
        step, exact = (
            ExportedStep(load(trained, sample, dtype, averaged=averaged).model)
            for dtype in ("float32", "float64")
        )
        facts = facts_of(trained, step, sample, averaged=averaged)
        writing.write_onnx(step, path, facts, single_step=options.single_step)
        run = checking.opened(path, step if options.single_step else None)
        compared = checking.compare(run, step, exact, sample.arrays)
        size = sum(written.stat().st_size for written in path.parent.iterdir())
    of_table = ""
    if (table := step.act.inner.puzzle_emb) is not None and table.weights.nbytes > 1e6:
        of_table = f", {table.weights.nbytes / 1e6:,.2f} of them the puzzle embedding"
    written = "a single step" if options.single_step else "the recurrence"
    return (
        f"{output}: {written} of arch={facts['arch']}, {size / 1e6:,.2f} MB{of_table}\n"
        f"checked with {sample.source}, one alone and three at once\n\n{compared}"
    )


def names_in(text: str) -> list[str]:
    """Return the names in a list, with or without brackets."""
    return text.strip("[]").split(",")


def require_output(output: Path) -> None:
    """Raise ConfigError if the name does not fit or a package is missing."""
    if output.suffix != ".onnx":
        raise ConfigError(f"{output}: expected a name that ends in .onnx")
    if output.is_dir():
        raise ConfigError(f"{output}: is a folder, expected a file")
    for name in _PACKAGES:
        if find_spec(name) is None:
            raise ConfigError(f"{name} is not installed (pip install '.[export]')")


@contextmanager
def written_beside(output: Path) -> Iterator[Path]:
    """Yield a path in a hidden folder beside `output`. After the block all files in the folder move
    to where `output` is; after an error they are deleted.

    Raises:
        ConfigError: the disk refuses.
    """
    temporary = tempfile.TemporaryDirectory
    with (
        disk_errors(output, ConfigError),
        temporary(prefix=f".{output.name}.", dir=output.parent) as folder,
    ):
        yield Path(folder, output.name)
        # Files with longer names first: out.onnx may refer to out.onnx.data.
        for path in sorted(Path(folder).iterdir(), reverse=True):
            path.replace(output.with_name(path.name))


def load(trained: TrainedModel, sample: "Sample", dtype: str, *, averaged: bool) -> "ACTLossHead":
    """Load the model for computing in `dtype` on the CPU."""
    import torch

    arch = trained.run.arch.model_copy(update={"forward_dtype": dtype, "attention": "auto"})
    return trained.load(arch, sample.facts, sample.source, torch.device("cpu"), averaged=averaged)


def facts_of(
    trained: TrainedModel, step: "ExportedStep", sample: "Sample", *, averaged: bool
) -> dict[str, str]:
    """Return the metadata of the file."""
    inner = step.act.inner
    kind, names = None, [evaluator.name for evaluator in trained.run.usual_evaluators]
    with suppress(ValueError):
        kind = kind_of(sample.facts, names)
    is_average = averaged and trained.is_published
    digest = sha256(average_of(trained.weights)) if is_average else trained.digest()
    # Shared weights do not say whether they are the average that their run kept.
    last = "" if trained.settings.get("ema") and not trained.has_average else "last"
    facts: dict[str, object] = {
        "arch": trained.run.arch.name,
        "puzzles": kind.key if kind else "",
        "seq_len": sample.facts.seq_len,
        "vocab_size": sample.facts.vocab_size,
        "num_puzzle_identifiers": 0 if inner.puzzle_emb is None else len(inner.puzzle_emb.weights),
        "num_steps": step.act.eval_max_steps,
        "checkpoint": trained.origin or "/".join(trained.weights.resolve().parts[-2:]),
        "checkpoint_sha256": digest,
        "weights": "averaged" if averaged else last,
    }
    if step.starts is not None:
        facts |= step.starts.exported_facts
    if "candidates" in step.states:
        arch = trained.run.arch.model_dump()
        facts |= {name: arch[name] for name in _OF_SEARCH}
    return {name: str(value) for name, value in facts.items()}
