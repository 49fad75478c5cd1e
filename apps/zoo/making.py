"""Make a model of the zoo: python scripts/make_zoo.py NAME.

Follows the recipe in zoo/recipes.yaml with the project's commands: build the data, train, write
zoo/NAME, measure it, and write its score and card. A stopped training continues.
"""

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from apps.hub.card import card
from apps.hub.pushing import card_facts, require_hub, shared_state
from apps.zoo.address import SCHEME, ZOO
from dataset.command_line import Parser, run_tool
from dataset.format.schema import IDENTIFIERS_NAME
from evaluation.headline import MEASURES, score_of
from runtime.errors import ConfigError
from runtime.files import commit_of_clone
from runtime.schema import Schema, Size, StrictBool
from training.checkpoint import store
from training.checkpoint.trained_model import TrainedModel, find_trained_model
from training.config.composition import load_config
from training.config.schema import TrainConfig


class Recipe(Schema):
    """How a model is made, see zoo/recipes.yaml."""

    data: list[str]
    train: list[str]
    ranks: Size = 1
    measure: list[str]
    generated: str | None = None
    float16: StrictBool = False
    steps: Size | None = None
    limits: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the model that the command line names; return the exit code."""
    known = recipes()
    parser = Parser(prog="make_zoo.py", description=str(__doc__).partition("\n\n")[0])
    parser.add_argument("name", choices=known, metavar="NAME", help=", ".join(known))
    options = parser.parse_all(arguments)
    return run_tool(lambda: make(options.name, known[options.name]))


def recipes() -> dict[str, Recipe]:
    """Return the recipes of all models by name."""
    content = yaml.safe_load((ZOO / "recipes.yaml").read_text())
    return {name: Recipe.model_validate(recipe) for name, recipe in content.items()}


def make(name: str, recipe: Recipe) -> str:
    """Make a model and return a line on its score."""
    require_hub()  # Before the training: the card needs it.
    config = load_config(TrainConfig, "cfg_pretrain", recipe.train)
    data, run, folder = config.train_paths[0], Path(str(config.checkpoint_path)), ZOO / name
    commit = commit_of(run)
    if not Path(data).exists():
        run_command("scripts/build_dataset.py", *recipe.data)
    run_command(*launcher(recipe), "pretrain.py", *recipe.train)
    trained = find_trained_model(run, lambda message: None)
    write_model(trained, recipe, folder)
    began = time.perf_counter()
    test = measure(name, recipe, data, run / "zoo-test.json")
    scores = {"test": score_json(test) | {"seconds": round(time.perf_counter() - began)}}
    if recipe.generated:
        found = score_json(measure_generated(name, recipe, run / "zoo-generated"))
        scores["generated"] = found | {"puzzles": recipe.generated}
    facts = card_facts(
        trained,
        f"{SCHEME}{name}",
        license="apache-2.0",
        evaluations={f"evaluate.py {' '.join(recipe.measure)}": test},
        command=f"make zoo-{name}",
        commit=commit,
        limits=[recipe.limits],
    )
    text = card(facts)
    (folder / "score.json").write_text(json.dumps(scores, indent=1) + "\n")
    (folder / "card.md").write_text(text)
    store.write_manifest(folder)
    return f"written: {folder}\n{score_of(test)}\n"


def commit_of(run: Path) -> str:
    """Return the commit with which a run began, written into its folder; "-dirty" follows if the
    tree had other changes. Return "" if it is unknown.
    """
    path = run / "commit.txt"
    if not path.exists():
        run.mkdir(parents=True, exist_ok=True)
        path.write_text(commit_of_clone(ZOO))
    return path.read_text().strip()


def launcher(recipe: Recipe) -> list[str]:
    """Return what starts a command on the ranks of a recipe; [] for one."""
    return ["scripts/launch.py", f"--nproc-per-node={recipe.ranks}"] if recipe.ranks > 1 else []


def write_model(trained: TrainedModel, recipe: Recipe, folder: Path) -> None:
    """Write the weights that evaluations use, their state, and the names of ARC puzzles."""
    import torch

    from training.checkpoint.tensors import load_weights, write_tensors

    folder.mkdir(parents=True, exist_ok=True)
    tensors = load_weights(trained.weights)
    if recipe.float16:
        tensors = {n: t.half() if t.dtype == torch.float32 else t for n, t in tensors.items()}
    write_tensors(tensors, folder / store.MODEL)
    state = shared_state(trained).model_dump(exclude_none=True)
    if recipe.steps is not None:
        state["config"]["arch"]["halt_max_steps"] = recipe.steps
    text = yaml.safe_dump(state, sort_keys=False, width=100)
    (folder / store.SHARED_STATE).write_text(
        f"# The state of the run that made this model.\n{text}"
    )
    if trained.run.arch.puzzle_emb_ndim:
        names = Path(trained.run.data_folders("train")[0], IDENTIFIERS_NAME)
        (folder / IDENTIFIERS_NAME).write_bytes(names.read_bytes())
    store.write_manifest(folder)


def measure(name: str, recipe: Recipe, data: str, output: Path) -> dict[str, Any]:
    """Evaluate a model of the zoo on a data set; return the result."""
    settings = [f"data_path={data}", f"output={output}", *recipe.measure]
    run_command(*launcher(recipe), "evaluate.py", f"checkpoint={SCHEME}{name}", *settings)
    return store.read_json(output)


def measure_generated(name: str, recipe: Recipe, folder: Path) -> dict[str, Any]:
    """Generate puzzles in a folder and evaluate a model of the zoo on them; return the result."""
    flags = shlex.split(recipe.generated or "")
    if not folder.exists():
        run_command("dataset/build_sudoku_dataset.py", "--output-dir", str(folder), *flags)
    return measure(name, recipe, str(folder), folder / "eval.json")


def score_json(result: dict[str, Any]) -> dict[str, Any]:
    """Return the headline of a result for score.json: correct of count, with 95 % interval."""
    if (score := score_of(result)) is None:
        raise ConfigError("the evaluation has no score")
    value, low, high = score.estimate.value, score.estimate.low, score.estimate.high
    found = {"measure": MEASURES[score.name], "correct": round(value * score.count)}
    found |= {"count": score.count, "share": value, "low": low, "high": high}
    if score.wrong:
        found["wrong"] = round(score.wrong.value * score.count)
    return found


def run_command(*arguments: str) -> None:
    """Run Python with a command of the project and show it; raise ConfigError if it fails."""
    line = shlex.join(["python", *arguments])
    sys.stdout.write(f"\n$ {line}\n")
    sys.stdout.flush()
    if code := subprocess.call([sys.executable, *arguments], cwd=ZOO.parent):
        raise ConfigError(f"exit code {code}: {line}")
