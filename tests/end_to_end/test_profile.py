"""A profile is a trace and a table, and changes no result of a run."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from runtime.errors import CheckpointError


def test_a_profile_is_a_trace_and_a_table(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    plain = run(name="plain").digest()
    profiled = run("profile=true", name="profiled")
    assert profiled.digest() == plain
    path = profiled.folder / "profile" / "trace.json.gz"
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    names = {event.get("name") for event in events}
    assert "aten::mm" in names
    assert {"ProfilerStep#4", "ProfilerStep#5", "ProfilerStep#6"} <= names
    _, table = capsys.readouterr().out.split(f"profile: {path}; the slowest operations")
    assert table.count("aten::") > 5


def test_a_start_too_short_for_a_profile_says_so(
    run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run("profile=true", "max_steps=3").folder
    assert "no training step was traced: the trace takes steps 5 to 7" in capsys.readouterr().out
    assert not (folder / "profile").exists()


def test_a_profile_is_not_written_through_a_link(run: Any, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder = run("max_steps=1", name="linked").folder
    (folder / "profile").symlink_to(elsewhere)
    with pytest.raises(CheckpointError, match="profile"):
        run("profile=true", name="linked")
    assert list(elsewhere.iterdir()) == []
