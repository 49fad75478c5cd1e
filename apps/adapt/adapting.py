"""Adapt a model to tasks, one after the other; `scripts/adapt.py` explains the settings.

A task becomes a data set and a run of its own, in a folder beside the submission: built, trained
and evaluated by the code of the usual commands. So a killed adaptation goes on where it stood.
"""

import errno
import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from statistics import fmean
from string import ascii_lowercase, digits
from typing import Any, Literal, NamedTuple

import numpy as np

from apps.reports.boards import Board
from apps.reports.terminal import as_text
from dataset import build_arc_dataset as builder
from dataset.arc.tasks import Source, Task, content_readers, encode_canvas, parse_task
from dataset.dihedral import NUM_VIEWS
from dataset.format.files import read_json, read_json_object
from dataset.format.reading import load_metadata
from dataset.kinds.arc import ARC
from dataset.kinds.base import Puzzle
from evaluation.config import EvalConfig
from evaluation.evaluators.arc import attempts_of
from evaluation.job import Job, prepare, require_writable
from runtime.errors import (
    REFUSALS,
    ConfigError,
    DatasetError,
    LockedError,
    Preempted,
    disk_errors,
    exit_code,
)
from runtime.files import write_atomically
from runtime.process import env_world_size
from runtime.schema import Count, CountOrZero, Duration, Schema, seconds_of
from runtime.text import colours, duration, many, shown
from training.checkpoint.trained_model import TrainedModel, find_trained_model
from training.config.composition import load_config
from training.config.entry_point import say
from training.config.explain import validate
from training.config.overrides import parse_arguments, parse_overrides
from training.config.schema import TrainConfig
from training.tracking import warn

# Before the user's settings: for all runs, and for those from a checkpoint and from scratch.
_RUNS = (
    *("data_path=tasks", "eval_interval=null", "checkpoint_interval=100", "compile=false"),
    *("diagnose_interval=null", "logger=jsonl"),
)
_FROM_CHECKPOINT = ("global_batch_size=32", "lr_warmup_steps=10")
_FROM_SCRATCH = (
    *("arch=grid", "arch.H_cycles=1", "global_batch_size=32", "lr=1e-3", "lr_warmup_steps=20"),
    *("ema=true", "ema_rate=0.99"),
)
_OWN_FROM_SCRATCH = {"steps": 1000, "models": 2}
# The share of the time left for a model that learns "alone" or "run" first; see `Adapter._train`.
_SHARES = {"alone": 0.4, "run": 0.6}
_CELLS, _CELLS_OF_FITTING = 100_000, 2500
# On a fitted canvas: how often in a row all demonstrations must be right.
_ROUNDS = 10
_MODEL_NAME = re.compile("(alone|run)[0-9]*")
_FEWEST_ROWS = 4
_LONGEST_NAME = 200
_NO_MEMORY = re.compile("out of memory|allocate memory")
_NOT_WRITABLE = (errno.ENOSPC, errno.EDQUOT, *REFUSALS)
_FROZEN = {"rows": True, "heads": "trunk", "all": False}
# Settings of pretrain.py that an adaptation sets itself; the second ones if it has a checkpoint.
_SET = "max_time max_steps epochs limit_train_batches eval_split evaluators load_puzzle_rows"
_SET += " data_path data_paths checkpoint_path run_name load_checkpoint"
_SET_BY_CHECKPOINT = "arch heads loss techniques freeze_weights"


class AdaptSettings(Schema):
    """The settings under `adapt.`; `steps` may be a file that an earlier adaptation wrote."""

    what: Literal["rows", "heads", "all"] = "all"
    rows: Literal["mean", "zero", "nearest"] = "mean"
    steps: Count | str = 300
    max_time: Duration | None = None
    num_aug: CountOrZero = 200
    together: Count = 1
    cells: Count | None = None
    models: Count = 1


class OwnSettings(Schema):
    """The settings beside those of the training runs."""

    checkpoint: str | None = None
    tasks: str
    output: str = "submission.json"
    adapt: AdaptSettings = AdaptSettings()


OWN_KEYS = {name for name in OwnSettings.model_fields if name != "adapt"}
OWN_KEYS |= {f"adapt.{name}" for name in AdaptSettings.model_fields}


