"""Let a trained model solve Sudokus: python scripts/solve.py checkpoint=PATH puzzle=53..7....6..

PATH is a run's folder (its newest good checkpoint), a checkpoint in it, or a published `step_N`
file. Instead of puzzle=: file=FILE with a puzzle on each line, count=N for the first puzzles of the
run's test set (data_path=FOLDER: of another one), or puzzles on standard input, one on each line.

The last step's answer is the most likely token of each cell. decode=beam constraint=sudoku looks
for the most likely grid that keeps the rules; decode=temperature, top_k or top_p draws.

depth=64 breadth=8 thinks longer, as evaluate.py does: so many ACT steps, and so many chains, one of
which answers.

Shows the answer, whether it is a valid Sudoku that keeps the clues, how sure the model is, and how
the answer changed from ACT step to ACT step.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dataset.sudoku.rules import (
    BOX_SHAPES,
    count_solutions,
    grid_size,
    grid_to_tokens,
    is_valid_solution,
    keeps_clues,
    parse_puzzle,
    tokens_to_grid,
)
from evaluation.config import ArchOverrides, SolveConfig, ThinkingSettings
from models.config import DataFacts, LatticeConfig
from puzzle_dataset import PuzzleDataset
from runtime.errors import CheckpointError, ConfigError, DatasetError
from training.checkpoint.trained_model import TrainedModel, find_trained_model
from training.config.composition import load_config
from training.config.entry_point import run_entry_point
from training.config.overrides import quoted_value
from training.data import require_folder
from training.tracking import warn

if TYPE_CHECKING:
    from evaluation.search import Found
    from evaluation.solving import Reasoning
    from models.act import ACTLossHead

# Where each puzzle stands, and its grid, integer [size, size].
Puzzles = Iterator[tuple[str, np.ndarray]]


def main(overrides: list[str]) -> None:
    """Compose, validate, read the puzzles, then load torch and solve them."""
    config = load_config(SolveConfig, "cfg_solve", [quoted(override) for override in overrides])
    trained = find_trained_model(Path(config.checkpoint), warn)
    config.require_model(trained.run.arch, halts=trained.may_halt, name=trained.weights)
    require_read(config, isinstance(trained.run.arch, LatticeConfig))
    size = sudoku_size(trained)
    puzzles = []
    for source, puzzle in read_puzzles(config, trained):
        size = size or len(puzzle)
        if len(puzzle) != size:
            raise DatasetError(f"{source}: {puzzle.size} cells; accepted here: {size * size}")
        puzzles.append(puzzle)
    if size is None or not puzzles:
        raise DatasetError("there is no puzzle to solve")
    solve(config, trained, puzzles, size)


def solve(config: SolveConfig, trained: TrainedModel, puzzles: list[np.ndarray], size: int) -> None:
    """Load torch, build the model, and print its reasoning about each puzzle."""
    import torch

    from evaluation.solving import make_decoder, reason
    from models.registry import arch_on_device
    from runtime.device import prepare_host, resolve_device

    device_type = resolve_device(config.device)
    overrides = ArchOverrides(**config.arch_overrides.model_dump(), halt_max_steps=config.num_steps)
    arch = arch_on_device(trained.run.arch, device_type, overrides)
    prepare_host(config.num_threads)
    device = torch.device(device_type)
    model = trained.load(arch, sudoku_facts(size), f"Sudoku {size}x{size}", device)
    if isinstance(arch, LatticeConfig):
        return deduce(config, model, arch, device_type, puzzles)
    halts = model.halting_head is not None
    config.require_model(trained.run.arch, halts=halts, name=trained.weights)
    reasonings = reason(model, puzzles, device, make_decoder(config), config)
    learns_continue = not arch.no_ACT_continue and arch.heads.q is not None
    num_solved = 0
    for number, reasoning in enumerate(reasonings, start=1):
        num_solved += reasoning.is_solved()
        text = describe(reasoning, learns_continue=learns_continue)
        sys.stdout.write(f"puzzle {number} of {len(puzzles)}\n{text}\n\n")
    sys.stdout.write(f"solved: {num_solved} of {len(puzzles)}\n")


def require_read(config: SolveConfig, deduces: bool) -> None:
    """Raise ConfigError at a setting that says nothing of a model that `deduces`, or does not."""
    searched = {"search"}
    thought = {*ThinkingSettings.model_fields, "steps", "decode", "constraint"} - {"seed"}
    fields = SolveConfig.model_fields
    for name in sorted(thought if deduces else searched):
        if getattr(config, name) != fields[name].default:
            kind = "strikes candidates and guesses (arch=lattice)" if deduces else "does not search"
            raise ConfigError(f"{name} says nothing: this model {kind}")


def deduce(
    config: SolveConfig,
    model: "ACTLossHead",
    arch: LatticeConfig,
    device_type: str,
    puzzles: list[np.ndarray],
) -> None:
    """Print what the chain of a search that answered struck and guessed, and its answer."""
    from evaluation.narration import tell
    from evaluation.search import Round, Search
    from runtime.ranks import Ranks

    num_solved = 0
    with Ranks(device_type) as ranks:
        for number, puzzle in enumerate(puzzles, start=1):
            rounds: list[Round] = []

            def watch(_: object, one: Round, rounds: list[Round] = rounds) -> None:
                rounds.append(one)

            search = Search(model, model.eval(), arch, ranks, config.search, config.seed)
            (found,) = search([(number - 1, grid_to_tokens(puzzle))], watch)
            lines = list(solutions_of(puzzle))
            answer = puzzle if found.answer is None else tokens_to_grid(found.answer)
            is_solved = is_valid_solution(answer, len(answer)) and keeps_clues(puzzle, answer)
            num_solved += is_solved
            if found.chain is not None:
                lines += tell(rounds, found.chain)
            lines += grid_lines(answer, np.zeros(answer.shape, bool))
            lines.append(verdict_of(found, is_solved, config.search.chains))
            text = "\n".join(lines)
            sys.stdout.write(f"puzzle {number} of {len(puzzles)}\n{text}\n\n")
    sys.stdout.write(f"solved: {num_solved} of {len(puzzles)}\n")


def solutions_of(puzzle: np.ndarray) -> Iterator[str]:
    """Yield what a plain solver says of a puzzle that does not have one solution."""
    if (number := count_solutions(puzzle)) != 1:
        several = "several solutions, one of which is looked for"
        yield f"this puzzle has {several if number else 'no solution'}"


def verdict_of(found: "Found", is_solved: bool, num_chains: int) -> str:
    """Return in a line how a search ended."""
    ends = f"{found.taken_back} guesses taken back, {found.restarts} restarts"
    effort = f"{found.rounds} rounds of {num_chains} chains, {ends}"
    if found.answer is None:
        return f"no answer: no chain has decided all cells in {effort}"
    said = "a valid Sudoku that keeps the clues" if is_solved else "not a solution"
    return f"answer: {said}; chain {(found.chain or 0) + 1}, after {effort}"


def quoted(override: str) -> str:
    """Quote what Hydra's grammar would take apart: 0053 as a number would lose its zeros."""
    key, equals, value = override.partition("=")
    if key.lstrip("+") not in ("puzzle", "file") or not equals or value[:1] in ("'", '"'):
        return override
    return f"{key}={quoted_value(value)}"


