"""Command lines composed at once or one by one are equal; metrics and table of a sweep."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from apps.sweeps.jobs import expand
from apps.sweeps.programs import EVALUATION, TRAINING, Program, plan_of
from apps.sweeps.run import sweep_trainings
from apps.sweeps.table import WRITERS, Row, lines_of, over_seeds, write_table
from evaluation.config import EvalConfig
from runtime.errors import ConfigError
from tests.unit.training.config.test_command_line import (
    HOSTILE,
    MINE,
    REFUSED,
    write,
    write_hostile,
)
from training.config.composition import load_config, load_configs
from training.config.schema import TrainConfig

RUNS = [
    ("lr=1e-3",),
    ("lr=1e-3", "arch=trm", "arch.L_cycles=3"),
    ("arch=trm", "+run_name='a,b'", "arch.L_cycles=4"),
    ("heads=[tied,confidence]", "experiment=trm_sudoku_easy", "lr=1.0"),
    ("experiment=null", "optimizer=grouped", "+optimizer.groups.mine.params=[*.bias]"),
    ("data_paths=[a,b]", "arch.heads.lm.dropout=0.1", "seed=1", "seed=2"),
]
WRONG = [
    "lr=much",
    "hiden_size=3",
    "arch=hrm_v7",
    "arch.pos_encodings=some",
    "arch.L_cycles=0",
    "~lr",
    "lr",
]


def test_many_command_lines_give_the_same_as_one_by_one() -> None:
    runs = [*RUNS, *RUNS]
    alone = [load_config(TrainConfig, "cfg_pretrain", run) for run in RUNS]
    assert load_configs(TrainConfig, "cfg_pretrain", [], runs) == [*alone, *alone]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_command_line_among_many_has_the_same_message(wrong: str) -> None:
    with pytest.raises(ConfigError) as alone:
        load_config(TrainConfig, "cfg_pretrain", [wrong])
    with pytest.raises(ConfigError) as among_others:
        load_configs(TrainConfig, "cfg_pretrain", [], [*RUNS, [wrong]])
    assert str(among_others.value) == str(alone.value)


def test_former_names_can_be_swept() -> None:
    plan = plan_of(EVALUATION, ["-m", "checkpoint=x", "depth=16", "breadth=1,8"])
    jobs = expand(plan.overrides)
    assert [job.name for job in jobs] == ["breadth-1", "breadth-8"]
    configs = load_configs(EvalConfig, "cfg_evaluate", [], [job.overrides for job in jobs])
    assert [(config.steps, config.chains) for config in configs] == [([16], [1]), ([16], [8])]


@pytest.mark.parametrize("text", HOSTILE)
def test_own_files_cannot_change_other_settings_of_hydra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    write_hostile(text)
    with pytest.raises(ConfigError, match=REFUSED):
        plan_of(TRAINING, [*MINE, "-m", "seed=0,1"])
    assert not Path("canary").exists()


def test_a_wrong_launcher_setting_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write("hydra/launcher/mine.yaml", "name: pool\nmax_jobs: ???")
    flags = ["--config-dir", ".", "-m", "hydra/launcher=mine", "seed=0,1"]
    with pytest.raises(ConfigError, match=r"^hydra/launcher=pool: max_jobs=\?\?\?: input should"):
        plan_of(TRAINING, flags)


def test_a_study_refuses_max_time_because_it_would_repeat_a_stopped_trial_for_ever() -> None:
    arguments = ["-m", "hydra/sweeper=optuna", "lr=1e-3,1e-4", "max_time=1h"]
    with pytest.raises(ConfigError, match="^max_time: Optuna .* set epochs= instead$"):
        sweep_trainings(arguments, [].append)


def metrics_of(program: Program, folder: Path, content: str, objective: str = "") -> dict[str, Any]:
    """Return the metrics of a job that wrote `content`."""
    path = program.result(folder, "job")
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    return dict(program.read(folder, "job", objective or program.objective))


def of_chains(*lines: tuple[str, int, int, float]) -> str:
    """Return a result with lines of (set, steps, number of puzzles, share of right answers)."""
    names = ("set_name", "depth", "num_puzzles", "selected", "breadth", "select")
    chains = [
        dict(zip(names, (*line[:3], {"value": line[3]}, 8, "q"), strict=True)) for line in lines
    ]
    return json.dumps({"chains": chains})


SEARCHERS = [{"searcher": "model", "solved": {"value": 0.9}, "wrong": {"value": 0.05}}]
SEARCHERS[0]["num_puzzles"] = 20


@pytest.mark.parametrize(
    ("content", "metrics"),
    [
        (
            of_chains(("a", 3, 30, 0.5), ("b", 3, 10, 0.9)),
            {"selected/depth3/breadth8/q": 0.6, "exact_accuracy": 0.6},
        ),
        (
            of_chains(("a", 3, 30, 0.5), ("a", 4, 30, 0.75)),
            {"selected/depth3/breadth8/q": 0.5, "selected/depth4/breadth8/q": 0.75},
        ),
        (json.dumps({"searchers": SEARCHERS}), {"solved": 0.9, "wrong": 0.05}),
        ('{"metrics": {"accu', {}),
    ],
)
def test_the_metrics_of_evaluations(tmp_path: Path, content: str, metrics: Any) -> None:
    found = metrics_of(EVALUATION, tmp_path, content)
    assert found == {name: {0: pytest.approx(value)} for name, value in metrics.items()}


def test_the_metrics_of_runs(tmp_path: Path) -> None:
    lines = [
        {"step": 1, "train/lr": 1.0, "train/lm_loss": 2.0, "train/accuracy": 0.5},
        {"step": 2, "train/lr": 1.0, "train/lm_loss": 1.0},  # No puzzle halted.
    ]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    found = {"train/lm_loss": {2: 1.0}, "train/accuracy": {1: 0.5}}
    assert metrics_of(TRAINING, tmp_path, text) == found
    found = metrics_of(TRAINING, tmp_path, text, "train/lm_loss")
    assert found == {"train/lm_loss": {1: 2.0, 2: 1.0}}
    text += json.dumps({"step": 2, "eval/exact_accuracy": 0.25, "eval/loss": "nan"})
    found = metrics_of(TRAINING, tmp_path, text)
    assert found["eval/exact_accuracy"] == {2: 0.25}
    assert math.isnan(found["eval/loss"][2])


@pytest.mark.parametrize(
    ("metrics", "objective", "shown"),
    [
        (
            {"exact_accuracy": 0.1, "accuracy": 0.9, "arc/pass@2": 0.2},
            "arc/pass@2",
            "arc/pass@2 exact_accuracy accuracy",
        ),
        ({"train/lm_loss": 1.0, "train/accuracy": 0.5}, "x", "train/lm_loss train/accuracy"),
        ({"selected/depth4/breadth8/q": 0.75}, "exact_accuracy", "selected/depth4/breadth8/q"),
    ],
)
def test_the_metrics_that_a_table_shows(
    tmp_path: Path, metrics: dict[str, float], objective: str, shown: str
) -> None:
    rows = [Row("job", {"seed": "0"}, "finished", metrics)]
    header, row, *_ = write_table(tmp_path, rows, objective, minimize=False).splitlines()
    assert header.split() == ["seed", *shown.split(), "state"]
    assert row.split() == ["0", *(f"{metrics[name]:.4g}" for name in shown.split()), "finished"]


def test_jobs_that_differ_only_in_their_seed_are_one_row() -> None:
    found = [("1e-3", "0", 0.5), ("1e-3", "1", 0.75), ("2e-3", "0", 0.875), ("2e-3", "1", None)]
    rows = [
        Row(f"{lr}-{seed}", {"lr": lr, "seed": seed}, "finished", {"a_b": score} if score else {})
        for lr, seed, score in found
    ]
    means = over_seeds([*rows, rows[0]._replace(state="failed")], "a_b", minimize=False)
    assert lines_of(means, "a_b") == [
        ["lr", "mean a_b", "std", "seeds"],
        ["2e-3", "0.875", "-", "1"],
        ["1e-3", "0.625", "0.1768", "2"],
    ]
    assert over_seeds(rows, "a_b", minimize=True)[0]["lr"] == "1e-3"


def test_the_order_of_the_settings_makes_no_other_row() -> None:
    one, other = {"lr": "1", "arch": "trm", "seed": "0"}, {"seed": "1", "arch": "trm", "lr": "1"}
    rows = [Row(values["seed"], values, "finished", {"a": 0.5}) for values in (one, other)]
    means = over_seeds(rows, "a", minimize=False)
    assert lines_of(means, "a")[1:] == [["1", "trm", "0.5", "0", "2"]]


def test_cells_are_escaped_in_every_format() -> None:
    lines = [["a|b", "mean a_b", "std", "seeds"], ["50% of <b>, \\~", "1", "-", "1"]]
    assert {form: write(lines).splitlines() for form, write in WRITERS.items()} == {
        "markdown": [
            r"| a\|b | mean a\_b | std | seeds |",
            "|---|---|---|---|",
            r"| 50% of \<b\>, \\~ | 1 | - | 1 |",
        ],
        "csv": ["a|b,mean a_b,std,seeds", r'"50% of <b>, \~",1,-,1'],
    }


def test_a_full_disk_leaves_no_table_and_one_line(tmp_path: Path, failing_flush: int) -> None:
    if failing_flush > 2:
        pytest.skip("the files are already on the disk")
    rows = [Row("a", {"lr": "1"}, "finished", {"exact_accuracy": 0.5})]
    with pytest.raises(ConfigError, match=r"results.json: No space left on device$"):
        write_table(tmp_path, rows, "exact_accuracy", minimize=False)
    assert list(tmp_path.iterdir()) == []
