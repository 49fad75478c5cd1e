import dataclasses
import io
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser

from apps.grid.config import GridConfig
from apps.nca.config import NCAConfig
from apps.reports import solving as solve
from apps.reports.asking import load_for
from dataset.format.writing import write_puzzles
from dataset.kinds.arc import ARC
from dataset.kinds.base import Puzzle
from dataset.kinds.futoshiki import FUTOSHIKI
from dataset.kinds.maze import MAZE
from dataset.kinds.mixed import MIXED
from dataset.kinds.sudoku import SUDOKU
from dataset.sudoku.rules import parse_puzzle
from evaluation.config import ArchOverrides, SolveConfig
from evaluation.solve import Reasoning
from models.config import DataFacts
from models.hrm.config import HRMConfig
from runtime.errors import CheckpointError, ConfigError, DatasetError
from training.checkpoint.trained_model import RecordedRun, TrainedModel


def trained_on(facts: DataFacts | None, data_path: str | None = None) -> TrainedModel:
    run = RecordedRun(arch=HRMConfig(), data_path=data_path)
    return TrainedModel(Path("run/step_1"), run, facts, step=1)


TYPED = ("0053", "53..7....", "", "a=b,c", "it's", "b\\s", "\\'q", "end\\", "[1] {x} $y", "null")


@pytest.mark.parametrize("value", [*TYPED, "12\n34"])
def test_puzzles_and_files_keep_the_text_that_was_typed(value: str) -> None:
    parser = OverridesParser.create()
    for key in ("puzzle", "+puzzle", "file"):
        (parsed,) = parser.parse_overrides([solve.quoted(f"{key}={value}")])
        assert parsed.key_or_group == key.lstrip("+")
        assert parsed.value() == value


def test_other_settings_are_not_quoted() -> None:
    for override in ("steps=4", "checkpoint=a/b", "puzzle='1..'", 'file="x y"', "puzzle"):
        assert solve.quoted(override) == override


CSV_HEADER = "source,question,answer,rating\n"
EASY = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"


def drawn(mark: str, rule: str) -> list[str]:
    """Return a Sudoku in rows as people draw it, with `rule` between the boxes."""
    lines = [] if "+" not in rule else [rule]
    for band in range(0, 81, 27):
        for start in range(band, band + 27, 9):
            row = EASY[start : start + 9].replace(".", mark)
            lines.append(" | ".join(" ".join(row[box : box + 3]) for box in (0, 3, 6)))
        lines.append(rule)
    return lines


@pytest.mark.parametrize("rule", ["+-------+-------+-------+", "---------------------", ""])
@pytest.mark.parametrize("mark", [*".0-_*xX"])
def test_sudokus_are_read_in_all_common_forms(mark: str, rule: str) -> None:
    lines = drawn(mark, rule)
    for text in ([*lines, "", *lines], [*lines, *lines], [EASY.replace(".", mark)] * 2):
        read = list(solve.parse_lines(text, "f.txt"))
        assert len(read) == 2
        for _, puzzle in read:
            assert np.array_equal(puzzle.question, parse_puzzle(EASY))
    six = ["1.....", ".2....", "", "..3...", "...4..", "", "....5.", ".....6"]
    (four, large) = [puzzle for _, puzzle in solve.parse_lines(["1..............4", *six], "f")]
    assert (four.question.size, large.question.size) == (16, 36)


MAZE_TEXT = "S   #  G" + "#" * 8
SOURCES = {
    "lines": (["1..............4\n", "\n", "." * 16], ["line 1", "line 3"]),
    "a bad line": (["1..............4", "", "  .234............."], "line 3: 17 cells"),
    "rows": ([*drawn(".", ""), *drawn(".", "")], ["line 1", "line 13"]),
    "bad rows": (
        [*drawn(".", ""), "5 3 . . 7 . . . .", *drawn(".", "")[1:10], "1 2 3 4 5 6 7 8"],
        "line 13: 80 cells",
    ),
    "a builder's Sudoku": ([CSV_HEADER, f'"a,b",{EASY},,3\n'], ["line 2"]),
    "a builder's maze": ([CSV_HEADER, f'"a,b",{MAZE_TEXT},,3\n'], ["line 2"]),
    "a builder's bad line": ([CSV_HEADER, "x,12,12,0\n"], "line 2: 2 cells"),
    "a row of one field": ([CSV_HEADER, f"x,{EASY},,3\n", "\n", "x\n"], "line 4: 0 cells"),
}


