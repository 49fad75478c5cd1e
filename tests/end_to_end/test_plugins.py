"""Plug-ins, imported only when the user names them. docs/extending.md has one of each kind."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

PLUGIN = """
from pathlib import Path
from typing import Literal

from models.biases.base import ATTENTION_BIASES, AttentionBiasConfig
from models.config import ARCHITECTURES
from models.hrm.config import HRMConfig
from models.heads.config import AUXILIARY_HEADS, TOKEN_HEADS, AuxiliaryHeadConfig, TokenHeadConfig
from runtime.registry import imported
from runtime.schema import Count, Size, further_field
from training.optim.schedules import LR_SCHEDULES, ScheduleConfig

Path("imported").touch()


class MineConfig(HRMConfig):
    name: Literal["mine"] = "mine"
    widget_size: Size = 3
    overrides = {"widget_size": further_field(Count | None, None, "widgets")}


class DigitsConfig(TokenHeadConfig):
    name: Literal["digits"] = "digits"
    depth: Size = 2


class StairsConfig(ScheduleConfig):
    name: Literal["stairs"] = "stairs"
    number: Count = 3

    def height(self, step, first, last):
        return 1 - (step - first) * self.number // (last - first) / self.number


LR_SCHEDULES.add("stairs", StairsConfig)
ARCHITECTURES.add("mine", MineConfig, imported("nowhere", "Mine"))
ATTENTION_BIASES.add("near", AttentionBiasConfig, imported("nowhere", "Near"))
TOKEN_HEADS.add("digits", DigitsConfig, imported("nowhere", "digits"))
AUXILIARY_HEADS.add("doubt", AuxiliaryHeadConfig, imported("nowhere", "Doubt"))
"""
ON = "plugins=[my_parts]"


@pytest.fixture(autouse=True)
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_parts.py").write_text(PLUGIN)
    return tmp_path / "imported"


def test_registered_names_are_choices_with_their_defaults(run_python: Any) -> None:
    chosen = ["arch=mine", "arch.widget_size=5", "heads=[digits,doubt]", "arch.heads.lm.depth=4"]
    chosen += ["lr_schedule=stairs", "lr_schedule.number=4"]
    composed = run_python("pretrain.py", ON, *chosen, "--cfg", "job")
    assert composed.code == 0, composed.err
    settings = yaml.safe_load(composed.out)
    assert settings["lr_schedule"] == {"name": "stairs", "number": 4}
    arch = settings["arch"]
    assert (arch["name"], arch["widget_size"], arch["H_cycles"]) == ("mine", 5, 2)
    assert arch["heads"]["lm"] == {"name": "digits", "depth": 4, "norm": "none", "dropout": 0.0}
    assert arch["heads"]["doubt"] == {"detach": False}
    assert (
        "arch: attractor, dec, graph, grid, hrm, hrm_v1, lattice, mine, mixer,"
        in run_python("pretrain.py", ON, "--help").out
    )
    asked = ["evaluate.py", "checkpoint=x", "+arch_overrides.widget_size=0"]
    assert "widget_size=0: input should be greater" in run_python(*asked, ON).err
    assert "unknown setting arch_overrides.widget_size" in run_python(*asked).err


def refusal(run_python: Any, *arguments: str) -> str:
    """Run a command that is refused, and return its one line."""
    finished = run_python("pretrain.py", *arguments)
    assert (finished.code, finished.out, finished.err.count("\n")) == (2, "", 1), finished.err
    return finished.err


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (f"{ON} arch=mine arch.widgetsize=5", "did you mean arch.widget_size?"),
        (f"{ON} arch=mine arch.widget_size=x", "arch.widget_size=x: input should be a valid int"),
        (f"{ON} arch.widget_size=5", "the chosen files have no arch.widget_size"),
        (f"{ON} lr_schedule=stair", "did you mean lr_schedule=stairs?"),
        (f"{ON} lr_schedule=stairs lr_schedule.number=0", "lr_schedule.number=0: input should be"),
        (f"{ON} arch.attention_bias=nea", "input should be 'none', 'sudoku' or 'near'"),
        (f"{ON} heads=[digits,tied]", "digits and tied exclude each other; choose one"),
        (f"{ON} arch.loss.weights.dout=1", "did you mean arch.loss.weights.doubt?"),
        ("plugins=[*a]", "plugins="),
        ("plugins=my_parts", "plugins=my_parts: expected a list of modules"),
        ("plugins=[1]", "plugins=[1]: expected a list of modules"),
    ],
)
def test_mistakes_are_refused_as_in_our_own_settings(
    settings: str, said: str, run_python: Any
) -> None:
    assert said in refusal(run_python, *settings.split())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("import nothing_of_that_name", "ModuleNotFoundError: No module named 'nothing_of_"),
        ("1 / 0", "ZeroDivisionError"),
        (f"{PLUGIN}\nARCHITECTURES.add('trm', MineConfig, None)", "'trm' is registered already"),
        (f"{PLUGIN}\nARCHITECTURES.add('mix', MineConfig, None)", 'Literal["mix"] = "mix"'),
        (f"{PLUGIN}\nARCHITECTURES.add('x', DigitsConfig, None)", "expected one of Recurrence"),
        (f"{PLUGIN}\nAUXILIARY_HEADS.add('q', AuxiliaryHeadConfig, None)", "has q already"),
        (f"{PLUGIN}\nAUXILIARY_HEADS.add('tied', AuxiliaryHeadConfig, None)", "has the same name"),
    ],
)
def test_a_plugin_that_fails_is_named(content: str, said: str, run_python: Any) -> None:
    Path("my_parts.py").write_text(content)
    assert said in refusal(run_python, ON)


def test_plugins_in_a_nested_file_are_refused(run_python: Any) -> None:
    Path("own/experiment").mkdir(parents=True)
    Path("own/experiment/late.yaml").write_text("# @package _global_\nplugins: [my_parts]\n")
    Path("own/experiment/wide.yaml").write_text("# @package _global_\ndefaults: [late]\n")
    said = refusal(run_python, "--config-dir", "own", "experiment=wide")
    assert "it is too late for them here" in said


def test_the_users_own_configuration_may_name_them(run_python: Any, plugin: Path) -> None:
    experiment = "# @package _global_\nplugins: [my_parts]\ndefaults:\n  - override /arch: mine\n"
    Path("own/experiment").mkdir(parents=True)
    Path("own/experiment/wide.yaml").write_text(experiment)
    whole = run_python("pretrain.py", "--config-dir", "own", "experiment=wide", "--cfg", "job")
    assert whole.code == 0, whole.err
    assert yaml.safe_load(whole.out)["arch"]["name"] == "mine"
    Path("again.yaml").write_text(whole.out)
    again = run_python("pretrain.py", "--config-dir", ".", "--config-name", "again", "--cfg", "job")
    assert (again.code, again.out) == (0, whole.out), again.err
    assert plugin.exists()


def test_checkpoints_and_data_sets_import_nothing(
    run: Any, run_python: Any, sudoku_data: Path, plugin: Path
) -> None:
    trained = run("max_steps=1", name="run").folder
    (step,) = trained.glob("step_*")
    state = (step / "state.json").read_text()
    for old, new in (('"plugins": []', '"plugins": ["my_parts"]'), ('"hrm"', '"mine"')):
        assert state.count(old) == 1
        state = state.replace(old, new)
    (step / "state.json").write_text(state)
    manifest = json.loads((step / "MANIFEST.json").read_text())
    digest = hashlib.sha256(state.encode()).hexdigest()
    manifest["files"]["state.json"] = {"size": len(state.encode()), "sha256": digest}
    (step / "MANIFEST.json").write_text(json.dumps(manifest))
    finished = run_python("evaluate.py", f"checkpoint={trained}")
    assert finished.code == 4
    assert "arch.name=mine: there is no such architecture" in finished.err
    assert "add plugins=[my_parts]" in finished.err
    published = Path("published")
    published.mkdir()
    (published / "step_1").write_bytes(b"")
    (published / "all_config.yaml").write_text(
        "plugins: [my_parts]\narch: {name: mine, loss: {name: losses@ACTLossHead}}\n"
    )
    asked = [f"checkpoint={published}/step_1", f"data_path={sudoku_data}"]
    for settings in ([*asked, ON], asked):
        plugin.unlink(missing_ok=True)
        finished = run_python("evaluate.py", *settings)
        assert finished.code == 4
        assert "arch.name is 'mine', which is unknown" in finished.err
    metadata = Path("data/train/dataset.json")
    metadata.parent.mkdir(parents=True)
    content = json.loads((sudoku_data / "train/dataset.json").read_text())
    metadata.write_text(json.dumps(content | {"plugins": ["my_parts"]}))
    run_python("pretrain.py", "data_path=data")
    assert not plugin.exists()
