import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from dataset.format.writing import write_puzzles
from dataset.kinds import AnyEvaluator
from evaluation.evaluators.base import AnsweredRows, Evaluator, Findings, build_evaluators
from evaluation.measure import evaluate
from evaluation.metrics import wilson
from models.act import ACTLossHead
from puzzle_dataset import EvalBatches, PuzzleDataset
from runtime.errors import DatasetError
from runtime.ranks import Ranks


def all_rows(dataset: PuzzleDataset, preds: np.ndarray | None = None) -> AnsweredRows:
    """Return all rows of a test set, answered with `preds` or with the right answers."""
    sets = dataset.sets.values()
    inputs, labels = (
        np.concatenate([getattr(arrays, name).astype(np.int32) for arrays in sets])
        for name in ("inputs", "labels")
    )
    ids = [np.repeat(part.puzzle_identifiers, np.diff(part.puzzle_indices)) for part in sets]
    known, q = np.where(labels == 0, -100, labels), np.linspace(-2, 2, len(inputs), dtype="f4")
    preds = labels if preds is None else preds
    return AnsweredRows(inputs, known, np.concatenate(ids), preds, q)


def measure(evaluator: Evaluator, *rows: AnsweredRows) -> Findings:
    evaluator.begin()
    for part in rows:
        evaluator.add(part)
    return evaluator.finish(lambda value: [value])


@pytest.fixture
def own_arc(arc_data: Path, tmp_path: Path) -> Path:
    """A copy of the ARC data that a test may spoil."""
    return Path(shutil.copytree(arc_data, tmp_path / "arc"))


def test_perfect_answers_solve_every_task(arc_data: Path) -> None:
    dataset = PuzzleDataset([arc_data], "test")
    (evaluator,) = build_evaluators(["arc"], dataset).values()
    found = measure(evaluator, all_rows(dataset))
    ks = (1, 2, 5, 10, 100, 1000)
    assert found.metrics.pop("unmatched_predictions") == 0.0
    assert found.metrics == {f"{name}@{k}": 1.0 for k in ks for name in ("pass", "task_pass")}
    intervals = {name: found.details.pop(name) for name in found.metrics}
    assert intervals["pass@2"] == asdict(wilson(2, 2))
    assert found.details == {
        "num_tasks": 3,
        "num_scored_tasks": 2,
        "num_predictions": 16,
        "num_unmatched_predictions": 0,
        "tasks_without_votes": [],
    }
    tasks = json.loads((arc_data / "test_puzzles.json").read_text())
    made = found.files["submission.json"]()
    for name in ("one", "two"):
        answers = [pair["output"] for pair in tasks[name]["test"]]
        assert made[name] == [{"attempt_1": grid, "attempt_2": grid} for grid in answers]
    nothing = measure(evaluator).details["tasks_without_votes"]
    assert nothing == list(tasks)
    votes = found.files["arc_tasks.json"]()
    assert [pair["votes"] for pairs in votes.values() for pair in pairs] == [4, 4, 4, 4]
    assert votes["two"][1]["grids"][0]["grid"] == tasks["two"]["test"][1]["output"]


def test_a_sample_scores_only_the_tasks_of_its_rows(arc_data: Path) -> None:
    dataset = PuzzleDataset([arc_data], "test")
    (evaluator,) = build_evaluators(["arc"], dataset).values()
    rows = vars(all_rows(dataset)).values()
    # The rows are four of "one", and then one of the first of two test inputs of "two".
    for number, share, scored in ((1, 1.0, ["one"]), (5, 0.75, ["one", "two"])):
        found = measure(evaluator, AnsweredRows(*(values[:number] for values in rows)))
        assert found.metrics["pass@2"] == share
        assert found.details["num_scored_tasks"] == len(scored)
        assert found.details["tasks_without_votes"] == []
        assert list(found.files["arc_tasks.json"]()) == scored
        assert list(found.files["submission.json"]()) == ["one", "two", "open"]


