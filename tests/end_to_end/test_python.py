"""The package `recursive_reasoning`: solving, thinking, evaluating, training and building."""

import itertools
import multiprocessing
import os
import random
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from PIL import Image

import recursive_reasoning as rr
from apps.reports import solving
from runtime import errors

ROOT = Path(__file__).resolve().parents[2]
PUZZLE = "1...2..........3"
HELP = ["data=sudoku_generated", "data.builder.flags='--help'"]


@pytest.fixture
def folder(save_run: Callable[..., Path], sudoku_data: Path, tmp_path: Path) -> Path:
    """A run's folder with random weights."""
    return save_run(tmp_path / "saved", sudoku_data)


@pytest.fixture
def model(folder: Path) -> rr.Model:
    return rr.load(folder, device="cpu")


def test_importing_and_loading_need_no_torch(folder: Path, run_python: Callable[..., Any]) -> None:
    code = f"""
import sys
import recursive_reasoning as rr
print(len({{"torch", "numpy", "pydantic"}} & sys.modules.keys()), dir(rr) == rr.__all__)
print(rr.load({str(folder)!r}), "torch" in sys.modules)
"""
    finished = run_python("-c", code, env={"PYTHONPATH": str(ROOT)})
    assert finished.out == f"0 True\n<Model {folder}: hrm, step 12> False\n", finished.err


