"""The viewer: its server asked directly, and its page in a real browser."""

import json
import re
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from dataset.build_maze_dataset import main as build_mazes
from evaluation.puzzles import SUDOKU, puzzles_of
from puzzle_dataset import PuzzleDataset
from reports.viewer.server import build_app
from reports.viewer.shelf import find
from reports.viewer.thinking import Asked, Thinker
from scripts import viewer

PORT = 8765
HOST = f"http://127.0.0.1:{PORT}"


@pytest.fixture
def sudoku_run(save_run: Callable[..., Path], sudoku_data: Path, tmp_path: Path) -> Path:
    return save_run(tmp_path / "<b>run", sudoku_data)


@pytest.fixture
def client(sudoku_run: Path, sudoku_data: Path) -> TestClient:
    return TestClient(build_app(partial(find, [sudoku_run], [sudoku_data]), PORT), base_url=HOST)


def events_of(client: TestClient, **asked: Any) -> list[dict[str, Any]]:
    response = client.post("/api/think", json={"model": 0, **asked})
    assert response.status_code == 200, response.text
    return [json.loads(line) for line in response.text.splitlines()]


def test_what_is_there_is_listed(client: TestClient, sudoku_run: Path, sudoku_data: Path) -> None:
    found = client.post("/api/found", json={}).json()
    (model,) = found["models"]
    assert (model["name"], model["kind"], model["size"]) == (str(sudoku_run), "Sudoku", 4)
    assert {data["kind"] for data in found["data"]} == {"Sudoku"}
    counts = {data["name"]: data["count"] for data in found["data"]}
    assert (
        counts[f"{sudoku_data} (test)"]
        == PuzzleDataset([sudoku_data], "test").sets["all"].num_examples
    )
    assert found["records"] == []


def test_each_step_is_told_and_then_the_answer(client: TestClient, sudoku_data: Path) -> None:
    (puzzle,) = puzzles_of(PuzzleDataset([sudoku_data], "test"), SUDOKU, slice(2, 3))
    text = "".join(map(str, puzzle.question.flat))
    typed = events_of(client, puzzle={"text": text}, depth=3)
    assert [event["frame"]["title"] for event in typed[:-1]] == [
        f"ACT step {step} of 3" for step in (1, 2, 3)
    ]
    done = typed[-1]["done"]
    assert [frame["title"] for frame in done[1:]] == [e["frame"]["title"] for e in typed[:-1]]
    # The last step, and the same pictures.
    assert done[-1]["svg"] == typed[-2]["frame"]["svg"] or done[-1]["words"] != []
    chosen = next(
        i
        for i, d in enumerate(client.post("/api/found", json={}).json()["data"])
        if d["name"] == f"{sudoku_data} (test)"
    )
    of_data = events_of(client, puzzle={"data": chosen, "row": 2}, depth=3)
    assert of_data[-1] == typed[-1]
    several = events_of(client, puzzle={"text": text}, depth=2, breadth=3, compare=True)
    assert several[0]["frame"]["title"] == "chain 1 of 3, ACT step 1 of 2"
    assert "of 3 give this answer" in several[-1]["verdict"]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"puzzle": {"text": "12"}}, "2 cells are no Sudoku"),
        ({"puzzle": {"text": "." * 81}}, "81 cells; the model reads 16"),
        ({"puzzle": {"text": "11.............."}}, "digit 1 stands twice in row 1"),
        ({"puzzle": {"text": "x" * 300_000}}, "puzzle.text"),
        ({"puzzle": {"data": 99, "row": 0}}, "there is no data set with number 99"),
        ({"puzzle": {"data": 0, "row": 10**9}}, "none with number 1000000000"),
        ({"puzzle": {"data": -1, "row": 0}}, "puzzle.data"),
        ({"puzzle": {"task": {"train": 1}}}, "the task: task task: train is 1"),
        ({"puzzle": {"text": "." * 16}, "depth": 10**6}, "depth"),
        ({"puzzle": {"text": "." * 16}, "model": 7}, "there is no model with number 7"),
        ({"puzzle": {"text": "." * 16}, "path": "/etc/passwd"}, "path"),
        ([], "not a JSON object"),
    ],
)
def test_mistakes_are_answered_with_a_sentence(client: TestClient, body: Any, told: str) -> None:
    sent = {"model": 0, **body} if isinstance(body, dict) else body
    response = client.post("/api/think", json=sent)
    assert response.status_code == 400
    assert told in response.json()["error"]