def test_identifiers_of_a_second_folder_are_shifted(arc_data: Path, own_arc: Path) -> None:
    # The first folder has one more name, so a wrong shift would give identifiers of the second
    # folder another augmentation.
    names = json.loads((own_arc / "identifiers.json").read_text())
    (own_arc / "identifiers.json").write_text(json.dumps([*names, "unused"]))
    for split in ("train", "test"):
        path = own_arc / split / "dataset.json"
        metadata = json.loads(path.read_text())
        metadata["num_puzzle_identifiers"] += 1
        path.write_text(json.dumps(metadata))
    dataset = PuzzleDataset([own_arc, arc_data], "test")
    found = measure(build_evaluators(["arc"], dataset)["arc"], all_rows(dataset))
    assert found.metrics["task_pass@1"] == 1.0
    assert found.metrics["unmatched_predictions"] == 0
    assert found.files["arc_tasks.json"]()["one"][0]["votes"] == 8


def test_a_task_that_differs_between_folders_is_refused(arc_data: Path, own_arc: Path) -> None:
    tasks = json.loads((own_arc / "test_puzzles.json").read_text())
    tasks["two"]["test"].reverse()
    (own_arc / "test_puzzles.json").write_text(json.dumps(tasks))
    dataset = PuzzleDataset([arc_data, own_arc], "test")
    with pytest.raises(DatasetError, match="task 'two' has other test pairs in another data path"):
        build_evaluators(["arc"], dataset)


def test_inherited_evaluators_are_left_out_with_a_line_where_they_do_not_fit(
    arc_data: Path, sudoku_data: Path
) -> None:
    said: list[str] = []
    (config,) = TypeAdapter(list[AnyEvaluator]).validate_python(["arc"])
    fitting, other = (PuzzleDataset([data], "test") for data in (arc_data, sudoku_data))
    assert list(build_evaluators([config], fitting, pytest.fail)) == ["arc"]
    assert build_evaluators([config], other, said.append) == {}
    assert "evaluators=[arc] of the data set chosen by name is left out: " in said[0]


@pytest.mark.parametrize(
    ("file", "content", "told"),
    [
        ("identifiers.json", None, "No such file"),
        ("test_puzzles.json", None, "No such file"),
        ("identifiers.json", ["<blank>"], "1 names, but num_puzzle_identifiers is 13"),
        ("identifiers.json", ["<blank>", "one|||t8|||0123456789"] + 11 * ["one"], "identifier 1"),
        ("identifiers.json", {}, "expected a list of names"),
        ("test_puzzles.json", {"one": {}}, "task 'one'"),
    ],
)
def test_files_at_fault_are_named(own_arc: Path, file: str, content: Any, told: str) -> None:
    (own_arc / file).unlink()
    if content is not None:
        (own_arc / file).write_text(json.dumps(content))
    with pytest.raises(DatasetError, match=told) as caught:
        build_evaluators(["arc"], PuzzleDataset([own_arc], "test"))
    assert str(caught.value).startswith(str(own_arc / file))
    assert str(caught.value).endswith("(needed by evaluators=[arc]; evaluators=[] does without)")


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("arc", "sudoku_data", "6 tokens and 16 cells are no ARC puzzles"),
        ("sudoku", "arc_data", "12 tokens and 25 cells are no Sudoku puzzles"),
        ("maze", "arc_data", "12 tokens and 25 cells are no maze puzzles"),
    ],
)
def test_data_of_another_kind_are_refused(
    request: pytest.FixtureRequest, name: Any, data: str, told: str
) -> None:
    dataset = PuzzleDataset([request.getfixturevalue(data)], "test")
    with pytest.raises(DatasetError, match=told):
        build_evaluators([name], dataset)


@pytest.mark.parametrize(
    ("name", "kind", "size"),
    [("sudoku", "latin_square", 9), ("sudoku", "sudoku_x", 4), ("maze", "latin_square", 4)],
)
def test_data_that_name_another_kind_are_refused(
    tmp_path: Path, name: Any, kind: str, size: int
) -> None:
    cells = np.ones((2, size**2), np.uint8)
    write_puzzles(tmp_path / "test", cells, cells, vocab_size=size + 2, views=1, kind=kind)
    dataset = PuzzleDataset([tmp_path], "test")
    assert "rules" in build_evaluators(["rules"], dataset)
    with pytest.raises(DatasetError, match=rf"are no .* puzzles, but {kind} \(needed by"):
        build_evaluators([name], dataset)


