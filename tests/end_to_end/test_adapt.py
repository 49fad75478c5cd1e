"""Adapting to ARC tasks: whole, killed, repeated, with malformed tasks and wrong settings."""

import errno
import importlib.util
import json
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import yaml

import evaluate
import pretrain
from apps.adapt import adapting
from apps.reports import score_arc, solving
from dataset.arc.tasks import Source
from dataset.build_arc_dataset import build, parse_options
from runtime.errors import CheckpointError, ConfigError, DatasetError, NonFiniteError, Preempted
from training.config.composition import load_config
from training.config.schema import TrainConfig

MODEL = (
    *("arch=trm", "arch.hidden_size=16", "arch.num_heads=1", "arch.expansion=1"),
    *("arch.H_cycles=1", "arch.L_cycles=1", "arch.L_layers=1", "arch.halt_max_steps=2"),
    *("arch.puzzle_emb_ndim=16", "arch.puzzle_emb_len=1", "arch.forward_dtype=float32"),
    *("device=cpu", "num_threads=1"),
)
GRID = (
    *("arch=grid", "arch.hidden_size=8", "arch.puzzle_emb_ndim=8", "arch.forward_dtype=float32"),
    *("arch.H_cycles=1", "arch.L_cycles=1", "arch.halt_max_steps=2", *MODEL[-2:]),
)
ROOT = Path(__file__).parents[2]
ATTEMPTS = ("attempt_1", "attempt_2")
SMALL = ("global_batch_size=2", "adapt.steps=6", "adapt.num_aug=1", "lr=1e-2")


def task(seed: int, pairs: int = 2, tests: int = 1, *, answers: bool = True) -> dict[str, Any]:
    """A task that paints a grid of two cells in one colour."""
    rng = np.random.default_rng(seed)
    colours = rng.integers(1, 10, pairs + tests).tolist()
    made = [{"input": [[colour, 0]], "output": [[colour, colour]]} for colour in colours]
    given = made[pairs:] if answers else [{"input": one["input"]} for one in made[pairs:]]
    return {"train": made[:pairs], "test": given}


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """Kaggle's challenges: two tasks without outputs, the second with two test inputs."""
    path = tmp_path / "challenges.json"
    made = {"aa": task(1, answers=False), "bb": task(2, tests=2, answers=False)}
    path.write_text(json.dumps(made))
    return path


