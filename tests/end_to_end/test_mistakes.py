"""A mistake ends a program within seconds, with one line on standard error, no traceback, and the
exit code of its kind. The unit tests check all messages.
"""

import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from runtime.errors import EXIT_PREEMPTED
from training.checkpoint.lock import run_lock
from training.checkpoint.published import CONFIG_FILE
from training.checkpoint.store import RunState, save_checkpoint

ROOT = Path(__file__).resolve().parents[2]
# The promise is five seconds, on an idle machine.
SECONDS = 15.0


def assert_one_line(finished: Any, code: int, *parts: str) -> None:
    """Require the exit code, and one line that contains all `parts`."""
    assert finished.code == code, finished.err
    assert len(finished.err_lines) == 1, finished.err
    assert "Traceback" not in finished.err
    assert [part for part in parts if part not in finished.err] == [], finished.err
    assert finished.seconds < SECONDS


@pytest.mark.parametrize(
    ("command", "code", "told"),
    [
        ("pretrain.py arch.L_cylces=4", 2, "arch.L_cylces=4; did you mean arch.L_cycles?"),
        ("pretrain.py data_path=nowhere", 3, "nowhere: no such data folder"),
        (
            "pretrain.py data=sudoku",
            3,
            "build it with: python scripts/build_dataset.py data=sudoku",
        ),
        ("pretrain.py --lr 1", 2, "key=value"),
        ("pretrain.py load_checkpoint=nowhere TINY", 4, "load_checkpoint=nowhere: nowhere: no"),
        ("pretrain.py resume=7 TINY", 4, "/run/step_7: no such checkpoint"),
        ("evaluate.py checkpoint=nowhere", 4, "nowhere: no such checkpoint"),
        ("evaluate.py", 2, "checkpoint"),
    ],
)
def test_mistakes_of_the_command_line(
    run_python: Any, tiny_settings: list[str], command: str, code: int, told: str
) -> None:
    script, *settings = command.replace("TINY", " ".join(tiny_settings)).split()
    assert_one_line(run_python(script, *settings), code, f"{script}: ", told)


def test_mistakes_with_data_and_folders(
    run_python: Any, tiny_settings: list[str], sudoku_data: Path, tmp_path: Path
) -> None:
    rank = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
    settings = [f"data_path={sudoku_data}", "global_batch_size=7"]
    finished = run_python("pretrain.py", *settings, env=rank)
    assert_one_line(finished, 2, "global_batch_size=7", "number of ranks, 2")
    data = shutil.copytree(sudoku_data, tmp_path / "cut")
    labels = data / "train" / "all__labels.npy"
    labels.write_bytes(labels.read_bytes()[:300])
    assert_one_line(run_python("pretrain.py", f"data_path={data}"), 3, str(labels), "damaged")
    for place in ("cut/train/dataset.json/run", "x" * 300):
        finished = run_python("pretrain.py", *tiny_settings, f"checkpoint_path={tmp_path / place}")
        assert_one_line(finished, 2, f"pretrain.py: {tmp_path / place}: ")
    (tmp_path / "run").mkdir()
    with run_lock(tmp_path / "run"):
        finished = run_python("pretrain.py", *tiny_settings)
    told = f"pretrain.py: {tmp_path / 'run'}: another run is using this folder"
    assert_one_line(finished, 6, told)
    assert list((tmp_path / "run").iterdir()) == []


def test_a_checkpoint_with_other_data_and_a_damaged_one(
    run: Any, run_python: Any, tiny_settings: list[str], tasks_data: Path
) -> None:
    folder = run("max_steps=1").folder
    other = f"data_path={tasks_data}"
    finished = run_python("pretrain.py", *tiny_settings, other)
    assert_one_line(finished, 4, str(folder / "step_1"), "does not fit the data")
    weights = folder / "step_1" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    finished = run_python("evaluate.py", f"checkpoint={folder / 'step_1'}")
    assert_one_line(finished, 4, str(weights))


def test_checkpoints_without_settings(run_python: Any, tmp_path: Path, sudoku_data: Path) -> None:
    torch.save({"model.inner.H_init": torch.zeros(2)}, tmp_path / "step_3")
    published = [f"checkpoint={tmp_path / 'step_3'}", f"data_path={sudoku_data}"]
    assert_one_line(run_python("evaluate.py", *published), 4, str(tmp_path / CONFIG_FILE))
    save_checkpoint(tmp_path, RunState(step=1), {})
    finished = run_python("evaluate.py", f"checkpoint={tmp_path / 'step_1'}")
    assert_one_line(finished, 4, "state.json")


# Under torchrun


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "code", "line"),
    [
        ("pretrain.py data_path=DATA global_batch_size=7", 2, "global_batch_size=7 must be a mult"),
        ("pretrain.py data_path=nowhere", 3, "nowhere: no such data folder"),
        ("evaluate.py checkpoint=nowhere", 4, "nowhere: no such checkpoint"),
    ],
)
def test_every_worker_reports_the_mistake(
    run_python: Any, sudoku_data: Path, command: str, code: int, line: str
) -> None:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    script, *settings = command.replace("DATA", str(sudoku_data)).split()
    finished = run_python(*torchrun, ROOT / script, *settings, timeout=120)
    assert finished.code != 0
    assert 1 <= finished.err.count(f"{script}: {line}") <= 2
    # When one worker has failed, torchrun stops the other by a signal that kills or preempts it,
    # unless that has ended already.
    codes = {int(code) for code in re.findall(r"exitcode\s*: (-?\d+)", finished.err)}
    assert code in codes, finished.err
    assert codes <= {code, -signal.SIGTERM, EXIT_PREEMPTED}
    assert finished.err.count("Traceback") <= 1  # torchrun's own
