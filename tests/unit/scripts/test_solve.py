import dataclasses
import io
from pathlib import Path

import numpy as np
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from dataset.sudoku.rules import parse_puzzle
from evaluation.config import SolveConfig
from evaluation.puzzles import ARC, MAZE, SUDOKU, Puzzle
from evaluation.solving import Reasoning
from models.config import DataFacts, HRMConfig
from reports.terminal import grid_lines
from runtime.errors import CheckpointError, ConfigError, DatasetError
from scripts import solve
from training.checkpoint.trained_model import RecordedRun, TrainedModel


def trained_on(facts: DataFacts | None, data_path: str | None = None) -> TrainedModel:
    run = RecordedRun(arch=HRMConfig(), data_path=data_path)
    return TrainedModel(Path("run/step_1"), run, facts, step=1)


TYPED = ("0053", "53..7....", "", "a=b,c", "it's", "b\\s", "\\'q", "end\\", "[1] {x} $y", "null")


@pytest.mark.parametrize("value", [*TYPED, "12\n34"])
def test_puzzles_and_files_reach_us_as_they_were_typed(value: str) -> None:
    parser = OverridesParser.create()
    for key in ("puzzle", "+puzzle", "file"):
        (parsed,) = parser.parse_overrides([solve.quoted(f"{key}={value}")])
        assert parsed.key_or_group == key.lstrip("+")
        assert parsed.value() == value


def test_other_settings_are_left_to_hydra() -> None:
    for override in ("steps=4", "checkpoint=a/b", "puzzle='1..'", 'file="x y"', "puzzle"):
        assert solve.quoted(override) == override


def test_lines_are_read_with_their_numbers() -> None:
    lines = ["1..............4\n", "\n", "  .234.............\n"]
    read = list(solve.parse_lines(lines[:2] + ["................"], "f.txt"))
    assert [place for place, _ in read] == ["f.txt: line 1", "f.txt: line 3"]
    assert read[0][1].question[3, 3] == 4
    with pytest.raises(DatasetError, match=r"f\.txt: line 3: 17 cells"):
        list(solve.parse_lines(lines, "f.txt"))


def test_standard_input_is_read_without_another_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("................\n...............2\n"))
    read = list(solve.read_puzzles(SolveConfig(checkpoint="x"), trained_on(None), None))
    assert [place for place, _ in read] == ["standard input: line 1", "standard input: line 2"]


def test_standard_input_that_is_no_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe12"), "utf-8"))
    with pytest.raises(DatasetError, match="standard input: not text"):
        list(solve.read_puzzles(SolveConfig(checkpoint="x"), trained_on(None), None))


def test_a_terminal_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)
    with pytest.raises(ConfigError, match="puzzle="):
        list(solve.read_puzzles(SolveConfig(checkpoint="x"), trained_on(None), None))


def test_the_first_puzzles_of_a_data_set_are_read(sudoku_data: Path) -> None:
    config = SolveConfig(checkpoint="x", count=3)
    trained = trained_on(None, data_path=str(sudoku_data))
    inputs = np.load(sudoku_data / "test" / "all__inputs.npy")
    read = [puzzle.question for _, puzzle in solve.read_puzzles(config, trained, None)]
    assert np.array_equal(np.stack(read).reshape(3, 16) + 1, inputs[:3])
    more = SolveConfig(checkpoint="x", count=99, data_path=str(sudoku_data))
    assert len(list(solve.read_puzzles(more, trained_on(None), None))) == len(inputs)


def test_a_data_set_of_something_else_is_refused(tasks_data: Path) -> None:
    config = SolveConfig(checkpoint="x", count=3, data_path=str(tasks_data))
    with pytest.raises(DatasetError, match="9 cells are no Sudoku, maze or ARC task"):
        list(solve.read_puzzles(config, trained_on(None), None))


def test_the_kind_is_that_of_the_model() -> None:
    assert solve.kind_read_by(trained_on(DataFacts(8, 36, 1))) is SUDOKU
    assert solve.kind_read_by(trained_on(DataFacts(6, 900, 1))) is MAZE
    assert solve.kind_read_by(trained_on(DataFacts(12, 900, 5))) is ARC
    assert solve.kind_read_by(trained_on(None)) is None
    with pytest.raises(CheckpointError, match="900 cells are no Sudoku, maze or ARC"):
        solve.kind_read_by(trained_on(DataFacts(11, 900, 1)))
    with pytest.raises(CheckpointError, match="12 tokens and 80 cells"):
        solve.kind_read_by(trained_on(DataFacts(12, 80, 1)))


def test_grids_show_their_boxes_and_marks() -> None:
    grid, marked = np.zeros((6, 6), np.int8), np.zeros((6, 6), bool)
    grid[0, 0], grid[1, 2], grid[-1, -1] = 1, 2, 6
    marked[1, 2] = True
    lines = grid_lines(grid, marked)
    assert lines == [
        "+-------+-------+",
        "| 1 . . | . . . |",
        "| . .!2 | . . . |",
        "+-------+-------+",
        "| . . . | . . . |",
        "| . . . | . . . |",
        "+-------+-------+",
        "| . . . | . . . |",
        "| . . . | . . 6 |",
        "+-------+-------+",
    ]
    assert np.array_equal(parse_puzzle("".join(lines).replace("!", "")), grid)


def test_nine_by_nine_has_three_boxes_a_side() -> None:
    lines = grid_lines(np.zeros((9, 9), np.int8), np.zeros((9, 9), bool))
    assert lines[0] == lines[4] == lines[8] == lines[12] == "+-------+-------+-------+"
    assert lines[1] == "| . . . | . . . | . . . |"


def test_the_description_says_what_happened() -> None:
    solution = parse_puzzle("1234341221434321")
    question = np.where(np.eye(4, dtype=bool), solution, 0).astype(np.int8)
    first = solution.copy()
    first[0, 1] = 0
    q_halt = np.array([0.25, 0.5, 0.875], np.float32)
    reasoning = Reasoning(
        question,
        np.stack([first, solution, solution]),
        log_prob=-0.125,
        confidence=0.75,
        q_halt=q_halt,
        q_continue=1 - q_halt,
        halts=q_halt > 0.6,
    )
    text = solve.describe(reasoning, learns_continue=True)
    assert "a valid Sudoku that keeps the clues; Q confidence: 87.5%" in text
    assert "answer confidence: 75.0%; log-probability: -0.12" in text
    table = [line.split() for line in text.splitlines() if line.strip()[:1].isdigit()]
    assert table == [
        ["1", "11", "1", "25.0%", "75.0%"],
        ["2", "1", "0", "50.0%", "50.0%"],
        ["3", "0", "0", "87.5%", "12.5%"],
    ]
    assert text.endswith("settled at step 2 of 3; would halt by itself after step 3")

    chosen = dataclasses.replace(reasoning, chain=2, num_chains=8, num_agreeing=5)
    assert "chain 3 of 8 answers; 5 of them give this answer" in solve.describe(
        chosen, learns_continue=True
    )
    assert "chain" not in text

    without = Reasoning(question, first[None], -1, 0.5, q_halt[:1], q_halt[:1], np.array([False]))
    text = solve.describe(without, learns_continue=False)
    assert "not a solution: 1 cell cannot stay" in text
    assert "Q continue" not in text
    assert text.endswith("settled at step 1 of 1")
    assert "this puzzle has several solutions" in text
    known = dataclasses.replace(without, puzzle=Puzzle(SUDOKU, question, solution))
    assert "solutions" not in solve.describe(known, learns_continue=False)
