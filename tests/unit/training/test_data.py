"""Opening the data of a run."""

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dataset.format.schema import LabelField
from dataset.format.writing import write_puzzles
from puzzle_dataset import PuzzleDataset
from runtime.errors import ConfigError, DatasetError
from training.config import schema
from training.config.composition import load_config
from training.config.schema import TrainConfig
from training.data import (
    data_facts,
    eval_batches,
    open_data,
    order_of_sets,
    require_batches,
    require_same_data,
    scheduled_steps,
    train_batches,
)


def configure(*settings: str) -> TrainConfig:
    return load_config(TrainConfig, "cfg_pretrain", settings)


def opened(*settings: str, check_values: bool = True) -> tuple[PuzzleDataset, PuzzleDataset | None]:
    return open_data(configure(*settings), check_values=check_values, warn=pytest.fail)


@pytest.fixture
def folder(sudoku_data: Path, tmp_path: Path) -> Path:
    """A copy of a data set that a test may change."""
    return Path(shutil.copytree(sudoku_data, tmp_path / "data"))


def test_both_splits_are_opened_and_test_folders_may_be_others(
    sudoku_data: Path, folder: Path
) -> None:
    train, test = opened(f"data_path={sudoku_data}", f"data_paths_test=[{folder}]")
    assert test is not None
    assert (train.metadata.total_groups, test.metadata.total_groups) == (8, 10)
    assert (train.split_dirs, test.split_dirs) == ([sudoku_data / "train"], [folder / "test"])
    facts = {"vocab_size": 6, "seq_len": 16, "num_puzzle_identifiers": 1}
    assert data_facts(train.metadata, train.fields).to_dict() == facts


def test_test_folders_must_name_the_identifiers_as_in_training(
    arc_data: Path, swapped_arc_data: Path, tmp_path: Path
) -> None:
    own, copy = f"data_path={arc_data}", shutil.copytree(arc_data, tmp_path / "copy")
    opened(own, f"data_paths_test=[{copy}]")
    swapped = f"data_paths_test=[{swapped_arc_data}]"
    opened(own, swapped, "arch.puzzle_emb_ndim=0")
    with pytest.raises(DatasetError, match="identifier 1 is 'open.*, but 'one' in"):
        opened(own, swapped)


def test_only_the_label_fields_that_are_read_must_be_in_both_splits(tmp_path: Path) -> None:
    grid, place = np.full((8, 16), 2, np.uint8), (f"data_path={tmp_path}", "heads=action")
    actions, closer = ((LabelField(number), grid) for number in (5, 16))
    both = {"actions": actions, "closer": closer}
    write_puzzles(tmp_path / "train", grid, grid, vocab_size=6, fields=both)
    write_puzzles(tmp_path / "test", grid, grid, vocab_size=6, fields={"actions": actions})
    opened(*place)
    write_puzzles(tmp_path / "test", grid, grid, vocab_size=6, fields={"actions": closer})
    with pytest.raises(DatasetError, match=r"fields\.actions is .*16, .*, the training split has"):
        opened(*place)


@pytest.mark.parametrize("closed", ["", "test", "selection"])
def test_a_folder_that_one_may_not_enter_is_named(
    folder: Path, closed: str, close: Callable[[Path], None]
) -> None:
    close(folder / closed)
    with pytest.raises(DatasetError, match=f"^{folder / closed}: Permission denied$"):
        opened(f"data_path={folder}", f"eval_split={closed or 'test'}")


def test_folders_that_are_learned_one_after_the_other_are_told(
    sudoku_data: Path, folder: Path
) -> None:
    both = f"data_paths=[{sudoku_data},{folder}]"
    for settings, told in (
        ((both, "eval_interval=null"), "the 2 sets are learned one after the other, each for 6"),
        ((both, "eval_interval=1"), None),
        ((f"data_path={folder}", "eval_interval=null"), None),
    ):
        config = configure(*settings, "epochs=6", "global_batch_size=4")
        warning = order_of_sets(config, opened(*settings, "epochs=6", "global_batch_size=4")[0])
        assert warning is None if told is None else str(warning).startswith(told)


def test_selection_puzzles_may_be_evaluated_or_none(folder: Path) -> None:
    shutil.copytree(folder / "test", folder / "selection")
    _, found = opened(f"data_path={folder}", "eval_split=selection")
    assert found is not None
    assert found.split_dirs == [folder / "selection"]
    assert opened(f"data_path={folder}", "eval_split=null")[1] is None


def test_without_a_test_split_nothing_is_evaluated(folder: Path) -> None:
    shutil.rmtree(folder / "test")
    warnings: list[str] = []
    config = configure(f"data_path={folder}")
    assert open_data(config, check_values=True, warn=warnings.append)[1] is None
    assert warnings == [f"{folder}: there is no test split, so nothing is evaluated"]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["data_path={data}", "data_paths_test=[{tasks}]"], "vocab_size is 8, the training spl"),
        (["data_path={data}", "eval_split=selection"], "no split selection; build the set with"),
        *(
            (
                [f"data={name}", "data.path=gone"],
                f"gone: .*; build it with: python scripts/build_dataset.py data={name} data.path=g",
            )
            for name in ("arc", "sudoku", "sudoku_demo", "sudoku_generated")
        ),
    ],
)
def test_what_is_missing_says_how_to_build_it(
    settings: list[str], told: str, sudoku_data: Path, tasks_data: Path
) -> None:
    places = {"data": sudoku_data, "tasks": tasks_data}
    with pytest.raises(DatasetError, match=told.format(**places)):
        opened(*(setting.format(**places) for setting in settings))


