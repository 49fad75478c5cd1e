"""Opening the data of a run."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dataset.kinds import BuilderConfig
from runtime.errors import ConfigError, DatasetError
from training.config.composition import load_config
from training.config.schema import DataConfig, TrainConfig
from training.data import data_facts, open_data, require_batches, require_folder, require_same_data


def configure(*settings: str) -> TrainConfig:
    return load_config(TrainConfig, "cfg_pretrain", settings)


def test_both_splits_are_opened(sudoku_data: Path) -> None:
    config = configure(f"data_path={sudoku_data}")
    train, test = open_data(config, check_values=True, warn=pytest.fail)
    assert test is not None
    assert (train.metadata.total_groups, test.metadata.total_groups) == (8, 10)
    facts = {"vocab_size": 6, "seq_len": 16, "num_puzzle_identifiers": 1}
    assert data_facts(train.metadata, train.fields).to_dict() == facts


def test_test_folders_may_be_others(sudoku_data: Path, tasks_data: Path, tmp_path: Path) -> None:
    other = shutil.copytree(sudoku_data, tmp_path / "other")
    config = configure(f"data_path={sudoku_data}", f"data_paths_test=[{other}]")
    _, test = open_data(config, check_values=True, warn=pytest.fail)
    assert test is not None
    assert test.split_dirs == [other / "test"]
    config = configure(f"data_path={sudoku_data}", f"data_paths_test=[{tasks_data}]")
    with pytest.raises(DatasetError, match="vocab_size is 8, the training split has 6"):
        open_data(config, check_values=True, warn=pytest.fail)


def test_selection_puzzles_may_be_evaluated_or_none(sudoku_data: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(sudoku_data, tmp_path / "data")
    selection = configure(f"data_path={folder}", "eval_split=selection")
    with pytest.raises(DatasetError, match="there is no split selection; .*--selection-size of"):
        open_data(selection, check_values=True, warn=pytest.fail)
    shutil.copytree(folder / "test", folder / "selection")
    _, found = open_data(selection, check_values=True, warn=pytest.fail)
    assert found is not None
    assert found.split_dirs == [folder / "selection"]
    nothing = configure(f"data_path={folder}", "eval_split=null")
    assert open_data(nothing, check_values=True, warn=pytest.fail)[1] is None


def test_a_set_without_selection_puzzles_says_how_it_is_built(tmp_path: Path) -> None:
    config = configure("data=sudoku_held_out", f"data.path={tmp_path}", "eval_split=selection")
    command = f"scripts/build_dataset.py data=sudoku_held_out data.path={tmp_path}"
    with pytest.raises(DatasetError, match=f"no split selection; build it with: python {command}$"):
        open_data(config, check_values=True, warn=pytest.fail)


def test_a_builder_of_a_plug_in_may_have_no_flags(tmp_path: Path) -> None:
    config = configure("data=sudoku_held_out", f"data.path={tmp_path}", "eval_split=selection")
    assert config.data is not None
    data = config.data.model_copy(update={"builder": BuilderConfig(name="mine")})
    config = config.model_copy(update={"data": data})
    with pytest.raises(DatasetError, match="no split selection; --selection-size of its builder"):
        open_data(config, check_values=True, warn=pytest.fail)


def test_without_a_test_split_nothing_is_evaluated(sudoku_data: Path, tmp_path: Path) -> None:
    shutil.copytree(sudoku_data / "train", tmp_path / "train")
    warnings: list[str] = []
    _, test = open_data(configure(f"data_path={tmp_path}"), check_values=True, warn=warnings.append)
    assert test is None
    assert warnings == [f"{tmp_path}: there is no test split, so nothing is evaluated"]


def test_damage_is_found_before_training(sudoku_data: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(sudoku_data, tmp_path / "data")
    metadata, labels = folder / "train" / "dataset.json", folder / "train" / "all__labels.npy"
    text = metadata.read_text()
    metadata.write_text(text.replace('"seq_len": 16', '"seq_len": 15'))
    with pytest.raises(DatasetError, match=r"16 cells a row, but seq_len is 15"):
        open_data(configure(f"data_path={folder}"), check_values=False, warn=pytest.fail)
    metadata.write_text(text)
    labels.write_bytes(labels.read_bytes()[:-7])
    with pytest.raises(DatasetError, match=str(labels)):
        open_data(configure(f"data_path={folder}"), check_values=False, warn=pytest.fail)


def test_one_rank_reads_every_token_for_all(sudoku_data: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(sudoku_data, tmp_path / "data")
    path = folder / "train" / "all__inputs.npy"
    inputs = np.load(path)
    inputs[3, 4] = 200
    np.save(path, inputs)
    config = configure(f"data_path={folder}")
    open_data(config, check_values=False, warn=pytest.fail)
    with pytest.raises(DatasetError, match=f"{path}: token 200 in row 3"):
        open_data(config, check_values=True, warn=pytest.fail)


def test_a_missing_folder_says_how_to_build_it(tmp_path: Path) -> None:
    known = DataConfig(name="n", path=str(tmp_path / "x"), build_command="python build.py")
    with pytest.raises(DatasetError, match=r"x: no such data folder; build it with: python build"):
        require_folder(str(tmp_path / "x"), known)
    for path, data in ((tmp_path / "y", known), (tmp_path / "x", None)):
        with pytest.raises(DatasetError, match=r"no such data folder$"):
            require_folder(str(path), data)
    require_folder(str(tmp_path), known)


@pytest.mark.parametrize("choice", ["arc", "sudoku", "sudoku_demo", "sudoku_generated"])
def test_every_named_data_set_says_how_it_is_built(
    choice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = configure(f"data={choice}")
    command = f"python scripts/build_dataset.py data={choice} data.path={config.data_path}"
    hint = f"{config.data_path}: .*; build it with: {command}$"
    with pytest.raises(DatasetError, match=hint):
        open_data(config, check_values=True, warn=pytest.fail)


@pytest.mark.parametrize("settings", [["eval_interval=4"], ["epochs=4", "eval_interval=null"]])
def test_a_batch_that_never_fills_is_a_mistake(sudoku_data: Path, settings: list[str]) -> None:
    shown = f"{settings[0]} over 8 groups does not fill one batch"
    common = [f"data_path={sudoku_data}", "epochs=8"]
    fits = configure(*common, *settings, "global_batch_size=32")
    train, _ = open_data(fits, check_values=False, warn=pytest.fail)
    require_batches(fits, train)
    with pytest.raises(ConfigError, match=f"global_batch_size=33: {shown}"):
        require_batches(configure(*common, *settings, "global_batch_size=33"), train)


def test_ranks_with_other_data_are_named() -> None:
    ranks: Any = SimpleNamespace(that_differ=lambda own: [1, 3])
    with pytest.raises(DatasetError, match="the data of rank 1, 3 are not those of rank 0"):
        require_same_data("a", ranks)
    ranks.that_differ = lambda own: []
    require_same_data("a", ranks)
