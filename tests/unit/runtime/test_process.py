"""The exit codes that ranks leave for their launcher, and stops by SIGTERM."""

import os
import signal
import time
from pathlib import Path

import pytest

from runtime.errors import Preempted
from runtime.process import (
    EXIT_CODES_FOLDER,
    common_exit_code,
    delay_sigterm,
    note_start,
    preempt_on_sigterm,
)


@pytest.mark.parametrize(
    ("attempts", "expected"),
    [
        ({}, None),
        ({0: ["75", ""]}, 75),
        ({0: ["7", "4"]}, 4),
        ({0: ["75", "3", "7"]}, 3),
        ({0: ["7", "75"]}, 75),
        ({0: ["7", ""]}, 7),
        ({0: ["", ""]}, None),
        ({0: ["3", "4"]}, None),
        ({0: ["75", "75"], 1: ["", ""]}, None),
        ({9: ["7", "7"], 10: ["0", "0"]}, 0),
    ],
)
def test_the_code_of_the_last_attempt_counts(
    tmp_path: Path, attempts: dict[int, list[str]], expected: int | None
) -> None:
    for attempt, codes in attempts.items():
        folder = tmp_path / str(attempt)
        folder.mkdir()
        for rank, code in enumerate(codes):
            (folder / f"rank_{rank}").write_text(code)
    assert common_exit_code(tmp_path) == expected


def test_a_starting_rank_has_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    note_start()
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv(EXIT_CODES_FOLDER, str(tmp_path))
    note_start()
    assert (tmp_path / "2" / "rank_3").read_text() == ""
    assert common_exit_code(tmp_path) is None


def test_a_delayed_stop_comes_after_the_block() -> None:
    done = []

    @preempt_on_sigterm()
    def stopped() -> None:
        with delay_sigterm():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.05)  # Python calls its handlers between two instructions.
            done.append("all of it")

    with pytest.raises(Preempted):
        stopped()
    assert done == ["all of it"]
