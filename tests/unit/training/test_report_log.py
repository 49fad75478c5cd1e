"""The page that a run writes of itself: no failure of it is one of the run."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime.errors import NonFiniteError, Preempted
from training import logs
from training.config.composition import load_config
from training.config.schema import TrainConfig
from training.logs import ReportLog
from training.tracking import open_tracker

STEP, EVALUATION = {"step": 1, "train/lr": 1.0}, {"step": 1, "eval/count": 1.0}


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warnings: list[str]
) -> Callable[[str], ReportLog]:
    """A log whose script is replaced by some code; RUN in it is the run's folder."""
    monkeypatch.setattr(logs, "_SEND_SECONDS", 0.01)

    def make(code: str) -> ReportLog:
        script = tmp_path / "script.py"
        script.write_text(f"import os, sys, time\nRUN = sys.argv[2]\n{code}\n")
        monkeypatch.setattr(logs, "_REPORT_SCRIPT", script)
        return ReportLog(tmp_path, warnings.append)

    return make


COUNT = "open(RUN + '/count', 'a').write('x')"


def count(folder: Path) -> int:
    return len((folder / "count").read_text()) if (folder / "count").exists() else 0


def wait_until(holds: Callable[[], Any]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_each_evaluation_writes_it_anew(log: Any, tmp_path: Path, warnings: list[str]) -> None:
    one = log(COUNT)
    one.log([STEP])
    for expected in (1, 2):
        one.log([EVALUATION])
        wait_until(lambda expected=expected: count(tmp_path) == expected)
    one.close()
    assert (count(tmp_path), warnings) == (2, [])


def test_two_are_never_at_work_and_the_last_word_is_not_lost(
    log: Any, tmp_path: Path, warnings: list[str]
) -> None:
    lock = "os.mkdir(RUN + '/lock')\nwhile not os.path.exists(RUN + '/go'): time.sleep(0.01)\n"
    one = log(f"{lock}os.rmdir(RUN + '/lock')\n{COUNT}")
    one.log([EVALUATION])
    wait_until((tmp_path / "lock").exists)
    for _ in range(3):
        one.log([EVALUATION])
    assert count(tmp_path) == 0
    (tmp_path / "go").touch()
    one.close()
    assert (count(tmp_path), warnings) == (2, [])


def test_steps_after_the_last_evaluation_are_shown_at_the_end(log: Any, tmp_path: Path) -> None:
    one = log(COUNT)
    one.log([EVALUATION])
    wait_until(lambda: count(tmp_path) == 1)
    one.log([STEP])
    one.close(NonFiniteError)
    assert count(tmp_path) == 2


@pytest.mark.parametrize(
    ("code", "seconds", "told"),
    [
        ("print('a'); sys.exit('report.py: it is broken')", {}, "RuntimeError: report.py: it is"),
        ("sys.exit(3)", {}, "RuntimeError: exit code 3"),
        ("time.sleep(600)", {"_REPORT_SECONDS": 0.1}, "TimeoutExpired"),
        ("time.sleep(6)", {"_FINISH_SECONDS": 0.2}, "not finished within 0.2 s and is left behind"),
    ],
)
def test_its_failure_is_one_warning(
    log: Any, warnings: list[str], monkeypatch: Any, code: str, seconds: Any, told: str
) -> None:
    for name, value in seconds.items():
        monkeypatch.setattr(logs, name, value)
    one = log(code)
    for _ in range(3):
        one.log([EVALUATION])
    one.close()
    (warning,) = warnings
    assert told in warning
    assert "the report" in warning
    one._thread.join()


def test_a_run_that_is_asked_to_stop_does_not_wait(log: Any, warnings: list[str]) -> None:
    one, began = log("time.sleep(5)"), time.monotonic()
    one.log([EVALUATION])
    one.close(Preempted)
    assert time.monotonic() - began < 3
    one._thread.join()
    assert warnings == []


def test_it_ends_with_the_run_at_low_priority(log: Any, tmp_path: Path) -> None:
    said = "{os.nice(0)} {os.environ['RUN_ENDS_WITH_PROCESS']}"
    one = log(f"open(RUN + '/told', 'w').write(f{said!r})")
    one.log([EVALUATION])
    one.close()
    assert (tmp_path / "told").read_text() == f"19 {os.getpid()}"


def test_without_plotly_one_line_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warnings: list[str]
) -> None:
    monkeypatch.setattr(ReportLog, "package", "no_such_package")
    one = ReportLog(tmp_path, warnings.append)
    one.log([EVALUATION])
    one.close()
    (warning,) = warnings
    assert "pip install '.[pictures]'" in warning


def test_a_tracker_has_one_where_it_is_asked_for(tmp_path: Path) -> None:
    named = ["data_path=x", "project_name=p", "run_name=n", "logger=jsonl"]
    for more, expected in ((["report=true"], True), ([], False)):
        config = load_config(TrainConfig, "cfg_pretrain", [*named, *more])
        with open_tracker(config, tmp_path, None) as tracker:
            assert ("report" in tracker._others) == expected
            assert tracker.run_ids == {}
