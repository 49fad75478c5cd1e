"""examples/browser: models think in the page "Try it" as they do in Python."""

import functools
import http.server
import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pretrain
from apps.export import exporting
from apps.lattice.search import Round, Search
from dataset import build_sudoku_dataset
from dataset.kinds.base import Puzzle
from dataset.kinds.sudoku import SUDOKU
from dataset.sudoku.rules import count_solutions, parse_puzzle
from evaluation.config import SearchSettings
from evaluation.solve import Reasoning, reason
from runtime.ranks import Ranks
from training.checkpoint.trained_model import find_trained_model

pytestmark = pytest.mark.slow

STEPS = 4
DARK = [{"name": "prefers-color-scheme", "value": "dark"}]
PUZZLE = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
RIGHT, UP, DOWN, ENTER, TAB = "\ue014", "\ue013", "\ue015", "\ue007", "\ue004"


class Page:
    """The page as a person sees it, and the requests to its server."""

    def __init__(self, driver: Any, url: str, asked: list[str]) -> None:
        self.driver, self.url, self.asked = driver, url, asked

    def find(self, name: str) -> Any:
        return self.driver.find_element("id", name)

    @property
    def cells(self) -> list[Any]:
        return self.driver.find_elements("css selector", "#grid input")

    @property
    def shown(self) -> str:
        values = "return [...document.querySelectorAll('#grid input')].map(one => one.value || '.')"
        return "".join(self.driver.execute_script(values))

    @property
    def left(self) -> list[str]:
        """Return the candidates of each cell, or its digit."""
        script = (
            "return [...document.querySelectorAll('.cell')]"
            ".map(({firstChild: input, lastChild: notes}) => input.value || notes.textContent)"
        )
        return [re.sub(r"\s", "", each) for each in self.driver.execute_script(script)]

    def marked(self, name: str) -> list[int]:
        """Return the cells of a class."""
        script = (
            "return [...document.querySelectorAll('.cell')]"
            ".flatMap((cell, i) => cell.matches(arguments[0]) ? [i] : [])"
        )
        return self.driver.execute_script(script, f".{name}")

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

    def choose(self, name: str, text: str) -> None:
        from selenium.webdriver.support.ui import Select

        Select(self.find(name)).select_by_visible_text(text)

    @property
    def status(self) -> str:
        return self.find("status").text

    @property
    def warning(self) -> str:
        return self.find("warning").text

    def wait(self, until: Callable[[], object]) -> None:
        end = time.monotonic() + 120
        while not until():
            assert time.monotonic() < end, f"the page says: {self.status}; {self.warning}"
            time.sleep(0.05)

    def ready(self) -> "Page":
        self.wait(lambda: self.find("solve").is_enabled())
        return self

    def solve(self) -> int:
        """Let the model think to its end, and return the number of steps."""
        self.find("solve").click()
        self.wait(lambda: "olved" in self.status)
        return int(self.find("step").get_attribute("max"))

    def go(self, number: int) -> str:
        """Move the slider to a step and return the status."""
        script = "arguments[0].value = arguments[1]; arguments[0].oninput()"
        self.driver.execute_script(script, self.find("step"), number)
        return self.status


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the page and a file that is no model, ready to be served."""
    pytest.importorskip("mkdocs", reason="mkdocs is not installed (pip install '.[docs]')")
    from apps.site import hooks

    if not hooks.PACKAGE.is_dir():
        pytest.skip("there is no onnxruntime-web: npm install --prefix examples/browser")
    served = tmp_path / "served"
    served.mkdir()
    for path in hooks.BROWSER.glob("*.*"):
        shutil.copy(path, served)
    for path in hooks.PACKAGE.glob("ort*wasm*.bundle.min.mjs"):
        shutil.copy(path, served)
    (served / "models.json").write_text(
        '[{"name": "broken", "arch": "none", "file": "broken.onnx", "seq_len": 81}]'
    )
    (served / "broken.onnx").write_bytes(b"no model")
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
            browser.get_log("browser")  # Clears the log of the page before.
            browser.get(url)
            return Page(browser, url, asked)

        yield open_it
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
        browser.get("about:blank")
        server.shutdown()


def export(run: Path, model: Path) -> Path:
    """Export a run for the page, and return the file."""
    assert exporting.main([str(run), str(model), "--single-step"]) == 0
    return model


def serve(folder: Path, model: Path) -> None:
    """Put models into the page's folder."""
    from apps.site import hooks

    for name, content in hooks.try_it(model.parent).items():
        (folder / Path(name).name).write_bytes(content)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a smaller model of the demo on easy puzzles. Return a folder with `data`, `run`, and
    `models` with the exported model.
    """
    folder = tmp_path_factory.mktemp("trained")
    flags = ["--source=generate", "--subsample-size=200", "--test-size=8", "--min-clues=64"]
    assert build_sudoku_dataset.main([*flags, f"--output-dir={folder / 'data'}"]) == 0
    arch = ("hidden_size=16", "H_cycles=1", "L_cycles=1", f"halt_max_steps={STEPS}")
    places = [f"data_path={folder / 'data'}", f"checkpoint_path={folder / 'run'}"]
    host = ["num_threads=1", "device=cpu", "compile=false"]
    small = ["ema=false", "epochs=16", "lr_warmup_steps=10", *(f"arch.{each}" for each in arch)]
    pretrain.main(["experiment=dec_sudoku_demo", *places, *small, *host])
    (folder / "models").mkdir()
    export(folder / "run", folder / "models" / "trained.onnx")
    return folder


@pytest.fixture
def page(trained: Path, folder: Path, open_page: Callable[[], Page]) -> Page:
    """The page with the trained model."""
    serve(folder, trained / "models" / "trained.onnx")
    return open_page().ready()


def loaded(run: Path) -> Any:
    found = find_trained_model(run, print)
    assert found.facts is not None
    return found.load(found.run.arch, found.facts, "the data", torch.device("cpu"))


def thoughts_of(trained: Path) -> list[Reasoning]:
    """Return the model's answers in Python to the test puzzles."""
    inputs = np.load(trained / "data" / "test" / "all__inputs.npy")
    puzzles = [Puzzle(SUDOKU, SUDOKU.to_grid(row)) for row in inputs]
    return list(reason(loaded(trained / "run"), puzzles, torch.device("cpu")))


