import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from models.config import DataFacts
from models.heads.config import HeadsConfig
from models.hrm.config import HRMConfig
from runtime.errors import CheckpointError, DatasetError
from training.checkpoint.store import MODEL, STATE, RunState, save_checkpoint
from training.checkpoint.trained_model import TrainedModel, find_trained_model
from training.data import require_folder

FACTS = DataFacts(vocab_size=6, seq_len=16, num_puzzle_identifiers=3)
ARCH = HRMConfig(hidden_size=32, num_heads=2, puzzle_emb_ndim=32).model_dump(mode="json")
CONFIG = {
    "arch": ARCH,
    "data_path": "data/train",
    "data_paths_test": ["data/test"],
    "global_batch_size": 24,
    "a_setting_of_another_version": 1,
}
PUBLISHED = Path(__file__).resolve().parents[3] / "parity" / "published_format" / "checkpoint"


def save(run_dir: Path, step: int, **changes: Any) -> Path:
    state = RunState(step=step, **{"config": CONFIG, "facts": FACTS.to_dict(), **changes})
    run_dir.mkdir(exist_ok=True)
    return save_checkpoint(run_dir, state, {MODEL: lambda path: path.write_bytes(b"w")})


def find(path: Path) -> TrainedModel:
    return find_trained_model(path, pytest.fail)


def test_the_folder_of_a_run_stands_for_its_newest_checkpoint(tmp_path: Path) -> None:
    for step in (5, 100, 20):
        save(tmp_path, step)
    trained = find(tmp_path)
    assert (trained.weights, trained.step) == (tmp_path / "step_100", 100)
    assert trained.facts == FACTS
    assert trained.run.arch == HRMConfig(hidden_size=32, num_heads=2, puzzle_emb_ndim=32)
    assert trained.run.global_batch_size == 24
    assert trained.run.data_folders("train") == ["data/train"]
    assert trained.run.data_folders("test") == ["data/test"]
    arch = {key: value for key, value in ARCH.items() if key != "heads"}
    # Settings of older versions.
    arch["loss"] = {"name": "act", "loss_type": "softmax_cross_entropy"}
    arch |= {"rollout_prob": 0.5, "chains": 4, "q_target": "first"}
    older = find(save(tmp_path, 200, config=CONFIG | {"arch": arch}))
    assert older.run.arch.heads == HeadsConfig()


def test_a_run_falls_back_to_an_older_checkpoint_and_a_named_one_does_not(tmp_path: Path) -> None:
    save(tmp_path, 5)
    (save(tmp_path, 20) / MODEL).write_bytes(b"x")
    warned: list[str] = []
    assert find_trained_model(tmp_path, warned.append).step == 5
    assert [str(tmp_path / "step_20" / MODEL) in warning for warning in warned] == [True]
    assert find(tmp_path / "step_5").step == 5
    renamed = (tmp_path / "step_5").rename(tmp_path / "good_one")
    assert find(renamed).weights == renamed
    with pytest.raises(CheckpointError, match=r"step_20.model\.safetensors: content changed"):
        find(tmp_path / "step_20")
    (tmp_path / "step_20" / "MANIFEST.json").unlink()
    with pytest.raises(CheckpointError, match=r"step_20.MANIFEST\.json"):
        find(tmp_path / "step_20")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("sudoku", "; build it with: python scripts/build_dataset.py data=sudoku 'data.path=x; y'"),
        ("theirs", ""),
        ("../data/sudoku", ""),
    ],
)
def test_only_our_own_build_command_of_a_recorded_data_set_is_shown(
    tmp_path: Path, name: str, hint: str
) -> None:
    builder = {"name": "sudoku", "flags": "; touch canary"}
    data = {"name": name, "path": "x; y", "builder": builder, "build_command": "touch canary"}
    save(tmp_path, 1, config=CONFIG | {"data": data})
    with pytest.raises(DatasetError, match=f"^x; y: no such data folder{re.escape(hint)}$"):
        require_folder("x; y", find(tmp_path).run.data)


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        (
            "data/queens",
            "; build it with: python scripts/build_dataset.py data=queens data.path=data/queens",
        ),
        ("data/other", ""),
    ],
)
def test_our_build_command_is_shown_for_a_shared_model_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    data = {"name": "queens", "path": path, "evaluators": ["rules"]}
    save(tmp_path, 1, config=CONFIG | {"data": data})
    with pytest.raises(DatasetError, match=f"^{path}: no such data folder{re.escape(hint)}$"):
        require_folder(path, find(tmp_path).run.data)