@pytest.fixture
def adapt(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Adapt, from scratch unless a setting has a checkpoint; return the submission."""

    def run(tasks: Path, *settings: str, name: str = "out") -> dict[str, Any]:
        output = tmp_path / name / "submission.json"
        model = () if any(one.startswith("checkpoint=") for one in settings) else MODEL
        own = (f"tasks={tasks}", f"output={output}", *model, *SMALL)
        adapting.main(pretrain.run, evaluate.run, [*own, *settings])
        return json.loads(output.read_bytes())

    return run


def told(tmp_path: Path, name: str = "out") -> dict[str, Any]:
    return json.loads((tmp_path / name / "submission_steps.json").read_bytes())


def test_each_test_input_gets_two_guesses(
    adapt: Any, tasks: Path, tmp_path: Path, capsys: Any
) -> None:
    found = adapt(tasks)
    assert {name: len(guesses) for name, guesses in found.items()} == {"aa": 1, "bb": 2}
    for guesses in found.values():
        assert all(set(one) == set(ATTEMPTS) and all(one.values()) for one in guesses)
    steps = told(tmp_path)
    both = {"alone": 6, "run": 6}
    assert {name: one["steps"] for name, one in steps.items()} == {"aa": both, "bb": both}
    assert steps["bb"]["votes"]["bb"][1]["of"] == 4  # Two views by each of two models.
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("1/2 aa: 12 steps")
    assert lines[-1] == f"written: {tmp_path / 'out/submission.json'}"


def test_a_killed_adaptation_ends_with_the_same_submission(
    adapt: Any, tasks: Path, monkeypatch: pytest.MonkeyPatch, signal_at: Any
) -> None:
    whole = adapt(tasks, name="whole")
    signal_at(4, signal.SIGTERM)
    with pytest.raises(Preempted):
        adapt(tasks, name="killed")
    signal_at(0)
    made = adapting.Adapter.adapt

    def dies(adapter: Any, part: Any, *rest: Any) -> Any:
        if part.name == "bb":
            raise KeyboardInterrupt
        return made(adapter, part, *rest)

    monkeypatch.setattr(adapting.Adapter, "adapt", dies)
    with pytest.raises(KeyboardInterrupt):
        adapt(tasks, name="killed")
    monkeypatch.setattr(adapting.Adapter, "adapt", made)
    assert adapt(tasks, name="killed") == whole


NOTHING = dict.fromkeys(ATTEMPTS, [[0, 0], [0, 0]])


@pytest.mark.parametrize(
    "error", [NonFiniteError("the loss is nan"), RuntimeError("CUDA out of memory.")]
)
def test_a_task_that_fails_gets_empty_answers(
    adapt: Any,
    tasks: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
    error: Exception,
) -> None:
    made, failing, before = adapting.Adapter._train, ["aa"], list[dict[str, Any]]()

    def fails(adapter: Any, part: Any, *rest: Any) -> Any:
        before.append(json.loads((part.folder.parents[1] / "submission.json").read_bytes()))
        if part.name in failing:
            raise error
        return made(adapter, part, *rest)

    monkeypatch.setattr(adapting.Adapter, "_train", fails)
    found = adapt(tasks)
    nothing = {"aa": [NOTHING], "bb": [NOTHING] * 2}
    assert before[0] == nothing
    assert found["aa"] == nothing["aa"]
    assert told(tmp_path)["bb"]["steps"] == {"alone": 6, "run": 6}
    err = capsys.readouterr().err
    assert f"aa: {error}; its answers are empty" in err
    assert "1 of 2 failed" in err
    monkeypatch.setattr(adapting.Adapter, "_train", made)
    file = tmp_path / "out/submission_steps.json"
    assert adapt(tasks, f"adapt.steps={file}", name="again") == found
    # The same command goes on with it, and keeps the other answers meanwhile.
    monkeypatch.setattr(adapting.Adapter, "_train", fails)
    failing.clear()
    adapt(tasks)
    assert before[-1] == found
    assert told(tmp_path)["aa"]["steps"] == {"alone": 6, "run": 6}
    failing.extend(["aa", "bb"])
    with pytest.raises(type(error), match=str(error)):
        adapt(tasks, name="all")
    assert json.loads((tmp_path / "all/submission.json").read_bytes()) == nothing


def test_test_outputs_are_never_read(adapt: Any, tmp_path: Path) -> None:
    found = []
    for name, seed in (("right", None), ("noise", 0)):
        folder, own = tmp_path / name, task(3)
        folder.mkdir()
        if seed is not None:
            noise = np.random.default_rng(seed).integers(0, 10, (3, 4)).tolist()
            own["test"][0]["output"] = noise
        (folder / "one.json").write_text(json.dumps(own))
        found.append(adapt(folder, name=f"of_{name}"))
    assert found[0] == found[1]


def test_it_ends_when_all_demonstrations_are_right_and_can_be_repeated(
    adapt: Any, tasks: Path, tmp_path: Path
) -> None:
    easy = ("adapt.num_aug=0", "arch.halt_max_steps=1", "loss=act_softmax", "lr=2e-2")
    first = adapt(tasks, "adapt.steps=300", "adapt.models=3", *easy)
    reached = {name: one["steps"] for name, one in told(tmp_path).items()}
    assert all(one["ending"] == "all demonstrations right" for one in told(tmp_path).values())
    for steps in reached.values():
        assert list(steps) == ["alone", "run", "alone1"]
        assert max(steps.values()) < 300
    runs = tmp_path / "out/submission_runs/aa"
    files = (runs / name / "config.yaml" for name in ("alone", "alone1"))
    first_seed, other = (yaml.safe_load(file.read_text())["seed"] for file in files)
    assert other == first_seed + 1
    file = tmp_path / "out/submission_steps.json"
    again = adapt(tasks, f"adapt.steps={file}", *easy, name="again")
    assert {name: one["steps"] for name, one in told(tmp_path, "again").items()} == reached
    assert again == first


def test_batches_are_enough_for_more_demonstrations_than_two_batches_hold(
    adapt: Any, tmp_path: Path
) -> None:
    file = tmp_path / "many.json"
    file.write_text(json.dumps({"aa": task(1, pairs=9), "bb": task(2, pairs=8)}))
    for together in (1, 2):
        adapt(file, f"adapt.together={together}", name=f"of_{together}")
        for one in told(tmp_path, f"of_{together}").values():
            assert set(one["steps"].values()) == {6}


@pytest.mark.parametrize(
    ("settings", "cells", "rows"),
    [
        ((), None, {100: 25, 121: 20, 900: 4}),
        ((), 1800, {100: 18, 900: 2, 1801: 1}),
        (("micro_batch_size=8",), None, {100: 24, 121: 16, 900: 4}),
        (("reduction=exact",), None, {100: 24, 121: 20, 900: 4}),
        (("reduction=exact", "micro_batch_size=4"), None, {100: 16, 150: 16, 900: 4}),
        (("reduction=exact",), 900, {900: 4}),
    ],
)
def test_a_batch_on_a_large_canvas_fits_shards_and_micro_batches(
    settings: tuple[str, ...], cells: int | None, rows: dict[int, int]
) -> None:
    usual = ("data_path=tasks", "arch=grid", "global_batch_size=32")
    config = load_config(TrainConfig, "cfg_pretrain", [*usual, *settings])
    own = adapting.OwnSettings(tasks="tasks", adapt=adapting.AdaptSettings(cells=cells))
    nothing = cast(Any, None)
    adapter = adapting.Adapter(config, own, None, nothing, nothing)
    assert {seq_len: adapter._batch_size(seq_len) for seq_len in rows} == rows
    for size in rows.values():
        config.model_copy(update={"global_batch_size": size}).check_world_size(1)


@pytest.mark.slow
def test_time_is_shared_out(adapt: Any, tasks: Path, tmp_path: Path) -> None:
    more = ("adapt.steps=100000", "adapt.models=8", "lr=0", "puzzle_emb_lr=0")
    adapt(tasks, "adapt.max_time=10s", *more)
    assert all(one["ending"] == "its time was over" for one in told(tmp_path).values())
    for one in told(tmp_path).values():
        # A kind that did not learn in time gets no second turn.
        assert list(one["steps"]) in (["alone", "run"], ["alone"])
        assert all(0 < steps < 100_000 for steps in one["steps"].values())


def test_no_task_begins_after_the_time(
    adapt: Any, tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    clock = SimpleNamespace(monotonic=partial(next, count(step=100)))
    monkeypatch.setattr(adapting, "time", clock)
    first = adapt(tasks, "adapt.max_time=150s")
    assert list(told(tmp_path)["aa"]["steps"]) == ["alone"]
    assert first["bb"] == [NOTHING] * 2
    assert "2/2 bb: no time was left; its answers are empty" in capsys.readouterr().out
    file = tmp_path / "out/submission_steps.json"
    assert adapt(tasks, f"adapt.steps={file}", name="again") == first
    # Later, the same command goes on where it stood.
    monkeypatch.setattr(adapting, "time", time)
    assert adapt(tasks)["aa"] == first["aa"]
    assert told(tmp_path)["bb"]["steps"] == {"alone": 6, "run": 6}


def test_the_time_for_answers_is_kept_back(monkeypatch: pytest.MonkeyPatch) -> None:
    budgets, nothing = list[float](), cast(Any, None)

    def learned(adapter: Any, part: Any, name: str, steps: int, most: int, budget: float) -> Any:
        budgets.append(budget)
        return adapting.Trained(steps, True, False, 1.0, {})

    monkeypatch.setattr(adapting, "time", SimpleNamespace(monotonic=lambda: 100.0))
    monkeypatch.setattr(adapting.Adapter, "_learned", learned)
    adapter = adapting.Adapter(*[nothing] * 5, answering=[10.0, 30.0])
    adapter._train(nothing, adapting.Limit({"run": 6}, 6), 150.0)
    assert budgets == [30.0]


def trained_on(tasks: Path, folder: Path, augmented: str, *settings: str) -> Path:
    """Train on the demonstrations of all tasks; return the run's folder."""
    run, data = folder / "base", folder / "data"
    options = ("--dataset-dirs", "tasks", augmented, "--output-dir", str(data))
    build(parse_options(options), Source(adapting.read_tasks(tasks, {}), {}))
    usual = ("eval_interval=null", "logger=jsonl", "compile=false")
    places = (f"checkpoint_path={run}", f"data_path={data}")
    pretrain.run(load_config(TrainConfig, "cfg_pretrain", [*settings, *places, *usual]))
    return run


@pytest.mark.parametrize("what", ["rows", "heads", "all"])
@pytest.mark.parametrize("arch", [MODEL, GRID], ids=["trm", "grid"])
def test_what_is_trained(
    adapt: Any, tasks: Path, tmp_path: Path, what: str, arch: tuple[str, ...]
) -> None:
    from training.checkpoint.tensors import load_weights

    short = ("max_steps=2", "epochs=10", "global_batch_size=2")
    run = trained_on(tasks, tmp_path, "--num-aug=5", *arch, *short)
    adapt(tasks, f"checkpoint={run}", f"adapt.what={what}", "puzzle_emb_lr=0.1", "adapt.together=2")
    one = tmp_path / "out/submission_runs/aa/run"
    before, after = (load_weights(sorted(path.glob("step_*"))[-1]) for path in (run, one))
    changed = {key for key in before if key in after and before[key].shape == after[key].shape}
    changed = {key for key in changed if not np.array_equal(before[key], after[key])}
    parts = {"heads": "_head." in str(changed), "trunk": "L_level" in str(changed)}
    assert parts == {"heads": what != "rows", "trunk": what == "all"}
    assert len(after["model.inner.puzzle_emb.weights"]) == 5  # Two tasks in two views, and blank.


@pytest.mark.slow
@pytest.mark.parametrize("arch", [MODEL, GRID], ids=["trm", "grid"])
def test_new_rows_start_at_the_nearest_task(
    adapt: Any, tasks: Path, tmp_path: Path, arch: tuple[str, ...]
) -> None:
    from training.checkpoint.tensors import load_weights

    made = json.loads(tasks.read_bytes())
    for pair in made["bb"]["train"]:
        pair["output"] = [[0, 0]]  # Another rule than that of the first task.
    tasks.write_text(json.dumps(made))
    longer = ("max_steps=150", "epochs=500", "global_batch_size=4")
    rates = ("lr=1e-2", "lr_warmup_steps=0", "puzzle_emb_lr=0.1")
    run = trained_on(tasks, tmp_path, "--num-aug=0", *arch, *longer, *rates)
    (saved,) = run.glob("step_*")
    known = load_weights(saved)["model.inner.puzzle_emb.weights"]
    assert not np.allclose(known[1], known[2], atol=0.1)
    kept = ("lr=0", "puzzle_emb_lr=0", "adapt.steps=1", "adapt.num_aug=7")
    for rows, expected in (("nearest", known[1]), ("zero", known[1] * 0)):
        # The first task of the base comes again, so its own row is the nearest.
        one = tmp_path / "aa.json"
        one.write_text(json.dumps(json.loads(tasks.read_bytes())["aa"]))
        adapt(one, f"checkpoint={run}", f"adapt.rows={rows}", *kept, name=rows)
        (after,) = (tmp_path / rows / "submission_runs/aa/run").glob("step_*")
        table = load_weights(after)["model.inner.puzzle_emb.weights"]
        assert np.allclose(table, expected, atol=1e-6)
    # It is looked for once.
    assert (tmp_path / "nearest/submission_runs/aa/nearest.json").read_text() == "1"


def test_a_checkpoint_is_adapted_by_several_models_at_its_own_rate(
    adapt: Any, tasks: Path, tmp_path: Path
) -> None:
    from training.checkpoint.tensors import load_weights

    short = ("max_steps=2", "epochs=10", "global_batch_size=2", "lr=0.03125")
    run = trained_on(tasks, tmp_path, "--num-aug=5", *GRID, *short)
    own = (f"checkpoint={run}", f"tasks={tasks}", f"output={tmp_path}/out/submission.json")
    usual = (*SMALL[:-1], "adapt.models=2", "puzzle_emb_lr=0.1")
    adapting.main(pretrain.run, evaluate.run, [*own, *usual])
    runs = tmp_path / "out/submission_runs/aa"
    spread = {}
    for name in ("alone", "run"):
        (saved,) = (runs / name).glob("step_*")
        table = load_weights(saved)["model.inner.puzzle_emb.weights"]
        spread[name] = float((table - table[0]).abs().max())
        assert yaml.safe_load((runs / name / "config.yaml").read_text())["lr"] == 0.03125
    assert spread["alone"] == 0 < spread["run"]
    adapt(tasks, f"checkpoint={run}", "adapt.models=2", "adapt.what=rows", name="rows")
    assert list(told(tmp_path, "rows")["aa"]["steps"]) == ["run", "run1"]


def test_malformed_tasks_are_named_and_the_others_go_on(
    adapt: Any, tasks: Path, tmp_path: Path, capsys: Any
) -> None:
    made = json.loads(tasks.read_bytes())
    ragged, colour, large, nothing, no_input = (task(seed, tests=2) for seed in range(5))
    ragged["train"][1]["input"] = [[1, 2], [3]]
    colour["train"][0]["output"] = [[10]]
    large["test"][1]["input"] = [[1] * 31]
    nothing["train"] = []
    del no_input["test"][0]["input"]
    bad = {"ragged": ragged, "colour": colour, "large": large, "nothing": nothing}
    bad |= {"no_input": no_input, "list": [1], "../out": task(1)}
    tasks.write_text(json.dumps(made | bad))
    found = adapt(tasks)
    assert found.keys() == made.keys() | bad.keys()
    assert len(found["large"]) == 2
    assert len(found["list"]) == 1
    err = capsys.readouterr().err
    for words in (
        "task ragged: train pair 2: input: row 2",
        "task colour: train pair 1: output",
        "task large: test pair 2: input",
        "task nothing: train is list of 0",
        "task no_input: test pair 1: input is missing",
        "task list: train pair 1: input is missing",
        "../out cannot be the name of a folder",
    ):
        assert words in err
    assert err.count("left out") == 7
    assert not list((tmp_path / "out").glob("data"))


def test_a_damaged_file_is_named_and_the_others_are_read(tmp_path: Path, capsys: Any) -> None:
    made = task(1)
    made["test"][0]["output"] = None
    (tmp_path / "good.json").write_text(json.dumps(made))
    (tmp_path / "cut.json").write_text(json.dumps(made)[:50])
    (tmp_path / "._good.json").write_bytes(b"\0\5\x16\7\xff")
    answers = dict[str, Any]()
    assert [one.name for one in adapting.read_tasks(tmp_path, answers)] == ["good"]
    assert {name: len(guesses) for name, guesses in answers.items()} == {"._good": 1, "cut": 1}
    err = capsys.readouterr().err
    assert err.count("left out") == 2
    assert "cut.json: not JSON" in err


def test_it_is_a_single_process(
    adapt: Any, tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="start it without torchrun"):
        adapt(tasks)
    assert not (tmp_path / "out").exists()


def test_mistakes(adapt: Any, tasks: Path, tmp_path: Path) -> None:
    wrong: list[tuple[list[str], type[Exception], str]] = [
        (["adapt.what=row"], ConfigError, "adapt.what=row"),
        (["adapt.step=3"], ConfigError, "did you mean adapt.steps?"),
        (["adapt.steps=nowhere.json"], DatasetError, "nowhere.json"),
        (["checkpoint=nowhere"], CheckpointError, "nowhere"),
        (["adapt.rows=zero"], ConfigError, "adapt.rows needs checkpoint="),
    ]
    for settings, error, words in wrong:
        with pytest.raises(error, match=words):
            adapt(tasks, *settings)
    adapt(tasks)
    with pytest.raises(ConfigError, match="other settings; choose another output="):
        adapt(tasks, "lr=1e-3")
    with pytest.raises(ConfigError, match="other settings; choose another output="):
        adapt(tasks, "adapt.steps=7")
    changed = json.loads(tasks.read_bytes())
    changed["bb"]["test"][0]["input"] = [[5, 0]]
    tasks.write_text(json.dumps(changed))
    with pytest.raises(ConfigError, match="bb has changed since; choose another output="):
        adapt(tasks)
    for setting, words in (("max_time=1h", "max_time: an adaptation sets it; see adapt.max_time"),):
        with pytest.raises(ConfigError, match=words):
            adapt(tasks, setting, name="other")
    with pytest.raises(DatasetError, match=r"nothing\.json: No such file"):
        adapt(tmp_path / "nothing.json")
    with pytest.raises(ConfigError, match=r"^output=.*: with tasks=.* it is inside this folder"):
        adapt(tmp_path, name="inside")
    assert not (tmp_path / "inside").exists()
    (tmp_path / "taken/submission.json").mkdir(parents=True)
    with pytest.raises(ConfigError, match="is a folder; expected the name of a file"):
        adapt(tasks, name="taken")
    assert len([*(tmp_path / "taken").iterdir()]) == 1


@pytest.mark.parametrize("full", ["submission.json", "log.txt", "submission_steps.json"])
def test_a_full_disk_ends_the_adaptation(
    adapt: Any, tasks: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, full: str
) -> None:
    write = adapting.write_atomically

    def writes(path: Path, content: str) -> None:
        if path.name == full:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, content)

    def adapts(adapter: Any, part: Any, *rest: Any) -> dict[str, Any]:
        writes(part.folder / "log.txt", "")
        return adapting.unanswered("it failed")

    monkeypatch.setattr(adapting, "write_atomically", writes)
    monkeypatch.setattr(adapting.Adapter, "adapt", adapts)
    with pytest.raises(ConfigError, match="out: No space left on device"):
        adapt(tasks)
    assert "its answers are empty" not in capsys.readouterr().err


