"""Files that belong together are written together, or not at all."""

from pathlib import Path

import pytest

from runtime import files


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
