"""Several files are written together or not at all."""

from pathlib import Path

import pytest

from runtime import files


def test_a_full_disk_changes_none_of_several_files(tmp_path: Path, failing_flush: int) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("old")
    with pytest.raises(OSError, match="No space left"):
        files.write_together({first: "new", second: b"new"})
    assert first.read_text() == "old"
    # All files were on the disk when the second was replaced.
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["first", "second"][
        : 1 + (failing_flush > 3)
    ]
