"""ONNX files: they compute the same as the model, and a wrong one is deleted."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import apps.export.writing as exported
from apps.export import checking, exporting
from apps.export.checking import Arrays, Run, compare, in_torch, opened, random_puzzles
from apps.export.exporting import main
from apps.export.step import ExportedStep
from apps.export.writing import write_onnx
from runtime.errors import CheckpointError, ConfigError
from tests.unit.apps.export.test_step import FACTS, FORMS, RANDOM, TRM, built, puzzles
from training.checkpoint.trained_model import find_trained_model

ROOT = Path(__file__).resolve().parents[4]
PARITY = ROOT / "tests" / "parity" / "published_format"
PUBLISHED = [str(PARITY / "checkpoint" / "step_7"), f"--data={PARITY / 'data'}"]
STABLE: Any = {"loss": {"loss_type": "softmax_cross_entropy"}}
# All token heads.
HEADS: dict[str, Any] = {
    "bias and norm": {"name": "linear", "bias": True, "norm": "rms"},
    "layer norm": {"name": "linear", "norm": "layer"},
    "tied": {"name": "tied"},
    "factorized": {"name": "factorized"},
    "adaptive": {"name": "adaptive"},
    "puzzle": {"name": "puzzle"},
    "moe": {"name": "moe"},
    "moe, one expert": {"name": "moe", "top_k": 1},
    "hierarchical": {"name": "hierarchical"},
}
AUXILIARY: Any = {"q": None, "halt": {}, "confidence": {}, "attention": {}}
MATRIX: dict[str, Any] = {
    **FORMS,
    "random starts": RANDOM,
    **{f"head {name}": TRM | STABLE | {"heads": {"lm": head}} for name, head in HEADS.items()},
    "auxiliary heads": TRM | {"heads": AUXILIARY},
    "positions of rows": FORMS["hrm"] | {"pos_encodings": "none", "attention_bias": "sudoku"},
}
SMALLEST: Any = FORMS["transformer"]


def arrays_of(rows: int) -> Arrays:
    return {name: value.numpy() for name, value in puzzles(rows).items()}


def pair_of(settings: Any) -> tuple[ExportedStep, ExportedStep]:
    """Return the step of a model in float32 and in float64."""
    model, exact = built(settings), built(settings | {"forward_dtype": "float64"})
    exact.load_state_dict(model.state_dict())
    return ExportedStep(model.model), ExportedStep(exact.model)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, Run]]:
    """Return a function that writes the file of a step and opens it."""

    def write(step: ExportedStep, *, single_step: bool = False) -> tuple[Path, Run]:
        path = tmp_path_factory.mktemp("exported") / "out.onnx"
        write_onnx(step, path, {"arch": "tiny"}, single_step=single_step)
        return path, opened(path, step if single_step else None)

    return write


@pytest.fixture(scope="module")
def smallest(written: Any) -> Any:
    """Return a tiny model's file, the function that runs it, and `pair_of`."""
    pair = pair_of(SMALLEST)
    return *written(pair[0]), *pair


def assert_equal_tokens(table: str, share: float) -> None:
    shares = [float(line.split()[-1].rstrip("%")) for line in table.splitlines() if "%" in line]
    assert len(shares) == 2
    assert min(shares) >= 100 * share, table


# The recurrence


def test_the_recurrence_takes_puzzles_and_a_number_of_steps(smallest: Any) -> None:
    path, run, step, exact = smallest
    onnx.checker.check_model(path, full_check=True)
    session = onnxruntime.InferenceSession(path)
    takes = {value.name: (value.type, value.shape) for value in session.get_inputs()}
    assert takes == {
        "inputs": ("tensor(int32)", ["batch", 16]),
        "puzzle_identifiers": ("tensor(int32)", ["batch"]),
        "num_steps": ("tensor(int64)", []),
    }
    gives = {value.name: value.shape for value in session.get_outputs()}
    assert gives == {
        "answers": ["num_steps", "batch", 16],
        "q_halt": ["num_steps", "batch"],
        "logits": ["batch", 16, 6],
        "q_halt_logits": ["batch"],
        "q_continue_logits": ["batch"],
    }
    assert session.get_modelmeta().custom_metadata_map == {"arch": "tiny"}
    assert str(ROOT).encode() not in path.read_bytes()
    assert_equal_tokens(compare(run, step, exact, arrays_of(4)), 1)


