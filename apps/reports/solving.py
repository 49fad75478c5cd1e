"""Let a trained model solve puzzles, and print its answers as boards and words."""

import csv
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from apps.reports.asking import kind_read_by, load_for, note_on, search_for, verdict_of
from apps.reports.boards import Board
from apps.reports.drawing import require_gif
from apps.reports.terminal import as_text
from apps.zoo.address import address_for
from dataset.format.files import read_json
from dataset.kinds.arc import ARC, arc_puzzles, read_arc_task
from dataset.kinds.base import Kind, Puzzle
from dataset.kinds.sudoku import SUDOKU
from dataset.sources import CSV_COLUMNS
from dataset.sudoku.rules import split_puzzles
from evaluation.config import SolveConfig, ThinkingSettings
from evaluation.puzzles import identifiers_of, kind_of_data, parse_names, parse_puzzle, puzzles_of
from puzzle_dataset import PuzzleDataset
from runtime.errors import ConfigError, DatasetError
from runtime.text import colours, many
from training.checkpoint.trained_model import TrainedModel, find_trained_model
from training.config.composition import load_config
from training.config.overrides import quoted_value
from training.data import require_folder
from training.tracking import warn

if TYPE_CHECKING:
    import torch

    from apps.reports.frames import Frame
    from evaluation.solve import Reasoning
    from models.act import ACTLossHead

Puzzles = Iterator[tuple[str, Puzzle]]  # Pairs of (place in the source, puzzle).
# (description, whether the puzzle is solved or None if not known, function that makes the frames)
Outcome = tuple[str, bool | None, "Callable[[], list[Frame]]"]

_LONGEST_NAME = 200


def main(overrides: list[str], adapt: Callable[[list[str]], object] | None = None) -> None:
    """Compose and validate the settings, read the puzzles, then load torch and solve them.

    Args:
        adapt: runs scripts/adapt.py with these arguments; needed for `adapt=true`.
    """
    config = load_config(SolveConfig, "cfg_solve", [quoted(override) for override in overrides])
    if config.adapt:
        settings = list(settings_to_adapt(config))
        assert adapt is not None
        adapt(settings)
        return
    if config.animate is not None:
        require_gif(config.animate)
    trained = None
    if config.checkpoint is not None:
        trained = find_trained_model(Path(config.checkpoint), warn)
    elif config.is_task:
        trained = of_the_zoo(ARC, 30)
    kind = kind_read_by(trained) if trained else None
    puzzles = list(of_one_kind(read_puzzles(config, trained, kind), trained))
    if not puzzles:
        raise DatasetError("there is no puzzle to solve")
    trained = trained or of_the_zoo(puzzles[0].kind, len(puzzles[0].question))
    config.require_model(trained.run.arch, halts=trained.may_halt, name=trained.weights)
    require_effect(config, trained.run.arch.searches)
    solve(config, trained, puzzles)


def settings_to_adapt(config: SolveConfig) -> Iterator[str]:
    """Yield the settings of scripts/adapt.py; raise ConfigError if there is no ARC task, or if a
    setting has no effect.
    """
    if not config.is_task:
        raise ConfigError("adapt=true is for an ARC task: set file=TASK.json")
    handed_on = ("checkpoint", "device", "num_threads")
    for name, field in SolveConfig.model_fields.items():
        is_read = name in (*handed_on, "adapt", "file", "plugins")
        if not is_read and getattr(config, name) != field.default:
            raise ConfigError(f"{name} has no effect with adapt=true")
    yield f"tasks={quoted_value(str(config.file))}"
    # Another file or checkpoint gets another output.
    words = f"{Path(str(config.file)).with_suffix('')} {config.checkpoint or ''}"
    place = re.sub(r"[^\w.-]+", "_", words).strip("_")[-_LONGEST_NAME:]
    yield f"output={quoted_value(f'adapted/{place}.json')}"
    for name in handed_on:
        if (value := getattr(config, name)) is not None:
            yield f"{name}={quoted_value(str(value)) if isinstance(value, str) else value}"


def of_the_zoo(kind: Kind, size: int) -> TrainedModel:
    """Return the zoo's model for puzzles of a kind and size, and say which it is."""
    address = address_for(kind, size)
    sys.stderr.write(f"model: {address} (checkpoint= names another)\n")
    return find_trained_model(Path(address), warn)


