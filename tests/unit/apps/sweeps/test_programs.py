"""Many command lines at once give what each one gives alone, also where they are wrong."""

import json
from functools import partial
from pathlib import Path

import pytest

from apps.sweeps.plan import plan_of
from apps.sweeps.programs import EVALUATION, TRAINING
from apps.sweeps.table import WRITERS, Row, lines_of, over_seeds, write_table
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
    ("heads=[tied,confidence]", "experiment=sudoku_demo_mixer", "lr=1.0"),
    ("experiment=null", "optimizer=grouped", "+optimizer.groups.mine.params=[*.bias]"),
    ("data_paths=[a,b]", "arch.heads.lm.dropout=0.1", "seed=1", "seed=2"),
]


def test_many_command_lines_give_what_each_gives() -> None:
    runs = [*RUNS, *RUNS]
    alone = [load_config(TrainConfig, "cfg_pretrain", run) for run in RUNS]
    assert load_configs(TrainConfig, "cfg_pretrain", [], runs) == [*alone, *alone]


@pytest.mark.parametrize(
    "wrong",
    [
        "lr=much",
        "hiden_size=3",
        "arch=hrm_v7",
        "arch.pos_encodings=some",
        "arch.L_cycles=0",
        "~lr",
        "lr",
    ],
)
def test_mistakes_are_told_in_the_same_words(wrong: str) -> None:
    with pytest.raises(ConfigError) as alone:
        load_config(TrainConfig, "cfg_pretrain", [wrong])
    with pytest.raises(ConfigError) as among_others:
        load_configs(TrainConfig, "cfg_pretrain", [], [*RUNS, [wrong]])
    assert str(among_others.value) == str(alone.value)


def of_chains(folder: Path, *lines: tuple[str, int, int, float]) -> dict[str, float]:
    """Return what a sweep reads of lines with a set, a depth, its puzzles and a share."""
    chains = [
        {
            "set_name": set_name,
            "depth": depth,
            "breadth": 8,
            "select": "q",
            "num_puzzles": number,
            "selected": {"value": value},
        }
        for set_name, depth, number, value in lines
    ]
    (folder / "job").mkdir(exist_ok=True)
    (folder / "job" / "job.json").write_text(json.dumps({"chains": chains}))
    figures = EVALUATION.read(folder, "job", "exact_accuracy")
    return {name: values[0] for name, values in figures.items()}


def test_jobs_that_think_longer_are_compared_over_all_sets(tmp_path: Path) -> None:
    figures = of_chains(tmp_path, ("a", 3, 30, 0.5), ("b", 3, 10, 0.9))
    assert figures["exact_accuracy"] == figures["selected/depth3/breadth8/q"] == pytest.approx(0.6)


def test_each_of_several_depths_has_its_figure(tmp_path: Path) -> None:
    figures = of_chains(tmp_path, ("a", 3, 30, 0.5), ("a", 4, 30, 0.75))
    assert figures == {"selected/depth3/breadth8/q": 0.5, "selected/depth4/breadth8/q": 0.75}
    rows = [Row("job", {"seed": "0"}, "finished", figures)]
    text = write_table(tmp_path, rows, "exact_accuracy", minimize=False)
    assert "selected/depth4/breadth8/q" in text
    assert "0.75" in text


