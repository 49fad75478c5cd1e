"""Evaluators in pretrain.py and evaluate.py, on one rank and on two."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.errors import DatasetError

Run = Callable[..., Any]
FILES = ("arc_tasks.json", "submission.json")


@pytest.fixture
def settings(tiny_settings: list[str], arc_data: Path) -> list[str]:
    """Return settings of a short run on ARC tasks, evaluated halfway and at the end."""
    sizes = ["global_batch_size=6", "epochs=16", "eval_interval=8", "eval_batch_size=6"]
    model = ["lr=1e-3", "arch.puzzle_emb_ndim=32"]
    return [*tiny_settings, f"data_path={arc_data}", "evaluators=[arc]", *sizes, *model]


@pytest.mark.slow
def test_arc_is_scored_in_training_and_afterwards(
    settings: list[str],
    train: Run,
    files_of: Any,
    run_evaluation: Run,
    run_on_ranks: Run,
    swapped_arc_data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    train([*settings, "eval_save_outputs=[preds]"])
    run = files_of(tmp_path / "run")
    records = run.eval_records
    assert len(records) == 2
    for record in records:
        names = {name for name in record if name.startswith("eval/arc/")}
        rules = [f"{rule}@{k}" for rule in ("pass", "task_pass") for k in (1, 2, 5, 10, 100, 1000)]
        assert names == {f"eval/arc/{name}" for name in (*rules, "unmatched_predictions")}
        assert record["eval/arc/unmatched_predictions"] == 0
        folder = run.folder / f"eval_step_{record['step']}"
        assert sorted(path.name for path in folder.iterdir()) == ["all__preds.npy", *FILES]
        votes = json.loads((folder / "arc_tasks.json").read_text())
        assert [pair["votes"] for pairs in votes.values() for pair in pairs] == [4, 4, 4, 4]
    assert run.leftovers() == []

    # An evaluation of the last checkpoint gives the same figures and files.
    (tmp_path / "own").mkdir()
    result = run_evaluation(tmp_path / "own" / "result.json", f"checkpoint={run.folder}")
    found = result["evaluators"]["arc"]
    logged = {f"eval/arc/{name}": value for name, value in found["metrics"].items()}
    assert logged.items() <= records[-1].items()
    assert found["details"]["num_predictions"] == 16
    assert sorted(found["files"]) == [str(tmp_path / "own" / name) for name in FILES]
    assert f"arc/pass@2                 {found['metrics']['pass@2']:.4f}" in capsys.readouterr().out
    for name in FILES:
        assert (tmp_path / "own" / name).read_bytes() == (folder / name).read_bytes()
    # Files of an evaluation with halting=q have another name.
    early = tmp_path / "own" / "early.json"
    written = run_evaluation(early, f"checkpoint={run.folder}", "halting=q")["evaluators"]["arc"]
    names = [name.replace(".", "_at_halt.") for name in FILES]
    assert sorted(written["files"]) == [str(tmp_path / "own" / name) for name in names]
    assert all((tmp_path / "own" / name).is_file() for name in names)

    # Data in which the identifiers have other names are refused.
    with pytest.raises(DatasetError, match="identifier 1 is 'open.*, but 'one' in"):
        run_evaluation(early, f"checkpoint={run.folder}", f"data_path={swapped_arc_data}")

    # On two ranks, the second one with fewer rows.
    output = tmp_path / "two" / "result.json"
    host = ("device=cpu", "num_threads=1")
    arguments = (f"checkpoint={run.folder}", "global_batch_size=6", f"output={output}", *host)
    run_on_ranks(2, "evaluate.py", *arguments)
    of_two = json.loads(output.read_bytes())["evaluators"]["arc"]
    for part in ("metrics", "details"):
        assert of_two[part] == found[part]
    submitted = (output.parent / "submission.json").read_bytes()
    assert submitted == (folder / "submission.json").read_bytes()


def test_saved_outputs_scored_by_hand_give_the_same_submission(
    settings: list[str], train: Run, files_of: Any, run_python: Run, arc_data: Path, tmp_path: Path
) -> None:
    fields = ("inputs", "preds", "puzzle_identifiers", "q_halt_logits")
    train([*settings, f"eval_save_outputs=[{','.join(fields)}]", "eval_interval=16"])
    run = files_of(tmp_path / "run")
    (record,) = run.eval_records
    folder = run.folder / f"eval_step_{record['step']}"
    saved = {field: np.load(folder / f"all__{field}.npy") for field in fields}
    np.savez(tmp_path / "predictions.npz", **saved)
    names = ("identifiers", "test_puzzles")
    content = {name: json.loads((arc_data / f"{name}.json").read_text()) for name in names}
    (tmp_path / "tasks.json").write_text(json.dumps(content))
    finished = run_python("scripts/score_arc.py", "predictions.npz", "tasks.json")
    assert (finished.code, finished.err) == (0, "")
    result = json.loads(finished.out)
    assert result["submission"] == json.loads((folder / "submission.json").read_text())
    by_output, by_task = result["score_per_test_output"], result["score_per_task_all_outputs"]
    for k in (1, 2, 5, 10, 100):
        assert by_output[f"ARC/pass@{k}"] == record[f"eval/arc/pass@{k}"]
        assert by_task[f"pass@{k}"] == record[f"eval/arc/task_pass@{k}"]
