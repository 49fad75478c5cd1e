"""Hydra's flags and configurations of the user's own: what they can do, and what is refused."""

import logging
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from evaluation.config import EvalConfig, SolveConfig
from runtime.errors import ConfigError
from runtime.process import EXIT_CODES_FOLDER, common_exit_code
from scripts.convert_checkpoint import ConvertConfig
from training.config.composition import hydra_settings, load_config
from training.config.overrides import parse_arguments
from training.config.schema import TrainConfig
from training.config.source import CONFIG_DIR, source_of

Answer = Callable[..., str]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working folder. Hydra must not make its own folders in it."""
    monkeypatch.chdir(tmp_path)
    root = logging.getLogger()
    before = root.level, [*root.handlers]
    yield tmp_path
    root.level, root.handlers[:] = before
    assert {path.name for path in tmp_path.rglob("*")} & {"outputs", "multirun", ".hydra"} == set()


@pytest.fixture
def answer(enter: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> Answer:
    """Return the output of an entry point, which must succeed without warnings."""

    def run(*arguments: str, **options: Any) -> str:
        assert enter(*arguments, **options) == 0, capsys.readouterr()
        out, err = capsys.readouterr()
        assert err == ""
        return out

    return run


@pytest.fixture
def complaint(enter: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> Answer:
    """Return the one line with which an entry point refuses arguments."""

    def run(*arguments: str, **options: Any) -> str:
        assert enter(*arguments, main=compose, **options) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        return err

    return run


def compose(arguments: list[str]) -> None:
    load_config(TrainConfig, "cfg_pretrain", arguments)


def write(path: str, text: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)


# Flags


@pytest.mark.parametrize(
    ("arguments", "parts"),
    {
        "--help": ["How to use it.", "--config-dir", "  loss: act_softmax, act_stab", "\nlr: 0.0"],
        "-h arch=trm": ["  hydra/launcher: pool, ", "  name: trm\n"],
        "--cfg job lr=0.5": ["\nlr: 0.5\n", "data_path: ${data.path}\n"],
        "lr=0.5 -c job arch=trm": ["\nlr: 0.5\n", "  name: trm\n"],
        "--config-name cfg_evaluate --cfg job": ["checkpoint: null\n"],
    }.items(),
)
def test_hydra_answers(answer: Answer, arguments: str, parts: list[str]) -> None:
    said = answer(*arguments.split())
    assert [part for part in parts if part not in said] == [], said


def test_cfg_leaves_out_the_settings_of_the_command_itself(answer: Answer) -> None:
    asked = ("--cfg", "job", "lr=0.5")
    assert answer(*asked, "selection=last", own_settings={"selection"}) == answer(*asked)


@pytest.mark.parametrize("name", ["evaluate", "solve", "convert"])
def test_a_run_is_named_with_and_without_its_key(
    answer: Answer, complaint: Answer, place: Path, name: str
) -> None:
    schema = {"evaluate": EvalConfig, "solve": SolveConfig, "convert": ConvertConfig}[name]
    options = {"schema": schema, "config_name": f"cfg_{name}"}
    (place / "a sweep" / "lr=0.1,seed=2").mkdir(parents=True)
    for run in ("checkpoints/demo", "hf://owner/name@main", "a sweep/lr=0.1,seed=2", "it's (1)"):
        told = answer("-c", "job", run, **options)
        assert yaml.safe_load(told)["checkpoint"] == run
    once = "b: name one run, as RUN or checkpoint=RUN; all else is KEY=VALUE"
    assert once in complaint("checkpoint=a", "b", **options)
    assert once in complaint("a", "b", **options)


@pytest.mark.parametrize(
    ("arguments", "told"),
    {
        "--cfg": "-c/--cfg: expected one argument: write settings as key=value; see --help",
        "--cfg job arch=hrm_v2": "did you mean arch=hrm_v1?",
        "--help lrr=1": "lrr=1; did you mean lr?",
        "--help learning_rate=1": "learning_rate=1; did you mean lr?",
        "--help batch_size=8": "batch_size=8; did you mean global_batch_size?",
        "lr=1,2 --cfg job": "lr=1,2: several values need -m",
        "heads=a,b": """for each; one list is 'heads=[a,b]', one text "heads='a,b'"\n""",
        "~lr": "~lr: cannot delete a setting; lr=null turns off",
        "--lr 3": "unrecognized arguments: --lr: write settings as key=value; see --help",
        "+arch@hydra.callbacks=trm": "arch@hydra.callbacks=trm: the place of a group cannot be",
        "+arch._target_=os.system": "unknown setting arch._target_=os.system",
        "hydra/launcher=basic": "hydra/launcher=basic: no such choice; accepted: pool",
        "-m": "-m: this command makes one run at a time",
        "--config-name nope": "there is no nope.yaml in",
        "--config-dir nope": "--config-dir nope: no such folder",
    }.items(),
)
def test_mistakes_with_flags_are_one_line(complaint: Answer, arguments: str, told: str) -> None:
    assert told in complaint(*arguments.split())


@pytest.mark.parametrize("name", ["caf\u00e9", "mine (b)", "a=b"])
def test_a_value_that_needs_quotes_is_shown_with_them(
    complaint: Answer, answer: Answer, name: str
) -> None:
    quoted = f"run_name='{name}'"
    said = complaint(f"run_name={name}")
    assert said.endswith(f'; quote the value: "{quoted}"\n')
    assert "Exception" not in said
    assert yaml.safe_load(answer("--cfg", "job", quoted))["run_name"] == name


def test_several_values_name_m_only_where_it_exists(complaint: Answer) -> None:
    options = {"schema": SolveConfig, "config_name": "cfg_solve"}
    told = "index=0,198: a setting takes one value; one list is 'index=[0,198]', one text "
    assert told in complaint("-c", "job", "index=0,198", **options)


# Configurations of the user's own


MINE = ("--config-dir", ".", "--config-name", "mine")
FEW = (
    "experiment=dec_sudoku_demo",
    "experiment=trm_arc_1 heads=[tied,confidence] logger=[wandb,mlflow] optimizer=grouped",
    "heads=sage loss=act_softmax data=maze run_name=1e3 project_name='a: b' evaluators=[]",
    "arch.name=hrm.hrm_act_v1@HierarchicalReasoningModel_ACTV1 data_paths=[a,b] eval_interval=null",
)


@pytest.mark.parametrize("settings", FEW)
def test_what_cfg_prints_composes_to_the_same(answer: Answer, settings: str) -> None:
    write("mine.yaml", printed := answer("--cfg", "job", *shlex.split(settings)))
    assert answer(*MINE, "--cfg", "job") == printed


def test_overrides_change_a_configuration_of_ones_own(answer: Answer, complaint: Answer) -> None:
    write("mine.yaml", answer("--cfg", "job", "experiment=trm_sudoku_easy"))
    config = load_config(TrainConfig, "cfg_pretrain", [*MINE, "arch.hidden_size=64", "lr=3"])
    assert (config.arch.hidden_size, config.lr, config.epochs) == (64, 3.0, 32)
    told = "chooses no arch; change single settings, or add `- arch: NAME` to its defaults list"
    for choice in ("arch=trm", "+arch=trm"):
        assert f"{choice}: {Path('mine.yaml').resolve()} {told}" in complaint(*MINE, choice)
    assert "heads=[tied]: " in complaint(*MINE, "heads=[tied]")
    write("mine.yaml", "arch: {name: hrm}")
    told = "seed=3: the chosen files have no seed; write +seed"
    assert told in complaint(*MINE, "seed=3")


def test_a_folder_adds_files_and_groups(answer: Answer, complaint: Answer) -> None:
    write("own/experiment/mine.yaml", "# @package _global_\ndefaults: [override /arch: big]\nlr: 3")
    write("own/arch/big.yaml", "defaults: [trm, _self_]\nhidden_size: 1024\n")
    loss = yaml.safe_load(answer("-c", "job", "loss=act_softmax"))["arch"]["loss"]
    write("own/loss/mine.yaml", f"# @package arch.loss\n{yaml.safe_dump(loss)}")
    own = ["--config-dir", "own"]
    config = load_config(TrainConfig, "cfg_pretrain", [*own, "experiment=mine", "loss=mine"])
    assert (config.arch.name, config.arch.hidden_size, config.lr) == ("trm", 1024, 3.0)
    assert config.arch.loss.loss_type == "softmax_cross_entropy"
    assert "  arch: attractor, big, dec, graph, grid, hrm" in answer(*own, "--help")
    assert "did you mean arch=big?" in complaint(*own, "arch=bigg")


def test_a_name_in_both_folders_is_an_error_that_names_both_files(complaint: Answer) -> None:
    write("own/arch/trm.yaml", "hidden_size: 3")
    said = complaint("--config-dir", "own", "lr=3")
    assert f"{Path('own/arch/trm.yaml').resolve()}: {CONFIG_DIR / 'arch' / 'trm.yaml'} has" in said


def test_a_mistake_in_a_file_is_named(complaint: Answer, answer: Answer) -> None:
    composed = yaml.safe_load(answer("--cfg", "job"))
    composed["arch"]["hiden_size"] = composed["arch"].pop("hidden_size")
    composed["arch"]["puzzle_emb_ndim"] = 512
    write("mine.yaml", yaml.safe_dump(composed))
    with pytest.raises(ConfigError, match=r"arch\.hiden_size=512; did you mean arch\.hidden_size"):
        load_config(TrainConfig, "cfg_pretrain", [*MINE])


BROKEN = {
    "lr: [": "line 1",
    "- a": "primary config",
    "lr: 1\nlr: 2": "duplicate key lr",
    "a: !!python/name:os.system": "python/name",
    "defaults: 3": "defaults must be a list",
    "defaults: [3]": "int",
    "defaults: [3: a]": "no text|isinstance",
    "defaults: [cfg_pretrain, override arch: nope, _self_]": "Could not find 'arch/nope'",
    "defaults: [mine]": "recursion",
    "defaults: [cfg_pretrain, _self_]\nlr: ${nowhere}": "'nowhere' not found",
    "defaults: [cfg_pretrain, _self_]\nlr: ${os.system:x}": "Unsupported interpolation type",
}


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_file_is_one_line(text: str) -> None:
    write("mine.yaml", text)
    with pytest.raises(ConfigError, match=BROKEN[text]) as caught:
        load_config(TrainConfig, "cfg_pretrain", [*MINE])
    assert len(str(caught.value).splitlines()) == 1


# Files and overrides that are refused

FIRST = "defaults: [cfg_pretrain, _self_{}]\n".format
REFUSED = "of Hydra's own settings these can be changed: hydra/launcher, hydra/sweeper, "


@pytest.mark.parametrize(
    "override",
    [
        "hydra.run.dir=x",
        "hydra/job_logging=none",
        "hydra.verbose=true",
        "hydra.searchpath=[pkg://stranger]",
        "hydra.searchpath=[file:///tmp]",
        "+hydra.callbacks.a._target_=os.system",
        "+hydra/callbacks=x",
        "hydra.launcher._target_=os.system",
        "+hydra.launcher.additional={_target_:os.system}",
        "hydra.launcher={_target_:os.system}",
        "hydra.mode=MULTIRUN",
        "+hydra={callbacks:{a:{_target_:os.system}}}",
    ],
)
def test_other_settings_of_hydra_are_refused(complaint: Answer, override: str) -> None:
    assert f"{override[:20]}" in (said := complaint(override))
    assert REFUSED in said


HOSTILE = {
    "a folder": FIRST("") + "hydra: {searchpath: ['file:///tmp']}",
    "a reference": FIRST("") + "x: {searchpath: ['pkg://stranger']}\nhydra: ${x}",
    "a merge": FIRST("") + "x: &x {hydra: {searchpath: ['pkg://stranger']}}\n<<: *x",
    "callbacks of a file": FIRST(", /hydra/callbacks: bad"),
    "logging": FIRST(", override hydra/hydra_logging: bad"),
    "a launcher's class": FIRST(", override hydra/launcher: bad"),
    "a launcher's file": FIRST(", override hydra/launcher: elsewhere"),
    "an architecture's file": FIRST(", override arch: elsewhere"),
    "a file by its whole name": FIRST(", elsewhere.yaml"),
    "an endless sweep": FIRST("") + "hydra: {mode: MULTIRUN}",
}


def write_hostile(text: str) -> None:
    """Write a user's file that would run code or change other settings of Hydra."""
    write("stranger/__init__.py", "open('canary', 'w').close()")
    write("hydra/callbacks/bad.yaml", "a: {_target_: stranger.X}")
    write("hydra/hydra_logging/bad.yaml", "version: 1\nhandlers: {a: {(): stranger.X}}")
    write("hydra/launcher/bad.yaml", "_target_: stranger.X")
    write("hydra/launcher/elsewhere.yaml", "# @package hydra.callbacks\na: {_target_: stranger.X}")
    write("arch/elsewhere.yaml", "# @package hydra.callbacks\na: {_target_: stranger.X}")
    write("elsewhere.yaml", "# @package hydra.callbacks\na: {_target_: stranger.X}")
    write("mine.yaml", HOSTILE[text])


