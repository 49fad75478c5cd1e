"""A mistake ends a program within seconds: one line on standard error that names what is wrong, no
traceback, and the exit code of its kind. All messages are tested where they are made.
"""

import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from runtime.errors import EXIT_PREEMPTED
from training.checkpoint.lock import run_lock
from training.checkpoint.published import CONFIG_FILE
from training.checkpoint.state import RunState
from training.checkpoint.store import save_checkpoint

# Five seconds are promised on a machine that does nothing else.
SECONDS = 15.0


def assert_one_line(finished: Any, code: int, *parts: str) -> None:
    """Require the exit code, and one line that holds all `parts`."""
    assert finished.code == code, finished.err
    assert len(finished.err_lines) == 1, finished.err
    assert "Traceback" not in finished.err
    assert [part for part in parts if part not in finished.err] == [], finished.err
    assert finished.seconds < SECONDS


@pytest.fixture
def cut_data(sudoku_data: Path, tmp_path: Path) -> Path:
    """A data set whose labels file is cut."""
    folder = shutil.copytree(sudoku_data, tmp_path / "cut")
    labels = folder / "train" / "all__labels.npy"
    labels.write_bytes(labels.read_bytes()[:300])
    return folder


# pretrain.py


@pytest.mark.parametrize(
    ("settings", "code", "parts"),
    [
        (["arch.L_cylces=4"], 2, ["arch.L_cylces=4", "did you mean arch.L_cycles?"]),
        (["data_path=nowhere"], 3, ["nowhere: no such data folder"]),
        (["data=sudoku"], 3, ["build it with: python dataset/build_sudoku_dataset.py"]),
        (["--lr", "1"], 2, ["--lr", "key=value"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_mistakes_of_the_command_line(
    run_python: Callable[..., Any], settings: list[str], code: int, parts: list[str]
) -> None:
    assert_one_line(run_python("pretrain.py", *settings), code, "pretrain.py: ", *parts)


def test_a_batch_that_ranks_cannot_share(run_python: Callable[..., Any], sudoku_data: Path) -> None:
    finished = run_python(
        "pretrain.py",
        f"data_path={sudoku_data}",
        "global_batch_size=7",
        env={"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"},
    )
    assert_one_line(finished, 2, "global_batch_size=7", "number of ranks, 2")


def test_a_data_set_with_a_file_that_is_cut(run_python: Callable[..., Any], cut_data: Path) -> None:
    finished = run_python("pretrain.py", f"data_path={cut_data}")
    assert_one_line(finished, 3, str(cut_data / "train" / "all__labels.npy"), "300 bytes")


@pytest.mark.parametrize("place", ["file", "file/run", "x" * 300])
def test_a_folder_that_cannot_be_written(
    run_python: Callable[..., Any], tiny_settings: list[str], tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").write_text("in the way")
    finished = run_python("pretrain.py", *tiny_settings, f"checkpoint_path={tmp_path / place}")
    assert_one_line(finished, 2, f"checkpoint_path={tmp_path / place}: cannot be written: ")


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("load_checkpoint=nowhere", "load_checkpoint=nowhere: nowhere: no such checkpoint"),
        ("resume=7", "/run/step_7: no such checkpoint"),
    ],
)
def test_a_checkpoint_that_is_not_there(
    run_python: Callable[..., Any], tiny_settings: list[str], setting: str, told: str
) -> None:
    assert_one_line(run_python("pretrain.py", *tiny_settings, setting), 4, told)


def test_another_run_in_the_folder(
    run_python: Callable[..., Any], tiny_settings: list[str], tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    with run_lock(tmp_path / "run"):
        finished = run_python("pretrain.py", *tiny_settings)
    assert finished.code == 6
    assert finished.err.startswith(
        f"pretrain.py: {tmp_path / 'run'}: another run is using this folder"
    )
    assert len(finished.err_lines) == 1
    assert list((tmp_path / "run").iterdir()) == []


def test_help_needs_no_data(run_python: Callable[..., Any]) -> None:
    finished = run_python("pretrain.py", "--help")
    assert (finished.code, finished.err) == (0, "")
    assert "python pretrain.py [KEY=VALUE ...]" in finished.out
    assert "global_batch_size: 768" in finished.out


# evaluate.py


@pytest.fixture
def own_checkpoint(
    tiny_settings: list[str], train: Callable[[list[str]], None], tmp_path: Path
) -> Path:
    """A run's folder with a checkpoint of 4x4 Sudoku."""
    train([*tiny_settings, "max_steps=1"])
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("settings", "code", "parts"),
    [(["checkpoint=nowhere"], 4, ["nowhere", "no such checkpoint"]), ([], 2, ["checkpoint"])],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_mistakes_of_an_evaluation(
    run_python: Callable[..., Any], settings: list[str], code: int, parts: list[str]
) -> None:
    assert_one_line(run_python("evaluate.py", *settings), code, "evaluate.py: ", *parts)


def test_a_checkpoint_that_does_not_fit_the_data(
    run_python: Callable[..., Any], own_checkpoint: Path, tasks_data: Path
) -> None:
    finished = run_python("evaluate.py", f"checkpoint={own_checkpoint}", f"data_path={tasks_data}")
    assert_one_line(finished, 4, "step_1", "does not fit", "vocab_size 6, not 8")


def test_data_of_an_evaluation_that_are_not_there(
    run_python: Callable[..., Any], own_checkpoint: Path
) -> None:
    finished = run_python("evaluate.py", f"checkpoint={own_checkpoint}", "data_path=nowhere")
    assert_one_line(finished, 3, "nowhere")


def test_a_checkpoint_that_is_damaged(run_python: Callable[..., Any], own_checkpoint: Path) -> None:
    weights = own_checkpoint / "step_1" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    finished = run_python("evaluate.py", f"checkpoint={own_checkpoint / 'step_1'}")
    assert_one_line(finished, 4, str(weights))


def test_resuming_with_data_that_do_not_fit(
    run_python: Callable[..., Any], own_checkpoint: Path, tiny_settings: list[str], tasks_data: Path
) -> None:
    finished = run_python("pretrain.py", *tiny_settings, f"data_path={tasks_data}")
    assert_one_line(finished, 4, str(own_checkpoint / "step_1"), "does not fit the data")


def test_a_published_file_without_its_settings(
    run_python: Callable[..., Any], tmp_path: Path, sudoku_data: Path
) -> None:
    torch.save({"model.inner.H_init": torch.zeros(2)}, tmp_path / "step_3")
    finished = run_python(
        "evaluate.py", f"checkpoint={tmp_path / 'step_3'}", f"data_path={sudoku_data}"
    )
    assert_one_line(finished, 4, str(tmp_path / CONFIG_FILE))


# Under torchrun


def exit_codes(report: str) -> list[int]:
    """Read the workers' exit codes in torchrun's report."""
    return [int(code) for code in re.findall(r"exitcode\s*: (-?\d+)", report)]


def launch(run_python: Callable[..., Any], script: str, *settings: str) -> Any:
    """Start two workers."""
    return run_python(
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        str(Path(__file__).resolve().parents[2] / script),
        *settings,
        timeout=120,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "code", "line"),
    [
        (["global_batch_size=7"], 2, "pretrain.py: global_batch_size=7 must be a multiple"),
        (["data_path=nowhere"], 3, "pretrain.py: nowhere: no such data folder"),
    ],
)
def test_every_worker_answers(
    run_python: Callable[..., Any], sudoku_data: Path, settings: list[str], code: int, line: str
) -> None:
    finished = launch(run_python, "pretrain.py", f"data_path={sudoku_data}", *settings)
    assert finished.code != 0
    assert 1 <= finished.err.count(line) <= 2
    # torchrun ends the other worker when one has failed: if it was not done itself, by a signal
    # that kills or preempts it.
    codes = set(exit_codes(finished.err))
    assert code in codes, finished.err
    assert codes <= {code, -signal.SIGTERM, EXIT_PREEMPTED}
    assert finished.err.count("Traceback") <= 1  # torchrun's own


@pytest.mark.slow
def test_every_worker_of_an_evaluation_answers(run_python: Callable[..., Any]) -> None:
    finished = launch(run_python, "evaluate.py", "checkpoint=nowhere")
    assert 4 in exit_codes(finished.err), finished.err
    assert "evaluate.py: nowhere: no such checkpoint" in finished.err


def test_a_checkpoint_of_nothing_is_no_model(
    run_python: Callable[..., Any], tmp_path: Path
) -> None:
    save_checkpoint(tmp_path, RunState(step=1), {})
    finished = run_python("evaluate.py", f"checkpoint={tmp_path / 'step_1'}")
    assert_one_line(finished, 4, "state.json")