def read_puzzles(config: SolveConfig, trained: TrainedModel) -> Puzzles:
    """Yield the puzzles asked for.

    Raises:
        ConfigError: no source of puzzles.
        DatasetError: names the file and line of what is no puzzle.
    """
    if config.puzzle is not None:
        yield "puzzle", _parsed("puzzle", parse_puzzle, config.puzzle)
    elif config.count is not None:
        yield from data_set_puzzles(config, trained, config.count)
    elif config.file is not None and config.file != "-":
        try:
            lines = Path(config.file).read_text().splitlines()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "not a text file"
            raise DatasetError(f"{config.file}: {reason}") from None
        yield from parse_lines(lines, config.file)
    elif sys.stdin.isatty():
        raise ConfigError("no puzzle: set puzzle=53..7..., file=FILE or count=N")
    else:
        yield from parse_lines(sys.stdin, "standard input")


def parse_lines(lines: Iterable[str], source: str) -> Puzzles:
    """Yield the place and the grid of each line that is not blank."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            place = f"{source}: line {number}"
            yield place, _parsed(place, parse_puzzle, line)


def _parsed(place: str, parse: Callable[[Any], np.ndarray], puzzle: Any) -> np.ndarray:
    try:
        return parse(puzzle)
    except ValueError as error:
        raise DatasetError(f"{place}: {error}") from None


def data_set_puzzles(config: SolveConfig, trained: TrainedModel, count: int) -> Puzzles:
    """Yield the first `count` puzzles of a data set."""
    folders = [config.data_path] if config.data_path else trained.run.data_folders(config.split)
    if not folders:
        raise ConfigError(f"{trained.weights} names no data set: set data_path=FOLDER")
    for folder in folders:
        require_folder(folder, trained.run.data)
    dataset = PuzzleDataset(folders, config.split)
    place = str(dataset.split_dirs[0])
    for arrays in dataset.sets.values():
        for row in arrays.inputs[:count]:
            yield place, _parsed(f"{place}: not Sudokus", tokens_to_grid, row)
        count -= min(count, arrays.num_examples)


def sudoku_size(trained: TrainedModel) -> int | None:
    """Return the size of the grids that a model reads, None where only its weights know.

    Raises:
        CheckpointError: it reads no Sudokus.
    """
    if trained.facts is None:
        return None
    try:
        size = grid_size(trained.facts.seq_len)
    except ValueError as error:
        raise CheckpointError(f"{trained.weights} reads no Sudokus: {error}") from None
    trained.require_fit(sudoku_facts(size), f"Sudoku {size}x{size}")
    return size


def sudoku_facts(size: int) -> DataFacts:
    """Return what Sudokus of a size look like to a model: padding, empty, and the digits."""
    return DataFacts(vocab_size=size + 2, seq_len=size * size, num_puzzle_identifiers=1)


def describe(reasoning: "Reasoning", *, learns_continue: bool) -> str:
    """Return question, answer, verdict and the ACT steps as text."""
    question = grid_lines(reasoning.question, np.zeros_like(reasoning.question, bool))
    answer = grid_lines(reasoning.answer, reasoning.cells_wrong())
    grids = [f"{left}    {right}" for left, right in zip(question, answer, strict=True)]
    said = "a valid Sudoku that keeps the clues"
    if not reasoning.is_solved():
        wrong = int(reasoning.cells_wrong().sum())
        said = f"not a solution: {wrong} cells cannot stay (marked !)"
    verdict = (
        f"answer: {said}; Q confidence: {_percent(reasoning.q_halt[-1])}; answer confidence:"
        f" {reasoning.confidence:.1%}; log-probability: {reasoning.log_prob:.2f}"
    )
    lines = [*grids, verdict]
    if (chains := reasoning.num_chains) > 1:
        agreeing = f"{reasoning.num_agreeing} of them give this answer"
        lines.append(f"chain {reasoning.chain + 1} of {chains} answers; {agreeing}")
    return "\n".join([*lines, *step_lines(reasoning, learns_continue=learns_continue)])


def grid_lines(grid: np.ndarray, marked: np.ndarray) -> list[str]:
    """Draw a grid with its boxes, '.' where empty and '!' before the cells that are marked."""
    size = len(grid)
    box_rows, box_columns = BOX_SHAPES[size]
    rule = "+" + ("-" * (2 * box_columns + 1) + "+") * (size // box_columns)
    lines = []
    for row in range(size):
        if row % box_rows == 0:
            lines.append(rule)
        pairs = zip(marked[row], grid[row], strict=True)
        cells = [f"{'!' if is_marked else ' '}{digit or '.'}" for is_marked, digit in pairs]
        boxes = ("".join(cells[left : left + box_columns]) for left in range(0, size, box_columns))
        lines.append(f"|{' |'.join(boxes)} |")
    return [*lines, rule]


def step_lines(reasoning: "Reasoning", *, learns_continue: bool) -> Iterator[str]:
    """Yield a table of the ACT steps and a sentence on how it went."""
    q_continue = "  Q continue" if learns_continue else ""
    yield f"ACT step  cells changed  cells wrong  Q halt{q_continue}"
    changed, num_steps = reasoning.cells_changed(), len(reasoning.answers)
    for step in range(num_steps):
        wrong = int(reasoning.cells_wrong(step).sum())
        q_halt = _percent(reasoning.q_halt[step])
        q_continue = f"  {reasoning.q_continue[step]:10.1%}" if learns_continue else ""
        yield f"{step + 1:8}  {changed[step]:13}  {wrong:11}  {q_halt:>6}{q_continue}"
    settled = int(np.flatnonzero(changed).max(initial=0)) + 1
    ending = f"settled at step {settled} of {num_steps}"
    if reasoning.halts.any():
        ending += f"; would halt by itself after step {int(reasoning.halts.argmax()) + 1}"
    yield ending


def _percent(share: float) -> str:
    return "-" if np.isnan(share) else f"{share:.1%}"


if __name__ == "__main__":
    run_entry_point(SolveConfig, "cfg_solve", main, str(__doc__))