@pytest.mark.parametrize("text", HOSTILE)
def test_files_change_nothing_else_of_hydra(
    complaint: Answer, monkeypatch: pytest.MonkeyPatch, place: Path, text: str
) -> None:
    write_hostile(text)
    monkeypatch.syspath_prepend(place)
    assert REFUSED in complaint(*MINE)
    assert REFUSED in complaint(*MINE, "--help")
    assert not Path("canary").exists()


def test_a_file_of_ones_own_chooses_launcher_and_sweeper() -> None:
    write("hydra/launcher/mine.yaml", "name: pool\nmax_jobs: 2")
    choices = ", override hydra/launcher: mine, override hydra/sweeper: optuna"
    write("mine.yaml", FIRST(choices) + "hydra: {sweep: {dir: x}, sweeper: {n_trials: 3}}")
    source = source_of("cfg_pretrain", parse_arguments(["-cd", ".", "-cn", "mine.yaml"]))
    said = hydra_settings(TrainConfig, source, [])
    assert said["launcher"] == {"name": "pool", "max_jobs": 2}
    assert (said["sweeper"]["n_trials"], said["sweep_dir"]) == (3, "x")


@pytest.mark.parametrize(
    ("text", "told"),
    {
        "defaults: [override hydra/launcher: pool]": "experiment/mine': Could not override",
        "defaults: [override /hydra/launcher: pool]": "experiment/mine.yaml: hydra/launcher comes",
        "hydra: {launcher: {max_jobs: 3}}": "experiment/mine.yaml: hydra.launcher.max_jobs comes",
    }.items(),
)
def test_an_experiment_chooses_no_launcher(complaint: Answer, text: str, told: str) -> None:
    write("experiment/mine.yaml", f"# @package _global_\n{text}\n")
    assert told in complaint("--config-dir", ".", "experiment=mine", "--cfg", "job")


def test_a_program_error_of_a_rank_has_a_code(
    enter: Callable[..., int | str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def main(arguments: list[str]) -> None:
        raise ZeroDivisionError

    monkeypatch.setenv(EXIT_CODES_FOLDER, str(tmp_path))
    with pytest.raises(ZeroDivisionError):
        enter(main=main)
    (tmp_path / "0/rank_1").write_text("75")  # The launcher stopped the other rank.
    assert common_exit_code(tmp_path) == 1