def test_the_answer_of_each_step_is_an_output(smallest: Any) -> None:
    path, run, *_ = smallest
    session, given = onnxruntime.InferenceSession(path), arrays_of(2)
    names = ["answers", "q_halt", "logits"]
    answers, q_halt, logits = session.run(names, given | {"num_steps": np.array(3)})
    assert (answers.shape, q_halt.shape) == ((3, 2, 16), (3, 2))
    for number in (1, 2, 3):
        alone = run(given, number)
        assert np.array_equal(answers[number - 1], alone["answers"])
        last = 1 / (1 + np.exp(-alone["q_halt_logits"]))
        np.testing.assert_allclose(q_halt[number - 1], last, atol=1e-6)
    assert np.array_equal(logits, run(given, 3)["logits"])
    assert np.abs(logits - run(given, 1)["logits"]).max() > 1e-3


@pytest.mark.slow
def test_a_single_step_has_its_states_as_inputs_and_outputs(written: Any, smallest: Any) -> None:
    _, recurrence, step, exact = smallest
    path, run = written(step, single_step=True)
    session = onnxruntime.InferenceSession(path)
    takes = [value.name for value in session.get_inputs()]
    gives = [value.name for value in session.get_outputs()]
    assert takes == ["inputs", "puzzle_identifiers", "new", *step.states]
    assert {f"next_{name}" for name in step.states} < set(gives)
    assert_equal_tokens(compare(run, step, exact, arrays_of(4)), 1)
    given = arrays_of(2)
    alone, repeated = (one(given, 3)["logits"] for one in (run, recurrence))
    np.testing.assert_allclose(alone, repeated, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("form", MATRIX)
def test_every_architecture_and_head(form: str, written: Any) -> None:
    settings = MATRIX[form] | {"halt_max_steps": 5}
    if settings["name"] == "lattice":
        settings |= {"eval_steps": 5}
    step, exact = pair_of(settings)
    path, run = written(step)
    onnx.checker.check_model(path, full_check=True)
    # Symmetric models give all open cells the same logits, so rounding breaks the ties.
    assert_equal_tokens(compare(run, step, exact, arrays_of(4)), 0.75)


@pytest.mark.slow
def test_the_file_strikes_the_same_candidates_as_the_model(written: Any) -> None:
    model = built(FORMS["lattice"])
    path, _ = written(ExportedStep(model.model))
    session, given = onnxruntime.InferenceSession(path), arrays_of(3)
    examples = {name: torch.from_numpy(value) for name, value in given.items()}
    carry = model.initial_carry(examples)
    for number in (1, 2, 3):
        with torch.no_grad():
            carry = model(carry, examples, measured=False).carry
        carry.halted = torch.zeros_like(carry.halted)
        wanted = {"inputs": given["inputs"], "num_steps": np.array(number)}
        left, verdict = session.run(["next_candidates", "verdict"], wanted)
        assert np.array_equal(left, carry.inner["z_next"].numpy()), number
        assert np.array_equal(verdict, carry.inner["z_verdict"].numpy()), number
    assert left.sum() < model.model.inner.all_candidates(examples["inputs"]).sum()


@pytest.mark.slow
def test_large_tensors_get_a_file_of_their_own(
    smallest: Any, written: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, run, step, _ = smallest
    monkeypatch.setattr(exported, "_MAX_MESSAGE", 1000)
    path, run_apart = written(step)
    assert [file.name for file in inside.parent.iterdir()] == ["out.onnx"]
    assert path.with_name("out.onnx.data").stat().st_size > 1000
    assert np.array_equal(run_apart(arrays_of(2), 2)["logits"], run(arrays_of(2), 2)["logits"])


# Mistakes


@pytest.mark.parametrize("wrong", ["a weight", "a lost step", "nan"])
def test_a_file_that_differs_is_refused(wrong: str) -> None:
    step, exact = pair_of(SMALLEST)
    here = in_torch(step)

    def run(given: Arrays, num_steps: int) -> Arrays:
        if wrong == "a lost step":
            return here(given, max(1, num_steps - 1))
        outputs = here(given, num_steps)
        logits = outputs["logits"].copy()
        logits[0, 3, 2] = np.nan if wrong == "nan" else logits[0, 3, 2] + 1e-3
        return outputs | {"logits": logits}

    with pytest.raises(CheckpointError, match="the exported file is wrong and was discarded"):
        compare(run, step, exact, arrays_of(4))
    assert "100.00%" in compare(here, step, exact, random_puzzles(FACTS))


@pytest.mark.parametrize(
    ("run", "output", "code", "message"),
    [
        ("nowhere", "out.onnx", 4, "nowhere: no such checkpoint or run folder"),
        ("nowhere", "out.tflite", 2, "out.tflite: expected a name that ends in .onnx"),
        ("nowhere", "folder.onnx", 2, "folder.onnx: is a folder, expected a file"),
        (PUBLISHED[0], "out.onnx", 2, "step_7 does not say how large its puzzles are: add --data"),
        (f"{PUBLISHED[0]} --data nowhere", "out.onnx", 3, "nowhere: no such data folder"),
        (" ".join(PUBLISHED), "nowhere/out.onnx", 2, "nowhere/out.onnx: No such file or directory"),
        ("nowhere", "out.onnx --weights best", 2, "invalid choice: 'best'"),
        ("nowhere", "out.onnx --plugins nothing.here", 2, "plugins=[nothing.here]"),
    ],
)
def test_mistakes_are_one_line(
    run: str,
    output: str,
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.onnx").mkdir()
    assert exit_code_of([*run.split(), *output.split()]) == code
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert message in err
    assert [path.name for path in tmp_path.iterdir()] == ["folder.onnx"]


def test_what_onnx_runtime_cannot_run_is_named(smallest: Any, tmp_path: Path) -> None:
    path = tmp_path / "out.onnx"
    path.write_text("not a model")
    with pytest.raises(ConfigError, match="ONNX Runtime cannot run the exported file: .*out.onnx"):
        opened(path)
    wrong = {name: values.astype(np.float64) for name, values in arrays_of(2).items()}
    with pytest.raises(ConfigError, match="ONNX Runtime cannot run the exported file: "):
        smallest[1](wrong, 1)


def test_weights_that_may_be_an_average_are_not_called_the_last(smallest: Any) -> None:
    trained = find_trained_model(Path("zoo:sudoku-4x4"), pytest.fail)
    sample = checking.read_sample(trained, None)
    assert exporting.facts_of(trained, smallest[2], sample, averaged=False)["weights"] == ""


def exit_code_of(arguments: list[str]) -> object:
    try:
        return main(arguments)
    except SystemExit as error:
        return error.code


def test_a_package_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(exporting, "find_spec", lambda name: None if name == "onnxscript" else name)
    assert main(["nowhere", "out.onnx"]) == 2
    assert "onnxscript is not installed (pip install '.[export]')" in capsys.readouterr().err


def wrong_file(given: Arrays, num_steps: int) -> Arrays:
    size = len(given["inputs"])
    logits = np.zeros((size, 16, 11), np.float32)
    q = dict.fromkeys(("q_halt_logits", "q_continue_logits"), np.zeros(size, np.float32))
    return {"logits": logits, "answers": logits.argmax(-1), **q}


@pytest.mark.parametrize(
    ("fails", "code", "message"),
    [
        ("checking", 4, "the exported file is wrong and was discarded: at ACT step 1 a logit is "),
        ("writing", 2, "out.onnx: No space left on device"),
    ],
)
def test_a_wrong_file_is_deleted_and_the_old_one_stays(
    fails: str,
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def write(step: ExportedStep, path: Path, facts: object, **_: object) -> None:
        path.write_text("half a file")
        if fails == "writing":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(exported, "write_onnx", write)
    monkeypatch.setattr(checking, "opened", lambda *_: wrong_file)
    output = tmp_path / "out.onnx"
    output.write_text("before")
    assert main([*PUBLISHED, str(output)]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err.splitlines()[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["out.onnx"]
    assert output.read_text() == "before"
