"""How batches come, and a profile, change no bit of a run."""

import gzip
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from puzzle_dataset import TrainBatches
from runtime.errors import CheckpointError, DatasetError

FED = "batches_ahead=2"


def no_thread_is_left() -> bool:
    return not any(thread.name == "ahead" for thread in threading.enumerate())


@pytest.mark.slow
def test_a_run_may_change_between_all_ways_to_get_its_batches(run: Any, tasks_data: Path) -> None:
    data = f"data_path={tasks_data}"
    whole = run(data, name="whole")
    last = whole.steps[-1]
    run(data, FED, f"max_steps={last // 3}", name="parts")
    run(data, "batches_ahead=4", f"max_steps={last // 2}", name="parts")
    assert run(data, FED, "profile=true", name="parts").digest() == whole.digest()
    assert no_thread_is_left()


def test_an_error_in_the_thread_ends_the_run_at_its_batch(
    run: Any, files_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, drawn = TrainBatches.own, []

    def fail_at_the_sixth(batches: TrainBatches, rows: Any) -> Any:
        drawn.append(threading.current_thread().name)
        if len(drawn) == 6:
            raise DatasetError("no such row")
        return own(batches, rows)

    monkeypatch.setattr(TrainBatches, "own", fail_at_the_sixth)
    with pytest.raises(DatasetError, match="no such row"):
        run(FED, "eval_interval=16", "checkpoint_interval=1", name="failed")
    assert files_of(tmp_path / "failed").steps[-1] == 5
    assert set(drawn) == {"ahead"}
    assert no_thread_is_left()


def test_a_profile_is_a_trace_and_a_table(
    run: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plain = run(name="plain").digest()
    capsys.readouterr()
    profiled = run("profile=true", name="profiled")
    assert profiled.digest() == plain
    (path,) = (profiled.folder / "profile").iterdir()
    assert path.name == "trace_step_7.json.gz"
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    names = {event.get("name") for event in events}
    assert "aten::mm" in names
    out = capsys.readouterr().out
    _, table = out.split(f"profile: {path}; the dearest operations")
    rows = table.split("\n-----")[2].splitlines()[1:]
    assert len(rows) == 10
    assert {row.split()[0] for row in rows} <= names


def test_a_run_that_is_too_short_says_so(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    stopped = run("profile=true", "max_steps=6")
    said = "profile: no trace: this start made 6 steps, and 7 are needed"
    assert said in capsys.readouterr().out
    assert not (stopped.folder / "profile").exists()


def test_a_profile_is_not_written_through_a_link(run: Any, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder = run("max_steps=1", name="linked").folder
    (folder / "profile").symlink_to(elsewhere)
    with pytest.raises(CheckpointError, match="profile"):
        run("profile=true", name="linked")
    assert list(elsewhere.iterdir()) == []