class Part(NamedTuple):
    """Tasks that are adapted to together, and the folder of their data and run."""

    tasks: list[Task]
    folder: Path

    @property
    def name(self) -> str:
        return self.tasks[0].name + (f" and {len(self.tasks) - 1} more" * (len(self.tasks) > 1))

    @property
    def done(self) -> Path:
        """The file with its result."""
        return self.folder / "done.json"

    def require_same(self) -> None:
        """Record the tasks in the folder, or raise ConfigError if others are there."""
        changed = f"{self.folder}: {self.name} has changed since; choose another output=, or delete"
        tasks = [task.to_json() for task in self.tasks]
        record(self.folder / "tasks.json", tasks, f"{changed} this folder")


def main(
    train: Callable[[TrainConfig], object], measure: Callable[[Job], object], arguments: list[str]
) -> None:
    """Adapt to each task, and write the submission after each. A task that fails gets empty
    answers; if all fail, raise the last error.

    Args:
        train, measure: the runs of pretrain.py and evaluate.py.
    """
    if env_world_size() > 1:
        raise ConfigError("an adaptation is a single process: start it without torchrun")
    config, settings, trained = _settings_of(arguments)
    output, answers = Path(settings.output), dict[str, Any]()
    if output.resolve().is_relative_to(Path(settings.tasks).resolve()):
        inside = "it is inside this folder, whose files are all read as tasks; choose another place"
        raise ConfigError(f"output={output}: with tasks={settings.tasks} {inside}")
    tasks = read_tasks(Path(settings.tasks), answers)
    answers |= {task.name: [attempts_of([])] * len(task.test) for task in tasks}
    require_writable(output)
    parts = list(parts_of(tasks, output, settings.adapt.together))
    limits = limits_of(parts, names_of(config, settings), settings.adapt.steps)
    require_same(output, config, settings)
    for part in parts:
        part.require_same()
        if part.done.exists():
            answers |= read_json_object(part.done)["answers"]
    with disk_errors(output.parent, ConfigError):
        write_atomically(output, json.dumps(answers) + "\n")
    _adapt_to_all(parts, limits, Adapter(config, settings, trained, train, measure), answers)
    say(f"written: {output}")


def _settings_of(arguments: list[str]) -> tuple[TrainConfig, OwnSettings, TrainedModel | None]:
    """Return the settings of all training runs, the own ones, and the trained model, if any."""
    given = parse_overrides(parse_arguments(arguments).overrides)
    settings = validate(OwnSettings, _own(given))
    others = [line for line in arguments if not _is_own(line.partition("=")[0].lstrip("+"))]
    trained, usual = None, _FROM_SCRATCH
    if settings.checkpoint is not None:
        trained = find_trained_model(Path(settings.checkpoint), warn)
        usual = (*_FROM_CHECKPOINT, f"lr={trained.run.lr}")
    require_used([one.key_or_group for one in given], from_checkpoint=trained is not None)
    config = load_config(TrainConfig, "cfg_pretrain", [*_RUNS, *usual, *others])
    if trained is not None:
        config = _as_trained(config, trained, settings)
    return config, settings, trained


def _adapt_to_all(
    parts: Sequence[Part], limits: "dict[str, Limit]", adapter: "Adapter", answers: dict[str, Any]
) -> None:
    """Adapt to each part; add its answers to `answers` and write them. The time that is left is
    shared by the parts that are left.
    """
    settings = adapter.settings
    output, limit = Path(settings.output), settings.adapt.max_time
    began, told, failed = time.monotonic(), dict[str, Any](), 0
    for number, part in enumerate(parts):
        budget = None
        if limit:
            left = seconds_of(limit) - (time.monotonic() - began)
            budget = left / (len(parts) - number)
        try:
            result = adapter.adapt(part, limits[part.name], budget)
        except OSError as error:
            if error.errno not in _NOT_WRITABLE:
                raise
            raise ConfigError(f"{output.parent}: {error.strerror}") from None
        except Exception as error:
            failed += 1
            if not is_of_part(error) or failed == len(parts):
                raise
            warn(f"{part.name}: {error}; its answers are empty")
            result = unanswered("it failed")
        answers |= result.pop("answers")
        told[part.name] = result
        with disk_errors(output.parent, ConfigError):
            write_atomically(output, json.dumps(answers) + "\n")
            write_atomically(_beside(output, "_steps.json"), json.dumps(told, indent=1) + "\n")
        say(f"{number + 1}/{len(parts)} {part.name}: {_described(result)}")
        if len(parts) == len(part.tasks) == 1 and result["steps"]:
            say("\n\n".join(boards(part.tasks[0], answers[part.name])))
    if failed:
        warn(f"{failed} of {len(parts)} failed; the same command tries them again")


