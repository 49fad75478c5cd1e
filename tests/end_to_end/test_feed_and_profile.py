"""How batches come, and a profile, change no bit of a run."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from runtime.errors import CheckpointError


@pytest.mark.slow
def test_a_run_may_change_between_all_ways_to_get_its_batches(run: Any, tasks_data: Path) -> None:
    data = f"data_path={tasks_data}"
    whole = run(data, name="whole")
    last = whole.steps[-1]
    run(data, f"max_steps={last // 2}", name="parts")
    assert run(data, "profile=true", name="parts").digest() == whole.digest()


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
