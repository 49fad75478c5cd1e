"""The settings of `evaluate.py` and `scripts/solve.py`. Imports no torch."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic.fields import FieldInfo

from dataset.kinds import AnyEvaluator
from evaluation.probes import AnyProbe
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
    former_name,
)

Halting = Literal["steps", "q"]


def _require_checkpoint(path: object) -> object:
    if path is None or path == "":
        raise ValueError(
            "set it to a run's folder, a checkpoint in it, a published step_N file, or zoo:NAME"
        )
    return path


CheckpointPath = Annotated[str, BeforeValidator(_require_checkpoint)]


class KernelOverrides(Schema):
    """Settings of a model that can be changed after training, because they have no weights."""

    attention: AttentionBackend | None = None
    """attention kernel; null: the run's"""
    forward_dtype: ForwardDtype | None = None
    """number format of matrix products; null: the run's"""


class ArchOverrides(KernelOverrides):
    """The settings of a model that an evaluation can change: also the number of steps and their
    cycles, and the `overrides` of each architecture.
    """

    halt_max_steps: Count | None = None
    """ACT steps for every puzzle; null: the run's"""
    H_cycles: Size | None = None
    """cycles in an ACT step; null: the run's"""

    @classmethod
    def further_fields(cls) -> dict[str, FieldInfo]:
        parts = (ARCHITECTURES[name].schema for name in ARCHITECTURES)
        overrides = [part.overrides for part in parts if issubclass(part, RecurrenceConfig)]
        return {name: field for own in overrides for name, field in own.items()}

    @model_validator(mode="before")
    @classmethod
    def _null_overrides_nothing(cls, given: object) -> object:
        # The YAML file lists the overrides of all architectures, even if an app is not installed.
        if not isinstance(given, Mapping):
            return given
        return {name: value for name, value in given.items() if value is not None}


rebuild_schemas([ArchOverrides])


def _as_list(value: object) -> object:
    return value if isinstance(value, list | tuple) else [value]


Choice = Literal["q", "residual", "majority", "first_halt", "energy"]
Counts = Annotated[list[Count], BeforeValidator(_as_list), Field(min_length=1)]
Rows = Annotated[list[CountOrZero], BeforeValidator(_as_list), Field(min_length=1)]


class ThinkingSettings(Schema):
    """Thinking longer: more ACT steps, and several chains for each puzzle."""

    steps: Annotated[Counts | None, former_name("depth", "steps")] = None
    """ACT steps before the answer is read: 64, or in evaluate.py several, [16,64,256]; null: as in
    training"""
    chains: Annotated[Counts, former_name("breadth", "chains")] = [1]
    """chains for each puzzle: 8, or in evaluate.py several numbers, [1,8]"""
    perturb: Literal["symmetry", "init", "noise"] = "symmetry"
    """how chains differ: by views of the puzzle, by random starts (the model needs
    techniques=[random_starts]), or by noise in the latents after each step"""
    noise: PositiveFloat = 0.3
    """standard deviation of the noise of perturb=noise; the latents have 1"""
    select: Annotated[list[Choice], BeforeValidator(_as_list), Field(min_length=1)] = ["q"]
    """which chain answers: q: the surest; residual: the one with the smallest change in its last
    step; majority: one with the most common answer; first_halt: the first to halt; energy: the one
    whose states are most like those of right answers, which evaluate.py learns first"""
    seed: Seed = 0
    """seed of views, starts and noise"""

    def require_chains(self) -> None:
        """Raise ValueError if `perturb` or `noise` is set, but changes no chain."""
        usual = {name: field.default for name, field in ThinkingSettings.model_fields.items()}
        if self.noise != usual["noise"] and self.perturb != "noise":
            raise ValueError("noise has no effect without perturb=noise")
        if self.perturb != usual["perturb"] and max(self.chains) == 1:
            raise ValueError("perturb has no effect on a single chain; set chains=N")
        if "energy" in self.select and max(self.chains) == 1:
            raise ValueError("select=energy chooses one of several chains; set chains=N")

    def require_model(self, arch: RecurrenceConfig, *, halts: bool, name: object) -> None:
        """Raise ConfigError if all chains of a model would start alike, or if it has no head to
        choose one of them.

        Args:
            halts: whether a head says when a puzzle is done.
            name: of the model, for the message.
        """
        if self.perturb == "init" and not arch.techniques.acting("start"):
            alike = "all chains of this model start alike (it has no random starts)"
            raise ConfigError(f"perturb=init: {alike}; use perturb=symmetry or noise")
        if self.perturb == "noise" and max(self.chains) > 1 and (why := arch.takes_no_noise):
            raise ConfigError(f"perturb=noise: {why}")
        several = max(self.chains) > 1
        by_q = [one for one in self.select if one == "first_halt" or (one == "q" and several)]
        if by_q and not halts:
            raise ConfigError(
                f"select={by_q[0]}: no head of {name} says when a puzzle is done; use "
                "select=residual or majority"
            )


