"""scripts/solve.py on mazes and ARC tasks, and its animations."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import recursive_reasoning as rr
from apps.reports import solving as solve
from dataset.build_arc_dataset import main as build_arc
from dataset.build_maze_dataset import main as build_mazes
from runtime.errors import ConfigError, DatasetError

ROOM = "S    #\n## # #\n   # #\n # # #\n #   #\n#### G"


@pytest.fixture
def maze_run(run: Any, tmp_path: Path) -> str:
    data = tmp_path / "maze"
    flags = "--source=generate --size=6 --min-length=7 --subsample-size=8 --test-size=4"
    assert build_mazes([*flags.split(), f"--output-dir={data}"]) == 0
    run(f"data_path={data}", "epochs=2", "eval_interval=2")
    return f"checkpoint={tmp_path / 'run'}"


@pytest.fixture
def arc_run(run: Any, tmp_path: Path) -> str:
    tasks = tmp_path / "tasks" / "evaluation"
    tasks.mkdir(parents=True)
    for name in ("one", "two"):
        pairs = [{"input": [[k, 1]], "output": [[1], [k]]} for k in range(4)]
        (tasks / f"{name}.json").write_text(json.dumps({"train": pairs, "test": pairs[:1]}))
    data = tmp_path / "arc"
    flags = ["--dataset-dirs", str(tasks.parent), "--num-aug", "2", "--output-dir", str(data)]
    assert build_arc(flags) == 0
    settings = ("arch.hidden_size=16", "arch.puzzle_emb_ndim=16", "arch.num_heads=1")
    run(f"data_path={data}", "epochs=1", "eval_interval=1", *settings)
    return f"checkpoint={tmp_path / 'run'}"


def test_mazes_are_solved_from_data_and_text(
    maze_run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked_for = [maze_run, "num_threads=1", "device=cpu"]
    solve.main([*asked_for, "count=2", "chains=2", "select=majority"])
    assert capsys.readouterr().out.count("ACT step ") == 2
    text = tmp_path / "mazes.txt"
    text.write_text(f"{ROOM}\n\n{ROOM}\n")
    outs = []
    for source in (f"file={text}", f"puzzle='{ROOM.replace(chr(10), '')}'"):
        solve.main([*asked_for, source])
        outs.append(capsys.readouterr().out.split("ACT step")[0].partition("\n")[2])
    assert outs[0] == outs[1]
    assert "path from S to G" in outs[0]

    text.write_text("53..7....\n")
    with pytest.raises(DatasetError, match="line 1: cell 1 is '5'"):
        solve.main([*asked_for, f"file={text}"])
    with pytest.raises(DatasetError, match=r"task\.json: this model reads maze puzzles"):
        solve.main([*asked_for, "file=task.json"])
    with pytest.raises(DatasetError, match="no puzzle to solve"):
        solve.main([*asked_for, "file=/dev/null"])


def test_arc_tasks_are_known_by_their_name(
    arc_run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked_for = [arc_run, "num_threads=1", "device=cpu"]
    path = tmp_path / "tasks" / "evaluation" / "two.json"
    solve.main([*asked_for, f"file={path}"])
    out = capsys.readouterr().out
    assert "right answer" in out
    model = rr.load(arc_run.partition("=")[2], device="cpu")
    (puzzle,) = model.puzzles(file=path)
    answer = model.solve(puzzle)
    assert str(answer).partition("\nanswer: ")[0] in out
    assert set(answer.text) <= {*"0123456789.\n"}
    assert out.splitlines()[-1] in ("solved: 0 of 1", "solved: 1 of 1")
    unknown = tmp_path / "other.json"
    unknown.write_text(path.read_text())
    with pytest.raises(DatasetError, match=r"other\.json: the model has not seen task other"):
        solve.main([*asked_for, f"file={unknown}"])
    solve.main([*asked_for, "count=3"])
    assert capsys.readouterr().out.count("puzzle ") == 3
    with pytest.raises(ConfigError, match="ARC puzzles have no known symmetry"):
        solve.main([*asked_for, "count=1", "chains=2"])
    with pytest.raises(DatasetError, match=r"reads ARC tasks; accepted: file=TASK\.json"):
        solve.main([*asked_for, "puzzle=123"])


def test_each_puzzle_gets_its_animation(
    maze_run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked_for = [maze_run, "num_threads=1", "device=cpu", "steps=3"]
    solve.main([*asked_for, "count=2", f"animate={tmp_path / 'out.gif'}"])
    out = capsys.readouterr().out
    for number in (1, 2):
        path = tmp_path / f"out-{number}.gif"
        # The puzzle, the steps up to the last change, and the verdict.
        with Image.open(path) as image:
            assert 3 <= image.n_frames <= 5
            assert f"written: {path} (" in out
    with pytest.raises(ConfigError, match="animate="):
        solve.main([*asked_for, "count=1", f"animate={tmp_path / 'out.mp4'}"])
