"""Fixtures: the Sudoku and the maze builder with small CSV files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dataset.build_maze_dataset import MazeBuild
from dataset.build_sudoku_dataset import SudokuBuild
from dataset.format.reading import load_split
from dataset.format.schema import PuzzleDatasetMetadata, PuzzleSet
from dataset.puzzle_build import PuzzleBuild

SOLUTIONS = ["1234341221434321", "1234341243212143", "2143341212344321", "4321123424133142"]
SUDOKU_TRAIN = [
    f"made,..{SOLUTIONS[0][2:]},{SOLUTIONS[0]},3",
    f"made,12.43.1.43212143,{SOLUTIONS[1]},8",
    f"made,214.341212344321,{SOLUTIONS[2]},12",
]
SUDOKU_TEST = [f"made,.32112342413314.,{SOLUTIONS[3]},5", f"made,1234.4.221434321,{SOLUTIONS[0]},9"]
MAZE_TRAIN = [
    "made,S   # # # #    G,So  #o# #o#  ooG,7",
    "made,S#   # # # #   G,S#  o# #o# #oooG,7",
    "made, #S     G#    ##, #S ooo G#    ##,5",
]
MAZE_TEST = ["made,#S #  # G   # # ,#S # o# Go  # # ,"]


class Builder:
    """A builder run in this process, with its sources in `folder` and its data set in `output`."""

    def __init__(
        self, kind: type[PuzzleBuild], size: int, rows: tuple[list[str], list[str]], folder: Path
    ) -> None:
        self.kind, self.size, (self.train, self.test) = kind, size, rows
        self.folder, self.output = folder / "csv", folder / "built" / "set"
        self.folder.mkdir()
        self.write(self.train)
        self.write(self.test, "test.csv")

    def write(self, rows: list[str], name: str = "train.csv") -> None:
        text = "\n".join(["source,question,answer,rating", *rows, ""])
        (self.folder / name).write_text(text)

    def flags(self, *more: str, source: object = None) -> list[str]:
        flags = [f"--output-dir={self.output}", f"--source={source or self.folder}"]
        return [*flags, f"--size={self.size}", *more]

    def __call__(self, *flags: str, source: object = None) -> int:
        return self.kind.main(self.flags(*flags, source=source))

    def arrays(self, split: str = "train") -> tuple[PuzzleDatasetMetadata, PuzzleSet]:
        metadata, sets = load_split(self.output / split)
        assert metadata.sets == ("all",)
        return metadata, sets["all"]

    def refuses_the_third_row(self, bad: str, reason: str, error_line: Callable[[], str]) -> None:
        for name, good in (("train.csv", self.train), ("test.csv", self.test)):
            self.write([self.train[0], bad, self.train[1]], name)
            assert self() == 3
            line = error_line()
            assert line.startswith(f"error: {self.folder / name}: row 3: ")
            assert reason in line
            assert not self.output.exists()
            self.write(good, name)

    def facts(self, groups: int, puzzles: int) -> dict[str, Any]:
        """Return the expected dataset.json for 4x4 cells: the published keys, ratings and kind."""
        ids = {"pad_id": 0, "ignore_label_id": 0, "blank_identifier_id": 0}
        sizes = {"vocab_size": 6, "seq_len": 16, "num_puzzle_identifiers": 1, "sets": ["all"]}
        totals = {"total_groups": groups, "total_puzzles": puzzles, "mean_puzzle_examples": 1.0}
        return {**ids, **sizes, **totals, "ratings": True, "kind": self.kind.kind}

    def contents(self) -> dict[str, bytes]:
        files = [path for path in self.output.rglob("*") if path.is_file()]
        return {str(path.relative_to(self.output)): path.read_bytes() for path in files}


@pytest.fixture
def sudoku(tmp_path: Path) -> Builder:
    return Builder(SudokuBuild, 4, (SUDOKU_TRAIN, SUDOKU_TEST), tmp_path)


@pytest.fixture
def maze(tmp_path: Path) -> Builder:
    return Builder(MazeBuild, 4, (MAZE_TRAIN, MAZE_TEST), tmp_path)


@pytest.fixture(params=["sudoku", "maze"])
def builder(request: pytest.FixtureRequest) -> Builder:
    """Each of the two builders."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def error_line(capsys: pytest.CaptureFixture[str]) -> Any:
    """A function that returns the one error line printed so far."""

    def read() -> str:
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("error: ")
        assert captured.err.count("\n") == 1
        return captured.err

    return read