class SearchSettings(Schema):
    """A search with a model that deduces and guesses: docs/search.md."""

    chains: Count = 16
    """chains for each puzzle; the first one to decide all cells answers"""
    rounds: Count = 1000
    """steps of each chain before a puzzle is given up"""
    backtrack: StrictBool = True
    """true: at a contradiction a chain takes its last guess back; false: it starts again, as
    published"""
    caution: Annotated[float, Field(strict=True, gt=0.0, le=1.0)] = 0.5
    """factor on arch.strike_below each time a chain starts again; of every four chains one begins
    without it, the others with its first to third power; 1: no change, as published"""
    checks: CountOrZero = 0
    """times that an answer is put to the model again, with other cells hidden, before it counts"""


class EnergySettings(Schema):
    """What the energy of select=energy is learned from."""

    puzzles: Count = 256
    """puzzles whose answers the chains are compared with"""
    data_path: str | None = None
    """their data set; null: the one that the model was trained on"""
    split: Literal["train", "selection"] = "train"
    """their part of the data set"""


class EvalSearchSettings(SearchSettings):
    chains: CountOrZero = 0
    """chains for each puzzle; the first one to decide all cells answers; 0: no search"""
    at_once: Count = 8
    """puzzles that a rank searches at a time, each with all its chains"""
    control: CountOrZero = 50
    """puzzles that are also searched with untrained weights, for comparison; 0: none"""


_UNREAD_BY_PROBES = ("halting", "save_outputs", "evaluators", "save_records", "chains", "search")
_UNREAD_BY_PROBES += ("select", "perturb", "noise", "energy", "compile")


class EvalConfig(ThinkingSettings, MachineSettings):
    """The settings of an evaluation."""

    checkpoint: CheckpointPath
    """a run's folder (newest good checkpoint), a checkpoint in it, a published step_N file, or
    zoo:NAME"""
    data_path: str | None = None
    """the folder to evaluate on; null: the run's"""
    data_paths: list[str] | None = None
    """several folders instead: [a,b]"""
    split: Literal["test", "train", "selection"] = "test"
    """the part of the data set to evaluate on"""
    global_batch_size: Size | None = None
    """puzzles at a time, over all ranks; null: the run's, on CUDA more if memory allows"""
    halting: Halting = "steps"
    """steps: every puzzle takes all ACT steps; q: it stops when the model says so, and the next one
    takes its place"""
    max_examples: Count | None = None
    """evaluate only the first N rows of each set; null: all rows"""
    weights: Literal["averaged", "last"] = "averaged"
    """averaged: the moving average of the weights, if the run kept one"""
    evaluators: list[AnyEvaluator] | None = None
    """further things to measure; null: as in the run; []: none"""
    probes: list[AnyProbe] = []
    """measure what happens between question and answer instead: docs/inside.md"""
    save_outputs: list[OutputField] = []
    """fields to write to OUTPUT_outputs/SET__FIELD.npy"""
    save_records: StrictBool = False
    """true: write a line for each puzzle to OUTPUT_records.csv, and wrong answers and further
    figures to OUTPUT_records.json"""
    energy: EnergySettings = EnergySettings()
    """only with select=energy"""
    search: EvalSearchSettings = EvalSearchSettings()
    """only for a model that deduces (arch=lattice)"""
    arch_overrides: ArchOverrides = ArchOverrides()
    """settings of the model that can be changed after training"""
    output: str | None = None
    """the JSON file to write; null: eval_step_N.json in the run's folder, with the changed settings
    in its name"""

    @model_validator(mode="after")
    def _one_way_to_think(self) -> "EvalConfig":
        searched, longer = self.search.chains > 0, self.thinks_longer
        if searched and longer:
            raise ValueError("search.chains excludes steps and chains; choose one way")
        asked = "search.chains" if searched else "steps or chains"
        if (searched or longer) and self.arch_overrides.halt_max_steps is not None:
            instead = "search.rounds" if searched else "steps"
            raise ValueError(
                f"arch_overrides.halt_max_steps has no effect with {asked}; use {instead}=N"
            )
        if self.probes and len(self.steps or []) > 1:
            raise ValueError(f"steps={self.steps}: probes follow the model for one number of steps")
        names = [probe.name for probe in self.probes]
        if len(set(names)) < len(names):
            raise ValueError(f"probes={names}: name each probe once")
        with_neither = "without steps or chains; set one of them"
        unread = [
            (searched or longer, ("halting", "save_outputs", "evaluators"), f"with {asked}"),
            (searched, ("global_batch_size",), f"with {asked}"),
            (longer, ("save_records",), f"with {asked}"),
            (bool(self.probes), _UNREAD_BY_PROBES, "with probes"),
            (not searched, ("search",), "without search.chains; set it"),
            (not longer, ("select", "perturb", "noise"), with_neither),
            ("energy" not in self.select, ("energy",), "without select=energy"),
        ]
        for name, where in [(n, where) for is_so, ns, where in unread if is_so for n in ns]:
            if (value := getattr(self, name)) and value != type(self).model_fields[name].default:
                raise ValueError(f"{name} has no effect {where}")
        self.require_chains()
        return self

    @property
    def thinks_longer(self) -> bool:
        """Whether steps or chains are set; their results have a table of their own."""
        return self.steps is not None or self.chains != [1]

    @property
    def data_folders(self) -> list[str]:
        """The folders that are set, `data_paths` before `data_path`; empty: use the run's."""
        return self.data_paths or ([self.data_path] if self.data_path else [])


