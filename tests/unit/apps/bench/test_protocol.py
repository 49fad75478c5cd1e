"""How a score is taken: the choice of checkpoints, the row, and refused settings."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apps.bench import protocol
from runtime.errors import CheckpointError, ConfigError, DatasetError
from tests.conftest import TINY_ARCH

TRAINING = ("device=cpu", "num_threads=1")


@pytest.fixture
def held_out(sudoku_data: Path, tmp_path: Path) -> Path:
    """Return `sudoku_data` with selection puzzles."""
    folder = shutil.copytree(sudoku_data, tmp_path / "data")
    shutil.copytree(folder / "test", folder / "selection")
    return folder


@pytest.fixture
def parse(held_out: Path, tmp_path: Path) -> Any:
    """Return a function that parses a command line."""

    def parse(*more: str) -> protocol.Protocol:
        own = (f"folder={tmp_path / 'scores'}", f"data_path={held_out}", *TRAINING)
        return protocol.parse([*own, *more])

    return parse


def write_metrics(folder: Path, scores: dict[int, Any]) -> None:
    folder.mkdir(parents=True)
    lines = [{"step": s, "train/lr": 1.0, "train/exact_accuracy": 1.0} for s in scores]
    lines += [{"step": s, "eval/count": 8, "eval/exact_accuracy": v} for s, v in scores.items()]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_checkpoint_is_chosen_by_the_evaluations_of_its_run(parse: Any) -> None:
    found = parse("seed=3,4")
    for seed, scores in ((3, {5: 0.25, 10: "nan", 15: 0.5, 20: 0.5}), (4, {5: "nan"})):
        write_metrics(found.folder / "train" / f"seed-{seed}", scores)
    choice = protocol.choose(found, found.jobs[0], found.runs[0])
    folder = found.folder / "train" / "seed-3"
    assert choice == protocol.Choice(3, 15, folder / "step_15", 0.5, 3, 8)
    assert str(choice) == "seed 3: step 15, of 3 checkpoints: 0.5000 on 8 selection puzzles"
    with pytest.raises(CheckpointError, match="nothing was measured on the selection puzzles"):
        protocol.choose(found, found.jobs[1], found.runs[1])


def test_a_checkpoint_for_arc_is_chosen_by_its_votes(parse: Any) -> None:
    found = parse("seed=3")
    folder = found.folder / "train" / "run"
    write_metrics(folder, {5: 0.5, 10: 0.25})
    with open(folder / "metrics.jsonl", "a") as file:
        for step, vote in ((5, 0.125), (10, 0.75)):
            file.write(json.dumps({"step": step, "eval/arc/pass@2": vote}) + "\n")
    choice = protocol.choose(found, found.jobs[0], found.runs[0])
    assert (choice.step, choice.score) == (10, 0.75)


def test_the_last_checkpoint_needs_no_evaluation(parse: Any) -> None:
    found = parse("seed=3", "selection=last")
    folder = found.folder / "train" / "run"
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        protocol.choose(found, found.jobs[0], found.runs[0])
    for step in (5, 100, 20):
        (folder / f"step_{step}").mkdir(parents=True)
    choice = protocol.choose(found, found.jobs[0], found.runs[0])
    assert choice == protocol.Choice(3, 100, folder / "step_100")
    assert str(choice) == "seed 3: step 100, the last one"


def test_runs_evaluate_the_selection_puzzles_or_nothing(parse: Any) -> None:
    found = parse()
    assert [run.seed for run in found.runs] == [0, 1, 2]
    assert {(run.eval_split, run.checkpoint_every_eval) for run in found.runs} == {
        ("selection", True)
    }
    assert [run.eval_split for run in parse("selection=last", "seed=7").runs] == [None]


CONTENT = {
    "name": "mine",
    "selection": "held_out",
    "scores": {"exact": {"mean": 0.85504, "std": 0.01236}},
    "num_parameters": 5_028_866,
    "num_training_puzzles": 1000,
    "num_selection_puzzles": 512,
    "num_checkpoints": 10,
    "num_test_examples": 422_786,
    "depth": 16,
    "hardware": "1 x NVIDIA H200",
    "hours": {"train": 54.321},
    "seeds": [{}, {}, {}],
}


def test_a_row_has_score_protocol_hardware_and_hours() -> None:
    header, line, row = protocol.as_table(CONTENT).splitlines()
    titles = "recipe | exact | parameters | protocol | hardware | hours of training"
    assert header == f"| {titles} |"
    assert line == f"| {' | '.join(['---'] * 6)} |"
    assert row == (
        "| mine | 85.50 ± 1.24 | 5,028,866 | 1,000 training puzzles; 3 seeds; best of 10 "
        "checkpoints on 512 held-out puzzles; 422,786 test examples; 16 ACT steps, single pass "
        "| 1 x NVIDIA H200 | 54.32 |"
    )


def test_a_row_of_one_seed_has_no_spread_and_may_have_two_scores() -> None:
    scores = {"pass@1": {"mean": 0.4, "std": None}, "pass@2": {"mean": 0.446, "std": None}}
    other = {"selection": "last", "num_selection_puzzles": None, "seeds": [{}], "scores": scores}
    header, _, row = protocol.as_table(CONTENT | other).splitlines()
    assert "| pass@1 | pass@2 |" in header
    assert "| 40.00 | 44.60 | 5,028,866 | 1,000 training puzzles; 1 seed; last check" in row


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("selection=best",), "selection=best: input should be 'held_out' or 'last'"),
        (("checkpoint_every_eval=false",), "checkpoint_every_eval: the protocol sets it"),
        (("hydra.launcher.ranks=3", "global_batch_size=4"), "global_batch_size=4"),
        (("eval_split=test",), "eval_split: the protocol sets it"),
        (("sweep_name=x",), "sweep_name: the protocol sets it"),
        (("hydra.sweep.dir=x",), "hydra.sweep.dir: the protocol sets it"),
        (("hydra/sweeper=optuna",), "hydra/sweeper: the protocol sets it"),
        (("lr=1e-3,2e-3",), "lr: only seed takes several values"),
        (("lr=much",), "lr=much: input should be"),
        (("hiden_size=3",), "hiden_size"),
    ],
)
def test_mistakes_are_reported_before_anything_starts(
    settings: tuple[str, ...], message: str, parse: Any, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as error:
        parse(*settings)
    assert message in str(error.value)
    assert not (tmp_path / "scores").exists()


def test_launchers_of_the_user_run_the_evaluations_too(parse: Any, tmp_path: Path) -> None:
    for folder in ("own", "other"):
        mine = tmp_path / folder / "hydra/launcher/mine.yaml"
        mine.parent.mkdir(parents=True)
        mine.write_text("name: pool\nmax_jobs: 2\n")
    found = parse("--config-dir", str(tmp_path / "own"), "hydra/launcher=mine")
    plan = protocol.evaluations(found, [tmp_path / "step_1"])
    assert plan.launcher == found.plan.launcher
    assert plan.flags == ["--config-dir", str(tmp_path / "own")]


@pytest.mark.slow
def test_a_folder_is_for_one_recipe(parse: Any, tmp_path: Path) -> None:
    begun = parse("seed=0,1")
    begun.folder.mkdir()
    protocol.require_same_recipe(begun)
    more = "seed=0,1,2"
    for same in (["seed=1,0"], [more, "hydra/launcher=pool"], [more, "rank_timeout=9"]):
        protocol.require_same_recipe(parse(*same))
    other = shutil.copytree(tmp_path / "data", tmp_path / "other")
    for settings, changed in (
        (("lr=0.5", "arch=trm"), r"another arch\..*, lr; use"),
        (("eval_max_examples=3",), "another eval_max_examples; use"),
        ((f"data_path={other}",), "another data_path; use"),
        (("selection=last",), "another eval_split; use"),
        (("seed=0,1",), "another seed; use"),
        (("seed=0",), "another seed; use the old settings, or another folder=$"),
    ):
        with pytest.raises(ConfigError, match=changed):
            protocol.require_same_recipe(parse(more, *settings))


def test_a_folder_of_an_earlier_version_is_read_with_its_present_settings(
    parse: Any, tmp_path: Path
) -> None:
    begun = parse("techniques=[random_starts]")
    begun.folder.mkdir()
    protocol.require_same_recipe(begun)
    file = tmp_path / "scores" / "recipe.json"
    present = file.read_bytes()
    content = json.loads(present)
    rest = {k: v for k, v in content["settings"].items() if not k.startswith("arch.techniques.")}
    former = {"init": "random", "init_std": 1.0, "noise": 0.0, "q_target": "full"}
    former |= {"curriculum": None, "loss.step_decay": 1.0}
    rest |= {f"arch.{key}": value for key, value in former.items()}
    file.write_text(json.dumps({**content, "settings": rest}))
    with pytest.raises(ConfigError, match=r"another arch\.techniques\.random_starts"):
        protocol.require_same_recipe(parse())
    protocol.require_same_recipe(begun)
    assert file.read_bytes() == present


def test_a_folder_is_for_runs_with_the_same_start_weights(parse: Any) -> None:
    begun = parse("load_checkpoint=a")
    begun.folder.mkdir()
    protocol.require_same_recipe(begun)
    with pytest.raises(ConfigError, match="another load_checkpoint; use"):
        protocol.require_same_recipe(parse("load_checkpoint=b"))
    # Earlier versions did not record them.
    file = begun.folder / "recipe.json"
    content = json.loads(file.read_bytes())
    for key in protocol.START_WEIGHTS:
        del content["settings"][key]
    file.write_text(json.dumps(content))
    protocol.require_same_recipe(begun)


def test_on_a_full_disk_the_table_is_printed(
    parse: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def write(path: Path, content: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    found = parse("seed=3")
    monkeypatch.setattr(protocol, "write_atomically", write)
    with pytest.raises(ConfigError, match="recipe.json: No space left on device"):
        protocol.require_same_recipe(found)
    steps = {"parse": found, "require_same_recipe": None, "sweep": None, "summary": CONTENT}
    steps |= {"choose": protocol.Choice(3, 1, found.folder), "evaluations": found.plan}
    for name, result in steps.items():
        monkeypatch.setattr(protocol, name, lambda *_, result=result: result)
    with pytest.raises(ConfigError, match="protocol.json: No space left on device"):
        protocol.main([])
    assert protocol.as_table(CONTENT) in capsys.readouterr().out


def test_a_test_set_is_needed_and_its_labels(parse: Any, held_out: Path) -> None:
    found = parse("seed=0")
    result = found.folder / "test" / "name" / "name.json"
    result.parent.mkdir(parents=True)
    result.write_text('{"metrics": {"count": 0}}')
    with pytest.raises(DatasetError, match=f"{held_out}: the test split has no labels"):
        protocol.summary(found, [], ["name"])
    shutil.rmtree(held_out / "test")
    with pytest.raises(DatasetError, match=f"{held_out}: there is no test split to measure"):
        parse("seed=0")


def test_without_an_experiment_a_folder_is_needed(held_out: Path) -> None:
    with pytest.raises(ConfigError, match="set experiment=NAME, or folder=FOLDER"):
        protocol.parse([f"data_path={held_out}"])


def test_missing_data_are_reported_with_the_command_that_builds_them(
    sudoku_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = "python scripts/build_dataset.py data=sudoku_held_out data.path="
    with pytest.raises(DatasetError, match=f"no such data folder; build it with: {command}.*out$"):
        protocol.parse(["experiment=trm_sudoku_extreme_1k_held_out"])
    arc = ["experiment=trm_arc_1", f"data_path={sudoku_data}"]
    with pytest.raises(DatasetError, match="there is no split selection.*, or selection=last$"):
        protocol.parse(arc)
    found = protocol.parse([*arc, "selection=last"])
    assert found.folder == Path("protocol/trm_arc_1_last")


def test_only_missing_selection_puzzles_can_be_done_without(
    parse: Any, held_out: Path, tmp_path: Path, close: Callable[[Path], None]
) -> None:
    (run,) = parse("seed=3").runs
    gone = {"data_path": str(tmp_path / "gone"), "data_paths_test": [str(held_out)]}
    with pytest.raises(DatasetError, match="gone: no such data folder$"):
        protocol.require_data(run.model_copy(update=gone))
    for closed in (held_out, held_out / "selection", held_out / "test"):
        close(closed)
        with pytest.raises(DatasetError, match=f"^{closed}: Permission denied$"):
            protocol.require_data(run)


# By recipe, the setting of TINY_ARCH that it does not have.
RECIPES = {"sic_sudoku_extreme_1k": "", "dec_sudoku_extreme_1k": "arch.H_layers=1"}


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes_are_rehearsed(
    recipe: str, held_out: Path, train: Any, files_of: Any, tmp_path: Path
) -> None:
    small = ("global_batch_size=8", "epochs=4", "eval_interval=2", "evaluators=[]")
    own = (f"data_path={held_out}", f"checkpoint_path={tmp_path / 'run'}", "logger=jsonl")
    tiny = [setting for setting in TINY_ARCH if setting != RECIPES[recipe]]
    train([f"experiment={recipe}", *tiny, *small, *own, *TRAINING, "compile=false"])
    files = files_of(tmp_path / "run")
    assert files.steps == [2, 4]
    assert [record["step"] for record in files.eval_records] == [2, 4]
    assert all(np.isfinite(record["train/lm_loss"]) for record in files.train_records)
