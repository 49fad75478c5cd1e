"""An exported model answers as an evaluation of its run does."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from apps.export import exporting

pytestmark = pytest.mark.slow

PARITY = Path(__file__).resolve().parent.parent / "parity" / "published_format"
SHORT = ("arch.H_cycles=1", "arch.L_cycles=1", "epochs=8", "eval_interval=null")


def exported(capsys: Any, *arguments: object) -> str:
    """Export, and return the output of the command."""
    capsys.readouterr()
    assert exporting.main([str(argument) for argument in arguments]) == 0
    return capsys.readouterr().out


def opened(path: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def facts_of(path: Path) -> dict[str, str]:
    return opened(path).get_modelmeta().custom_metadata_map


def answers_to(path: Path, data: Path, num_steps: int, outputs: Sequence[str]) -> list[Any]:
    inputs = np.load(data / "test" / "all__inputs.npy").astype(np.int32)
    given = {"inputs": inputs, "num_steps": np.array(num_steps)}
    if "puzzle_identifiers" in [value.name for value in opened(path).get_inputs()]:
        ids = np.load(data / "test" / "all__puzzle_identifiers.npy").astype(np.int32)
        given["puzzle_identifiers"] = ids
    return list(opened(path).run(list(outputs), given))


def test_an_exported_run_answers_as_its_evaluation(
    run: Any, run_evaluation: Any, sudoku_data: Path, tmp_path: Path, capsys: Any
) -> None:
    files = run(*SHORT, "ema=true", "ema_rate=0.9")
    save = "save_outputs=[preds,q_halt_logits,q_continue_logits]"
    for weights in ("averaged", "last"):
        output = tmp_path / f"{weights}.onnx"
        out = exported(capsys, files.folder, output, "--weights", weights)
        assert out.startswith(f"{output}: the recurrence of arch=hrm, ")
        assert f"checked with 4 test puzzles of {sudoku_data}, one alone" in out
        assert facts_of(output) == {
            "arch": "hrm",
            "puzzles": "sudoku",
            "seq_len": "16",
            "vocab_size": "6",
            "num_puzzle_identifiers": "1",
            "num_steps": "3",
            "checkpoint": "run/step_8",
            "checkpoint_sha256": exporting.sha256(files.folder / "step_8" / "MANIFEST.json"),
            "weights": weights,
        }
        evaluated = tmp_path / f"{weights}.json"
        run_evaluation(evaluated, f"checkpoint={files.folder}", f"weights={weights}", save)
        saved = evaluated.with_name(f"{weights}_outputs")
        names = ["q_halt_logits", "q_continue_logits"]
        answers, *logits = answers_to(output, sudoku_data, 3, ["answers", *names])
        preds = np.load(saved / "all__preds.npy")
        assert (answers[-1] == preds).mean() > 0.99  # Rounding breaks ties.
        for name, values in zip(names, logits, strict=True):
            expected = np.load(saved / f"all__{name}.npy")
            np.testing.assert_allclose(values, expected, rtol=0, atol=1e-4)
    answers, last = (
        answers_to(tmp_path / f"{weights}.onnx", sudoku_data, 3, ["logits"])[0]
        for weights in ("averaged", "last")
    )
    assert np.abs(answers - last).max() > 1e-3


def test_without_its_data_a_run_is_checked_with_random_tokens(
    run: Any, sudoku_data: Path, tmp_path: Path, capsys: Any
) -> None:
    data = shutil.copytree(sudoku_data, tmp_path / "data")
    files = run(*SHORT, f"data_path={data}", "arch.puzzle_emb_ndim=0")
    shutil.rmtree(data)
    out = exported(capsys, files.folder, tmp_path / "out.onnx")
    assert f"checked with 4 rows of random tokens ({data} is not here)" in out
    facts = facts_of(tmp_path / "out.onnx")
    assert (facts["weights"], facts["num_puzzle_identifiers"]) == ("last", "0")


def test_a_published_checkpoint_gives_the_published_logits(run_python: Any, tmp_path: Path) -> None:
    """It runs in a process of its own, which prints only our lines."""
    data = f"--data={PARITY / 'data'}"
    finished = run_python("scripts/export.py", PARITY / "checkpoint", "out.onnx", data)
    assert finished.code == 0, finished.err
    assert finished.err == ""
    output, expected = tmp_path / "out.onnx", np.load(PARITY / "expected_eval.npz")
    assert facts_of(output)["checkpoint"] == "checkpoint/step_7"
    for name, values in zip(
        expected, answers_to(output, PARITY / "data", 5, expected), strict=True
    ):
        np.testing.assert_allclose(values, expected[name], rtol=0, atol=1e-4)


def test_noise_is_refused(run: Any, tmp_path: Path, capsys: Any) -> None:
    files = run(*SHORT, "techniques=[damped_noise]")
    assert exporting.main([str(files.folder), str(tmp_path / "out.onnx")]) == 2
    told = "step_8 cannot be exported: techniques.damped_noise draws random numbers in"
    assert told in capsys.readouterr().err