class SolveConfig(ThinkingSettings, PluginSettings):
    """The settings of `scripts/solve.py`: a model and one source of puzzles."""

    checkpoint: str | None = None
    """a run's folder (newest good checkpoint), a checkpoint in it, a published step_N file, or
    zoo:NAME; null: the zoo's model for these puzzles"""
    puzzle: str | None = None
    """the cells row by row; an empty cell of a Sudoku is one of . 0 - _ *; a maze has '#', ' ' or
    '.', S and G"""
    file: str | None = None
    """a text file with Sudokus (one a line, or in rows) or mazes (in rows), an empty line between
    two; or a builder's CSV; or an ARC task (.json); '-': standard input"""
    adapt: StrictBool = False
    """true: adapt the model to the ARC task in `file` first, or train a new one without
    `checkpoint`"""
    count: Count | None = None
    """solve the first N puzzles of a data set"""
    index: Rows | None = None
    """solve these puzzles of a data set, 198 or [3,198]: rows, from 0, as `index` in an
    evaluation's records"""
    data_path: str | None = None
    """the data set for count, index or an ARC task; null: the run's"""
    split: Literal["test", "train", "selection"] = "test"
    """the part of the data set to take puzzles from"""
    set: str | None = None
    """the set to take puzzles from, by name; null: all, one after the other; index needs it if
    there are several"""
    search: SearchSettings = SearchSettings()
    """only for a model that deduces (arch=lattice)"""
    animate: str | None = None
    """show the steps in this .gif file; several puzzles go to FILE-1, FILE-2, ..."""
    arch_overrides: KernelOverrides = KernelOverrides()
    """settings of the model that can be changed after training"""
    device: Device = "auto"
    """auto: CUDA if there is a GPU, else the CPU"""
    num_threads: Count | None = None
    """CPU threads; null: torch's choice"""

    @property
    def is_task(self) -> bool:
        """Whether the puzzles come from the file of an ARC task."""
        return self.file is not None and self.file.endswith(".json")

    @property
    def overrides(self) -> ArchOverrides:
        """The settings of the model that are changed, with the number of ACT steps."""
        steps = self.steps[0] if self.steps else None
        return ArchOverrides(**self.arch_overrides.model_dump(), halt_max_steps=steps)

    @model_validator(mode="after")
    def _one_source_and_answer(self) -> "SolveConfig":
        given = [
            name for name in ("puzzle", "file", "count", "index") if getattr(self, name) is not None
        ]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are both set; choose one source of puzzles")
        of_data_set = self.count is not None or self.index is not None
        ways = "count=N (its first puzzles) or index=N (puzzle N)"
        # The data set of an ARC task names the tasks that the model knows.
        if self.data_path is not None and not (of_data_set or self.is_task):
            raise ValueError(f"data_path needs {ways} or file=TASK.json")
        if self.set is not None and not of_data_set:
            raise ValueError(f"set needs {ways}")
        for name in ("steps", "chains", "select"):
            if len(values := getattr(self, name) or [1]) > 1:
                raise ValueError(
                    f"{name}={values}: a puzzle gets one answer; choose one of them (evaluate.py "
                    "compares several)"
                )
        if "energy" in self.select:
            raise ValueError("select=energy: only evaluate.py learns an energy; choose another")
        self.require_chains()
        return self
