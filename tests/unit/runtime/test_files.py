"""Files that belong together are written together, or not at all."""

import errno
import os
from pathlib import Path

import pytest

from apps.sweeps.table import Row, write_table
from runtime import files
from runtime.errors import ConfigError


@pytest.fixture(params=[1, 2, 3, 4])
def failing_flush(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The number of the write that finds the disk full, of two files; the later ones are those of
    the moment before each replaces what was there.
    """
    left, flush = [request.param], files.flush

    def fail(file: files.BinaryIO) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        flush(file)

    monkeypatch.setattr(files, "flush", fail)
    return request.param


def test_where_there_is_no_room_for_all_files_none_changes(
    tmp_path: Path, failing_flush: int
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("old")
    with pytest.raises(OSError, match="No space left"):
        files.write_together({first: "new", second: b"new"})
    assert first.read_text() == "old"
    # All were on the disk when the second replaced what was there.
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["first", "second"][
        : 1 + (failing_flush > 3)
    ]


def test_a_table_of_a_sweep_without_room_is_one_line(tmp_path: Path, failing_flush: int) -> None:
    if failing_flush > 2:
        pytest.skip("what is on the disk can be renamed")
    rows = [Row("a", {"lr": "1"}, "finished", {"exact_accuracy": 0.5})]
    with pytest.raises(ConfigError, match=r"results.json: No space left on device$"):
        write_table(tmp_path, rows, "exact_accuracy", minimize=False)
    assert list(tmp_path.iterdir()) == []