@pytest.mark.parametrize("name", SOURCES)
def test_puzzles_are_read_with_their_line_numbers(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, told = SOURCES[name]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(line.strip("\n") for line in lines)))
    read = solve.read_puzzles(SolveConfig(checkpoint="x"), trained_on(None), None)
    if isinstance(told, str):
        with pytest.raises(DatasetError, match=f"standard input: {told}"):
            list(read)
    else:
        found = list(read)
        assert [place for place, _ in found] == [f"standard input: {place}" for place in told]
        assert {puzzle.kind for _, puzzle in found} == {MAZE if "maze" in name else SUDOKU}


@pytest.mark.parametrize(
    ("source", "told"),
    [(io.TextIOWrapper(io.BytesIO(b"\xff\xfe12"), "utf-8"), "not text"), (None, "puzzle=")],
)
def test_binary_input_is_refused_and_a_terminal_is_not_waited_for(
    source: Any, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", source or terminal)
    with pytest.raises((ConfigError, DatasetError), match=told):
        list(solve.read_puzzles(SolveConfig(checkpoint="x"), trained_on(None), None))


def test_puzzles_of_a_data_set_are_chosen_by_index(
    sudoku_data: Path, tasks_data: Path, tmp_path: Path
) -> None:
    inputs = np.load(sudoku_data / "test" / "all__inputs.npy")
    trained = trained_on(None, data_path=str(sudoku_data))

    def read(**settings: Any) -> list[Puzzle]:
        config = SolveConfig(checkpoint="x", **settings)
        return [puzzle for _, puzzle in solve.read_puzzles(config, trained, None)]

    puzzles = read(index=[7, 2])
    assert [(puzzle.row, puzzle.place) for puzzle in puzzles] == [(7, "puzzle 7"), (2, "puzzle 2")]
    assert np.array_equal(puzzles[0].tokens, inputs[7])
    assert np.array_equal([puzzle.tokens for puzzle in read(count=99)], inputs)
    with pytest.raises(DatasetError, match="9 cells are no Sudoku, maze or ARC puzzles"):
        read(count=3, data_path=str(tasks_data))
    with pytest.raises(ConfigError, match="index=10: .* has puzzles 0 to 9"):
        read(index=10)
    with pytest.raises(ConfigError, match="set=easy: .* has the sets all"):
        read(count=1, set="easy")

    inputs, labels = (np.load(sudoku_data / "test" / f"all__{n}.npy") for n in ("inputs", "labels"))
    folder = tmp_path / "other"
    write_puzzles(folder / "test", inputs[3:], labels[3:], vocab_size=6, kind="sudoku")
    (folder / "identifiers.json").write_text('["<blank>"]\n')
    both = [str(sudoku_data), str(folder)]
    trained = dataclasses.replace(trained, run=RecordedRun(arch=HRMConfig(), data_paths=both))
    with pytest.raises(ConfigError, match="several sets; add set=all or set=all1"):
        read(index=2)
    (puzzle,) = read(index=2, set="all1")
    assert puzzle.place == "all1, puzzle 2"
    assert np.array_equal(puzzle.tokens, inputs[5])
    assert [puzzle.place for puzzle in read(count=11)][9:] == ["all, puzzle 9", "all1, puzzle 0"]


def test_data_with_other_names_than_in_training_are_refused(
    arc_data: Path, swapped_arc_data: Path
) -> None:
    config = SolveConfig(checkpoint="x", count=1, data_path=str(swapped_arc_data))
    with pytest.raises(DatasetError, match="identifier 1 is 'open.*, but 'one' in"):
        list(solve.read_puzzles(config, trained_on(None, data_path=str(arc_data)), None))


def test_names_beside_the_weights_count_more_than_those_of_the_folder(
    arc_data: Path, swapped_arc_data: Path, tmp_path: Path
) -> None:
    (tmp_path / "step_1").mkdir()
    shutil.copy(arc_data / "identifiers.json", tmp_path / "step_1")
    right, wrong = (
        SolveConfig(checkpoint="x", count=1, data_path=str(path))
        for path in (arc_data, swapped_arc_data)
    )
    for folder in ("nowhere", str(swapped_arc_data)):
        trained = dataclasses.replace(trained_on(None, folder), weights=tmp_path / "step_1")
        solve.open_dataset(right, trained)
        with pytest.raises(DatasetError, match="identifier 1 is 'open.*, but 'one' in .*step_1"):
            solve.open_dataset(wrong, trained)


def test_data_that_are_not_read_for_a_task_are_refused(tmp_path: Path) -> None:
    (tmp_path / "identifiers.json").write_text('["<blank>"]')
    unnamed = RecordedRun(arch=HRMConfig(puzzle_emb_ndim=0))
    config = SolveConfig(checkpoint="x", file="task.json", data_path="d")
    for change in ({"weights": tmp_path}, {"run": unnamed}):
        trained = dataclasses.replace(trained_on(None), **cast(Any, change))
        with pytest.raises(ConfigError, match="data_path has no effect: .* needs no data to read"):
            list(solve.read_puzzles(config, trained, ARC))


def test_the_model_decides_the_kind() -> None:
    assert solve.kind_read_by(trained_on(DataFacts(12, 900, 5))) is ARC
    assert solve.kind_read_by(trained_on(None)) is None
    assert solve.kind_read_by(trained_on(DataFacts(12, 81, 1, kind="futoshiki"))) is FUTOSHIKI
    fitted = trained_on(DataFacts(8, 121, 5))
    of_colours = dataclasses.replace(fitted, run=RecordedRun(arch=GridConfig()))
    assert solve.kind_read_by(of_colours) is ARC
    with pytest.raises(CheckpointError, match="900 cells are no Sudoku, maze or ARC"):
        solve.kind_read_by(trained_on(DataFacts(11, 900, 1)))


def test_a_model_of_any_canvas_reads_puzzles_of_all_sizes() -> None:
    puzzles = [("typed", MAZE.parse("S  G" + "#" * 12))]
    of_nine = trained_on(DataFacts(6, 9, 1))
    with pytest.raises(DatasetError, match="typed: 16 cells; accepted: 9"):
        list(solve.of_one_kind(iter(puzzles), of_nine))
    of_all = dataclasses.replace(of_nine, run=RecordedRun(arch=NCAConfig()))
    assert list(solve.of_one_kind(iter(puzzles), of_all)) == [puzzles[0][1]]


@pytest.mark.parametrize(("most", "tokens"), [(11, 12), (12, 64)])
def test_a_set_of_a_kind_may_have_fewer_tokens(most: int, tokens: int) -> None:
    """12 is a foreign token for the model."""
    puzzle = Puzzle(MIXED, np.full((9, 9), most, np.int8))
    run = RecordedRun(arch=HRMConfig())
    loaded = SimpleNamespace(
        facts=DataFacts(12, 81, 4), run=run, load=lambda arch, facts, *_: facts
    )
    _, facts = load_for([puzzle], cast(Any, loaded), torch.device("cpu"), ArchOverrides())
    assert cast(Any, facts).vocab_size == tokens


def test_the_description_of_an_answer() -> None:
    solution = parse_puzzle("1234341221434321")
    question = np.where(np.eye(4, dtype=bool), solution, 0).astype(np.int8)
    first = np.where(np.arange(16).reshape(4, 4) == 1, 0, solution)
    q, answers = np.full(9, 0.5, np.float32), np.stack([first, *[solution] * 8])
    long = Reasoning(Puzzle(SUDOKU, question), answers, q, q, q > 1)
    *_, last, collapsed, ending = solve.step_lines(long, learns_continue=False)
    assert last.split()[:2] == ["2", "1"]
    assert collapsed == "steps 3 to 9: no cell changed"
    assert ending == "settled at step 2 of 9"
    short = {"answers": first[None], "q_halt": q[:1], "q_continue": q[:1], "halts": q[:1] > 1}
    without = dataclasses.replace(long, **short)
    text = solve.describe(without, learns_continue=False)
    assert "not a solution: 1 cell cannot stay" in text
    assert text.endswith("not settled: step 1 of 1 still changed 11 cells")
    assert "this puzzle has several solutions" in text
    known = dataclasses.replace(without, puzzle=Puzzle(SUDOKU, question, solution))
    assert "solutions" not in solve.describe(known, learns_continue=False)
    alone = dataclasses.replace(long, num_chains=8, num_agreeing=1)
    assert "1 of them gives this answer" in solve.describe(alone, learns_continue=False)


def test_a_file_has_puzzles_of_the_models_kind_between_empty_lines() -> None:
    made = [FUTOSHIKI.example(7, seed) for seed in (1, 2)]
    texts = []
    for puzzle in made:
        assert puzzle is not None
        line = FUTOSHIKI.board(7).text(puzzle.question)
        texts.append([line[start : start + 7] for start in range(0, 49, 7)])
    lines = [*texts[0], "", *texts[1]]
    found = [*solve.parse_lines(lines, "x.txt", FUTOSHIKI)]
    assert [place for place, _ in found] == ["x.txt: line 1", "x.txt: line 9"]
    for puzzle, (_, read) in zip(made, found, strict=True):
        assert puzzle is not None
        assert np.array_equal(read.question, puzzle.question)
