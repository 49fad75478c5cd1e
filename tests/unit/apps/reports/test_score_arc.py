import json
import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apps.reports import score_arc

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the script on arguments; return (exit code, output, errors)."""

    def run(*arguments: object) -> tuple[int, str, str]:
        code = score_arc.main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def small(tmp_path: Path) -> tuple[Path, Path]:
    """Two tasks of one cell: the second vote solves the first; the other has no known answer."""
    puzzles = {
        "first": {"train": [], "test": [{"input": [[1]], "output": [[2]]}]},
        "second": {"train": [], "test": [{"input": [[3]]}]},
    }
    content = {"identifiers": ["<blank>", "first", "second"], "test_puzzles": puzzles}
    (tmp_path / "tasks.json").write_text(json.dumps(content))
    inputs, preds = np.zeros((2, 5, 4), np.uint8)
    inputs[:, 0], preds[:, 0] = [3, 3, 3, 5, 9], [7, 7, 4, 6, 6]
    arrays = {"inputs": inputs, "preds": preds, "q_halt_logits": np.zeros(5, np.float32)}
    ids = np.array([1, 1, 1, 2, 2], np.int32)
    np.savez(tmp_path / "predictions.npz", puzzle_identifiers=ids, **arrays)
    return tmp_path / "predictions.npz", tmp_path / "tasks.json"


def test_several_files_count_together(run: Run, small: tuple[Path, Path]) -> None:
    whole = code, out, err = run(*small, "--ks", "1", "2")
    assert (code, err[:33]) == (0, "1 of 5 predictions match no test ")
    assert json.loads(out) == {
        "score_per_test_output": {"ARC/pass@1": 0.0, "ARC/pass@2": 1.0},
        "score_per_task_all_outputs": {"pass@1": 0.0, "pass@2": 1.0},
        "submission": {
            "first": [{"attempt_1": [[5]], "attempt_2": [[2]]}],
            "second": [{"attempt_1": [[4]], "attempt_2": [[4]]}],
        },
    }
    with np.load(small[0]) as file:
        arrays = dict(file)
    parts = [small[0].with_name(f"part_{rank}.npz") for rank in range(2)]
    for rank, path in enumerate(parts):
        np.savez(path, **{name: array[rank::2] for name, array in arrays.items()})
    assert run(*parts, small[1], "--ks", "1", "2") == whole


@pytest.mark.skipif("PARITY_DIR" not in os.environ, reason="PARITY_DIR is not set")
def test_the_recorded_scores_are_reproduced(run: Run, tmp_path: Path) -> None:
    recorded, made = Path(os.environ["PARITY_DIR"]), tmp_path / "submission.json"
    votes = (recorded / "arc_voting.npz", recorded / "arc_voting_tasks.json")
    code, out, _ = run(*votes, "--submission", made)
    assert code == 0
    text = (recorded / "arc_voting_expected.json").read_text()
    assert out.strip() == text.strip()
    assert json.loads(made.read_text()) == json.loads(text)["submission"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"preds": None}, "has no preds"),
        ({"preds": np.zeros((5, 9), np.uint8)}, r"preds is uint8 \[5, 9\], expected integers"),
        ({"q_halt_logits": np.zeros(5, np.int32)}, r"q_halt_logits is int32 \[5\], expected float"),
        ({"puzzle_identifiers": np.zeros(4, np.int32)}, "puzzle_identifiers is int32"),
        ({"inputs": np.zeros((5, 3), int), "preds": np.zeros((5, 3), int)}, "must be square"),
        ({"puzzle_identifiers": np.full(5, 3)}, "identifier 3: there are"),
        ({"preds": np.array([[None]])}, "cannot be read"),
    ],
)
def test_predictions_of_a_wrong_form_are_refused(
    run: Run, small: tuple[Path, Path], change: dict[str, Any], told: str
) -> None:
    with np.load(small[0]) as file:
        arrays = dict(file) | change
    np.savez(small[0], **{name: array for name, array in arrays.items() if array is not None})
    code, out, err = run(*small)
    assert (code, out) == (3, "")
    assert re.search(told, err)
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "claim",
    [
        {"descr": "|V0", "shape": (10**30,)},
        {"descr": "<i8", "shape": (0, 10**30)},
        {"descr": "<i8", "shape": (2**62, 0)},
        {"descr": "<i8", "shape": (-3, -4)},
    ],
)
def test_impossible_sizes_are_refused(
    run: Run, small: tuple[Path, Path], claim: dict[str, Any]
) -> None:
    header = repr(claim | {"fortran_order": False}).encode()
    array = np.lib.format.magic(1, 0) + len(header).to_bytes(2, "little") + header
    with zipfile.ZipFile(small[0], "w") as archive:
        for field in score_arc.FIELDS:
            archive.writestr(f"{field}.npy", array)
    code, out, err = run(*small)
    assert (code, out) == (3, "")
    assert str(small[0]) in err
    assert err.count("\n") == 1


def test_a_damaged_header_is_named(run: Run, small: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(small[0]) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(small[0], "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content.replace(b"}", b"|", 1))  # One flipped bit.
    code, out, err = run(*small)
    assert (code, out) == (3, "")
    assert f"{small[0]}: cannot be read: " in err
    assert err.count("\n") == 1


GIVEN = {"train": [], "test": [{"input": [[1]]}]}


@pytest.mark.parametrize(
    ("task", "outputs", "told"),
    [
        (GIVEN, [], "solutions.json: task 'a' has no list of 1 outputs"),
        (GIVEN, None, "solutions.json: task 'a' has no list of 1 outputs"),
        (GIVEN, [[[10]]], "solutions.json: task 'a': test pair 1: output: row 1, column 1: 10"),
        ({"train": []}, [[[2]]], "challenges.json: task 'a' has no list of test pairs"),
        (None, [[[2]]], "challenges.json: task 'a' has no list of test pairs"),
    ],
)
def test_solutions_of_a_wrong_form_are_refused(
    run: Run, tmp_path: Path, task: Any, outputs: Any, told: str
) -> None:
    for name, content in (("challenges", task), ("solutions", outputs)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"a": content}))
    code, out, err = run(tmp_path / "submission.json", tmp_path / "challenges.json")
    assert (code, out) == (3, "")
    assert told in err
    assert err.count("\n") == 1


def test_options_of_the_other_use_are_refused(
    small: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    npz, tasks = map(str, small)
    for arguments, told in (
        ([npz, tasks, "--page", "x.html"], "--page is for a submission"),
        (["submission.json", tasks, "--submission", "x.json"], "--submission is for predictions"),
        (["submission.json", tasks, "--ks", "1"], "--ks is for predictions"),
    ):
        with pytest.raises(SystemExit, match="2"):
            score_arc.main(arguments)
        assert told in capsys.readouterr().err


def test_a_damaged_task_is_left_out(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks, submission = tmp_path / "tasks", tmp_path / "submission.json"
    tasks.mkdir()
    made = {"train": [], "test": [{"input": [[1]], "output": [[2]]}]}
    (tasks / "good.json").write_text(json.dumps(made))
    (tasks / "cut.json").write_text(json.dumps(made)[:20])
    (tasks / "ragged.json").write_text(json.dumps(made | {"test": [{"input": [[1], [2, 3]]}]}))
    answer = [{"attempt_1": [[2]], "attempt_2": [[3]]}]
    submission.write_text(json.dumps(dict.fromkeys(("good", "cut", "ragged"), answer)))
    code, out, err = run(submission, tasks)
    assert (code, json.loads(out)["solved_by_attempt"]) == (0, {"good": [1]})
    assert "cut.json: not JSON" in err
    assert "ragged.json: task 'ragged': test pair 1: input: row 2" in err
    assert err.count("this task is left out") == 2
    monkeypatch.chdir(tasks)
    assert run("../submission.json", ".")[:2] == (code, out)


def test_unreadable_files_are_named(run: Run, small: tuple[Path, Path], tmp_path: Path) -> None:
    predictions, tasks = small
    cut, plain = tmp_path / "cut.npz", tmp_path / "plain.npy"
    cut.write_bytes(predictions.read_bytes()[:200])
    np.save(plain, np.zeros(3))
    for arguments, told in (
        ((tmp_path / "none.npz", tasks), "none.npz: No such file"),
        ((cut, tasks), "cut.npz"),
        ((plain, tasks), "plain.npy"),
        ((predictions, predictions), "not JSON"),
        ((*small, "--submission", tmp_path / "none" / "x.json"), "x.json"),
    ):
        code, _, err = run(*arguments)
        assert code == 3
        assert told in err
