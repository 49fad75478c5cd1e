"""JSON of names and tasks. Arrays are tried through the sets that hold them."""

from pathlib import Path

import pytest

from dataset.format.files import read_json
from runtime.errors import DatasetError


def test_files_that_are_missing_or_no_json_are_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"x\.json: No such file"):
        read_json(tmp_path / "x.json")
    (tmp_path / "y.json").write_text("{")
    with pytest.raises(DatasetError, match=r"y\.json: not JSON"):
        read_json(tmp_path / "y.json")
    (tmp_path / "y.json").write_text("[" * 100_000)
    with pytest.raises(DatasetError, match=r"y\.json: not JSON"):
        read_json(tmp_path / "y.json")