def test_an_answer_is_that_of_the_command(
    model: rr.Model, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [f"checkpoint={folder}", "device=cpu", "num_threads=1"]
    solving.main([*given, f"puzzle={PUZZLE}", "chains=3", "select=majority", "steps=5"])
    told = capsys.readouterr().out
    answer = model.solve(PUZZLE, chains=3, select="majority", steps=5)
    assert "\n".join(str(answer).splitlines()[:6]) in told
    assert answer.words.split("; ")[0].replace(" cannot stay", " cannot stay (marked !)") in told
    assert re.search(r"Q confidence: [\d.]+%; \d of 3 chains agree$", answer.words)
    assert answer.note == "this puzzle has several solutions; the model looks for one of them"
    assert (answer.grid.shape, answer.grid.dtype) == ((4, 4), np.int8)
    assert answer.text == "".join(str(digit or ".") for digit in answer.grid.flat)
    assert (len(answer.steps), answer.solved) == (5, False)
    known = model.solve(model.puzzles(index=2)[0])
    assert (known.note, known.puzzle.row) == ("", 2)


def test_steps_are_those_of_the_answer(model: rr.Model) -> None:
    answer, alone = model.solve(PUZZLE), list(model.think(PUZZLE))
    chosen = list(model.think(PUZZLE, chains=2, select="majority"))
    assert [step.step for step in alone] == [step.step for step in chosen] == [1, 2, 3]
    for step, same in zip(alone, answer.steps, strict=True):
        assert step.confidence is not None
        assert (step.confidence.dtype, step.confidence.shape) == (np.float32, (4, 4))
        assert (step.answer == same.answer).all()
        assert step.q == pytest.approx(same.q)
        assert (step.candidates, repr(step)) == (None, repr(same))
    assert "ACT step 3 of 3" in repr(alone[-1])
    first = next(model.think(PUZZLE, steps=1000000))
    assert first.frame.num_steps == 1000000


@pytest.mark.parametrize(
    ("call", "kind", "told"),
    [
        (lambda m: m.solve(PUZZLE, stpes=3), rr.ConfigError, "unknown setting stpes=3; did you me"),
        (lambda m: m.solve(PUZZLE, count=3), rr.ConfigError, "unknown setting count=3"),
        (lambda m: m.think(PUZZLE, steps=0), rr.ConfigError, "steps.0=0: input should be greater"),
        (lambda m: m.solve(PUZZLE, search={"chains": 2}), rr.ConfigError, "search has no effect"),
        (lambda m: m.solve(PUZZLE, perturb="init", chains=2), rr.ConfigError, "perturb=init: all "),
        (lambda m: m.solve("12"), rr.DatasetError, "puzzle: 2 cells do not form a Sudoku"),
        (lambda m: m.solve("." * 81), rr.DatasetError, "puzzle: 81 cells; accepted: 16"),
        (lambda m: m.puzzles(split="test"), rr.ConfigError, "no puzzles: set file=FILE, index=N"),
        (lambda m: m.puzzles(index=10), rr.ConfigError, "index=10: .* has puzzles 0 to 9"),
        (lambda m: m.evaluate(max_exampels=3), rr.ConfigError, "exampels=3; did you mean max_ex"),
        (lambda m: m.evaluate(checkpoint="x"), rr.ConfigError, "unknown setting checkpoint=x"),
        (lambda m: m.solve(np.eye(4)), rr.DatasetError, r"puzzle: .* text, or one of puzzles\(\)"),
        (lambda m: m.save_gif(PUZZLE, "x.png"), rr.ConfigError, "a file name that ends in .gif"),
        (lambda m: m.evaluate("nowhere"), rr.DatasetError, "nowhere: no such data folder"),
        (lambda m: rr.load("nowhere"), rr.CheckpointError, "nowhere: no such checkpoint or run"),
        (lambda m: rr.load("x", device="gpu"), rr.ConfigError, "device=gpu: input should be"),
        (lambda m: rr.load("x", plugins=["nowhere"]), rr.ConfigError, "No module named 'nowhere'"),
        (lambda m: rr.train(["epohcs=1"]), rr.ConfigError, "epohcs=1; did you mean epochs?"),
        (lambda m: rr.train("lr=much"), rr.ConfigError, "lr=much: input should be a valid number"),
        (lambda m: rr.train(["-m", "lr=1e-3"]), rr.ConfigError, "-m belong on the command line"),
        (lambda m: rr.build(["--help"]), rr.ConfigError, "--help, --cfg and -m belong"),
        (lambda m: rr.build([]), rr.ConfigError, "set data=NAME"),
        (lambda m: rr.build(HELP), rr.ConfigError, "data.builder.flags: --help belongs on the com"),
        (lambda m: rr.solve, AttributeError, "'recursive_reasoning' has no attribute 'solve'"),
    ],
)
def test_mistakes_are_errors_of_the_command_line(
    model: rr.Model, call: Callable[[rr.Model], object], kind: type[Exception], told: str
) -> None:
    with pytest.raises(kind, match=told):
        call(model)


def test_an_evaluation_is_returned(
    model: rr.Model, folder: Path, run_evaluation: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    threads = torch.get_num_threads()
    found = model.evaluate(max_examples=5, num_threads=threads + 1)
    assert capsys.readouterr().out == ""
    assert (folder / "eval_step_12_first5.json").exists()
    assert torch.get_num_threads() == threads
    output = folder / "again.json"
    assert run_evaluation(output, f"checkpoint={folder}", "max_examples=5")["sets"] == found["sets"]
    told = capsys.readouterr().out
    data = folder.parent / "other"
    other = model.evaluate(found["data"][0].removesuffix("/test"), output=data, verbose=True)
    assert other["sets"]["all"]["num_examples"] == 10
    assert data.exists()
    assert told.splitlines()[0] == capsys.readouterr().out.splitlines()[0]


def test_answers_show_themselves_in_a_notebook(
    model: rr.Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answer = model.solve(PUZZLE, steps=2)
    html = answer._repr_html_()
    assert html.startswith('<img alt="Sudoku; answer: not a solution: ')
    assert 'src="data:image/gif;base64,R0lGOD' in html
    with Image.open(model.save_gif(PUZZLE, tmp_path / "made" / "x.gif", steps=2)) as image:
        assert image.n_frames == 4
    step = answer.steps[0]._repr_html_()
    assert step.startswith("<svg")
    assert 'aria-label="ACT step 1 of 2; ' in step
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert answer._repr_html_().startswith("<svg")
    with pytest.raises(rr.ConfigError, match="pillow is not installed"):
        answer.save_gif(tmp_path / "y.gif")


def state_of_process() -> list[Any]:
    exact = torch.are_deterministic_algorithms_enabled()
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    random_states = random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[1][:9]  # noqa: NPY002
    flushed = sys.float_info.min / 2 == 0
    started = multiprocessing.get_start_method(allow_none=True), threading.enumerate()
    own = [handlers, torch.get_num_threads(), exact, flushed, dict(os.environ), *started]
    return [*own, list(warnings.filters), *random_states]


def test_training_leaves_the_process_as_it_was(
    tiny_settings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("training.logs.WandbLog.package", "no_such_package")
    settings = [setting for setting in tiny_settings if not setting.startswith("checkpoint_path")]
    settings += ["max_steps=1", "project_name=p", f"num_threads={torch.get_num_threads() + 1}"]
    torch.use_deterministic_algorithms(True)
    random.seed(1)
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        hydra, before = GlobalHydra.instance().hydra, state_of_process()
        models = [rr.train([*settings, "logger=wandb"])]
        with pytest.raises(rr.DatasetError):
            rr.train([*settings, "data_path=nowhere"])
        with pytest.raises(rr.CheckpointError):
            rr.train([*settings, "load_checkpoint=nowhere"])
        models.append(rr.train(settings))
        after = state_of_process()
        assert GlobalHydra.instance().hydra is hydra
    for was, now in itertools.zip_longest(before, after):
        assert np.array_equal(was, now) if isinstance(was, np.ndarray) else was == now
    assert {model.trained.step for model in models} == {1}
    assert {model._given["device"] for model in models} == {"cpu"}  # As in the settings.
    # The two runs have names of their own, although Python's random state is the same.
    assert len(list((tmp_path / "checkpoints" / "p").iterdir())) == 3
    assert len(models[0].solve(PUZZLE).steps) == 3


def test_solving_leaves_the_random_state_as_it_was(model: rr.Model) -> None:
    before = torch.get_rng_state()
    model.solve(PUZZLE)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_errors_of_a_run_have_names_here() -> None:
    assert {errors.LockedError, errors.NonFiniteError} == {rr.LockedError, rr.NonFiniteError}
    assert {"LockedError", "NonFiniteError"} <= set(rr.__all__)


def test_training_belongs_into_the_main_thread() -> None:
    with ThreadPoolExecutor() as pool, pytest.raises(RuntimeError, match="in the main thread"):
        pool.submit(rr.train, ["epochs=1"]).result()


def test_data_sets_are_built(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stdout = sys.stdout
    flags = "--source generate --size 4 --subsample-size 8 --test-size 4 --min-clues 6"
    asked = ["data=sudoku_generated", f"data.path={tmp_path / 'x'}"]
    assert rr.build([*asked, f"data.builder.flags='{flags}'"]) == tmp_path / "x"
    assert "8 training examples of 8 puzzles and 4 test puzzles written" in capsys.readouterr().out
    assert sys.stdout is stdout
    with pytest.raises(
        rr.ConfigError, match="data.builder.flags: unknown argument .* nearest: --size"
    ):
        rr.build([*asked, "data.builder.flags='--sise 4'"])
    with pytest.raises(rr.DatasetError, match="none: no such folder"):
        rr.build([*asked, f"data.builder.flags='--source {tmp_path / 'none'}'"])