def is_of_part(error: Exception) -> bool:
    """Return whether other parts may succeed: it is meant for users, or there was no memory."""
    if isinstance(error, LockedError):
        return False
    no_memory = isinstance(error, MemoryError) or _NO_MEMORY.search(str(error))
    return bool(no_memory) or exit_code(error) is not None


def unanswered(ending: str) -> dict[str, Any]:
    """Return the result of a part that was not learned."""
    return {"steps": {}, "most": 0, "ending": ending, "seconds": 0.0, "votes": {}, "answers": {}}


def _is_own(key: str) -> bool:
    return key in OwnSettings.model_fields or key.startswith("adapt.")


def _own(overrides: Sequence[Any]) -> dict[str, Any]:
    """Return the own settings of a command line, nested."""
    own: dict[str, Any] = {"adapt": {}}
    for one in overrides:
        section, _, name = one.key_or_group.partition(".")
        if section == "adapt":
            own["adapt"][name] = one.value()
        elif section in OwnSettings.model_fields:
            own[section] = one.value()
    if own.get("checkpoint") is None:
        own["adapt"] = _OWN_FROM_SCRATCH | own["adapt"]
    return own


def _as_trained(config: TrainConfig, trained: TrainedModel, settings: OwnSettings) -> TrainConfig:
    """Return the settings of a run that goes on from a trained model."""
    arch, what = trained.run.arch, settings.adapt.what
    if not arch.puzzle_emb_ndim and what != "all":
        raise ConfigError(f"adapt.what={what}: {trained.weights} has no puzzle embedding; use all")
    start = {"load_checkpoint": settings.checkpoint, "freeze_weights": _FROZEN[what]}
    return config.model_copy(update={"arch": arch, **start})


def require_used(keys: Iterable[str], *, from_checkpoint: bool) -> None:
    """Raise ConfigError for a setting that an adaptation replaces or does not use."""
    for key in keys:
        if key in _SET.split():
            raise ConfigError(f"{key}: an adaptation sets it; see adapt.max_time and adapt.steps")
        if not from_checkpoint and key in ("adapt.what", "adapt.rows"):
            raise ConfigError(f"{key} needs checkpoint=: without one all weights are trained")
        if from_checkpoint and key.partition(".")[0] in _SET_BY_CHECKPOINT.split():
            raise ConfigError(f"{key}: the checkpoint decides it; leave one of them out")


def read_tasks(path: Path, answers: dict[str, Any]) -> list[Task]:
    """Read a folder of tasks, a file with one, or Kaggle's challenges, without test outputs. A
    malformed task is named and left out; `answers` then gets empty ones for it.
    """
    tasks = []
    for name, (file, read) in content_readers(path).items():
        content = None
        try:
            content = read()
            if Path(name).name != name or name == ".." or len(name.encode()) > _LONGEST_NAME:
                raise DatasetError(f"{file}: {shown(name)} cannot be the name of a folder")
            task = parse_task(name, content, str(file), is_evaluation=True, outputs_may_lack=True)
            tasks.append(task.asked)
        except DatasetError as error:
            warn(f"{error}; this task is left out")
            tests = content.get("test") if isinstance(content, dict) else None
            number = len(tests) if isinstance(tests, list) and tests else 1
            answers[name] = [attempts_of([])] * number
    if not tasks:
        raise DatasetError(f"{path}: no task to adapt to")
    return tasks


def parts_of(tasks: Sequence[Task], output: Path, together: int) -> Iterator[Part]:
    """Yield the tasks in parts of `together`."""
    for first in range(0, len(tasks), together):
        some = list(tasks[first : first + together])
        yield Part(some, _beside(output, "_runs") / some[0].name)


def _beside(output: Path, ending: str) -> Path:
    return output.with_name(output.stem + ending)


