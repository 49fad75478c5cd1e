"""examples/browser: the page answers a typed Sudoku as the model does in Python."""

import functools
import http.server
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from apps.export import exporting
from dataset import build_sudoku_dataset
from dataset.kinds.base import Puzzle
from dataset.kinds.sudoku import SUDOKU
from dataset.sudoku.rules import count_solutions, parse_puzzle
from evaluation.solve import Reasoning, reason
from training.checkpoint.trained_model import find_trained_model

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "browser"
STEPS = 4


class Page:
    """The page as a person sees it, and the requests to its server."""

    def __init__(self, driver: Any, url: str, asked: list[str]) -> None:
        self.driver, self.url, self.asked = driver, url, asked

    def find(self, *selectors: str) -> Any:
        return self.driver.find_element("css selector", " ".join(selectors))

    @property
    def cells(self) -> list[Any]:
        return self.driver.find_elements("css selector", "#grid input")

    @property
    def shown(self) -> str:
        return "".join(cell.get_attribute("value") or "." for cell in self.cells)

    def type(self, keys: str) -> None:
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def paste(self, text: str) -> None:
        event = "new ClipboardEvent('paste', {clipboardData, cancelable: true, bubbles: true})"
        script = (
            "const clipboardData = new DataTransfer(); clipboardData.setData('text', arguments[1]);"
        )
        self.driver.execute_script(
            f"{script} arguments[0].dispatchEvent({event})", self.cells[0], text
        )

    @property
    def status(self) -> str:
        return self.find("#status").text

    def wait(self, until: Callable[[], bool]) -> None:
        end = time.monotonic() + 60
        while not until():
            assert time.monotonic() < end, f"the page says: {self.status}"
            time.sleep(0.05)

    def says(self, *beginnings: str) -> str:
        """Wait for a status with one of these beginnings, and return it."""
        self.wait(lambda: self.status.startswith(beginnings))
        return self.status


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the example's page and packages, ready to be served."""
    if not (EXAMPLE / "node_modules" / "onnxruntime-web").is_dir():
        pytest.skip("there is no onnxruntime-web: npm install --prefix examples/browser")
    served = tmp_path / "served"
    served.mkdir()
    shutil.copy(EXAMPLE / "index.html", served)
    (served / "node_modules").symlink_to(EXAMPLE / "node_modules")
    return served


@pytest.fixture
def open_page(browser: Any, folder: Path) -> Iterator[Callable[[], Page]]:
    """Serve the folder as `python -m http.server` does; yield a function that opens the page."""
    asked: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            asked.append(f"{args[1]} {self.path}")

    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"

        def open_it() -> Page:
            browser.get(url)
            return Page(browser, url, asked)

        yield open_it
        browser.get("about:blank")
        server.shutdown()


@pytest.fixture
def trained(train: Any, tmp_path: Path) -> Path:
    """Train a smaller model of the demo on easy puzzles, and return its run."""
    flags = ["--source=generate", "--subsample-size=200", "--test-size=8", "--min-clues=64"]
    assert build_sudoku_dataset.main([*flags, f"--output-dir={tmp_path / 'data'}"]) == 0
    arch = ("hidden_size=16", "H_cycles=1", "L_cycles=1", f"halt_max_steps={STEPS}")
    places = [f"data_path={tmp_path / 'data'}", f"checkpoint_path={tmp_path / 'run'}"]
    host = ["num_threads=1", "device=cpu", "compile=false"]
    small = ["ema=false", "epochs=16", "lr_warmup_steps=10", *(f"arch.{each}" for each in arch)]
    train(["experiment=dec_sudoku_demo", *places, *small, *host])
    return tmp_path / "run"


def thoughts_of(run: Path) -> list[Reasoning]:
    """Return the model's answers in Python to its test puzzles."""
    found = find_trained_model(run, print)
    assert found.facts is not None
    model = found.load(found.run.arch, found.facts, "the data", torch.device("cpu"))
    inputs = np.load(run.parent / "data" / "test" / "all__inputs.npy")
    puzzles = [Puzzle(SUDOKU, SUDOKU.to_grid(row)) for row in inputs]
    return list(reason(model, puzzles, torch.device("cpu")))