def test_without_the_project_s_folder_the_installed_command_builds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "ROOT", tmp_path)
    told = "build it with: recursive-reasoning build data=sudoku data.path=gone$"
    with pytest.raises(DatasetError, match=told):
        opened("data=sudoku", "data.path=gone")


def test_one_rank_reads_every_token_for_all(folder: Path) -> None:
    path = folder / "train" / "all__inputs.npy"
    inputs = np.load(path)
    inputs[3, 4] = 200
    np.save(path, inputs)
    opened(f"data_path={folder}", check_values=False)
    with pytest.raises(DatasetError, match=f"{path}: token 200 in row 3"):
        opened(f"data_path={folder}")


@pytest.mark.parametrize("settings", [["eval_interval=4"], ["epochs=4", "eval_interval=null"]])
def test_a_batch_that_never_fills_is_a_mistake(sudoku_data: Path, settings: list[str]) -> None:
    shown = f"{settings[0]} over 8 groups does not fill one batch"
    common = [f"data_path={sudoku_data}", "epochs=8"]
    fits = configure(*common, *settings, "global_batch_size=32")
    train, _ = open_data(fits, check_values=False, warn=pytest.fail)
    require_batches(fits, train)
    with pytest.raises(ConfigError, match=f"global_batch_size=33: {shown}"):
        require_batches(configure(*common, *settings, "global_batch_size=33"), train)


def test_each_set_must_fill_a_batch(sudoku_data: Path, tmp_path: Path) -> None:
    few = tmp_path / "few"
    write_puzzles(few / "train", *np.full((2, 3, 16), 2, np.uint8), vocab_size=6)
    paths = f"data_paths=[{sudoku_data},{few}]"
    own = [paths, "epochs=4", "eval_interval=4", "eval_split=null"]
    opened(*own, "global_batch_size=12")
    with pytest.raises(ConfigError, match="over 3 groups of the set all1 does not fill one batch"):
        opened(*own, "global_batch_size=13")


def test_without_training_puzzles_there_is_no_run(folder: Path) -> None:
    write_puzzles(folder / "train", *np.zeros((2, 0, 16), np.uint8), vocab_size=6)
    with pytest.raises(ConfigError, match="train: there are no puzzles to train on"):
        opened(f"data_path={folder}")


LIMITS = {"limit_train_batches": 4, "overfit_batches": 4, "limit_eval_batches": 3}


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_beyond_the_data_is_a_mistake(sudoku_data: Path, name: str) -> None:
    common = [f"data_path={sudoku_data}", "epochs=16", "eval_interval=4", "global_batch_size=8"]
    common += ["eval_batch_size=4"]
    most = LIMITS[name]
    opened(*common, f"{name}={most}")
    with pytest.raises(ConfigError, match=f"{name}={most + 1}: there are only {most} batches"):
        opened(*common, f"{name}={most + 1}")


def test_no_more_batches_are_repeated_than_the_limit_leaves(sudoku_data: Path) -> None:
    common = [f"data_path={sudoku_data}", "epochs=16", "eval_interval=4", "global_batch_size=8"]
    with pytest.raises(ConfigError, match="overfit_batches=3: there are only 2 batches"):
        opened(*common, "limit_train_batches=2", "overfit_batches=3")


def test_a_limit_shortens_the_schedule(sudoku_data: Path) -> None:
    common = [f"data_path={sudoku_data}", "epochs=16", "eval_interval=4", "global_batch_size=8"]
    train, _ = opened(*common)
    limits = {"limit_train_batches=3": 12, "limit_train_batches=4": 16, "overfit_batches=1": 16}
    for limit, steps in limits.items():
        config = configure(*common, limit)
        assert scheduled_steps(config, train.metadata) == steps
        batches = train_batches(config, train)
        assert sum(batches.steps_per_iteration(i) for i in range(4)) == steps
        assert sum(len(list(batches.iterate_rows(i))) for i in range(4)) == steps


@pytest.mark.parametrize("reduction", ["fast", "exact"])
@pytest.mark.parametrize(
    ("limits", "rows"),
    [
        ([], 10),
        (["limit_eval_batches=2"], 8),
        (["limit_eval_batches=3"], 10),
        (["limit_eval_batches=1", "eval_max_examples=7"], 4),
        (["limit_eval_batches=2", "eval_max_examples=7"], 7),
    ],
)
def test_the_smaller_limit_of_an_evaluation_counts(
    sudoku_data: Path, limits: list[str], rows: int, reduction: str
) -> None:
    common = [f"data_path={sudoku_data}", "eval_batch_size=4", f"reduction={reduction}"]
    _, test = opened(*common)
    assert test is not None
    ranks: Any = SimpleNamespace(rank=0, world_size=1)
    batches = eval_batches(configure(*common, *limits), test, ranks)
    assert batches.num_examples == {"all": rows}


def test_ranks_with_other_data_are_named() -> None:
    ranks: Any = SimpleNamespace(differing=lambda own: [1, 3])
    with pytest.raises(DatasetError, match="rank 1, 3 read other data than rank 0"):
        require_same_data("a", ranks)
    ranks.differing = lambda own: []
    require_same_data("a", ranks)