def names_of(config: TrainConfig, settings: OwnSettings) -> list[str]:
    """Return the names of the models that learn a part; see `Adapter._train`."""
    kinds, adapt = ["run"], settings.adapt
    learns_alone = settings.checkpoint is None or (adapt.models > 1 and adapt.what != "rows")
    if learns_alone and adapt.together == 1 and config.arch.puzzle_emb_ndim:
        kinds.insert(0, "alone")
    return [
        kinds[number % len(kinds)] + str(number // len(kinds) or "")
        for number in range(settings.adapt.models)
    ]


class Limit(NamedTuple):
    """The last step of each model of a part, and the length of their schedules. Without steps, and
    with a length of 0, the part gets empty answers.
    """

    steps: dict[str, int]
    most: int


class Trained(NamedTuple):
    """A model that has learned a part: its last step, whether it ended before all demonstrations
    were right, and because of its time, how many seconds it took, and the votes for its answers.
    """

    step: int
    is_over: bool
    is_late: bool
    seconds: float
    details: dict[str, Any]


def limits_of(parts: Sequence[Part], names: Iterable[str], steps: int | str) -> dict[str, Limit]:
    """Return the limit of each part: a number for all, or from a file that an earlier adaptation
    wrote.
    """
    if isinstance(steps, int):
        return {part.name: Limit(dict.fromkeys(names, steps), steps) for part in parts}
    reached = read_json_object(Path(steps))
    try:
        own = {part.name: reached[part.name] for part in parts}
        limits = {
            name: Limit(
                {model: int(step) for model, step in one["steps"].items()}, int(one["most"])
            )
            for name, one in own.items()
        }
        for name, limit in limits.items():
            known = all(map(_MODEL_NAME.fullmatch, limit.steps))
            if not known or bool(limit.steps) != bool(limit.most):
                raise ValueError(name)
        return limits
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"adapt.steps={steps}: it does not tell the steps of {error}") from None


def require_same(output: Path, config: TrainConfig, settings: OwnSettings) -> None:
    """Record the settings beside the submission, or raise ConfigError if others are there."""
    present = settings.model_dump(mode="json", exclude={"adapt": {"max_time"}})
    present["run"] = config.model_dump(mode="json", exclude={"device", "num_threads"})
    file = _beside(output, "_settings.json")
    record(file, present, f"{file}: this adaptation had other settings; choose another output=")


def record(file: Path, present: Any, problem: str) -> None:
    """Write a JSON file; raise ConfigError with `problem` if it is there with other content."""
    if file.exists() and read_json(file) != present:
        raise ConfigError(problem)
    with disk_errors(file.parent, ConfigError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(present, indent=1) + "\n")