def of_one_kind(puzzles: Puzzles, trained: TrainedModel | None) -> Iterator[Puzzle]:
    """Yield the puzzles; raise DatasetError if their kinds or sizes differ or do not fit."""
    first = None
    for source, puzzle in puzzles:
        first = first or puzzle
        cells = (trained and trained.cells) or first.question.size
        if puzzle.kind is not first.kind:
            raise DatasetError(
                f"{source}: a {puzzle.kind.name}, but the first puzzle is a {first.kind.name}"
            )
        if puzzle.question.size != cells:
            raise DatasetError(f"{source}: {puzzle.question.size} cells; accepted: {cells}")
        yield puzzle


def solve(config: SolveConfig, trained: TrainedModel, puzzles: list[Puzzle]) -> None:
    """Load torch, build the model, and print its reasoning about each puzzle."""
    import torch

    from apps.reports.frames import frames_of_steps
    from evaluation.solve import reason
    from runtime.device import prepare_host, resolve_device

    device = torch.device(resolve_device(config.device))
    prepare_host(config.num_threads)
    arch, model = load_for(puzzles, trained, device, config.overrides)
    if arch.searches:
        return print_all(config, puzzles, _searched(config, model, device, puzzles))
    halts = model.halting_head is not None
    config.require_model(trained.run.arch, halts=halts, name=trained.weights)
    learns_continue = not arch.no_ACT_continue and arch.heads.q is not None
    in_colour = colours(sys.stdout)
    outcomes = (
        (
            describe(reasoning, learns_continue=learns_continue, colour=in_colour),
            reasoning.judge().solved,
            partial(frames_of_steps, reasoning),
        )
        for reasoning in reason(model, puzzles, device, config)
    )
    print_all(config, puzzles, outcomes)


def print_all(config: SolveConfig, puzzles: Sequence[Puzzle], outcomes: Iterable[Outcome]) -> None:
    """Print the outcome of each puzzle and the number of solved ones; write the GIFs asked for."""
    verdicts: list[bool | None] = []
    answers = iter(outcomes)
    for number, puzzle in enumerate(puzzles, start=1):
        place = puzzle.place or f"puzzle {number} of {len(puzzles)}"
        sys.stdout.write(f"{place}\n")
        text, solved, frames = next(answers)
        verdicts.append(solved)
        sys.stdout.write(f"{text}\n")
        if config.animate is not None:
            from apps.reports.frames import animate

            path = Path(config.animate)
            path = path.with_stem(f"{path.stem}-{number}") if len(puzzles) > 1 else path
            sys.stdout.write(f"written: {animate(frames(), path)}\n")
        sys.stdout.write("\n")
    unknown = verdicts.count(None)
    more = f"; for {unknown} the right answer is not known" if unknown else ""
    sys.stdout.write(f"solved: {verdicts.count(True)} of {len(puzzles)}{more}\n")


def require_effect(config: SolveConfig, searches: bool) -> None:
    """Raise ConfigError if a setting has no effect on this model."""
    of_others = ThinkingSettings.model_fields.keys() - {"seed"} if searches else {"search"}
    for name in sorted(of_others):
        if getattr(config, name) != SolveConfig.model_fields[name].default:
            kind = "searches (arch=lattice)" if searches else "does not search"
            raise ConfigError(f"{name} has no effect: this model {kind}")


def _searched(
    config: SolveConfig, model: "ACTLossHead", device: "torch.device", puzzles: Sequence[Puzzle]
) -> Iterator[Outcome]:
    """Search each puzzle; describe the moves of the chain that answered, and its answer."""
    from apps.lattice.narration import describe_chain
    from apps.reports.frames import frames_of_rounds

    for number, puzzle in enumerate(puzzles):
        row = puzzle.row if puzzle.place else number
        if note := note_on(puzzle):  # The search may take long.
            sys.stdout.write(f"{note}\n")
            sys.stdout.flush()
        found, rounds = search_for(puzzle, model, device, config.search, row=row, seed=config.seed)
        lines = []
        if found.chain is not None:
            lines += describe_chain(rounds, found.chain)
        answer = puzzle.question if found.answer is None else puzzle.kind.to_grid(found.answer)
        if rounds:
            lines.append(as_text(Board(puzzle, answer), colour=colours(sys.stdout)))
        verdict, solved = verdict_of(puzzle, found, config.search.chains)
        lines.append(verdict)
        yield "\n".join(lines), solved, partial(frames_of_rounds, puzzle, rounds, found)