@pytest.mark.parametrize("steps", [[6, 6], {}, {"../run": 6}, {"run": "many"}])
def test_a_file_without_the_steps_of_models_is_refused(
    adapt: Any, tasks: Path, tmp_path: Path, steps: Any
) -> None:
    file = tmp_path / "steps.json"
    file.write_text(json.dumps({name: {"steps": steps, "most": 6} for name in ("aa", "bb")}))
    with pytest.raises(ConfigError, match=r"steps\.json: it does not tell the steps"):
        adapt(tasks, f"adapt.steps={file}")


def test_a_submission_is_scored(tmp_path: Path, capsys: Any) -> None:
    """The second task is solved by its second attempt, in one of two test inputs."""
    made = {"aa": task(1), "bb": task(2, tests=2)}
    right = {name: [one["output"] for one in own["test"]] for name, own in made.items()}
    wrong = [[5], [5]]
    answers = {
        "aa": [{"attempt_1": right["aa"][0], "attempt_2": wrong}],
        "bb": [{"attempt_1": wrong, "attempt_2": right["bb"][0]}, dict.fromkeys(ATTEMPTS, wrong)],
    }
    submission, folder = tmp_path / "submission.json", tmp_path / "tasks"
    submission.write_text(json.dumps(answers))
    folder.mkdir()
    for name, own in made.items():
        (folder / f"{name}.json").write_text(json.dumps(own))
    challenges = tmp_path / "own_challenges.json"
    asked = {name: own | {"test": task(0, 0)["test"]} for name, own in made.items()}
    for name, own in asked.items():
        own["test"] = [{"input": one["input"]} for one in made[name]["test"]]
    challenges.write_text(json.dumps(asked))
    (tmp_path / "own_solutions.json").write_text(json.dumps(right))
    page = tmp_path / "guesses.html"
    for tasks in (folder, challenges):
        assert score_arc.main([str(submission), str(tasks), "--page", str(page)]) == 0
        text = page.read_text()
        assert text.count(">1st attempt") == 3
        assert text.count("right answer at place") == 2
        found = json.loads(capsys.readouterr().out)
        assert (found["pass@1"]["value"], found["pass@2"]["value"]) == (0.5, 0.75)
        assert found["pass@2"]["low"] < 0.75 < found["pass@2"]["high"]
        assert found["solved_by_attempt"] == {"aa": [1], "bb": [2, None]}


