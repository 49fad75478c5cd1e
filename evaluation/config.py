"""Schemas of `evaluate.py` and `scripts/solve.py`. Imports no torch."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic.fields import FieldInfo

from dataset.kinds import AnyEvaluator
from models.architectures import ARCHITECTURES
from models.config import AttentionBackend, ForwardDtype, OutputField, RecurrenceConfig
from runtime.errors import ConfigError
from runtime.registry import rebuild_schemas
from runtime.schema import (
    Count,
    CountOrZero,
    Device,
    MachineSettings,
    PluginSettings,
    PositiveFloat,
    Schema,
    Seed,
    Size,
    StrictBool,
)

Halting = Literal["steps", "q"]


def _require_checkpoint(path: object) -> object:
    if path is None or path == "":
        raise ValueError("set it to a run's folder, a checkpoint in it, or a published step_N file")
    return path


CheckpointPath = Annotated[str, BeforeValidator(_require_checkpoint)]


class KernelOverrides(Schema):
    """What may differ from the trained model, because it has no weights; null: as recorded."""

    attention: AttentionBackend | None = None
    """kernel of the attention; null: the run's"""
    forward_dtype: ForwardDtype | None = None
    """number format of the products; null: the run's"""


class ArchOverrides(KernelOverrides):
    """What an evaluation may change as well: the number of steps, and what an architecture allows
    in its `overrides`.
    """

    halt_max_steps: Count | None = None
    """ACT steps that every puzzle takes"""

    @classmethod
    def further_fields(cls) -> dict[str, FieldInfo]:
        parts = (ARCHITECTURES[name].schema for name in ARCHITECTURES)
        overrides = [part.overrides for part in parts if issubclass(part, RecurrenceConfig)]
        return {name: field for own in overrides for name, field in own.items()}

    @model_validator(mode="before")
    @classmethod
    def _null_overrides_nothing(cls, given: object) -> object:
        # The YAML file has the settings of each app's architecture; the app may not be there.
        if not isinstance(given, Mapping):
            return given
        return {name: value for name, value in given.items() if value is not None}


rebuild_schemas([ArchOverrides])


def _as_list(value: object) -> object:
    return value if isinstance(value, list | tuple) else [value]


Choice = Literal["q", "residual", "majority", "first_halt"]
Counts = Annotated[list[Count], BeforeValidator(_as_list), Field(min_length=1)]


class ThinkingSettings(Schema):
    """Thinking longer: more ACT steps (depth), and several chains for each puzzle (breadth)."""

    depth: Counts | None = None
    """ACT steps after which answers are read: 64, or in evaluate.py [16,64,256]; null: as many
    as in training"""
    breadth: Counts = [1]
    """chains for each puzzle: 8, or in evaluate.py [1,8], where the first is part of the eight"""
    perturb: Literal["symmetry", "init", "noise"] = "symmetry"
    """what tells chains apart: views of the puzzle, random starts (techniques=[random_starts]),
    or noise in the latents after each step"""
    noise: PositiveFloat = 0.3
    """standard deviation of perturb=noise; the latents' own is 1"""
    select: Annotated[list[Choice], BeforeValidator(_as_list), Field(min_length=1)] = ["q"]
    """which chain answers: q: the one surest of its answer; residual: the one whose last step
    changed it least; majority: the most common answer; first_halt: the first to halt"""
    seed: Seed = 0
    """of views, starts and noise"""

    @property
    def perturbs_views(self) -> bool:
        """Whether chains see the puzzle in views of its own."""
        return self.perturb == "symmetry" and max(self.breadth) > 1

    def require_model(self, arch: RecurrenceConfig, *, halts: bool, name: object) -> None:
        """Raise ConfigError where chains of the model with this `name` would start alike, or could
        not be told apart.

        Args:
            halts: whether a head says when a puzzle is done, which is how sure it is.
        """
        if self.perturb == "init" and not arch.techniques.acting("start"):
            alike = "all chains of this model start alike (it has no random starts)"
            raise ConfigError(f"perturb=init: {alike}; use perturb=symmetry or noise")
        if self.perturb == "noise" and max(self.breadth) > 1 and (why := arch.takes_no_noise):
            raise ConfigError(f"perturb=noise: {why}")
        by_q = [choice for choice in self.select if choice in ("q", "first_halt")]
        if max(self.breadth) > 1 and by_q and not halts:
            raise ConfigError(
                f"select={by_q[0]}: no head of {name} says when a puzzle is done; use "
                "select=residual or majority"
            )


class SearchSettings(Schema):
    """Search with a model that deduces and guesses: docs/search.md."""

    chains: Count = 16
    """chains for each puzzle; the first one to decide all cells answers"""
    rounds: Count = 1000
    """steps of each chain, after which a puzzle is given up"""
    backtrack: StrictBool = True
    """true: at a contradiction a chain takes its last guess back; false: it starts again, as
    published"""
    caution: Annotated[float, Field(strict=True, gt=0.0, le=1.0)] = 0.5
    """what arch.strike_below is multiplied by when a chain starts again; of four chains one begins
    as it is, the others with one to three such factors; 1: none, as published"""


class EvalSearchSettings(SearchSettings):
    chains: CountOrZero = 0
    """chains for each puzzle; the first one to decide all cells answers; 0: no search"""
    at_once: Count = 8
    """puzzles at a time on each rank, each with all its chains"""
    control: CountOrZero = 50
    """puzzles that the same search gets with weights that were never trained, too"""