def test_what_is_no_json_is_refused(client: TestClient) -> None:
    headers = {"content-type": "application/json"}
    for content in (b"{", b"\xff\xfe", b"[" * 100_000):
        response = client.post("/api/board", content=content, headers=headers)
        assert (response.status_code, response.json()) == (
            400,
            {"error": "what was sent is not a JSON object"},
        )
    assert (
        client.post("/api/board", content=b"{}", headers={"content-type": "text/plain"}).status_code
        == 415
    )
    large = client.post("/api/board", content=b" " * 1_000_001, headers=headers)
    assert large.status_code == 413
    for length, status in (("9" * 5000, 413), ("\u0663", 411), ("x", 411)):
        told = headers | {"content-length": length.encode()}
        assert client.post("/api/board", content=b"{}", headers=told).status_code == status
    assert "1,000,000 bytes" in large.json()["error"]


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example:8765"},
        {"host": "127.0.0.1:80"},
        {"host": "localhost.evil.example"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "https://127.0.0.1:8765"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_other_hosts_and_sites_are_refused(client: TestClient, headers: dict[str, str]) -> None:
    assert client.get("/", headers=headers).status_code == 403
    assert client.post("/api/found", json={}, headers=headers).status_code == 403


def test_the_page_loads_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/", headers={"origin": HOST, "sec-fetch-site": "none"})
    assert page.status_code == 200
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    for name in ("/", "/viewer.css", "/viewer.js"):
        text = client.get(name).text
        assert "http:" not in text
        assert "https:" not in text
        assert "//" not in re.sub(r"//\s.*|/\*\*.*", "", text)
    assert client.get("/../../etc/passwd").status_code == 404
    assert client.put("/").status_code == 405


def test_rows_are_filtered_and_paged(client: TestClient, sudoku_data: Path) -> None:
    """Those of original puzzles, each of which has three augmentations behind it."""
    inputs = np.load(sudoku_data / "train" / "all__inputs.npy")[::4]
    found = client.post("/api/found", json={}).json()["data"]
    number = next(i for i, d in enumerate(found) if d["name"] == f"{sudoku_data} (train)")
    clues = (inputs > 1).sum(1)
    asked = {"of": "data", "number": number}
    everything = client.post("/api/rows", json=asked).json()
    assert everything["total"] == len(inputs)
    assert everything["bounds"]["clues"] == [clues.min(), clues.max()]
    low = int(clues.max())
    some = client.post("/api/rows", json={**asked, "bounds": {"clues": [low, 99]}}).json()
    rows = [row["row"] for row in some["rows"]]
    assert rows == (4 * np.flatnonzero(clues == low)).tolist()[:50]
    assert some["rows"][0]["words"] == f"puzzle {rows[0] + 1}, clues {low}"
    last = client.post("/api/rows", json={**asked, "page": 10**6}).json()
    assert last["rows"] == []


def test_mistakes_of_an_evaluation_come_with_the_surest_first(
    sudoku_run: Path, tmp_path: Path, run_evaluation: Callable[..., Any]
) -> None:
    run_evaluation(tmp_path / "eval.json", f"checkpoint='{sudoku_run}'", "save_records=true")
    shutil.move(tmp_path / "eval_records.csv", sudoku_run)
    client = TestClient(build_app(partial(find, [sudoku_run], []), PORT), base_url=HOST)
    found = client.post("/api/found", json={}).json()
    assert [each["name"] for each in found["records"]] == [str(sudoku_run / "eval_records.csv")]
    lines = (sudoku_run / "eval_records.csv").read_text().splitlines()
    names = lines[0].split(",")
    records = [dict(zip(names, line.split(","), strict=True)) for line in lines[1:]]
    wrong = [record for record in records if record["exact_accuracy"] != "1"]
    wrong.sort(key=lambda record: -float(record["q_halt"]))
    answer = client.post("/api/rows", json={"of": "records", "number": 0}).json()
    assert answer["total"] == len(wrong)
    assert answer["rows"][0]["row"] == int(wrong[0]["index"])
    every = client.post("/api/rows", json={"of": "records", "number": 0, "wrong_only": False})
    assert every.json()["total"] == len(records)
    (sudoku_run / "eval_records.csv").write_text("set,index,exact_accuracy\nother,x,1\n")
    client = TestClient(build_app(partial(find, [sudoku_run], []), PORT), base_url=HOST)
    broken = client.post("/api/rows", json={"of": "records", "number": 0})
    assert "not the records of an evaluation" in broken.json()["error"]
    odd = "set,index,exact_accuracy,q_halt,odd\nall,1,0,nan,inf\nall,2,0,0.5,x\n"
    (sudoku_run / "eval_records.csv").write_text(odd)
    client = TestClient(build_app(partial(find, [sudoku_run], []), PORT), base_url=HOST)
    answer = client.post("/api/rows", json={"of": "records", "number": 0}).json()
    assert [row["row"] for row in answer["rows"]] == [2, 1]
    assert answer["bounds"] == {"exact_accuracy": [0, 0], "q_halt": [0.5, 0.5]}


def test_an_evaluation_comes_with_the_data_that_it_measured(
    sudoku_run: Path, sudoku_data: Path
) -> None:
    records, result = sudoku_run / "eval_records.csv", sudoku_run / "eval.json"
    records.write_text("set,index,exact_accuracy\nall,7,0\n")
    result.write_text(json.dumps({"data": [str(sudoku_data / "train")]}))
    client = TestClient(build_app(partial(find, [sudoku_run], []), PORT), base_url=HOST)
    answer = client.post("/api/rows", json={"of": "records", "number": 0}).json()
    found = client.post("/api/found", json={}).json()
    assert found["data"][answer["data"]]["name"] == f"{sudoku_data} (train)"
    records.unlink()
    records.mkdir()
    client = TestClient(build_app(partial(find, [sudoku_run], []), PORT), base_url=HOST)
    unread = client.post("/api/rows", json={"of": "records", "number": 0})
    assert unread.status_code == 400
    assert "eval_records.csv: " in unread.json()["error"]
    result.write_text(json.dumps({"data": ["elsewhere/test"]}))
    client = TestClient(build_app(partial(find, [sudoku_run], []), PORT), base_url=HOST)
    assert client.post("/api/found", json={}).json()["records"] == []


@pytest.mark.parametrize("compare", [False, True])
def test_puzzles_without_one_solution_are_told(client: TestClient, compare: bool) -> None:
    for text, told in (("." * 16, "several solutions"), ("123........4....", "no solution")):
        events = events_of(client, puzzle={"text": text}, depth=1, compare=compare)
        assert told in events[0]["note"]
        assert events[-1]["done"]


def test_what_nobody_foresaw_is_told_too(sudoku_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = build_app(partial(find, [sudoku_run], []), PORT)
    monkeypatch.setattr("reports.viewer.server.draw", lambda board: 1 / 0)
    client = TestClient(app, base_url=HOST, raise_server_exceptions=False)
    answer = client.post("/api/board", json={"model": 0, "puzzle": {"text": "." * 16}})
    assert answer.status_code == 500
    assert answer.json()["error"] == "the viewer failed: ZeroDivisionError: division by zero"


def test_broken_things_are_listed_with_their_reason(
    sudoku_run: Path, sudoku_data: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "data" / "broken"
    (broken / "test").mkdir(parents=True)
    (broken / "test" / "dataset.json").write_text("{")
    for path in sudoku_run.glob("step_*/model.safetensors"):
        path.write_bytes(b"")
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    look = partial(find, [sudoku_run, nothing, tmp_path / "gone"], [tmp_path / "data"])
    client = TestClient(build_app(look, PORT), base_url=HOST)
    found = client.post("/api/found", json={}).json()
    assert len(found["models"]) == 2
    assert all("error" in model for model in found["models"])
    assert "dataset.json" in found["data"][0]["error"]


def test_what_has_come_since_is_found_when_a_page_is_opened(
    save_run: Callable[..., Path], sudoku_data: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()

    def save(name: str) -> None:
        (save_run(folder / name, sudoku_data) / "config.yaml").write_text("")

    save("m")
    client = TestClient(build_app(partial(find, [folder], [sudoku_data]), PORT), base_url=HOST)

    def names() -> list[str]:
        found = client.post("/api/found", json={}).json()
        return [Path(model["name"]).name for model in found["models"]]

    assert names() == ["m"]
    save("a")
    assert names() == ["m", "a"]
    # A newer checkpoint takes the place of the one that was the newest.
    save_run(folder / "m", sudoku_data, step=13)
    shutil.rmtree(folder / "m" / "step_12")
    assert events_of(client, puzzle={"data": 0, "row": 0}, depth=1)[-1]["verdict"]
    shutil.rmtree(folder / "m")
    assert names() == ["m", "a"]


def test_a_new_question_ends_the_one_before(
    sudoku_run: Path, sudoku_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = find([sudoku_run], [sudoku_data])
    (puzzle,) = puzzles_of(PuzzleDataset([sudoku_data], "test"), SUDOKU, slice(0, 1))
    thinker, trained = Thinker(), shelf.models[0].trained
    first = thinker.events(trained, puzzle, Asked(depth=1024))
    assert next(first)["frame"]["title"] == "ACT step 1 of 1024"
    second = list(thinker.events(trained, puzzle, Asked(depth=2)))
    assert second[-1]["done"][-1]["title"] == "ACT step 2 of 2"
    rest = list(first)
    assert rest[-1] == {"error": "stopped"}
    assert len(rest) < 1024


def test_a_port_that_is_taken_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert viewer.main(["--port", str(port)]) == 2
    err = capsys.readouterr().err
    assert f"--port {port}: Address already in use; --port 0 takes any free one" in err


# In a browser


@pytest.fixture
def page(
    browser: Any, sudoku_run: Path, sudoku_data: Path, maze_run: Path, tmp_path: Path
) -> Iterator[Any]:
    """The viewer's page, with a Sudoku model and a maze model, opened in the browser."""
    uvicorn = pytest.importorskip("uvicorn")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        look = partial(find, [sudoku_run, maze_run], [sudoku_data, tmp_path / "maze"])
        config = uvicorn.Config(build_app(look, port), log_level="critical")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        browser.set_window_size(1280, 960)
        browser.get_log("browser")  # Of the page before.
        browser.get(f"http://127.0.0.1:{port}/")
        yield browser
        server.should_exit = True
        thread.join(10)


@pytest.fixture
def maze_run(save_run: Callable[..., Path], tmp_path: Path) -> Path:
    flags = "--source=generate --size=6 --min-length=7 --subsample-size=8 --test-size=4"
    assert build_mazes([*flags.split(), f"--output-dir={tmp_path / 'maze'}"]) == 0
    return save_run(tmp_path / "maze-run", tmp_path / "maze")


def element(page: Any, name: str) -> Any:
    return page.find_element("id", name)


def until(page: Any, holds: Callable[[], Any]) -> Any:
    from selenium.common.exceptions import WebDriverException
    from selenium.webdriver.support.ui import WebDriverWait

    wait = WebDriverWait(page, 60, 0.05, [WebDriverException])
    return wait.until(lambda _: holds())


def press(page: Any, *keys: str) -> None:
    for key in keys:
        page.switch_to.active_element.send_keys(key)


def ready(page: Any) -> None:
    until(page, lambda: page.find_elements("css selector", "#editor [role=gridcell]"))


def solved(page: Any) -> str:
    """Wait for the verdict; an empty one or "thinking ..." is none yet."""
    until(page, lambda: "thinking" not in (element(page, "verdict").text or "thinking"))
    return element(page, "verdict").text


def digits_of(page: Any) -> str:
    return "".join(text.text for text in page.find_elements("css selector", "#board svg text"))


@pytest.mark.slow
def test_the_checkpoint_that_thinks_is_named(
    page: Any, save_run: Callable[..., Path], sudoku_run: Path, sudoku_data: Path
) -> None:
    def chosen() -> str:
        return element(page, "model").find_element("css selector", "option:checked").text

    ready(page)
    assert chosen() == f"{sudoku_run}, step 12 (Sudoku)"
    save_run(sudoku_run, sudoku_data, step=1300)
    element(page, "solve").click()
    solved(page)
    assert chosen() == f"{sudoku_run}, step 1,300 (Sudoku)"


@pytest.mark.slow
def test_a_typed_sudoku_is_solved_by_keyboard(
    page: Any, sudoku_run: Path, sudoku_data: Path
) -> None:
    from selenium.webdriver.common.keys import Keys

    ready(page)
    (puzzle,) = puzzles_of(PuzzleDataset([sudoku_data], "test"), SUDOKU, slice(0, 1))
    cells = [str(digit) if digit else "." for digit in puzzle.question.flat]
    page.execute_script("document.querySelector('[role=gridcell]').focus()")
    press(page, *cells)
    shown = [cell.text for cell in page.find_elements("css selector", "[role=gridcell]")]
    assert shown == [cell.replace(".", "") for cell in cells]
    press(page, Keys.ENTER)
    verdict = solved(page)

    trained = find([sudoku_run], []).models[0].trained
    *_, done = Thinker().events(trained, puzzle, Asked())
    assert verdict == done["verdict"]
    last = done["done"][-1]
    answer = re.findall(r">([^<]*)</text>", last["svg"])
    assert digits_of(page) == "".join(answer)
    assert element(page, "place").text == "3 / 3"
    press(page, ",", ",")
    assert element(page, "place").text == "1 / 3"
    assert "ACT step 1 of 3" in digits_of(page)
    # Keys in the grid: back to its first cell, and away with its digit.
    page.execute_script("document.querySelector('[role=gridcell]').focus()")
    press(page, "3", Keys.ARROW_LEFT, Keys.BACKSPACE)
    assert page.find_element("css selector", "[role=gridcell]").text == ""


@pytest.mark.slow
def test_a_pasted_puzzle_fills_the_grid(page: Any) -> None:
    ready(page)
    paste = """
        const data = new DataTransfer(); data.setData("text", arguments[0]);
        const event = new ClipboardEvent("paste", {clipboardData: data, bubbles: true});
        document.querySelector("[role=gridcell]").dispatchEvent(event);"""
    page.execute_script(paste, "12|34\n34|..\n..|..\n43|.1")
    cells = [cell.text for cell in page.find_elements("css selector", "[role=gridcell]")]
    assert "".join(cell or "." for cell in cells) == "123434......43.1"
    page.execute_script(paste, "12345")
    assert element(page, "message").text == "5 cells; the model reads 16"


@pytest.mark.slow
def test_impossible_puzzles_get_a_sentence(page: Any) -> None:
    ready(page)
    page.execute_script("document.querySelector('[role=gridcell]').focus()")
    press(page, "1", "1")
    element(page, "solve").click()
    until(page, lambda: element(page, "message").text)
    assert element(page, "message").text == "digit 1 stands twice in row 1"


@pytest.mark.slow
def test_data_sets_are_browsed_and_filtered(page: Any, sudoku_data: Path) -> None:
    ready(page)
    element(page, "tab-data").click()
    rows = until(page, lambda: page.find_elements("css selector", "#rows button"))
    names = [option.text for option in page.find_elements("css selector", "#which option")]
    assert f"{sudoku_data} (test)" in names
    name = page.find_element("css selector", "#which option:checked").text
    split, views = ("test", 1) if name.endswith("(test)") else ("train", 4)
    inputs = np.load(sudoku_data / split / "all__inputs.npy")[::views]
    assert len(rows) == len(inputs)
    low = int((inputs > 1).sum(1).max())
    element(page, "low-clues").send_keys(str(low))
    expected = int(((inputs > 1).sum(1) == low).sum())
    until(page, lambda: element(page, "pages").text.startswith(f"{expected} puzzles"))
    page.find_element("css selector", "#rows button").click()
    until(page, lambda: digits_of(page))
    element(page, "solve").click()
    assert solved(page)
    assert page.find_element("css selector", "[aria-current=true]")


@pytest.mark.slow
def test_each_tab_solves_what_it_shows(page: Any) -> None:
    ready(page)
    page.execute_script("document.querySelector('[role=gridcell]').focus()")
    press(page, "4")
    element(page, "tab-data").click()
    until(page, lambda: page.find_elements("css selector", "#rows button"))
    element(page, "solve").click()
    until(page, lambda: element(page, "message").text == "choose a puzzle of the list")
    page.find_element("css selector", "#rows button").click()
    until(page, lambda: digits_of(page))
    element(page, "tab-own").click()
    assert digits_of(page) == ""
    element(page, "solve").click()
    until(page, lambda: "several solutions" in element(page, "message").text)
    solved(page)
    step = element(page, "step")
    page.execute_script("arguments[0].value = 0; arguments[0].oninput()", step)
    assert "the puzzle" in digits_of(page)
    assert digits_of(page).replace("the puzzle", "")[0] == "4"


@pytest.mark.slow
def test_keys_tick_and_play(page: Any) -> None:
    ready(page)
    compare = element(page, "compare")
    page.execute_script("arguments[0].focus()", compare)
    press(page, " ")
    assert compare.is_selected()
    assert not element(page, "play").is_enabled()
    element(page, "solve").click()
    solved(page)
    assert element(page, "play").is_enabled()
    page.execute_script("arguments[0].focus()", compare)
    press(page, " ")
    assert not compare.is_selected()
    assert element(page, "play").text == "Play"


@pytest.mark.slow
def test_another_model_ends_the_thoughts_of_the_one_before(page: Any) -> None:
    from selenium.webdriver.support.ui import Select

    ready(page)
    page.execute_script("document.querySelector('[role=gridcell]').focus()")
    press(page, "1", "2")
    element(page, "depth").send_keys("1024")
    element(page, "solve").click()
    until(page, lambda: int(element(page, "step").get_attribute("max")) > 3)
    # Who goes back stays there.
    page.execute_script("document.activeElement.blur()")
    press(page, ",", ",")
    place = element(page, "place").text.partition(" / ")[0]
    number = int(element(page, "step").get_attribute("max"))
    until(page, lambda: int(element(page, "step").get_attribute("max")) > number)
    assert element(page, "place").text.partition(" / ")[0] == place
    chosen = Select(element(page, "model"))
    chosen.select_by_index(1)
    assert [element(page, name).text for name in ("verdict", "place")] == ["", ""]
    assert digits_of(page) == ""
    assert element(page, "board").get_attribute("aria-busy") is None
    element(page, "depth").clear()
    element(page, "random").click()
    until(page, lambda: page.find_elements("css selector", ".start"))
    element(page, "solve").click()
    assert "path" in solved(page)
    chosen.select_by_index(0)
    assert "ACT step" not in digits_of(page)


@pytest.mark.slow
def test_a_maze_is_drawn_with_keys(page: Any) -> None:
    from selenium.webdriver.support.ui import Select

    ready(page)
    Select(element(page, "model")).select_by_index(1)
    until(page, lambda: len(page.find_elements("css selector", "[role=gridcell]")) == 36)
    page.execute_script("document.querySelector('[role=gridcell]').focus()")
    press(page, "s", ".", "#", "g")
    first = page.find_elements("css selector", "[role=gridcell]")[:4]
    assert [cell.get_attribute("class") for cell in first] == ["start", "free", "wall", "goal"]
    element(page, "solve").click()
    assert "path from S to G" in solved(page)
    element(page, "random").click()
    until(page, lambda: page.find_elements("css selector", ".wall")[1:])
    assert len(page.find_elements("css selector", ".start")) == 1


@pytest.mark.slow
def test_the_page_says_nothing_on_the_console(page: Any) -> None:
    ready(page)
    element(page, "tab-data").click()
    until(page, lambda: page.find_elements("css selector", "#rows button"))
    assert page.get_log("browser") == []