@dataclass(frozen=True)
class Adapter:
    """Adapts to parts, from a trained model or from scratch, by the runs of pretrain.py (`train`)
    and evaluate.py (`measure`).
    """

    config: TrainConfig
    settings: OwnSettings
    trained: TrainedModel | None
    train: Callable[[TrainConfig], object]
    measure: Callable[[Job], object]
    answering: list[float] = field(default_factory=list)
    """The seconds that the answers of each model took."""

    @property
    def _fits_canvas(self) -> bool:
        """Whether a task gets its own canvas; a model that knows 30 x 30 cells stays on them."""
        arch = self.config.arch
        return self.trained is None or (arch.any_canvas and arch.has_digits)

    def adapt(self, part: Part, limit: Limit, budget: float | None) -> dict[str, Any]:
        """Train on the demonstrations of a part and answer its test inputs, in about `budget`
        seconds. Return what was done; a part that is done is only read.
        """
        data = part.folder / "data"
        if part.done.exists():
            return read_json_object(part.done)
        if not limit.steps:
            return unanswered("no steps, as before")
        if budget is not None and budget <= 0:
            return unanswered("no time was left")
        options = ["--output-dir", str(data), "--dataset-dirs", self.settings.tasks]
        options += ["--num-aug", str(self.settings.adapt.num_aug), "--seed", str(self.config.seed)]
        if self._fits_canvas:
            options.append("--fit")
        began = time.monotonic()
        with (
            open(part.folder / "log.txt", "a") as words,
            redirect_stdout(words),
            redirect_stderr(words),
        ):
            builder.build(builder.parse_options(options), Source(part.tasks, {}))
            models = self._train(part, limit, None if budget is None else began + budget)
        last = list(models.values())[-1]
        votes = {
            name: list(map(joined, *(model.details[name] for model in models.values())))
            for name in last.details
        }
        ending = "all steps" if last.is_over else "all demonstrations right"
        result = {
            "steps": {name: model.step for name, model in models.items()},
            "most": limit.most,
            "ending": "its time was over" if last.is_late else ending,
            "seconds": round(time.monotonic() - began, 1),
            "votes": {name: list(map(summary_of, pairs)) for name, pairs in votes.items()},
            "answers": {
                name: [attempts_of([grid["grid"] for grid in one["grids"]]) for one in pairs]
                for name, pairs in votes.items()
            },
        }
        write_atomically(part.done, json.dumps(result) + "\n")
        return result

    def _train(self, part: Part, limit: Limit, ending: float | None) -> dict[str, Trained]:
        """Return the models that learn a part one after the other; their answers vote together.

        For a single task there are two kinds. An "alone" keeps the rows of the puzzle embedding at
        their start: a model that cannot tell the views apart cannot learn them by heart, and
        answers more test inputs. A "run" learns rows as well: tasks with directions or fixed
        colours need them. They take turns, with other seeds. A model after the first begins only if
        the time left until `ending` is at least what the last one of its kind took.
        """
        models, took = dict[str, Trained](), dict[str, float]()
        for name, steps in limit.steps.items():
            kind = name.rstrip(digits)
            left = None
            if ending is not None:
                left, spare = ending - time.monotonic(), fmean(self.answering or [0.0])
                if models and left < took.get(kind, spare):
                    continue
                left -= spare
            follows = "alone" in limit.steps and name != list(limit.steps)[-1]
            if left is not None and follows and math.inf not in took.values():
                left *= _SHARES[kind]
            models[name] = model = self._learned(part, name, steps, limit.most, left)
            took[kind] = math.inf if model.is_late else model.seconds
        return models

    def _learned(
        self, part: Part, name: str, steps: int, most: int, budget: float | None
    ) -> Trained:
        """Return the model `name` of a part, trained by `_run` unless it is there."""
        done, began = part.folder / f"{name}.json", time.monotonic()
        if not done.exists():
            kind, seed = name.rstrip(digits), name.lstrip(ascii_lowercase)
            own: dict[str, Any] = {"seed": self.config.seed + int(seed or 0)}
            if kind == "alone":
                own["puzzle_emb_lr"] = 0.0
            config = self.config.model_copy(update=own)
            is_late = self._run(part, part.folder / name, config, steps, most, budget)
            trained = time.monotonic()
            step, details = self._answer(part, part.folder / name)
            self.answering.append(time.monotonic() - trained)
            seconds = time.monotonic() - began
            model = Trained(step, is_late or step == steps, is_late, seconds, details)
            write_atomically(done, json.dumps(model._asdict()))
        return Trained(**read_json_object(done))

    def _run(
        self,
        part: Part,
        folder: Path,
        config: TrainConfig,
        steps: int,
        most: int,
        budget: float | None,
    ) -> bool:
        """Train on a part, or go on with it, up to step `steps` of a schedule of `most` and for at
        most `budget` seconds. Return whether these are over.
        """
        facts = load_metadata(part.folder / "data/train")
        rows_per_epoch = facts.mean_puzzle_examples * facts.total_groups
        examples = round(facts.mean_puzzle_examples * (facts.total_puzzles or 0))
        batch_size = self._batch_size(facts.seq_len)
        # A batch may leave out a puzzle's last rows. The first number is kept for older runs.
        demonstrations = [len(task.train) for task in part.tasks]
        drawn = most * (batch_size + max(demonstrations) - 1)
        epochs = max(2 * most * batch_size / rows_per_epoch, drawn / sum(demonstrations))
        own: dict[str, Any] = {
            "global_batch_size": batch_size,
            "data_path": str(part.folder / "data"),
            "checkpoint_path": str(folder),
            "epochs": math.ceil(epochs),
            "limit_train_batches": most,
            "eval_split": None,
            "evaluators": [],
            "max_steps": steps,
            "load_puzzle_rows": self._start_rows(part),
            "max_time": None if budget is None else f"{max(budget, 1):.0f}s",
        }
        kept = config.model_dump()
        if self._fits_canvas:
            examples *= _ROUNDS
        own["callbacks"] = [*kept["callbacks"], {"name": "all_right", "examples": examples}]
        try:
            self.train(validate(TrainConfig, kept | own))
        except Preempted as ending:
            if not str(ending).startswith("max_time="):  # A signal.
                raise
            return True
        return False

    def _batch_size(self, seq_len: int) -> int:
        """Return the rows of a batch: fewer on a large canvas, and as many in each shard and
        micro-batch.
        """
        config, cells, fewest = self.config, self.settings.adapt.cells, 1
        if cells is None:
            cells = _CELLS_OF_FITTING if self._fits_canvas else _CELLS
            fewest = _FEWEST_ROWS
        shards = config.num_shards(1)
        of_shard = max(1, max(fewest, cells // seq_len) // shards)
        if config.micro_batch_size and config.micro_batch_size < of_shard:
            of_shard -= of_shard % config.micro_batch_size
        return min(config.global_batch_size, shards * of_shard)

    def _start_rows(self, part: Part) -> str | int | None:
        """Return what the part's rows of the puzzle embedding start at."""
        if self.trained is None or not self.config.arch.puzzle_emb_ndim:
            return None
        if self.settings.adapt.rows != "nearest":
            return self.settings.adapt.rows
        file = part.folder / "nearest.json"
        if not file.exists():
            from apps.adapt.nearest import nearest_row

            row = nearest_row(self.trained, part.folder / "data", self.config.device)
            write_atomically(file, json.dumps(row))
        return read_json(file)

    def _answer(self, part: Part, run: Path) -> tuple[int, dict[str, Any]]:
        """Answer the test inputs of a part. Return the model's step, and the votes."""
        folder = part.folder / "answers"
        asked = {
            "checkpoint": str(run),
            "data_path": str(part.folder / "data"),
            "evaluators": ["arc"],
            "output": str(folder / "eval.json"),
            "device": self.config.device,
            "num_threads": self.config.num_threads,
            "compile": False,
        }
        job = prepare(validate(EvalConfig, asked))
        self.measure(job)
        files = read_json_object(job.output)["evaluators"]["arc"]["files"]
        (votes,) = (path for path in map(Path, files) if path.name.startswith("arc_tasks"))
        return job.trained.step or 0, read_json_object(votes)


def joined(*details: Mapping[str, Any]) -> dict[str, Any]:
    """Add up the votes for a test input, in the form of `evaluators.arc.task_details`; a grid's
    `mean_q` is the larger of its means.
    """
    grids = dict[str, dict[str, Any]]()
    for one in chain.from_iterable(each["grids"] for each in details):
        known = grids.setdefault(json.dumps(one["grid"]), {"votes": 0, "views": [0] * NUM_VIEWS})
        known |= {"grid": one["grid"], "votes": known["votes"] + one["votes"]}
        known["views"] = [a + b for a, b in zip(known["views"], one["views"], strict=True)]
        known["mean_q"] = max(known.get("mean_q", 0.0), one["mean_q"])
    best = sorted(grids.values(), key=lambda one: (-one["votes"], -one["mean_q"]))
    return {"votes": sum(each["votes"] for each in details), "grids": best}


def summary_of(one: Mapping[str, Any]) -> dict[str, Any]:
    """Return the number of votes, and those for the two guesses: together and of each view."""
    return {
        "of": one["votes"],
        "first": [grid["votes"] for grid in one["grids"][:2]],
        "views": [grid["views"] for grid in one["grids"][:2]],
    }


def boards(task: Task, answers: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield each test input beside each guess, as text."""
    for (question, _), guesses in zip(task.test, answers, strict=True):
        puzzle = Puzzle(ARC, ARC.to_grid(encode_canvas(question)), None, 0, task.name)
        for attempt, guess in guesses.items():
            answer = ARC.to_grid(encode_canvas(np.array(guess, np.uint8)))
            text = as_text(Board(puzzle, answer), colour=colours(sys.stdout))
            yield f"{attempt.replace('_', ' ')}\n{text}"


def _described(result: Mapping[str, Any]) -> str:
    if not result["steps"]:
        return f"{result['ending']}; its answers are empty"
    shares = [
        f"{one['first'][0] / one['of']:.0%}" if one["of"] else "none"
        for pairs in result["votes"].values()
        for one in pairs
    ]
    spent = f"{many(sum(result['steps'].values()), 'step')}, {duration(result['seconds'])}"
    return f"{spent}, {result['ending']}; first guess has {', '.join(shares)} of the votes"