def text_of(grid: np.ndarray) -> str:
    return "".join(map(str, grid.reshape(-1))).replace("0", ".")


def loops_after_a_quick_pause(page: Page) -> int:
    """Press Play, Pause and Play at once, and return the number of loops that go on."""
    page.driver.execute_script(
        "window.timer = setTimeout, window.waits = [], window.setTimeout = one => waits.push(one);"
        "for (let i = 0; i < 3; i++) play.click();"
    )
    page.driver.execute_script("waits.splice(0).forEach(one => one())")
    return page.driver.execute_script(
        "window.setTimeout = timer, play.click(); return waits.splice(0).length"
    )


def test_a_typed_sudoku_is_answered_as_in_python(trained: Path, page: Page) -> None:
    by_success = sorted(thoughts_of(trained), key=lambda one: one.judge().solved is True)
    assert by_success[-1].judge().solved  # Otherwise the test is too weak.
    questions, answers = (
        np.load(trained / "data" / "test" / f"all__{name}.npy") for name in ("inputs", "labels")
    )
    solutions = {text_of(q - 1): a - 1 for q, a in zip(questions, answers, strict=True)}
    # One that is solved, and one that may not be.
    for thought in (by_success[-1], by_success[0]):
        page.choose("example", "empty 9 x 9")
        page.driver.execute_script("arguments[0].focus()", page.cells[0])
        page.type(text_of(thought.question))
        assert page.shown == text_of(thought.question)
        page.type(ENTER)
        page.wait(lambda: "olved" in page.status)
        answer = np.where(thought.question, thought.question, thought.answer)
        assert page.shown == text_of(answer)
        assert page.status.endswith(". Solved") == thought.judge().solved
        wrong = np.flatnonzero(answer.ravel() != solutions[text_of(thought.question)])
        assert page.marked("wrong") == wrong.tolist()
        if len(wrong):
            assert f"Not solved: {len(wrong)} cell" in page.status
        for number, q in enumerate(thought.q_halt, start=1):
            said = float(page.go(number).split("; ")[1].split(" %")[0])
            assert said == pytest.approx(100 * q, abs=0.1)  # The page rounds.
        # Back to the puzzle and forth.
        assert page.go(1).startswith("Step 1: ")
        page.find("back").click()
        assert (page.status, page.shown) == ("The puzzle", text_of(thought.question))
        page.find("on").click()
        assert page.find("place").text == f"1 / {STEPS}"
        page.find("play").click()
        page.wait(lambda: page.find("place").text == f"{STEPS} / {STEPS}")
        assert loops_after_a_quick_pause(page) == 1
    # The page asked no other server, and for no other files.
    entries = page.driver.execute_script(
        "return performance.getEntriesByType('resource').map(e => e.name)"
    )
    assert {entry for entry in entries if not entry.startswith(page.url)} <= {"data:,"}
    assert {line[:4] for line in page.asked} == {"200 "}
    assert page.driver.get_log("browser") == []