def text_of(grid: np.ndarray) -> str:
    return "".join(map(str, grid.reshape(-1))).replace("0", ".")


def test_a_typed_sudoku_is_answered_as_in_python(
    trained: Path, folder: Path, open_page: Callable[[], Page]
) -> None:
    assert exporting.main([str(trained), str(folder / "model.onnx")]) == 0
    thoughts = sorted(thoughts_of(trained), key=lambda one: one.judge().solved is True)
    assert thoughts[-1].judge().solved  # Otherwise the test is too weak.
    page = open_page()
    page.wait(lambda: page.find("#solve").is_enabled())
    page.driver.execute_script("arguments[0].focus()", page.cells[0])
    page.find("#steps").clear()
    page.find("#steps").send_keys(str(STEPS))
    # One that is solved, and one that may not be.
    for thought in (thoughts[-1], thoughts[0]):
        page.find("#clear").click()
        page.type(text_of(thought.question))
        assert page.shown == text_of(thought.question)
        page.type("\ue007")  # Enter
        said = page.says("Solved", "Not solved")
        answer = np.where(thought.question, thought.question, thought.answer)
        assert page.shown == text_of(answer)
        assert said.startswith("Solved") == thought.judge().solved
        if not thought.judge().solved:
            assert f"Not solved: {thought.cells_wrong().sum()} cells" in said
        sure = [
            float(share.text) for share in page.driver.find_elements("css selector", "#thoughts li")
        ]
        np.testing.assert_allclose(sure, 100 * thought.q_halt, atol=0.6)  # The page rounds.
    # The page asked no other server, and for no other files.
    entries = page.driver.execute_script(
        "return performance.getEntriesByType('resource').map(e => e.name)"
    )
    assert {entry for entry in entries if not entry.startswith(page.url)} <= {"data:,"}
    names = [Path(line).name for line in page.asked]
    runtime = ["ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm"]
    assert sorted(names) == sorted(["200 ", *runtime, "model.onnx"])

    # A grid that is not a Sudoku does not reach the model.
    page.find("#clear").click()
    page.type("55\ue007")
    page.says("Not a valid Sudoku: the marked digits repeat")
    marked = [cell.get_attribute("class") for cell in page.cells]
    assert marked == ["wrong"] * 2 + [""] * 79


def test_typing_and_pasting(open_page: Callable[[], Page]) -> None:
    page = open_page()
    page.says("No model found: README.md explains how to export it")
    assert not page.find("#solve").is_enabled()
    page.cells[0].click()
    page.type("1x")
    page.says('A cell holds a digit from 1 to 9, not "x"')
    page.type("23 5.6")
    assert page.shown == "123.5.6".ljust(81, ".")
    page.type("\ue012\ue012\ue0157\ue003\ue003")  # Left twice, down, 7, Backspace twice
    assert page.shown == "123.5.6".ljust(81, ".")
    puzzle = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
    for wrong, told in ((puzzle[:80], "80 characters"), (f"{puzzle[:80]}x", "81 digits")):
        page.paste(wrong)
        assert told in page.says("A puzzle is 81 digits")
        assert page.shown.startswith("123.5.6")
    lines = "\n".join(f"|{puzzle[row : row + 9].replace('.', '0')}|" for row in range(0, 81, 9))
    page.paste(f"+---+\n{lines}")
    assert (page.shown, page.status) == (puzzle, "")
    dashes = puzzle.replace(".", "-")
    rows = [dashes[row : row + 9] for row in range(0, 81, 9)]
    for text in (dashes, "\n".join([*rows[:3], "-" * 11, *rows[3:]])):
        page.find("#clear").click()
        assert page.shown == "." * 81
        page.paste(text)
        assert (page.shown, page.status) == (puzzle, "")
    page.find("#clear").click()
    page.find("#example").click()
    assert count_solutions(parse_puzzle(page.shown)) == 1
