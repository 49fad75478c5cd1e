"""sample_pictures: a GIF at each evaluation, and a run that it leaves as it is."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from apps.reports import frames
from apps.reports.frames import gif
from training.tracking import Tracker, open_tracker

DRAWS = "callbacks=[{name: sample_pictures, on_error: stop}]"


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The puzzles of each GIF."""
    seen = []

    def noted(*puzzles: Any) -> bytes:
        seen.append([own[0].board.puzzle for own in puzzles])
        return gif(*puzzles)

    monkeypatch.setattr(frames, "gif", noted)
    return seen


def test_each_evaluation_draws_the_same_four_puzzles(
    run: Any, drawn: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run("epochs=8", "ema=true", name="whole")
    sent: list[Any] = []

    def with_log(*given: Any) -> Tracker:
        tracker = open_tracker(*given)
        tracker.others["mine"] = SimpleNamespace(log=sent.extend, close=str, run_id=None)
        return tracker

    monkeypatch.setattr("pretrain.open_tracker", with_log)
    files = run("epochs=8", "ema=true", DRAWS, name="drawn")
    assert files.digest() == whole.digest()
    pictures = [files.folder / "pictures" / f"step_{step}.gif" for step in (4, 8)]
    assert sorted((files.folder / "pictures").iterdir()) == pictures
    assert [record for record in sent if "sample_pictures" in record] == [
        {"step": step, "sample_pictures": path} for step, path in zip((4, 8), pictures, strict=True)
    ]
    assert [[puzzle.row for puzzle in puzzles] for puzzles in drawn] == [[0, 3, 6, 9]] * 2
    with Image.open(pictures[1]) as image:
        assert image.n_frames >= 2


SETS = {"lattice": ["arch=lattice", "heads=lattice", "arch.loops=2"], "arc": []}


@pytest.mark.parametrize("name", SETS)
def test_other_models_and_kinds(
    run: Any, tiny_settings: list[str], arc_data: Path, drawn: list[Any], name: str
) -> None:
    if name == "lattice":
        tiny_settings.remove("arch.H_layers=1")
    data = [f"data_path={arc_data}", "evaluators=[]"] if name == "arc" else []
    run(*SETS[name], *data, "epochs=4", DRAWS)
    (puzzles,) = drawn
    assert len(puzzles) == 4
    assert {puzzle.kind.key for puzzle in puzzles} == {"arc" if name == "arc" else "sudoku"}


def test_without_test_puzzles_a_line_says_so(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run("callbacks=[sample_pictures]", "epochs=4", "eval_split=null")
    told = "callback sample_pictures: ConfigError: there are no test puzzles to draw"
    assert capsys.readouterr().err.count(told) == 1