def test_sudoku_answers_are_judged_by_the_rules(sudoku_data: Path) -> None:
    dataset = PuzzleDataset([sudoku_data], "test")
    preds = dataset.sets["all"].labels.astype(np.int32)
    inputs = dataset.sets["all"].inputs.astype(np.int32)
    clue = int((inputs[1] > 1).argmax())
    preds[1, clue] = 2 + (preds[1, clue] - 1) % 4  # another digit than the clue
    preds[2, inputs[2] == 1] = 1  # left empty
    preds[3] = preds[4]  # valid, but of another puzzle
    evaluator, rows = build_evaluators(["sudoku"], dataset)["sudoku"], all_rows(dataset, preds)
    values = [vars(rows)[name] for name in AnsweredRows.__dataclass_fields__]
    parts = (slice(0, 3), slice(3, 10))
    found = measure(evaluator, *(AnsweredRows(*(v[part] for v in values)) for part in parts))
    kept = ((inputs == 1) | (inputs == preds)).all(axis=1)
    assert kept.tolist() == [row not in (1, 3) for row in range(10)]
    assert found.metrics == {"valid": 0.7, "keeps_clues": 0.8}
    assert found.details["num_examples"] == 10
    assert found.details["valid"]["low"] < found.metrics["valid"] < found.details["valid"]["high"]
    # The next evaluation starts anew.
    assert measure(evaluator) == Findings({}, {"num_examples": 0})
    found = measure(evaluator, all_rows(dataset))
    assert (found.metrics["valid"], found.details["num_examples"]) == (1.0, 10)


def test_mazes_are_judged_by_their_module(tmp_path: Path) -> None:
    # From S past one cell to G, around it, and nowhere.
    inputs = np.tile(np.array([3, 2, 4, 2, 2, 2, 2, 2, 2], np.uint8), (3, 1))
    preds = inputs.astype(np.int32)
    preds[0, 1] = preds[1, 3:6] = 5
    write_puzzles(tmp_path / "test", inputs, inputs, vocab_size=6, views=1)
    dataset = PuzzleDataset([tmp_path], "test")
    found = measure(build_evaluators(["maze"], dataset)["maze"], all_rows(dataset, preds))
    assert found.metrics == {"valid_path": 2 / 3, "shortest_path": 1 / 3}


class Spy:
    """An evaluator that keeps the rows it gets."""

    def begin(self) -> None:
        self.rows: list[AnsweredRows] = []

    def add(self, rows: AnsweredRows) -> None:
        self.rows.append(rows)

    def finish(self, gather: Any) -> Findings:
        return Findings({"seen": float(len(gather(self.rows)))})


def test_evaluators_are_given_the_real_rows(
    make_model: Callable[..., ACTLossHead], tasks_data: Path
) -> None:
    dataset = PuzzleDataset([tasks_data], "test")
    model, spy = make_model(dataset), Spy()
    batches = EvalBatches(dataset, global_batch_size=5)
    evaluation = evaluate(model, model, batches, Ranks("cpu"), evaluators={"arc": spy})
    assert evaluation.findings == {"arc": Findings({"seen": 1.0})}
    assert [len(rows.preds) for rows in spy.rows] == [5, 5, 5, 5, 4]
    rows = {
        name: np.concatenate([getattr(part, name) for part in spy.rows])
        for name in AnsweredRows.__dataclass_fields__
    }
    expected = all_rows(dataset)
    for name in ("inputs", "labels", "puzzle_identifiers"):
        assert np.array_equal(rows[name], getattr(expected, name)), name
    labelled = rows["labels"] != -100
    right = ((rows["preds"] == rows["labels"]) & labelled).sum(axis=1) / labelled.sum(axis=1)
    accuracy = evaluation.sets["all"].metrics["accuracy"].value
    assert accuracy == pytest.approx(right.mean(), abs=1e-6)
    assert 0 < right.mean() < 1
    assert rows["q_halt_logits"].dtype == np.float32
    assert len(set(rows["q_halt_logits"].tolist())) > 5