def test_a_search_makes_the_rounds_of_python(
    lattice_run: Path,
    sudoku_data: Path,
    folder: Path,
    open_page: Callable[[], Page],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Both get the same draws, and bounds at which this model meets contradictions."""
    (tmp_path / "models").mkdir()
    serve(folder, export(lattice_run, tmp_path / "models" / "lattice.onnx"))
    bounds = {"strike_below": 0.3, "contradiction_above": 0.1}
    (facts,) = json.loads((folder / "models.json").read_text())
    (folder / "models.json").write_text(json.dumps([facts | bounds]))
    found: Any = find_trained_model(lattice_run, print)
    config, page = found.run.arch.model_copy(update=bounds), open_page().ready()
    model = found.load(config, found.facts, "the data", torch.device("cpu"))
    draws = np.random.default_rng(0).integers(0, 2**24, (400, 2)) * 2.0**-24
    inputs, taken_back, restarts = np.load(sudoku_data / "test" / "all__inputs.npy"), 0, 0
    for row in inputs[:4]:
        row[np.flatnonzero(row > 1)[4:]] = 1  # With few clues it has to guess.
        rounds, left = list[Round](), iter(draws.astype(np.float32))
        drawn = lambda *_, left=left: {"guesses": next(left)[None]}  # noqa: E731
        monkeypatch.setattr(Search, "_draws", drawn)
        with Ranks("cpu") as ranks:
            settings = SearchSettings(chains=1, rounds=40)
            search = Search(model, model.eval(), config, ranks, settings, seed=0)
            (result,) = search([(0, row)], lambda _, one, to=rounds: to.append(one))
        taken_back, restarts = taken_back + result.taken_back, restarts + result.restarts
        page.paste(text_of(row.astype(int) - 1))
        script = "const left = arguments[0]; Math.random = () => left.shift()"
        page.driver.execute_script(script, draws.ravel().tolist())
        page.find("solve").click()
        page.wait(lambda: int(page.find("step").get_attribute("max")) >= len(rounds))  # noqa: B023
        for step, one in enumerate(rounds[:-1], start=1):
            said, guessed = page.go(step), one.guessed[0]
            assert (one.verdicts[0] == 2) == ("contradiction" in said)
            assert page.marked("guess") == ([guessed] if guessed >= 0 else [])
            # After a contradiction the page shows the candidates of the next round.
            left = [np.flatnonzero(cell) - 1 for cell in rounds[step].before[0]]
            assert page.left == ["".join(map(str, digits)) for digits in left]
        assert ("olved" in page.go(len(rounds))) == (result.answer is not None)
    assert taken_back > 0
    assert restarts > 0


def test_typing_pasting_and_bad_input(open_page: Callable[[], Page]) -> None:
    page = open_page()
    page.wait(lambda: page.status.startswith("broken.onnx cannot be loaded"))
    assert not page.find("solve").is_enabled()
    page.choose("example", "empty 9 x 9")
    page.cells[0].click()
    page.type("1x")
    assert page.warning == 'A cell holds a digit from 1 to 9, not "x"'
    page.type("23 5.6")
    assert page.shown == "123.5.6".ljust(81, ".")
    page.type(f"{UP}{DOWN}77")
    assert page.warning == "Not a valid Sudoku: 7 stands twice in row 2"
    assert page.marked("wrong") == [16, 17]
    for wrong, told in (
        (PUZZLE[:80], "A puzzle has 16, 36 or 81 cells; this has 80"),
        (f"{PUZZLE[:80]}x", 'A cell holds a digit from 1 to 9 or . 0 - _ *, not "x"'),
        ("." * 16, "No model here reads 16 cells"),
    ):
        page.paste(wrong)
        assert page.warning == told
        assert page.shown.startswith("123.5.6")
    page.paste(" 4\n")  # A single digit fills the cell.
    assert page.shown.startswith("423.5.6")
    lines = "\n".join(f"|{PUZZLE[row : row + 9].replace('.', '0')}|" for row in range(0, 81, 9))
    dashes = PUZZLE.replace(".", "-")
    rows = [dashes[row : row + 9] for row in range(0, 81, 9)]
    for text in (f"+---+\n{lines}", dashes, "\n".join([*rows[:3], "-" * 11, *rows[3:]])):
        page.choose("example", "empty 9 x 9")
        assert page.shown == "." * 81
        page.paste(text)
        assert (page.shown, page.warning) == (PUZZLE, "")
    for name in ("easy", "medium", "hard", "very hard"):
        page.choose("example", name)
        assert count_solutions(parse_puzzle(page.shown)) == 1


def test_puzzles_without_or_with_many_solutions(page: Page) -> None:
    page.choose("example", "empty 9 x 9")
    for puzzle, told in (
        ("." * 81, "This puzzle has several solutions"),
        (f"{PUZZLE[:2]}12{PUZZLE[4:]}", "This puzzle has no solution"),
    ):
        page.paste(puzzle)
        began = time.monotonic()
        page.find("solve").click()
        page.wait(lambda told=told: page.warning == told)
        assert time.monotonic() - began < 3 * 2


def test_on_a_phone_in_the_dark_by_keyboard(page: Page) -> None:
    size = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": DARK})
    page.find("model").send_keys(TAB)
    assert page.driver.switch_to.active_element == page.find("example")
    page.type(f"{TAB}{TAB}")
    assert page.driver.switch_to.active_element == page.cells[0]
    page.type(f"{RIGHT}{ENTER}")
    page.wait(lambda: "olved" in page.status)
    page.type(TAB)  # The grid is one stop.
    assert page.driver.switch_to.active_element == page.find("back")
    page.type(ENTER)
    assert page.find("place").text == f"{STEPS - 1} / {STEPS}"
    outline = "return getComputedStyle(document.activeElement).outlineStyle"
    assert page.driver.execute_script(outline) == "solid"
    dark = "return getComputedStyle(document.body).backgroundColor"
    assert page.driver.execute_script(dark) == "rgb(21, 23, 27)"
    assert page.driver.execute_script("return document.documentElement.scrollWidth") == 400


def test_a_browser_without_webassembly_gets_a_sentence(
    browser: Any, open_page: Callable[[], Page]
) -> None:
    gone = {"source": "delete globalThis.WebAssembly"}
    added = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", gone)
    page = open_page()
    page.wait(lambda: page.status == "No model can run here: this browser has no WebAssembly")
    browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)
