"""What ranks leave behind for their launcher."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from runtime.process import EXIT_CODES_FOLDER, common_exit_code, note_start


@pytest.mark.parametrize(
    ("attempts", "expected"),
    [
        ({}, None),
        ({0: {0: "75", 1: "75"}}, 75),
        ({0: {0: "75", 1: ""}}, 75),
        ({0: {0: "2", 1: ""}}, 2),
        ({0: {0: "7", 1: "4"}}, 4),
        ({0: {0: "75", 1: "3", 2: "7"}}, 3),
        ({0: {0: "7", 1: "75"}}, 75),
        ({0: {0: "7", 1: ""}}, 7),
        ({0: {0: "", 1: ""}}, None),
        ({0: {0: "3", 1: "4"}}, None),
        ({0: {0: "75", 1: "75"}, 1: {0: "", 1: ""}}, None),
        ({9: {0: "7", 1: "7"}, 10: {0: "0", 1: "0"}}, 0),
    ],
)
def test_the_code_of_the_last_attempt_counts(
    tmp_path: Path, attempts: Mapping[int, Mapping[int, str]], expected: int | None
) -> None:
    for attempt, codes in attempts.items():
        (tmp_path / str(attempt)).mkdir()
        for rank, code in codes.items():
            (tmp_path / str(attempt) / f"rank_{rank}").write_text(code)
    assert common_exit_code(tmp_path) == expected


def test_a_rank_that_begins_has_no_code_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    note_start()
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv(EXIT_CODES_FOLDER, str(tmp_path))
    note_start()
    assert (tmp_path / "2" / "rank_3").read_text() == ""
    assert common_exit_code(tmp_path) is None