def test_searches_have_figures(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    shares = {"solved": {"value": 0.9}, "wrong": {"value": 0.05}, "num_puzzles": 20}
    content = {"searchers": [{"searcher": "model"} | shares]}
    (tmp_path / "job" / "job.json").write_text(json.dumps(content))
    figures = EVALUATION.read(tmp_path, "job", "exact_accuracy")
    assert figures == {"solved": {0: 0.9}, "wrong": {0: 0.05}}


def test_runs_that_evaluate_nothing_show_their_training(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    lines = [
        {"step": 1, "train/lr": 1.0, "train/lm_loss": 2.0, "train/accuracy": 0.5},
        {"step": 2, "train/lr": 1.0, "train/lm_loss": 1.0},  # No puzzle halted.
    ]
    path = tmp_path / "job" / "metrics.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    read = partial(TRAINING.read, tmp_path, "job", "eval/exact_accuracy")
    assert read() == {"train/lm_loss": {2: 1.0}, "train/accuracy": {1: 0.5}}
    metrics = {name: value for name, at in read().items() for value in at.values()}
    rows = [Row("job", {"seed": "0"}, "finished", metrics)]
    text = write_table(tmp_path, rows, "eval/exact_accuracy", minimize=False)
    assert [line.split() for line in text.splitlines()] == [
        ["seed", "train/lm_loss", "train/accuracy", "state"],
        ["0", "1", "0.5", "finished"],
    ]
    with path.open("a") as file:
        file.write(json.dumps({"step": 2, "eval/exact_accuracy": 0.25}))
    assert read() == {"eval/exact_accuracy": {2: 0.25}}


def test_the_headline_is_the_first_figure(tmp_path: Path) -> None:
    figures = {"exact_accuracy": 0.1, "accuracy": 0.9, "arc/pass@2": 0.2}
    rows = [Row("job", {"seed": "0"}, "finished", figures)]
    text = write_table(tmp_path, rows, "arc/pass@2", minimize=False)
    assert text.split()[:4] == ["seed", "arc/pass@2", "exact_accuracy", "accuracy"]


def test_jobs_that_differ_in_the_seed_alone_are_one_row() -> None:
    found = [("1e-3", "0", 0.5), ("1e-3", "1", 0.75), ("2e-3", "0", 0.875), ("2e-3", "1", None)]
    rows = [
        Row(f"{lr}-{seed}", {"lr": lr, "seed": seed}, "finished", {"a_b": score} if score else {})
        for lr, seed, score in found
    ]
    lines = lines_of(
        over_seeds([*rows, rows[0]._replace(state="failed")], "a_b", minimize=False), "a_b"
    )
    assert lines == [
        ["lr", "mean a_b", "std", "seeds"],
        ["2e-3", "0.875", "-", "1"],
        ["1e-3", "0.625", "0.1768", "2"],
    ]
    assert over_seeds(rows, "a_b", minimize=True)[0]["lr"] == "1e-3"
    assert {form: write(lines).splitlines() for form, write in WRITERS.items()} == {
        "markdown": [
            r"| lr | mean a\_b | std | seeds |",
            "|---|---|---|---|",
            "| 2e-3 | 0.875 | - | 1 |",
            "| 1e-3 | 0.625 | 0.1768 | 2 |",
        ],
        "csv": ["lr,mean a_b,std,seeds", "2e-3,0.875,-,1", "1e-3,0.625,0.1768,2"],
        "latex": [
            r"\begin{tabular}{lrrr}",
            r"\hline",
            r"lr & mean a\_b & std & seeds \\",
            r"\hline",
            r"2e-3 & 0.875 & - & 1 \\",
            r"1e-3 & 0.625 & 0.1768 & 2 \\",
            r"\hline",
            r"\end{tabular}",
        ],
    }


def test_what_a_cell_says_is_text_in_every_form() -> None:
    lines = [["a|b", "x", "std", "seeds"], ["50% of <b>, \\~", "1", "-", "1"]]
    markdown, table, latex = (write(lines) for write in WRITERS.values())
    assert r"a\|b" in markdown
    assert r"\<b\>" in markdown
    assert '"50% of <b>, \\~"' in table
    assert r"50\% of \textless{}b\textgreater{}, \textbackslash{}\textasciitilde{}" in latex


def test_a_table_of_a_sweep_without_room_is_one_line(tmp_path: Path, failing_flush: int) -> None:
    if failing_flush > 2:
        pytest.skip("what is on the disk can be renamed")
    rows = [Row("a", {"lr": "1"}, "finished", {"exact_accuracy": 0.5})]
    with pytest.raises(ConfigError, match=r"results.json: No space left on device$"):
        write_table(tmp_path, rows, "exact_accuracy", minimize=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", HOSTILE)
def test_files_of_ones_own_change_nothing_else_of_hydra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    write_hostile(text)
    with pytest.raises(ConfigError, match=REFUSED):
        plan_of(TrainConfig, "cfg_pretrain", [*MINE, "-m", "seed=0,1"])
    assert not Path("canary").exists()


def test_a_value_that_a_launchers_file_leaves_out_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write("hydra/launcher/mine.yaml", "name: pool\nmax_jobs: ???")
    flags = ["--config-dir", ".", "-m", "hydra/launcher=mine", "seed=0,1"]
    with pytest.raises(ConfigError, match=r"^hydra\.launcher\.max_jobs=\?\?\?: input should be"):
        plan_of(TrainConfig, "cfg_pretrain", flags)
