import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from apps.reports.status import is_run, read_status
from training.checkpoint.lock import Owner, run_lock

Make = Callable[..., Path]


def test_a_running_run(make_run_folder: Make) -> None:
    folder = make_run_folder(steps=40)
    state = json.loads((folder / "step_40" / "state.json").read_text())
    state |= {"total_steps": 100, "iteration": 1}
    (folder / "step_40" / "state.json").write_text(json.dumps(state))
    with run_lock(folder):
        status = read_status(folder)
        assert status.state == "running"
        # 40 steps took 370.5 s, and 60 are left.
        assert status.seconds_left == pytest.approx(370.5 / 40 * 60)
        # With two checkpoints the time between them counts: the run is now twice as fast.
        (folder / "step_60").mkdir()
        later = state | {"step": 60, "seconds": 370.5 + 370.5 / 4}
        (folder / "step_60" / "state.json").write_text(json.dumps(later))
        assert read_status(folder).seconds_left == pytest.approx(370.5 / 80 * 40)
        limited = later | {"config": {"max_steps": 70}}
        (folder / "step_60" / "state.json").write_text(json.dumps(limited))
        assert read_status(folder).total_steps == 70
    status = read_status(folder)
    assert (status.state, status.step, status.seconds_left) == ("stopped", 60, None)


def test_without_a_checkpoint_the_end_is_not_known(make_run_folder: Make) -> None:
    folder = make_run_folder(steps=4)
    shutil.rmtree(folder / "step_4")
    with run_lock(folder):
        status = read_status(folder)
    assert (status.state, status.step, status.total_steps) == ("running", 4, None)
    assert (status.seconds_left, status.seconds, status.score) == (None, None, 0.75)


def test_a_killed_run_is_stopped(make_run_folder: Make) -> None:
    folder = make_run_folder()
    state = folder / "step_40" / "state.json"
    state.write_text(state.read_text().replace('"iteration": 2', '"iteration": 1'))
    code = "import os; from training.checkpoint.lock import Owner; from dataclasses import asdict;"
    code += "import json; print(json.dumps(asdict(Owner.this_process())))"
    owner = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    (folder / ".lock").write_bytes(owner)
    status = read_status(folder)
    assert (status.state, status.detail) == ("stopped", "killed")


def test_a_lock_of_another_machine_counts_while_its_run_writes(make_run_folder: Make) -> None:
    folder = make_run_folder()
    owner = asdict(Owner.this_process()) | {"host": "elsewhere", "boot": "another"}
    (folder / ".lock").write_text(json.dumps(owner))
    assert read_status(folder).state == "running"
    long_ago = time.time() - 7200
    os.utime(folder / "metrics.jsonl", (long_ago, long_ago))
    status = read_status(folder)
    assert status.state == "stopped"
    assert "elsewhere" in status.detail
    assert "2 hours" in status.detail


def test_a_loss_that_was_not_finite(make_run_folder: Make) -> None:
    folder = make_run_folder()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 41, "train/lr": 0.1, "train/lm_loss": "nan"}\n')
    status = read_status(folder)
    assert (status.state, status.loss) == ("failed", None)
    assert "step 41" in status.detail


def test_a_step_that_was_skipped_is_no_failure(make_run_folder: Make) -> None:
    folder = make_run_folder()
    before, (state,) = read_status(folder), folder.glob("step_*/state.json")
    recorded = json.loads(state.read_bytes())
    recorded["config"]["on_nonfinite"] = "skip"
    state.write_text(json.dumps(recorded))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 41, "train/lr": 0.1, "train/lm_loss": "nan"}\n')
    assert read_status(folder).state == before.state != "failed"


def test_a_job_that_failed_in_its_sweep_has_failed(make_sweep: Make) -> None:
    sweep = make_sweep()
    record = json.loads((sweep / "sweep.json").read_text())
    name = "lr-0.001__seed-0"
    record["jobs"][name] |= {"state": "failed", "exit_code": 5}
    (sweep / "sweep.json").write_text(json.dumps(record))
    for path in (sweep / name / "step_40").iterdir():
        path.unlink()
    status = read_status(sweep / name)
    assert (status.state, status.detail) == ("failed", "exit code 5")
    assert not is_run(sweep)


def test_folders_without_training(tmp_path: Path) -> None:
    assert read_status(tmp_path / "nowhere").state == "new"
    (tmp_path / "config.yaml").write_text("lr: 1")
    status = read_status(tmp_path)
    assert (status.state, status.step, status.loss) == ("new", None, None)
    (tmp_path / "depth-4").mkdir()
    (tmp_path / "depth-4" / "depth-4.json").write_text("{}")
    assert is_run(tmp_path / "depth-4")
    assert read_status(tmp_path / "depth-4").state == "done"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"step": "x"}', "[" * 100_000, "\x00"])
def test_damaged_checkpoints_and_locks_are_skipped(make_run_folder: Make, content: str) -> None:
    folder = make_run_folder(steps=40)
    (folder / "step_50").mkdir()
    (folder / "step_50" / "state.json").write_text(content)
    (folder / ".lock").write_text(content)
    status = read_status(folder)
    assert (status.state, status.step) == ("done", 40)


def test_only_the_end_of_a_large_file_is_read(make_run_folder: Make) -> None:
    folder = make_run_folder(steps=3)
    path = folder / "metrics.jsonl"
    last = path.read_bytes()
    with path.open("wb") as file:
        file.truncate(2**33)  # 8 GiB that take no space on the disk.
        file.seek(2**33)
        file.write(b"\n" + last)
    status = read_status(folder)
    assert (status.step, status.score) == (3, 0.75)


def test_a_run_at_max_steps_has_stopped(make_run_folder: Make) -> None:
    folder = make_run_folder()
    state = folder / "step_40" / "state.json"
    with run_lock(folder):
        assert read_status(folder).state == "running"  # Until its process ends.
    content = json.loads(state.read_text()) | {"iteration": 1, "config": {"max_steps": 40}}
    state.write_text(json.dumps(content))
    status = read_status(folder)
    assert (status.state, status.detail) == ("stopped", "at max_steps=40")


@pytest.mark.parametrize(("waited", "detail"), [(1, ""), (2, "by early_stop")])
def test_a_run_that_a_callback_ended_has_ended(
    make_run_folder: Make, waited: int, detail: str
) -> None:
    state = make_run_folder() / "step_40" / "state.json"
    content = json.loads(state.read_text()) | {"iteration": 1}
    content["config"]["callbacks"] = ["notify", {"name": "early_stop", "patience": 2}]
    content["callbacks"] = {"early_stop": {"best": 0.5, "waited": waited}}
    state.write_text(json.dumps(content))
    status = read_status(state.parents[1])
    assert (status.state, status.detail, status.has_ended) == ("stopped", detail, bool(detail))
