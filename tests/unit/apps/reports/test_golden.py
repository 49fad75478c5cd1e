"""Pages, drawings and lists must equal the files in `golden/`, which a person has looked at. Write
them anew with GOLDEN=write and look at their diff.
"""

import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apps.lattice.model import CONTRADICTION, DECIDED
from apps.lattice.search import Round, SearchResult
from apps.reports.boards import Board, asked, board_of_candidates, draw
from apps.reports.frames import frames_of_rounds, frames_of_steps, picture_of, without_idle_end
from apps.reports.runs import as_text, list_runs
from apps.reports.solving import describe
from apps.reports.terminal import as_text as board_as_text
from apps.reports.writing import write_report
from dataset.arc.tasks import encode_canvas
from dataset.kinds.arc import ARC
from dataset.kinds.base import Puzzle
from dataset.kinds.maze import MAZE
from dataset.kinds.sudoku import SUDOKU
from evaluation.solve import Reasoning

FOLDER = Path(__file__).parent / "golden"
ROOM = "S  #   #       G"
SOLUTION = SUDOKU.parse("1234341221434321").question
QUESTION = np.where(np.eye(4, dtype=bool), SOLUTION, 0).astype(np.int8)

Make = Callable[..., Path]


def check(name: str, text: str) -> None:
    path = FOLDER / name
    if os.environ.get("GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


def check_page(name: str, *folders: Path) -> None:
    """Compare the body of a page and its figures with the golden files."""
    path, _ = write_report(folders, folders[0].parent / "page.html")
    body = re.search('<body>(.*?)<footer>.*id="figures">(.*?)</script>', path.read_text(), re.S)
    assert body is not None
    # Dark mode changes the colours of all drawings except ARC's.
    assert name in ("sweep", "two") or ".row:not(.coloured) [fill=" in path.read_text()
    shown = body[1].replace(str(folders[0].parent), "FOLDER").replace("><", ">\n<")
    check(f"{name}-page.txt", shown + "\n")
    lines = (json.dumps(figure, sort_keys=True) for figure in json.loads(body[2]))
    check(f"{name}-figures.txt", "\n".join(lines) + "\n")


def enriched(folder: Path, kind: str, **failure: Any) -> Path:
    """Add curves, a puzzle solved step by step, and wrong answers to puzzles of a kind."""
    for path in folder.glob("*_records.json"):
        content = json.loads(path.read_text())
        of_set = content["sets"]["all"]
        one = of_set["failures"]["surest"][0] | failure
        of_set["failures"] = {"surest": [one], "most_wrong": [one | {"q_halt": None}]}
        of_set["solving"] = one | {"steps": [1, 3], "answers": [one["answer"], one["labels"]]}
        path.write_text(json.dumps(content | {"kind": kind}))
    names = ("confidence_accuracy", "lr/trunk", "halt_accuracy", "grad_norm/trunk")
    figures = {f"train/{name}": 0.25 for name in names} | {"train/lr": 0.5, "train/lm_loss": "nan"}
    others = ("entropy", "halts", "weight/lm", "gradient/lm", "logits_max", "nonfinite")
    figures |= {f"diagnose/{name}": 0.75 for name in others}
    figures |= {"speed/examples_per_second": 64.0, "speed/ms_per_step": 125.0}
    figures |= {"speed/data_ms": 25.0, "speed/saving_ms": 250.0, "memory/process_gib": 0.75}
    figures |= {"memory/cuda_peak_gib": 2.0, "speed/share_of_peak": 0.3}
    figures |= {"eval/hard/exact_accuracy": 0.5, "eval/sudoku/valid": 1.0, "eval/hard/count": 9.0}
    with (folder / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps({"step": step} | figures) + "\n" for step in (5, 6))
    return folder


def test_pages_of_a_run(make_run_folder: Make, tmp_path: Path) -> None:
    task = {"train": [], "test": [{"input": [[1, 2, 3]], "output": [[1, 2], [3, 5]]}]}
    (tmp_path / "test_puzzles.json").write_text(json.dumps({"task one": task}))
    run = make_run_folder(steps=4, settings={"data_path": str(tmp_path)})
    for path in run.glob("eval_step_4*.json"):
        content = json.loads(path.read_text())
        path.write_text(json.dumps(content | {"data": [str(tmp_path / "test")]}))
    check_page("sudoku", enriched(run, "sudoku"))
    maze, room = make_run_folder("maze", steps=4), MAZE.parse(ROOM).tokens.tolist()
    right = [room[0], 5, 5, *room[3:]]
    check_page(
        "maze", enriched(maze, "maze", inputs=room, labels=right, answer=[5, *right[1:4] * 5])
    )
    arc, canvas = make_run_folder("arc", steps=4), [2, 3, 1, 4, 5, 1, 1, 1, 1]
    labels, answer = [2, 4, 1, *[-100] * 6], [2, 3, 1, 1, 1, 1, 0, 0, 0]
    (ballot,) = json.loads((arc / "arc_tasks.json").read_text())["task one"]
    places = {"never": None, "solved": 1, "nearly": 2}
    tasks = {name: [ballot | {"solved_at": place}] for name, place in places.items()}
    (arc / "arc_tasks.json").write_text(json.dumps(tasks))
    check_page("arc", enriched(arc, "arc", inputs=canvas, labels=labels, answer=answer))


def test_pages_of_several_runs(make_run_folder: Make, make_sweep: Make) -> None:
    check_page("sweep", make_sweep(rates=(1e-3, 3e-3, 1e-2), seeds=4))
    settings = ({"lr": 0.1}, {"lr": 0.2, "arch": {"name": "<hrm>"}})
    check_page("two", *(make_run_folder(f"{s['lr']}", steps=4, settings=s) for s in settings))


def test_lists_of_runs(make_run_folder: Make) -> None:
    run = make_run_folder()
    shown = as_text(list_runs(run), in_colour=True)
    check("listing.txt", shown.replace(str(run.parent), "FOLDER") + "\n")


def boards() -> dict[str, Board]:
    wrong, puzzle, room = SOLUTION.copy(), Puzzle(SUDOKU, QUESTION), MAZE.parse(ROOM)
    wrong[3, 0] = 3
    certainty = np.linspace(0, 1, 16).reshape(4, 4)
    left = np.eye(6, dtype=bool)[SUDOKU.to_tokens(SOLUTION)]
    left[1, 2:], left[4] = True, False
    walked = room.question.copy()
    walked[0, 1] = walked[1, 1] = walked[0, 0] = 5
    grid = np.array([[1, 0], [3, 4]], np.uint8)
    canvas, turned, row = (ARC.to_grid(encode_canvas(g)) for g in (grid, grid.T, grid[:1]))
    task = Puzzle(ARC, canvas, canvas, 1, "abc")
    return {
        "asked": asked(puzzle),
        "sudoku": Board(puzzle, wrong, certainty, wrong != QUESTION),
        "candidates": board_of_candidates(puzzle, left, 7, np.ones_like(left)),
        "maze": Board(room, walked, certainty, walked != room.question),
        "arc": Board(task, turned, np.full(canvas.shape, 0.5)),
        "arc-of-another-size": Board(task, row),
        "arc-without-a-grid": Board(task, np.zeros_like(canvas)),
    }


@pytest.mark.parametrize("name", boards())
def test_boards(name: str) -> None:
    board = boards()[name]
    drawn = draw(board).svg().replace("><", ">\n<")
    texts = [board_as_text(board, colour=colour) for colour in (False, True)]
    check(f"{name}.txt", "\n\n".join([*texts, drawn]) + "\n")


def reasoning(*, q_halt: Sequence[float]) -> Reasoning:
    """Return three ACT steps; the second solves the puzzle."""
    first = SOLUTION.copy()
    first[0, 1] = 1
    q, certainty = np.array(q_halt, np.float32), np.full((3, 4, 4), 0.5, np.float32)
    answers = np.stack([first, SOLUTION, SOLUTION])
    puzzle = Puzzle(SUDOKU, QUESTION)
    return Reasoning(puzzle, answers, q, 1 - q, q > 0.6, 2, 8, 5, certainty)


def rounds_of_a_search() -> list[Round]:
    everything = np.zeros((1, 16, 6), bool)
    everything[0, :, 2:] = True
    guessed, nothing = everything.copy(), everything.copy()
    guessed[0, 0] = np.arange(6) == 2
    nothing[0, 5] = False
    done = np.eye(6, dtype=bool)[None, SUDOKU.to_tokens(SOLUTION)]
    steps = (
        (everything, guessed, 0, 0, -1, False),
        (guessed, nothing, -1, CONTRADICTION, 0, False),
        (everything, done, -1, DECIDED, -1, False),
    )
    return [Round(before, after, *map(np.atleast_1d, rest)) for before, after, *rest in steps]


def test_descriptions_and_frames_of_steps_and_rounds() -> None:
    thought = reasoning(q_halt=(0.25, 0.5, 0.875))
    steps = frames_of_steps(thought)
    rounds = frames_of_rounds(
        Puzzle(SUDOKU, QUESTION), rounds_of_a_search(), SearchResult(0, chain=0)
    )
    told = [describe(thought, learns_continue=learns) for learns in (True, False)]
    told.append(describe(reasoning(q_halt=(np.nan,) * 3), learns_continue=False))
    for frames in (steps, without_idle_end(steps), steps[:2], rounds):
        told += [f"{frame.title}: {frame.words} {frame.q}" for frame in without_idle_end(frames)]
        told.append(picture_of(frames[-1]).svg().replace("><", ">\n<"))
    check("thoughts.txt", "\n\n".join(told) + "\n")