def quoted(override: str) -> str:
    """Quote the value of puzzle= or file=: Hydra would read 0053 as a number and drop its zeros."""
    key, equals, value = override.partition("=")
    if key.lstrip("+") not in ("puzzle", "file") or not equals or value[:1] in ("'", '"'):
        return override
    return f"{key}={quoted_value(value)}"


def read_puzzles(config: SolveConfig, trained: TrainedModel | None, kind: Kind | None) -> Puzzles:
    """Yield the puzzles asked for. If the model's `kind` is not known, the text decides it.
    `trained` is None for a model of the zoo that the puzzles decide.

    Raises:
        ConfigError: no source of puzzles is given, or `data_path` for a task that needs no data.
        DatasetError: a line is no puzzle; names file and line.
    """
    if config.puzzle is not None:
        yield "puzzle", _parsed("puzzle", config.puzzle, kind)
    elif config.count is not None or config.index is not None:
        yield from data_set_puzzles(config, trained)
    elif config.is_task and trained is not None:
        if kind not in (None, ARC):
            raise DatasetError(f"{config.file}: this model reads {kind.name} puzzles")
        reads_data = trained.run.arch.puzzle_emb_ndim and trained.names_file is None
        if config.data_path and not reads_data:
            told = f"{trained.weights} needs no data to read an ARC task"
            raise ConfigError(f"data_path has no effect: {told}")
        task = read_arc_task(Path(str(config.file)))
        found = arc_puzzles(task, names_known_to(trained, partial(open_dataset, config, trained)))
        yield from ((task.source, puzzle) for puzzle in found)
    elif config.file in (None, "-") and sys.stdin.isatty():
        raise ConfigError("no puzzle: set puzzle=53..7..., file=FILE, index=N or count=N")
    else:
        is_file = config.file not in (None, "-")
        source = str(config.file) if is_file else "standard input"
        try:
            lines = Path(source).read_text().splitlines() if is_file else list(sys.stdin)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "not text"
            raise DatasetError(f"{source}: {reason}") from None
        yield from parse_lines(lines, source, kind)


def names_known_to(
    trained: TrainedModel, open_data: Callable[[], PuzzleDataset]
) -> list[str] | None:
    """Return the names in a model's puzzle embedding, from the file beside its weights or from the
    data that `open_data` opens; None: it has no embedding.
    """
    if not trained.run.arch.puzzle_emb_ndim:
        return None
    if (file := trained.names_file) is not None:
        return parse_names(read_json(file), file)
    return identifiers_of(open_data())


def parse_lines(lines: Iterable[str], source: str, kind: Kind | None = None) -> Puzzles:
    """Yield the place and the puzzle of each text. A text is a row of a CSV file, a Sudoku as
    `split_puzzles` finds it, or for other kinds the lines up to an empty line.
    """
    lines = [line.rstrip("\r\n") for line in lines]
    if lines and lines[0].lstrip("\ufeff") == ",".join(CSV_COLUMNS):
        rows = csv.reader(lines)
        texts = [(rows.line_num, "".join(row[1:2])) for row in rows if row][1:]
    elif kind not in (None, SUDOKU) or (kind is None and any("#" in line for line in lines)):
        texts = []
        for is_empty, block in groupby(enumerate(lines, start=1), lambda row: not row[1]):
            if not is_empty:
                (first, _), *_ = block = list(block)
                texts.append((first, "\n".join(row for _, row in block)))
    else:
        texts = split_puzzles(lines)
    for number, text in texts:
        place = f"{source}: line {number}"
        yield place, _parsed(place, text, kind)


def _parsed(place: str, text: str, kind: Kind | None) -> Puzzle:
    if kind is ARC:
        accepted = "file=TASK.json, index=N or count=N"
        raise DatasetError(f"{place}: this model reads ARC tasks; accepted: {accepted}")
    try:
        return parse_puzzle(text, kind)
    except ValueError as error:
        raise DatasetError(f"{place}: {error}") from None


