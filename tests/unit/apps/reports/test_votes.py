"""Votes as grids that people can read."""

import json
from pathlib import Path
from typing import Any

import pytest

from apps.reports.terminal import side_by_side
from apps.reports.votes import lines_of, main

VOTES: dict[str, Any] = {
    "hard": [{"votes": 2, "solved_at": None, "grids": [{"votes": 2, "grid": [[1]]}]}],
    "easy": [
        {
            "votes": 5,
            "solved_at": 1,
            "grids": [{"votes": 4, "grid": [[1, 0], [0, 12]]}, {"votes": 1, "grid": []}],
        }
    ],
}
TASKS: dict[str, Any] = {
    "hard": {"train": [], "test": [{"input": [[3, 3]]}]},
    "easy": {"train": [], "test": [{"input": [[7]], "output": [[1, 0], [0, 2]]}]},
}


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    for name, content in (("votes.json", VOTES), ("tasks.json", TASKS)):
        (tmp_path / name).write_text(json.dumps(content))
    return [str(tmp_path / "votes.json"), str(tmp_path / "tasks.json")]


def test_solved_inputs_come_first_and_the_best_answers_are_shown(
    files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*files, "--count", "2"]) == 0
    out = capsys.readouterr().out
    assert out.index("easy, test input 1") < out.index("hard, test input 1")
    for text in ("right answer at place 1", "not among the answers", "4 of 5 votes", "(empty)"):
        assert text in out
    assert "1 of 5 votes" in out
    # What nobody knows is not shown.
    assert out.count("right answer  ") == 1


@pytest.mark.parametrize(("flags", "shown"), [(["--count", "1"], 1), (["--best", "1"], 2)])
def test_as_many_as_asked_for(
    files: list[str], capsys: pytest.CaptureFixture[str], flags: list[str], shown: int
) -> None:
    assert main([*files, *flags]) == 0
    out = capsys.readouterr().out
    assert out.count("test input") == shown
    assert ("1 of 5 votes" in out) == ("--best" not in flags)


def test_a_file_that_is_not_there_is_named(
    files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["nowhere.json", files[1]]) == 3
    assert "nowhere.json" in capsys.readouterr().err


def test_grids_of_different_heights_stand_side_by_side() -> None:
    text = side_by_side([("a", lines_of([[1], [0]])), ("long title", lines_of([[2, 3]]))])
    assert text.splitlines() == ["a    long title", "1    2 3", "."]
