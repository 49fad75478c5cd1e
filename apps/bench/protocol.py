"""Take a score by the rules of docs/protocol.md; `scripts/protocol.py` explains the settings."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from omegaconf import OmegaConf

from apps.sweeps.jobs import Job, expand, swept
from apps.sweeps.programs import EVALUATION, TRAINING, Plan, Program, plan_of
from apps.sweeps.run import run_sweep
from apps.sweeps.table import mean_and_std
from dataset.format.files import is_folder
from dataset.format.reading import load_metadata
from evaluation.config import EvalConfig
from evaluation.headline import headline_of
from runtime.errors import CheckpointError, ConfigError, DatasetError, disk_errors
from runtime.files import write_atomically
from runtime.process import leave
from runtime.schema import MachineSettings, Schema
from runtime.text import many
from training.checkpoint.lock import run_lock
from training.checkpoint.store import checkpoint_path, list_steps, load_checkpoint
from training.config.composition import load_configs
from training.config.entry_point import say
from training.config.explain import validate
from training.config.overrides import is_of_hydra, parse_arguments, parse_overrides, quoted_value
from training.config.schema import NEUTRAL_KEYS, TrainConfig, flatten, in_present_terms
from training.data import require_folders

SCORE = "exact_accuracy"
# The scores of a row, by title. The first line with only measured figures counts.
SCORES = (
    {"pass@1": "arc/pass@1", "pass@2": "arc/pass@2"},
    {"valid": "rules/valid"},
    {"exact": SCORE, "any shortest path": "maze/shortest_path"},
    {"exact": SCORE},
)
# Settings that the protocol makes itself.
RESERVED = ("checkpoint_path", "sweep_name", "hydra.sweep.dir", "hydra/sweeper")
RESERVED_BY_SELECTION = {
    "held_out": {"eval_split": "selection", "checkpoint_every_eval": "true"},
    "last": {"eval_split": "null"},
}
# A run may be resumed with other values of these settings, but the score would be another one.
_SCORED = "data_path data_paths data_paths_test evaluators eval_split eval_max_examples"
_SCORED += " limit_eval_batches"
START_WEIGHTS = ("load_checkpoint", "load_puzzle_rows")
MAY_CHANGE = NEUTRAL_KEYS.difference(
    f"{_SCORED} min_eval_interval max_steps callbacks".split(), START_WEIGHTS
)


class ProtocolSettings(Schema):
    """The protocol's own settings, beside the settings of training runs."""

    selection: Literal["held_out", "last"] = "held_out"
    folder: str | None = None


class Protocol(NamedTuple):
    """The command line, validated. `runs` holds the settings of each of the plan's `jobs`."""

    name: str
    selection: str
    folder: Path
    plan: Plan
    jobs: Sequence[Job]
    runs: Sequence[TrainConfig]
    launcher: Sequence[str]  # as on the command line


class Choice(NamedTuple):
    """The chosen checkpoint of a seed. With selection=last it has no score."""

    seed: int
    step: int
    checkpoint: Path
    score: float | None = None
    num_checkpoints: int | None = None
    num_puzzles: int | None = None

    def __str__(self) -> str:
        if self.score is None:
            return f"seed {self.seed}: step {self.step}, the last one"
        score = f"{self.score:.4f} on {self.num_puzzles} selection puzzles"
        return f"seed {self.seed}: step {self.step}, of {self.num_checkpoints} checkpoints: {score}"


def main(arguments: list[str]) -> None:
    """Do the remaining work and print the table; exit with an error code if a stage fails."""
    protocol = parse(arguments)
    with disk_errors(protocol.folder, ConfigError):
        protocol.folder.mkdir(parents=True, exist_ok=True)
    with run_lock(protocol.folder, instead="another folder"):
        require_same_recipe(protocol)
        say(f"{protocol.name}, selection={protocol.selection}, in {protocol.folder}")
        say(f"1 of 3: train {len(protocol.runs)} seeds")
        sweep(TRAINING, protocol.plan)
        say("2 of 3: choose checkpoints")
        pairs = zip(protocol.jobs, protocol.runs, strict=True)
        choices = [choose(protocol, job, run) for job, run in pairs]
        for choice in choices:
            say(str(choice))
        say("3 of 3: measure them once on the test set")
        plan = evaluations(protocol, [choice.checkpoint for choice in choices])
        sweep(EVALUATION, plan)
        content = summary(protocol, choices, [job.name for job in expand(plan.overrides)])
        table, written = as_table(content), protocol.folder / "protocol.json"
        say(f"\n{table}")
        with disk_errors(written, ConfigError):
            write_atomically(written, json.dumps(content, indent=1) + "\n")
            write_atomically(written.with_suffix(".md"), table)
        say(f"written: {written}, {written.with_suffix('.md')}")


def sweep(program: Program, plan: Plan) -> None:
    """Do the remaining work of a stage; end the process if it fails or is stopped."""
    if code := run_sweep(program, plan, say):
        leave(code)