def test_a_missing_checkpoint_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere: no such checkpoint"):
        find(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="there is no checkpoint in this folder"):
        find(tmp_path)
    with pytest.raises(CheckpointError, match="File name too long"):
        find(tmp_path / ("x" * 300))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"facts": None}, "no valid facts of the training data"),
        ({"facts": FACTS.to_dict() | {"vocab_size": "6"}}, "no valid facts"),
        ({"facts": FACTS.to_dict() | {"vocab_size": -6}}, "no valid facts"),
        ({"facts": FACTS.to_dict() | {"seq_len": 2**70}}, "no valid facts"),
        ({"facts": FACTS.to_dict() | {"fields": {"actions": [-5, 0]}}}, "no valid facts"),
        ({"config": None}, "has no configuration"),
        ({"config": {"arch": {"name": "hrm", "hiden_size": 3}}}, "did you mean arch.hidden_size"),
        ({"config": {"arch": {"name": "other"}}}, "arch.name=other"),
        ({"config": {}}, "arch is not set"),
    ],
)
def test_a_state_without_valid_facts_or_settings_is_refused(
    tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    path = save(tmp_path, 5, **changes)
    with pytest.raises(CheckpointError, match=told) as caught:
        find(path)
    assert str(path / STATE) in str(caught.value)


def test_data_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    facts = DataFacts(6, 16, 3, fields={"actions": (5, 0)})
    arch = ARCH | {"heads": {"action": {"field": "actions"}}}
    trained = find(save(tmp_path, 5, facts=facts.to_dict(), config=CONFIG | {"arch": arch}))
    assert trained.facts == facts
    for fitting in (facts, FACTS, DataFacts(6, 16, 1)):
        trained.require_fit(fitting, "data/test")
    for other, told in (
        (DataFacts(11, 16, 3), "vocab_size 6, not 11"),
        (DataFacts(6, 81, 3), "seq_len 16, not 81"),
        (DataFacts(6, 16, 4), "num_puzzle_identifiers 3, not 4"),
        (replace(facts, fields={"actions": (7, 0)}), r"the field actions of shape \(5, 0\), not"),
    ):
        with pytest.raises(CheckpointError, match=f"does not fit data/test: .*{told}"):
            trained.require_fit(other, "data/test")

    arch = ARCH | {"puzzle_emb_ndim": 0}
    without_embedding = find(save(tmp_path, 6, config=CONFIG | {"arch": arch}))
    without_embedding.require_fit(DataFacts(6, 16, 1000), "data/test")


def test_a_published_file_and_its_folder(tmp_path: Path) -> None:
    trained = find(PUBLISHED / "step_7")
    assert (trained.weights, trained.step, trained.facts) == (PUBLISHED / "step_7", 7, None)
    assert trained.run.data_folders("test") == ["data"]
    assert trained.run.global_batch_size == 4

    for name in ("all_config.yaml", "step_7"):
        shutil.copy(PUBLISHED / name, tmp_path)
    (tmp_path / "step_30").write_bytes(b"newer")
    assert find(tmp_path).weights == tmp_path / "step_30"
    (tmp_path / "step_30").rename(tmp_path / "renamed.pt")
    assert find(tmp_path).step == 7
    assert find(tmp_path / "renamed.pt").step is None
    (tmp_path / "all_config.yaml").unlink()
    with pytest.raises(CheckpointError, match=r"all_config\.yaml: No such file"):
        find(tmp_path / "step_7")


def test_published_weights_are_loaded_and_checked(tmp_path: Path) -> None:
    device, data = torch.device("cpu"), DataFacts(11, 16, 5)
    trained = find(PUBLISHED)
    model = trained.load(trained.run.arch, data, "data", device)
    assert not model.training
    expected = torch.load(PUBLISHED / "step_7", weights_only=True)
    own = model.state_dict()
    assert len(own) == len(expected)
    for name, value in expected.items():
        assert torch.equal(own[name.removeprefix("_orig_mod.")], value)

    fewer = trained.load(trained.run.arch, DataFacts(11, 16, 1), "data", device)
    assert fewer.state_dict().keys() == own.keys()
    with pytest.raises(CheckpointError, match=r"has shape \(11, 32\), the model has \(12, 32\)"):
        trained.load(trained.run.arch, DataFacts(12, 16, 5), "data", device)
    with pytest.raises(CheckpointError, match="num_puzzle_identifiers 5, not 6"):
        trained.load(trained.run.arch, DataFacts(11, 16, 6), "data", device)
    deeper = trained.run.arch.model_copy(update={"L_layers": 2})
    with pytest.raises(CheckpointError, match=r"step_7 does not fit.*L_level\.layers\.1"):
        trained.load(deeper, data, "data", device)

    content = (PUBLISHED / "all_config.yaml").read_text()
    (tmp_path / "all_config.yaml").write_text(content)
    torch.save({"other": torch.zeros(2)}, tmp_path / "step_1")
    with pytest.raises(CheckpointError, match="step_1 does not fit data"):
        find(tmp_path).load(trained.run.arch, data, "data", device)
    settings = yaml.safe_load(content)
    settings["arch"]["hidden_size"] = [64]
    (tmp_path / "all_config.yaml").write_text(yaml.safe_dump(settings))
    with pytest.raises(CheckpointError, match=r"all_config\.yaml: arch\.hidden_size=\[64\]: "):
        find(tmp_path)