class EvalConfig(ThinkingSettings, MachineSettings):
    """Everything an evaluation is told. Keys that are null take what the checkpoint recorded."""

    checkpoint: CheckpointPath
    """a run's folder (newest good checkpoint), a checkpoint in it, or a published step_N file"""
    data_path: str | None = None
    """the folder to evaluate on"""
    data_paths: list[str] | None = None
    """several folders: [a,b]"""
    split: Literal["test", "train", "selection"] = "test"
    """part of the data set whose puzzles are taken"""
    global_batch_size: Size | None = None
    """puzzles at a time, over all ranks; null: the run's, on CUDA more where memory allows"""
    halting: Halting = "steps"
    """steps: every puzzle takes all ACT steps; q: it stops where the model says so, and gives its
    place to the next one"""
    max_examples: Count | None = None
    """the first rows of each set only; null: all"""
    weights: Literal["averaged", "last"] = "averaged"
    """averaged: the moving average, where the run kept one"""
    evaluators: list[AnyEvaluator] | None = None
    """what is measured besides the usual figures; []: none"""
    save_outputs: list[OutputField] = []
    """written to OUTPUT_outputs/SET__FIELD.npy"""
    save_records: StrictBool = False
    """true: a line for each puzzle in OUTPUT_records.csv, more of them in OUTPUT_records.json"""
    search: EvalSearchSettings = EvalSearchSettings()
    arch_overrides: ArchOverrides = ArchOverrides()
    """what may differ from the trained model, because it has no weights"""
    output: str | None = None
    """the JSON file; null: eval_step_N.json in the run's folder, with settings in its name"""

    @model_validator(mode="after")
    def _one_way_to_think(self) -> "EvalConfig":
        searched, longer = self.search.chains > 0, self.thinks_longer
        if searched and longer:
            raise ValueError("search.chains and depth or breadth are both set; choose one of them")
        asked = "search.chains" if searched else "depth or breadth"
        if (searched or longer) and self.arch_overrides.halt_max_steps is not None:
            instead = "search.rounds" if searched else "depth"
            raise ValueError(
                f"arch_overrides.halt_max_steps says nothing where {asked} is set; use {instead}=N"
            )
        both, no_search = ("halting", "save_outputs", "evaluators"), "search.chains is 0; set it"
        no_chains = "neither depth nor breadth is set; set one of them"
        unread = [
            (searched or longer, both, f"{asked} is set"),
            (searched, ("global_batch_size",), f"{asked} is set"),
            (longer, ("save_records",), f"{asked} is set"),
            (not searched, ("search",), no_search),
            (not longer, ("select", "perturb", "noise"), no_chains),
        ]
        for name, where in [(n, where) for is_so, ns, where in unread if is_so for n in ns]:
            if (value := getattr(self, name)) and value != type(self).model_fields[name].default:
                raise ValueError(f"{name} says nothing where {where}")
        return self

    @property
    def thinks_longer(self) -> bool:
        """Whether depth or breadth is asked for, which has a table of its own."""
        return self.depth is not None or self.breadth != [1]

    @property
    def data_folders(self) -> list[str]:
        """Folders asked for; empty: those of the run. `data_paths` comes before `data_path`."""
        return self.data_paths or ([self.data_path] if self.data_path else [])


class SolveConfig(ThinkingSettings, PluginSettings):
    """What `scripts/solve.py` is told: a model, and one source of puzzles (else standard input)."""

    checkpoint: CheckpointPath
    """a run's folder (newest good checkpoint), a checkpoint in it, or a published step_N file"""
    puzzle: str | None = None
    """the cells row by row; of a Sudoku one of . 0 - _ * where empty; of a maze '#', ' ' or '.', S,
    G"""
    file: str | None = None
    """a text file with Sudokus, on a line each or in rows, or mazes in rows, an empty line between
    two; or such puzzles as a builder's CSV; an ARC task (.json), whose test inputs are asked; '-':
    standard input"""
    count: Count | None = None
    """solve the first puzzles of a data set"""
    index: Annotated[list[CountOrZero], BeforeValidator(_as_list), Field(min_length=1)] | None = (
        None
    )
    """solve the puzzles of a data set with these numbers, 198 or [3,198]: their rows, from 0, the
    `index` of an evaluation's records"""
    data_path: str | None = None
    """that data set; null: the run's"""
    split: Literal["test", "train", "selection"] = "test"
    """part of the data set whose puzzles are taken"""
    set: str | None = None
    """the set of that data, by name; null: all, one after the other; for index the only one"""
    search: SearchSettings = SearchSettings()
    """of a model that deduces (arch=lattice), which tells what it struck and guessed"""
    animate: str | None = None
    """a file to write, .gif: how the answer forms, step by step; of several puzzles
    FILE-1, FILE-2, ..."""
    arch_overrides: KernelOverrides = KernelOverrides()
    """what may differ from the trained model, because it has no weights; null: as recorded"""
    device: Device = "auto"
    """auto: CUDA if there is a GPU, else the CPU"""
    num_threads: Count | None = None
    """CPU threads; null: torch's choice"""

    @model_validator(mode="after")
    def _one_source_and_answer(self) -> "SolveConfig":
        given = [
            name for name in ("puzzle", "file", "count", "index") if getattr(self, name) is not None
        ]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are both set; choose one source of puzzles")
        for name in ("data_path", "set"):
            if getattr(self, name) is not None and self.count is None and self.index is None:
                raise ValueError(f"{name} needs count=N (its first puzzles) or index=N (puzzle N)")
        for name in ("depth", "breadth", "select"):
            if len(values := getattr(self, name) or [1]) > 1:
                raise ValueError(
                    f"{name}={values}: a puzzle gets one answer; choose one of them (evaluate.py "
                    "compares several)"
                )
        return self