def parse(arguments: Sequence[str]) -> Protocol:
    """Read the command line.

    Raises:
        ConfigError: a setting is wrong, is reserved for the protocol, or has several values.
        DatasetError: data are missing; the message has the command that builds them.
    """
    overrides = parse_overrides(parse_arguments(arguments).overrides)
    given = {override.key_or_group: override for override in overrides}
    own = {key: given[key].value() for key in ProtocolSettings.model_fields if key in given}
    settings = validate(ProtocolSettings, own)
    reserved = RESERVED_BY_SELECTION[settings.selection]
    for key in (*RESERVED, *reserved):
        if key in given:
            raise ConfigError(f"{key}: the protocol sets it; use selection= and folder= instead")
    experiment = given["experiment"].value() if "experiment" in given else None
    if experiment is None and settings.folder is None:
        raise ConfigError("set experiment=NAME, or folder=FOLDER for a run without an experiment")
    folder = Path(settings.folder or f"protocol/{experiment}_{settings.selection}")
    lines = [
        *(["seed=0,1,2"] if "seed" not in given else []),
        *(line for line in arguments if line.partition("=")[0] not in own),
        *(f"{key}={value}" for key, value in reserved.items()),
        *place(folder, "train"),
    ]
    plan = plan_of(TRAINING, lines)
    if several := [o.key_or_group for o in swept(plan.overrides) if o.key_or_group != "seed"]:
        raise ConfigError(f"{several[0]}: only seed takes several values; a row has one recipe")
    jobs = expand(plan.overrides)
    runs = load_configs(TrainConfig, "cfg_pretrain", plan.flags, [job.overrides for job in jobs])
    runs[0].check_world_size(plan.launcher.ranks)
    require_data(runs[0])
    launcher = [str(o.input_line) for o in overrides if is_of_hydra(o)]
    name = str(experiment or folder.name)
    protocol = Protocol(name, settings.selection, folder, plan, jobs, runs, launcher)
    # Check the settings of the evaluations now, not after hours of training.
    plan = evaluations(protocol, [folder])
    of_jobs = [job.overrides for job in expand(plan.overrides)]
    load_configs(EvalConfig, "cfg_evaluate", plan.flags, of_jobs)
    return protocol


def require_data(run: TrainConfig) -> None:
    """Raise DatasetError if data are missing that a run or its evaluation needs."""
    try:
        require_folders(run)
    except DatasetError as error:
        # `is_folder` raises the same error again if a folder is closed.
        folders = map(Path, [*run.train_paths, *run.test_paths])
        lacks_selection = all(map(is_folder, folders)) and not all(
            is_folder(Path(path) / "selection") for path in run.test_paths
        )
        raise DatasetError(f"{error}{', or selection=last' if lacks_selection else ''}") from None
    if not any(is_folder(Path(path) / "test") for path in run.test_paths):
        raise DatasetError(f"{', '.join(run.test_paths)}: there is no test split to measure")


def require_same_recipe(protocol: Protocol) -> None:
    """Raise ConfigError if the folder was begun with another recipe; else write recipe.json.

    Seeds may be added later.
    """
    file = protocol.folder / "recipe.json"
    all_settings = dict(flatten(protocol.runs[0].model_dump(mode="json", exclude={"seed"})))
    settings = {k: v for k, v in all_settings.items() if k.split(".")[0] not in MAY_CHANGE}
    seeds = {job.name: run.seed for job, run in zip(protocol.jobs, protocol.runs, strict=True)}
    if file.exists():
        before = json.loads(file.read_bytes())
        tree = OmegaConf.create()
        for path, value in before["settings"].items():  # As `flatten` makes them.
            OmegaConf.update(tree, path, value)
        whole = cast(dict[str, Any], OmegaConf.to_container(tree))
        # Earlier versions did not record the start weights.
        saved = {key: settings[key] for key in START_WEIGHTS}
        saved |= flatten(in_present_terms(whole, training=True))
        changed = sorted(k for k in saved | settings if saved.get(k) != settings.get(k))
        changed += [] if before["seeds"].items() <= seeds.items() else ["seed"]
        if changed:
            raise ConfigError(
                f"folder={protocol.folder}: begun with another {', '.join(changed)}; use the old "
                "settings, or another folder="
            )
    with disk_errors(file, ConfigError):
        write_atomically(file, json.dumps({"settings": settings, "seeds": seeds}, indent=1) + "\n")


def place(folder: Path, stage: str) -> list[str]:
    """Return the settings that make FOLDER/STAGE the folder of a sweep."""
    return [f"hydra.sweep.dir={quoted_value(folder)}", f"sweep_name={stage}"]