def test_a_wrong_submission_is_named(tmp_path: Path, capsys: Any) -> None:
    submission, tasks = tmp_path / "submission.json", tmp_path / "aa.json"
    tasks.write_text(json.dumps(task(1)))
    for answers, words in (
        ({}, "task 'aa' has no list of 1 answers"),
        ({"aa": [{"attempt_1": [[1]]}]}, "test input 1: attempt_2"),
        ({"aa": [{"attempt_1": [], "attempt_2": [[1]]}]}, "attempt_1: list of 0"),
    ):
        submission.write_text(json.dumps(answers))
        assert score_arc.main([str(submission), str(tasks)]) == 3
        assert words in capsys.readouterr().err


@pytest.mark.slow
def test_the_script_for_kaggle_deals_out_the_tasks(
    tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    script = ROOT / "examples/kaggle/submit.py"
    spec = importlib.util.spec_from_file_location("submit", script)
    assert spec is not None
    assert spec.loader is not None
    submit = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(submit)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(submit, "num_gpus", lambda: 2)
    installed = list[Any]()
    monkeypatch.setattr(subprocess, "run", lambda command, **_: installed.append(command))
    made = json.loads(tasks.read_bytes())
    tasks.write_text(json.dumps(made | {"bad": {"train": [], "test": [1, 2]}}))
    (tmp_path / "worker_2").mkdir()  # Left by a run with more GPUs.
    (tmp_path / "worker_2/submission.json").write_text('{"gone": []}')
    submit.main(tasks, [*GRID, *SMALL])
    assert installed[0][-2:] == [script.parent, "recursive-reasoning"]
    found = json.loads((tmp_path / "submission.json").read_bytes())
    assert {name: len(guesses) for name, guesses in found.items()} == {"aa": 1, "bb": 2, "bad": 2}
    own = [json.loads((tmp_path / f"worker_{i}/submission.json").read_bytes()) for i in (0, 1)]
    assert own == [{name: found[name] for name in names} for names in (("aa", "bad"), ("bb",))]
    assert "3 of 3 tasks answered" in capsys.readouterr().out
    # Without the workers' answers, too, every task has some.
    made = [submit.no_answers(one) for one in ({"train": []}, {"test": [1, 2]}, [1], {"test": []})]
    assert list(map(len, made)) == [1, 2, 1, 1]
    # A worker that fails leaves a complete submission, too.
    with pytest.raises(SystemExit, match=r"workers \[0, 1\] failed; run it again"):
        submit.main(tasks, [*GRID, *SMALL, "adapt.num_aug=7"])
    del installed[:]
    with pytest.raises(SystemExit, match=r"nowhere.json: .*No such file"):
        submit.main(tmp_path / "nowhere.json", [])
    assert installed == []
    monkeypatch.setattr(sys, "argv", [str(script)])
    with pytest.raises(SystemExit, match=r"usage: submit\.py CHALLENGES\.json"):
        runpy.run_path(str(script), run_name="__main__")


def test_the_guesses_for_a_single_task_are_shown(adapt: Any, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "one.json"
    path.write_text(json.dumps(task(3, tests=2)))
    (first, second) = adapt(path)["one"]
    lines = capsys.readouterr().out.splitlines()
    shown = [lines[at + 2].split() for at, line in enumerate(lines) if line.startswith("attempt ")]
    given = json.loads(path.read_bytes())["test"]
    cells = [
        [str(cell) if cell else "." for grid in (one["input"], guesses[name]) for cell in grid[0]]
        for one, guesses in zip(given, (first, second), strict=True)
        for name in ATTEMPTS
    ]
    assert shown == cells


def test_solve_hands_a_task_on(tmp_path: Path) -> None:
    given = list[list[str]]()
    settings = ["adapt=true", "device=cpu", "num_threads=1"]
    asked = [*settings, f"file={tmp_path}/a b.json", "checkpoint=zoo:arc-demo"]
    solving.main(asked, adapt=given.append)
    place = f"{tmp_path}/a_b_zoo_arc-demo".strip("/").replace("/", "_")
    output = f"output='adapted/{place}.json'"
    own = [f"tasks='{tmp_path}/a b.json'", output, "checkpoint='zoo:arc-demo'"]
    assert given == [[*own, "device='cpu'", "num_threads=1"]]
    solving.main([*settings, "file=b.json"], adapt=given.append)
    assert "output='adapted/b.json'" in given[1]
    for name, value in (
        ("animate", "=x.gif"),
        ("steps", "=8"),
        ("chains", "=4"),
        ("search", ".chains=2"),
        ("arch_overrides", ".attention=math"),
    ):
        with pytest.raises(ConfigError, match=f"^{name} has no effect with adapt=true"):
            solving.main([*settings, "file=b.json", name + value], adapt=given.append)
    with pytest.raises(ConfigError, match="adapt=true is for an ARC task: set file=TASK.json"):
        solving.main(["adapt=true", "puzzle=53"], adapt=given.append)
