"""The models of the zoo in every command that takes a checkpoint, and their scores again."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import evaluate
from apps.reports import solving
from apps.zoo import address as zoo
from apps.zoo import making
from dataset.build_sudoku_dataset import main as build_sudokus
from runtime.errors import CheckpointError, ConfigError, DatasetError

NEWSPAPER = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
SMALL = "..2......4322..4"
ON_CPU = ["device=cpu", "num_threads=1"]
RECIPES = making.recipes()


@pytest.fixture
def small_data(tmp_path: Path) -> Path:
    flags = "--source=generate --size=4 --subsample-size=8 --test-size=8"
    assert build_sudokus([*flags.split(), f"--output-dir={tmp_path / 'data'}"]) == 0
    return tmp_path / "data"


@pytest.mark.parametrize(
    ("puzzle", "model"), [(NEWSPAPER, "zoo:sudoku-search"), (SMALL, "zoo:sudoku-4x4")]
)
def test_a_puzzle_is_solved_without_naming_a_model(
    puzzle: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    solving.main([f"puzzle={puzzle}", *ON_CPU])
    said = capsys.readouterr()
    assert said.err.startswith(f"model: {model} ")
    assert "a valid Sudoku that keeps the clues" in said.out
    assert said.out.endswith("solved: 1 of 1\n")


@pytest.mark.parametrize(
    ("puzzle", "note"),
    [
        ("1234....2.......", "several solutions"),
        ("12....3.........", "no solution"),
        ("12345678.........9" + 63 * ".", "no solution"),
        (81 * ".", "several solutions"),
    ],
)
def test_a_puzzle_without_one_solution_is_said_to_be_so_before_a_search(
    puzzle: str, note: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def search(*of: Any, **more: Any) -> None:
        said.append(capsys.readouterr().out)
        raise ConfigError("a search began")

    said: list[str] = []
    monkeypatch.setattr("apps.lattice.search.Search.__call__", search)
    with suppress(ConfigError):
        solving.main([f"puzzle={puzzle}", *ON_CPU])
    assert note in "".join([*said, capsys.readouterr().out])
    assert len(said) == (puzzle == 81 * ".")


def test_what_the_zoo_has_no_model_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(zoo._CHOSEN, ("maze", None))
    with pytest.raises(ConfigError, match="no model for maze puzzles of 4 x 4 cells"):
        solving.main(["puzzle='S..##..##..##..G'"])
    with pytest.raises(ConfigError, match="a model of the zoo names no data set"):
        solving.main(["count=1"])
    with pytest.raises(CheckpointError, match="did you mean zoo:sudoku-6x6"):
        solving.main(["checkpoint=zoo:sudoku-6by6", f"puzzle={NEWSPAPER}"])


def test_a_model_of_the_zoo_is_evaluated_and_trained_on(
    small_data: Path, train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(["experiment=dec_sudoku_demo", f"data_path={small_data}", "max_steps=1", *ON_CPU,
           "load_checkpoint=zoo:sudoku-4x4", f"checkpoint_path={tmp_path / 'run'}"])  # fmt: skip
    monkeypatch.chdir(tmp_path)
    asked = ["checkpoint=zoo:sudoku-4x4", *ON_CPU, "global_batch_size=4"]
    with pytest.raises(DatasetError, match="data/sudoku-4x4: no such data folder"):
        evaluate.main(asked)
    evaluate.main([*asked, f"data_path={small_data}"])
    (result,) = (tmp_path / "outputs" / "zoo--sudoku-4x4").glob("eval_*.json")
    found = json.loads(result.read_text())
    assert found["checkpoint"] == "zoo:sudoku-4x4"
    assert found["metrics"]["exact_accuracy"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in zoo.names() if RECIPES[name].generated])
def test_the_recorded_number_of_generated_puzzles_is_solved_again(
    name: str, tmp_path: Path
) -> None:
    """Another processor rounds differently, so a puzzle on the edge may change sides."""
    recorded = json.loads((zoo.ZOO / name / "score.json").read_text())["generated"]
    result = making.measure_generated(name, RECIPES[name], tmp_path / "data")
    found = making.score_json(result)
    assert found["count"] == recorded["count"]
    assert abs(found["correct"] - recorded["correct"]) <= 3
