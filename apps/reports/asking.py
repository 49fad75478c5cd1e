"""Ask a trained model about single puzzles."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from math import isnan
from typing import TYPE_CHECKING, Any, cast

from dataset.kinds.base import Kind, Puzzle
from dataset.kinds.sudoku import SUDOKU
from dataset.sudoku.rules import count_plainly
from evaluation.config import ArchOverrides, SearchSettings
from evaluation.puzzles import kind_of, kind_of_data
from models.architectures import ArchConfig
from models.config import DataFacts
from puzzle_dataset import PuzzleDataset
from runtime.errors import CheckpointError, DatasetError
from runtime.text import many
from training.checkpoint.trained_model import TrainedModel

if TYPE_CHECKING:
    import torch

    from apps.lattice.search import Round, SearchResult
    from evaluation.solve import Reasoning
    from models.act import ACTLossHead

_NO_SOLUTION = "this puzzle has no solution"
_SEVERAL = "this puzzle has several solutions; the model looks for one of them"


def kind_read_by(trained: TrainedModel) -> Kind | None:
    """Return the kind of puzzles that a model reads. None if its checkpoint does not tell (it
    lacks the facts of its data, or they are ambiguous: 4 x 4 cells) and the training data are gone.

    Raises:
        CheckpointError: the model reads no known kind.
    """
    if (facts := trained.facts) is not None:
        facts = replace(facts, kind=trained.run.arch.kind or facts.kind)
        evaluators = [evaluator.name for evaluator in trained.run.usual_evaluators]
        try:
            if known := kind_of(facts, evaluators):
                return known
        except ValueError as error:
            raise CheckpointError(f"{trained.weights}: {error}") from None
    with suppress(DatasetError):
        folders = trained.run.data_folders("train")
        return kind_of_data(PuzzleDataset(folders, "train", check_values=False))
    return None


def load_for(
    puzzles: list[Puzzle], trained: TrainedModel, device: "torch.device", overrides: ArchOverrides
) -> tuple[ArchConfig, "ACTLossHead"]:
    """Load torch and build a model on a device, for puzzles of one kind and size.

    Raises:
        CheckpointError: the model does not read these puzzles, or its weights are damaged.
        ConfigError: the device does not support the model's settings.
    """
    from models.registry import arch_on_device

    kind, size = puzzles[0].kind, len(puzzles[0].question)
    identifiers = 1 + max(puzzle.identifier for puzzle in puzzles)
    # Some sets of a kind have fewer tokens than others.
    most = max(int(puzzle.tokens.max()) for puzzle in puzzles)
    own = trained.facts.vocab_size if trained.facts else 0
    tokens = own if own > most and kind.fits(size * size, own) else kind.vocab_size(size)
    facts = DataFacts(tokens, size * size, identifiers, kind=kind.key)
    arch = arch_on_device(trained.run.arch, device.type, overrides)
    return arch, trained.load(arch, facts, f"{kind.name} {size}x{size}", device)


@lru_cache(maxsize=1)  # A search asks, too.
def note_on(puzzle: Puzzle) -> str:
    """Return a note if the kind's exact solver finds no solution or several; "" if the puzzle has
    one or its answer is known. Takes about a second at most.
    """
    if puzzle.target is not None:
        return ""
    if puzzle.kind is SUDOKU:
        number = count_plainly(puzzle.question)
        if number is None:
            return "whether this puzzle has one solution takes too long to find out"
        return (_NO_SOLUTION, "", _SEVERAL)[number]
    kind = puzzle.kind
    if type(kind).rules is not Kind.rules:
        number = len([*islice(kind.solutions(puzzle.question), 2)])
        return (_NO_SOLUTION, "", "" if kind.many_answers else _SEVERAL)[number]
    has_solver = type(kind).solution is not Kind.solution
    return _NO_SOLUTION if has_solver and kind.solution(puzzle.question) is None else ""


def search_for(
    puzzle: Puzzle,
    model: "ACTLossHead",
    device: "torch.device",
    settings: SearchSettings,
    *,
    row: int = 0,
    seed: int = 0,
    watch: "Callable[[SearchResult, Round], None]" = lambda found, one: None,
) -> "tuple[SearchResult, list[Round]]":
    """Search for the answer to a puzzle; return the result and all rounds, none if the puzzle has
    no solution.

    Args:
        row: the puzzle's row in its data set; it seeds the guesses.
        watch: called after each round.
    """
    from apps.lattice.search import Round, Search, SearchResult
    from runtime.ranks import Ranks

    if note_on(puzzle) == _NO_SOLUTION:
        return SearchResult(row), []
    rounds, arch = list[Round](), cast(Any, model.model).config

    def note(found: "SearchResult", one: "Round") -> None:
        rounds.append(one)
        watch(found, one)

    with Ranks(device.type) as ranks:
        search = Search(model, model.eval(), arch, ranks, settings, seed)
        (found,) = search([(row, puzzle.tokens)], note)
    return found, rounds


def verdict_on_steps(found: "Reasoning") -> tuple[str, bool | None]:
    """Return one line on an answer, Q and the chains that agree, and whether it is right."""
    (solved, words), q = found.judge(), float(found.q_halt[-1])
    parts = [f"answer: {words}", "" if isnan(q) else f"Q confidence: {q:.1%}"]
    if found.num_chains > 1:
        parts.append(f"{found.num_agreeing} of {found.num_chains} chains agree")
    return "; ".join(filter(None, parts)), solved


def verdict_of(puzzle: Puzzle, found: "SearchResult", num_chains: int) -> tuple[str, bool]:
    """Return one line on how a search ended, and whether it solved the puzzle."""
    taken_back = f"{many(found.taken_back, 'guess', 'guesses')} taken back"
    ends = f"{taken_back}, {many(found.restarts, 'restart')}"
    effort = f"{many(found.rounds, 'round')} of {many(num_chains, 'chain')}, {ends}"
    if not found.rounds:
        return "no answer: no search was made", False
    if found.answer is None:
        return f"no answer: no chain decided all cells in {effort}", False
    answer = puzzle.kind.to_grid(found.answer)
    verdict = puzzle.kind.judge(puzzle.question, answer, puzzle.target)
    line = f"answer: {verdict.words}; chain {(found.chain or 0) + 1}, after {effort}"
    return line, verdict.solved is True