def choose(protocol: Protocol, job: Job, run: TrainConfig) -> Choice:
    """Choose a checkpoint of a run that has ended, without the test set.

    Raises:
        CheckpointError: no checkpoint exists, or none was measured on the selection puzzles.
    """
    folder = protocol.folder / "train" / job.name
    if protocol.selection == "last":
        if not (steps := list_steps(folder)):
            raise CheckpointError(f"{folder}: there is no checkpoint")
        return Choice(run.seed, steps[-1], checkpoint_path(folder, steps[-1]))
    figures = TRAINING.read(folder.parent, job.name, f"eval/{SCORE}")  # By name and step.
    measured = figures.get(headline_of(figures, "eval/") or "", {})
    scores = {step: value for step, value in measured.items() if math.isfinite(value)}
    if not scores:
        raise CheckpointError(f"{folder}: nothing was measured on the selection puzzles")
    step = min(scores, key=lambda step: (-scores[step], step))  # The earliest among equals.
    count = round(figures["eval/count"][step])
    return Choice(run.seed, step, checkpoint_path(folder, step), scores[step], len(scores), count)


def evaluations(protocol: Protocol, checkpoints: Sequence[Path]) -> Plan:
    """Return the sweep that measures the checkpoints with the training's machine settings."""
    chosen = ",".join(quoted_value(checkpoint.resolve()) for checkpoint in checkpoints)
    flags = zip(protocol.plan.flags[::2], protocol.plan.flags[1::2], strict=True)
    own = MachineSettings.model_fields.keys() - {"sweep_name"}
    machine = protocol.runs[0].model_dump(include=own)
    return plan_of(
        EVALUATION,
        [
            *(part for flag in flags if flag[0] == "--config-dir" for part in flag),
            f"checkpoint=choice({chosen})",
            "split=test",
            *(f"{key}={json.dumps(value)}" for key, value in machine.items()),
            *protocol.launcher,
            *place(protocol.folder, "test"),
        ],
    )


def summary(protocol: Protocol, choices: Sequence[Choice], names: Sequence[str]) -> dict[str, Any]:
    """Return the content of `protocol.json`. `names` are the names of the evaluations."""
    folder, first = protocol.folder / "test", protocol.runs[0]
    read = [EVALUATION.read(folder, name, SCORE) for name in names]
    figures = [{key: at[0] for key, at in found.items()} for found in read]
    result = json.loads(EVALUATION.result(folder, names[0]).read_bytes())
    shown = next((some for some in SCORES if figures[0].keys() >= set(some.values())), None)
    if shown is None:
        raise DatasetError(f"{', '.join(first.test_paths)}: the test split has no labels")
    runs = [choice.checkpoint.parent for choice in choices]
    last = [load_checkpoint(checkpoint_path(run, list_steps(run)[-1])).state for run in runs]
    train_dirs = [Path(path) / "train" for path in first.train_paths]
    values = {title: [found[key] for found in figures] for title, key in shown.items()}
    return {
        "name": protocol.name,
        "selection": protocol.selection,
        "scores": {n: {**mean_and_std(each), "values": each} for n, each in values.items()},
        "num_parameters": result["num_parameters"],
        "num_training_puzzles": sum(load_metadata(path).total_groups for path in train_dirs),
        "num_selection_puzzles": choices[0].num_puzzles,
        "num_checkpoints": choices[0].num_checkpoints,
        "num_test_examples": round(figures[0]["count"]),
        "depth": result["arch"].get("eval_steps", result["arch"]["halt_max_steps"]),
        "hardware": "{world_size} x {device_name}".format_map(last[0].environment),
        "hours": {"train": sum(state.seconds or 0.0 for state in last) / 3600},
        "data": result["data"],
        "data_fingerprint": result["data_fingerprint"],
        "seeds": [
            {"seed": choice.seed, "step": choice.step, "selection": choice.score, "test": found}
            for choice, found in zip(choices, figures, strict=True)
        ],
    }


def as_table(content: Mapping[str, Any]) -> str:
    """Return the row as a Markdown table, scores in per cent."""
    chosen, seeds = "last checkpoint", len(content["seeds"])
    if content["selection"] == "held_out":
        best = f"best of {content['num_checkpoints']} checkpoints"
        chosen = f"{best} on {content['num_selection_puzzles']:,} held-out puzzles"
    how = [
        f"{content['num_training_puzzles']:,} training puzzles",
        many(seeds, "seed"),
        chosen,
        f"{content['num_test_examples']:,} test examples",
        f"{many(content['depth'], 'ACT step')}, single pass",
    ]
    cells = {"recipe": content["name"]}
    for title, found in content["scores"].items():
        spread = "" if found["std"] is None else f" ± {100 * found['std']:.2f}"
        cells[title] = f"{100 * found['mean']:.2f}{spread}"
    cells["parameters"] = f"{content['num_parameters']:,}"
    cells["protocol"] = "; ".join(how)
    cells["hardware"] = content["hardware"]
    cells["hours of training"] = f"{content['hours']['train']:.2f}"
    rows = [list(cells), ["---"] * len(cells), list(cells.values())]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