def open_dataset(config: SolveConfig, trained: TrainedModel | None) -> PuzzleDataset:
    """Open the data set asked for, or else the run's."""
    run, named = None, "a model of the zoo"
    if trained is not None:
        run, named = trained.run, str(trained.weights)
    folders = run.data_folders(config.split) if run else []
    folders = [config.data_path] if config.data_path else folders
    if not folders:
        raise ConfigError(f"{named} names no data set: set data_path=FOLDER")
    for folder in folders:
        require_folder(folder, run and run.data)
    known = run.data_folders("train") if run else []
    dataset = PuzzleDataset(folders, config.split, numbered_as=known)
    if trained is not None:
        trained.require_names(dataset)
    return dataset


def data_set_puzzles(config: SolveConfig, trained: TrainedModel | None) -> Puzzles:
    """Yield the puzzles of a data set that `config` asks for.

    Raises:
        ConfigError: the set or index does not exist, or several sets need `set` beside `index`.
    """
    dataset = open_dataset(config, trained)
    place, kind = str(dataset.split_dirs[0]), kind_of_data(dataset)
    sets, first = list(dataset.sets), 0
    if config.set is not None:
        if config.set not in sets:
            raise ConfigError(f"set={config.set}: {place} has the sets {', '.join(sets)}")
        before = sets[: sets.index(config.set)]
        first, sets = sum(dataset.sets[name].num_examples for name in before), [config.set]
    number = sum(dataset.sets[name].num_examples for name in sets)
    if config.index is not None and len(sets) > 1:
        raise ConfigError(
            f"index={config.index}: there are several sets; add set={' or set='.join(sets)}"
        )
    for index in config.index or ():
        if index >= number:
            raise ConfigError(f"index={index}: {place} has puzzles 0 to {number - 1}")
    count = min(config.count or 0, number)
    rows = [slice(first + index, first + index + 1) for index in config.index or ()]
    for some in rows or [slice(first, first + count)]:
        yield from ((place, puzzle) for puzzle in puzzles_of(dataset, kind, some))


def describe(reasoning: "Reasoning", *, learns_continue: bool, colour: bool = False) -> str:
    """Return question, answer, verdict and ACT steps as text."""
    puzzle = reasoning.puzzle
    verdict, wrong = reasoning.judge(), reasoning.cells_wrong()
    marks = " (marked !)" if verdict.solved is False and wrong.any() and not colour else ""
    line = f"answer: {verdict.words}{marks}; Q confidence: {_percent(reasoning.q_halt[-1])}"
    lines = [as_text(Board(puzzle, reasoning.answer), colour=colour), line]
    if note := note_on(puzzle):
        lines.append(note)
    if (chains := reasoning.num_chains) > 1:
        number = reasoning.num_agreeing
        agreeing = f"{number} of them {'gives' if number == 1 else 'give'} this answer"
        lines.append(f"chain {reasoning.chain + 1} of {chains} answers; {agreeing}")
    return "\n".join([*lines, *step_lines(reasoning, learns_continue=learns_continue)])


def step_lines(reasoning: "Reasoning", *, learns_continue: bool) -> Iterator[str]:
    """Yield a table of the ACT steps, and a line on when the answer settled."""
    q_continue = "  Q continue" if learns_continue else ""
    yield f"ACT step  cells changed  cells wrong  Q halt{q_continue}"
    changed, num_steps = reasoning.cells_changed(), len(reasoning.answers)
    settled = int(np.flatnonzero(changed).max(initial=0)) + 1
    # A single last step without changes keeps its own line.
    listed = num_steps if settled == num_steps - 1 else settled
    for step in range(listed):
        wrong = int(reasoning.cells_wrong(step).sum())
        q_halt = _percent(reasoning.q_halt[step])
        q_continue = f"  {reasoning.q_continue[step]:10.1%}" if learns_continue else ""
        yield f"{step + 1:8}  {changed[step]:13}  {wrong:11}  {q_halt:>6}{q_continue}"
    if listed < num_steps:
        yield f"steps {listed + 1} to {num_steps}: no cell changed"
    ending = f"settled at step {settled} of {num_steps}"
    if changed[-1]:
        left = many(int(changed[-1]), "cell")
        ending = f"not settled: step {num_steps} of {num_steps} still changed {left}"
    if reasoning.halts.any():
        ending += f"; Q would halt it after step {int(reasoning.halts.argmax()) + 1}"
    yield ending


def _percent(share: float) -> str:
    return "-" if np.isnan(share) else f"{share:.1%}"
