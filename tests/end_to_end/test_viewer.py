"""The viewer: its server asked directly, and its page in a real browser."""

import csv
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

from apps.reports.boards import WRONG_FILL, Board, board_of_candidates
from apps.reports.frames import Frame
from apps.viewer import command as viewer
from apps.viewer import serving
from apps.viewer.server import build_app
from apps.viewer.shelf import find
from apps.viewer.thinking import Asked, Thinker, shown, svg_of, verdict_on
from dataset.build_arc_dataset import main as build_arc
from dataset.build_maze_dataset import main as build_mazes
from dataset.kinds.base import Puzzle
from dataset.kinds.sudoku import SUDOKU
from evaluation.puzzles import puzzles_of
from puzzle_dataset import PuzzleDataset

PORT = 8765
HOST = f"http://127.0.0.1:{PORT}"
RECORDS: dict[str, Any] = {"model": 0, "of": "records", "number": 0}


@pytest.fixture
def sudoku_run(save_run: Callable[..., Path], sudoku_data: Path, tmp_path: Path) -> Path:
    return save_run(tmp_path / "<b>run", sudoku_data)


def opened(runs: list[Path], data: list[Path], **options: Any) -> TestClient:
    return TestClient(build_app(partial(find, runs, data)), base_url=HOST, **options)


def ask(client: TestClient, name: str, **sent: Any) -> Any:
    return client.post(f"/api/{name}", json=sent).json()


@pytest.fixture
def client(sudoku_run: Path, sudoku_data: Path) -> TestClient:
    return opened([sudoku_run], [sudoku_data])


def events_of(client: TestClient, **asked: Any) -> list[dict[str, Any]]:
    response = client.post("/api/think", json={"model": 0, **asked})
    assert response.status_code == 200, response.text
    return [json.loads(line) for line in response.text.splitlines()]


def test_what_is_there_is_listed(client: TestClient, sudoku_run: Path, sudoku_data: Path) -> None:
    found = ask(client, "found")
    (model,) = found["models"]
    assert (model["name"], model["kind"], model["size"]) == (str(sudoku_run), "Sudoku", 4)
    assert {data["kind"] for data in found["data"]} == {"Sudoku"}
    # Its own data first, and of that what it was not trained on.
    names = [found["data"][number]["name"] for number in model["data"]]
    assert names == [f"{sudoku_data} ({split})" for split in ("test", "train")]
    assert found["records"] == model["records"] == []


def test_each_step_is_told_and_then_the_answer(client: TestClient, sudoku_data: Path) -> None:
    (puzzle,) = puzzles_of(PuzzleDataset([sudoku_data], "test"), SUDOKU, slice(2, 3))
    text = "".join(map(str, puzzle.question.flat))
    typed = events_of(client, puzzle={"text": text}, depth=3)
    titles = ["the puzzle", *(f"ACT step {step} of 3" for step in (1, 2, 3))]
    assert [event["frame"]["title"] for event in typed[:-1]] == titles
    done, settled = typed[-1]["done"], typed[-1]["settled"]
    assert done == [event["frame"] for event in typed[:-1]]
    changed = [frame["words"][0] for frame in done[1:]]
    assert changed[settled:] == ["0 cells changed"] * (3 - settled)
    assert settled == 0 or changed[settled - 1] != "0 cells changed"
    names = [each["name"] for each in ask(client, "found")["data"]]
    chosen = names.index(f"{sudoku_data} (test)")
    of_data = events_of(client, puzzle={"data": chosen, "row": 2}, depth=3)
    assert of_data[-1]["done"] == done
    several = events_of(client, puzzle={"text": text}, depth=2, breadth=3, compare=True)
    assert several[1]["frame"]["title"] == "chain 1 of 3, ACT step 1 of 2"
    assert re.search(r"(1 of 3 gives|[23] of 3 give) this answer", several[-1]["summary"])


@pytest.mark.parametrize(
    ("answer", "compare", "told", "marked"),
    [
        ("1234341221434321", True, "a valid Sudoku that keeps the clues", 0),
        ("1234341221434322", False, "not a solution: 3 cells cannot stay", 3),
        ("1234341221434322", True, "not the right answer: it differs in 1 cell", 1),
        ("12343412214343.2", True, "not the right answer: it differs in 1 cell, 1 left empty", 1),
        ("12343412214343.2", False, "not a solution: 2 cells cannot stay, 1 left empty", 2),
    ],
)
def test_the_words_count_what_is_marked(answer: str, compare: bool, told: str, marked: int) -> None:
    right, given = (SUDOKU.parse(text).question for text in ("1234341221434321", "1234" + 12 * "."))
    found = np.array([int(digit.replace(".", "0")) for digit in answer], np.int8).reshape(4, 4)
    board = Board(Puzzle(SUDOKU, given), found, right=right if compare else None)
    assert verdict_on(board) == told
    paths = re.findall(rf'd="([^"]*)" fill="{WRONG_FILL}"', svg_of(board))
    assert sum(path.count("M") for path in paths) == marked


def test_a_round_counts_what_is_open_after_it() -> None:
    puzzle = SUDOKU.parse("1234" + 12 * ".")
    candidates = np.tile(np.arange(6) > 1, (16, 1))
    candidates[:4] = np.eye(6, dtype=bool)[2:]
    board = board_of_candidates(puzzle, candidates)
    told = shown(Frame(board, "round 1 of 2", ["13 cells open", "4 candidates struck", ""]))
    assert (told["verdict"], told["words"]) == ("12 cells open", ["4 candidates struck"])


def test_thoughts_are_saved(client: TestClient) -> None:
    done = events_of(client, puzzle={"data": 0, "row": 0}, depth=2)[-1]
    saved = client.post("/api/save", json={"thought": done["thought"]})
    assert saved.content.startswith(b"GIF89a")
    assert saved.headers["content-disposition"] == "attachment; filename=thinking.gif"
    late = client.post("/api/save", json={"thought": 99})
    assert late.json()["error"] == "this thought is too long ago: solve the puzzle again"


def test_examples_are_of_the_models_kind_and_size(
    client: TestClient, maze_run: Path, sudoku_run: Path, tmp_path: Path
) -> None:
    (puzzle,) = ask(client, "found")["models"]
    example = ask(client, "example", model=0, seed=5)
    assert (example["data"], len(example["text"])) == (puzzle["data"][0], 16)
    # Without data one is made.
    shutil.rmtree(tmp_path / "maze")
    made = ask(opened([maze_run], []), "example", model=0)
    assert list(made) == ["text"]
    assert sorted(made["text"].replace("#", "").replace(" ", "").split()) == ["G", "S"]


def test_arc_is_listed_by_task_with_its_demonstrations(
    save_run: Callable[..., Path], sudoku_run: Path, sudoku_data: Path, tmp_path: Path
) -> None:
    data = tmp_path / "arc"
    tasks = tmp_path / "tasks" / "evaluation"
    tasks.mkdir(parents=True)
    pairs = [{"input": [[i, 1]], "output": [[1, i]]} for i in (2, 3, 4)]
    for name in ("first", "second"):
        task = {"train": pairs[:2], "test": pairs[2:]}
        (tasks / f"{name}.json").write_text(json.dumps(task))
    flags = f"--dataset-dirs={tmp_path / 'tasks'} --num-aug=3 --output-dir={data}"
    assert build_arc(flags.split()) == 0
    run = save_run(tmp_path / "arc-run", data)
    client = opened([run, sudoku_run], [sudoku_data])
    found = ask(client, "found")
    kinds = [{found["data"][n]["kind"] for n in model["data"]} for model in found["models"]]
    assert kinds == [{"ARC"}, {"Sudoku"}]
    number = found["models"][0]["data"][0]
    first, second = ask(client, "rows", model=0, of="data", number=number)["rows"]
    for name, row in (("first", first), ("second", second)):
        assert row["words"] == f"task {name}, puzzle {row['row']}, 2 cells of the input"
    loaded = {"task": {"train": pairs[:2], "test": pairs[2:]}, "task_name": "first"}
    for puzzle in ({"data": number, "row": second["row"]}, loaded):
        assert len(ask(client, "board", model=0, puzzle=puzzle)["pairs"]) == 2


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
    for content, more, status, told in (
        *((c, {}, 400, "not a JSON object") for c in (b"{", b"\xff\xfe", b"[" * 100_000)),
        (b"{}", {"content-type": "text/plain"}, 415, "accepted: application/json"),
        (b" " * 1_000_001, {}, 413, "more than 1,000,000 bytes"),
        (b"{}", {"content-length": b"9" * 5000}, 413, "more than 1,000,000 bytes"),
        *((b"{}", {"content-length": n.encode()}, 411, "length") for n in ("\u0663", "x")),
    ):
        response = client.post("/api/board", content=content, headers=headers | more)
        assert response.status_code == status
        assert told in response.json()["error"]


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example:8765"},
        {"host": "127.0.0.1.evil.example:80"},
        {"host": "127.0.0.1:80@evil.example"},
        {"host": "localhost:80:80"},
        {"host": "0.0.0.0:8765"},
        {"origin": "http://127.0.0.1:80"},
        {"origin": "http://localhost:8765"},
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


def test_the_page_is_there_behind_the_port_of_ssh(client: TestClient) -> None:
    for host in ("localhost:9000", "127.0.0.1", "[::1]:80"):
        headers = {"host": host, "origin": f"http://{host}", "sec-fetch-site": "same-origin"}
        assert client.post("/api/found", json={}, headers=headers).status_code == 200
    refused = client.get("/", headers={"host": "gpu-box:8765"}).json()["error"]
    assert "ssh -L PORT:localhost:PORT" in refused


def test_the_page_loads_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/", headers={"origin": HOST, "sec-fetch-site": "none"})
    assert page.status_code == 200
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    scripts = ("/common.js", "/editor.js", "/player.js", "/viewer.js")
    for name in ("/", "/viewer.css", *scripts):
        text = client.get(name).text
        assert "http:" not in text
        assert "https:" not in text
        assert "//" not in re.sub(r"//\s.*|/\*\*.*", "", text)
    assert client.get("/../../etc/passwd").status_code == 404
    assert client.put("/").status_code == 405


def test_rows_are_filtered_and_paged(client: TestClient, sudoku_data: Path) -> None:
    """Those of original puzzles, each of which has three augmentations behind it."""
    inputs = np.load(sudoku_data / "train" / "all__inputs.npy")[::4]
    found = ask(client, "found")["data"]
    number = next(i for i, d in enumerate(found) if d["name"] == f"{sudoku_data} (train)")
    clues = (inputs > 1).sum(1)
    asked = {"model": 0, "of": "data", "number": number}
    everything = ask(client, "rows", **asked)
    assert everything["total"] == len(inputs)
    assert everything["bounds"]["clues"] == [clues.min(), clues.max()]
    low = int(clues.max())
    some = ask(client, "rows", **asked, bounds={"clues": [low, 99]})
    rows = [row["row"] for row in some["rows"]]
    assert rows == (4 * np.flatnonzero(clues == low)).tolist()[:50]
    assert some["rows"][0]["words"] == f"puzzle {rows[0]}, {low} clues"
    assert some["rows"][0]["svg"].startswith("<svg")
    assert ask(client, "rows", **asked, page=10**6)["rows"] == []


def test_mistakes_of_an_evaluation_come_with_the_surest_first(
    sudoku_run: Path, sudoku_data: Path, tmp_path: Path, run_evaluation: Callable[..., Any]
) -> None:
    run_evaluation(tmp_path / "eval.json", f"checkpoint='{sudoku_run}'", "save_records=true")
    shutil.move(tmp_path / "eval_records.csv", sudoku_run)
    client = opened([sudoku_run], [])
    found = ask(client, "found")
    assert [each["name"] for each in found["records"]] == [f"eval: {sudoku_data} (test)"]
    with (sudoku_run / "eval_records.csv").open(newline="") as file:
        records = list(csv.DictReader(file))
    wrong = [record for record in records if record["exact_accuracy"] != "1"]
    wrong.sort(key=lambda record: -float(record["q_halt"]))
    answer = ask(client, "rows", **RECORDS)
    assert answer["total"] == len(wrong)
    first = answer["rows"][0]
    assert first["row"] == int(wrong[0]["index"])
    assert first["words"].startswith(f"puzzle {wrong[0]['index']}: wrong, ")
    assert "% of the cells right" in first["words"]
    assert ask(client, "rows", **RECORDS, wrong_only=False)["total"] == len(records)
    (sudoku_run / "eval_records.csv").write_text("set,index,exact_accuracy\nother,x,1\n")
    client = opened([sudoku_run], [])
    broken = client.post("/api/rows", json=RECORDS)
    assert "not the records of an evaluation" in broken.json()["error"]
    odd = "set,index,exact_accuracy,q_halt,odd\nall,1,0,nan,inf\nall,2,0,0.5,x\n"
    (sudoku_run / "eval_records.csv").write_text(odd)
    client = opened([sudoku_run], [])
    answer = ask(client, "rows", **RECORDS)
    assert [row["row"] for row in answer["rows"]] == [2, 1]
    assert answer["bounds"] == {"exact_accuracy": [0, 0], "q_halt": [0.5, 0.5]}


def test_an_evaluation_comes_with_the_data_that_it_measured(
    sudoku_run: Path, sudoku_data: Path
) -> None:
    records, result = sudoku_run / "eval_records.csv", sudoku_run / "eval.json"
    records.write_text("set,index,exact_accuracy\nall,7,0\n")
    result.write_text(json.dumps({"data": [str(sudoku_data / "train")]}))
    client = opened([sudoku_run], [])
    answer = ask(client, "rows", **RECORDS)
    found = ask(client, "found")
    assert found["data"][answer["data"]]["name"] == f"{sudoku_data} (train)"
    records.unlink()
    records.mkdir()
    client = opened([sudoku_run], [])
    unread = client.post("/api/rows", json=RECORDS)
    assert unread.status_code == 400
    assert "eval_records.csv: " in unread.json()["error"]
    result.write_text(json.dumps({"data": ["elsewhere/test"]}))
    client = opened([sudoku_run], [])
    assert ask(client, "found")["records"] == []


@pytest.mark.parametrize("compare", [False, True])
def test_puzzles_without_one_solution_are_told(client: TestClient, compare: bool) -> None:
    for text, told in (("." * 16, "several solutions"), ("123........4....", "no solution")):
        events = events_of(client, puzzle={"text": text}, depth=1, compare=compare)
        assert told in events[0]["note"]
        assert events[-1]["done"]


def test_what_nobody_foresaw_is_told_too(sudoku_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = opened([sudoku_run], [], raise_server_exceptions=False)
    monkeypatch.setattr("apps.viewer.server.svg_of", lambda board: 1 / 0)
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
    client = opened([sudoku_run, nothing, tmp_path / "gone"], [tmp_path / "data"])
    found = ask(client, "found")
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
    client = opened([folder], [sudoku_data])

    def names() -> list[str]:
        found = ask(client, "found")
        return [Path(model["name"]).name for model in found["models"]]

    assert names() == ["m"]
    save("a")
    assert names() == ["m", "a"]
    # A newer checkpoint takes the place of the one that was the newest.
    save_run(folder / "m", sudoku_data, step=13)
    shutil.rmtree(folder / "m" / "step_12")
    assert events_of(client, puzzle={"data": 0, "row": 0}, depth=1)[-1]["done"]
    shutil.rmtree(folder / "m")
    assert names() == ["m", "a"]


def test_a_new_question_ends_the_one_before(
    sudoku_run: Path, sudoku_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = find([sudoku_run], [sudoku_data])
    (puzzle,) = puzzles_of(PuzzleDataset([sudoku_data], "test"), SUDOKU, slice(0, 1))
    thinker, trained = Thinker(), shelf.models[0].trained
    first = thinker.events(trained, puzzle, Asked(depth=1024))
    assert [next(first)["frame"]["title"] for _ in "ab"] == ["the puzzle", "ACT step 1 of 1024"]
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


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["gone"], "error: gone: no such file or folder\n"),
        ([".", "--data", "gone"], "error: gone: no such file or folder\n"),
        (["."], "error: .: no run in it; train one (make demo), or name a run's folder\n"),
        ([], "error: checkpoints: no run in it; train one (make demo), or name a run's folder\n"),
    ],
)
def test_where_nothing_is_it_says_so(
    arguments: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert viewer.main([*arguments, "--port=0"]) == 2
    assert capsys.readouterr() == ("", told)


# Over a connection


@pytest.fixture
def port(sudoku_run: Path, sudoku_data: Path, maze_run: Path, tmp_path: Path) -> Iterator[int]:
    """Of a server that is at work, with a Sudoku model and a maze model."""
    look = partial(find, [sudoku_run, maze_run], [sudoku_data, tmp_path / "maze"])
    server = serving.server_of(build_app(look))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        server.should_exit = True
        thread.join(10)


@pytest.mark.parametrize(
    ("request_line", "headers", "status"),
    [
        ("POST /api/board", ["Transfer-Encoding: chunked", "Content-Length: 2"], b"411"),
        ("POST /api/board", ["Transfer-Encoding: chunked"], b"411"),
        ("POST /api/board", ["Content-Length: 2", "Content-Length: 20"], b"400"),
        ("POST /api/board", ["Content-Length: 1000001"], b"413"),
        ("GET /", ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: x"], b"400"),
    ],
)
def test_what_the_page_does_not_send_is_refused(
    port: int, request_line: str, headers: list[str], status: bytes
) -> None:
    """Before its body is read: the connection ends, and what is still sent goes nowhere."""
    own = [f"Host: localhost:{port}", "Content-Type: application/json"]
    with socket.create_connection(("127.0.0.1", port), timeout=30) as sent:
        sent.sendall("\r\n".join([f"{request_line} HTTP/1.1", *own, *headers, "", ""]).encode())
        assert sent.recv(12) == b"HTTP/1.1 " + status
        while sent.recv(65536):
            pass


@pytest.mark.parametrize(
    "part", ["", "GET / HTTP/1.1\r\nHost: 127", "POST /api/board HTTP/1.1\r\n{}\r\n\r\n{{"]
)
def test_a_request_that_does_not_come_ends(
    port: int, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "SECONDS", 0.2)
    headers = ["Content-Type: application/json", "Content-Length: 9", f"Host: localhost:{port}"]
    with socket.create_connection(("127.0.0.1", port), timeout=30) as sent:
        sent.sendall(part.format("\r\n".join(headers)).encode())
        assert sent.recv(1) == b""


# In a browser


@pytest.fixture
def page(browser: Any, port: int) -> Iterator[Any]:
    """The viewer's page, opened in the browser."""
    browser.set_window_size(1280, 960)
    browser.get_log("browser")  # Of the page before.
    browser.get(f"http://127.0.0.1:{port}/")
    yield browser
    browser.get("about:blank")


@pytest.fixture
def maze_run(save_run: Callable[..., Path], tmp_path: Path) -> Path:
    flags = "--source=generate --size=6 --min-length=7 --subsample-size=8 --test-size=4"
    assert build_mazes([*flags.split(), f"--output-dir={tmp_path / 'maze'}"]) == 0
    return save_run(tmp_path / "maze-run", tmp_path / "maze")


def focus(page: Any) -> None:
    page.execute_script("document.querySelector('[role=gridcell]').focus()")


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


def ready(page: Any, *, empty: bool = True) -> None:
    """Wait for the page's example; clear it."""
    until(page, lambda: page.find_elements("css selector", "#board svg"))
    if empty:
        element(page, "clear").click()
        until(page, lambda: grid_of(page).strip(".") == "")


def grid_of(page: Any) -> str:
    cells = page.find_elements("css selector", "[role=gridcell]")
    return "".join(cell.text or "." for cell in cells)


def solved(page: Any) -> str:
    """Skip to the end of a thought; return the verdict on its answer."""
    element(page, "skip").click()
    until(page, lambda: element(page, "save").is_displayed())
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
    focus(page)
    press(page, *cells)
    shown = [cell.text for cell in page.find_elements("css selector", "[role=gridcell]")]
    assert shown == [cell.replace(".", "") for cell in cells]
    press(page, Keys.ENTER)
    verdict = solved(page)

    trained = find([sudoku_run], []).models[0].trained
    *_, done = Thinker().events(trained, puzzle, Asked())
    assert verdict == done["done"][-1]["verdict"]
    answer = re.findall(r">([^<]*)</text>", done["done"][-1]["svg"])
    assert digits_of(page) == "".join(answer)
    assert element(page, "place").text == f"{done['settled']} / 3"
    page.execute_script("document.activeElement.blur()")
    press(page, ",", ",", ",", ".")
    assert element(page, "place").text == "1 / 3"
    assert "ACT step 1 of 3" in element(page, "words").text
    # Keys in the grid: back to its first cell, and away with its digit.
    focus(page)
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
    assert grid_of(page) == "123434......43.1"
    page.execute_script(paste, "12345")
    assert element(page, "message").text == "5 cells; the model reads 16"


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
    focus(page)
    press(page, "4")
    element(page, "tab-data").click()
    until(page, lambda: page.find_elements("css selector", "#rows button"))
    # The first of the list is there to be solved.
    until(page, lambda: page.find_elements("css selector", "[aria-current=true]"))
    until(page, lambda: len(digits_of(page)) > 1)
    assert element(page, "puzzle").text == "puzzle 0"
    element(page, "tab-own").click()
    until(page, lambda: digits_of(page) == "4")
    element(page, "solve").click()
    until(page, lambda: "several solutions" in element(page, "message").text)
    solved(page)
    step = element(page, "step")
    page.execute_script("arguments[0].value = 0; arguments[0].oninput()", step)
    assert element(page, "verdict").text == "the puzzle"
    assert digits_of(page) == "4"


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
    focus(page)
    press(page, "1", "2")
    element(page, "depth").send_keys("1024")
    element(page, "solve").click()
    until(page, lambda: int(element(page, "step").get_attribute("max")) > 3)
    # Who goes back stays there.
    page.execute_script("document.activeElement.blur()")
    press(page, ",")
    place = element(page, "place").text.partition(" / ")[0]
    number = int(element(page, "step").get_attribute("max"))
    until(page, lambda: int(element(page, "step").get_attribute("max")) > number)
    assert element(page, "place").text.partition(" / ")[0] == place
    chosen = Select(element(page, "model"))
    chosen.select_by_index(1)
    assert element(page, "board").get_attribute("aria-busy") is None
    assert element(page, "place").text == ""
    # The board of the other kind, with a puzzle of its data.
    until(page, lambda: page.find_elements("css selector", ".start"))
    until(page, lambda: element(page, "verdict").text == "the puzzle")
    element(page, "depth").clear()
    element(page, "solve").click()
    assert "path" in solved(page)
    chosen.select_by_index(0)
    assert "path" not in element(page, "verdict").text
    # In a list, too: the list is the new model's.
    element(page, "tab-data").click()
    until(page, lambda: "clues" in element(page, "rows").text)
    chosen.select_by_index(1)
    until(page, lambda: "path" in element(page, "rows").text)
    until(page, lambda: element(page, "puzzle").text == "puzzle 0")
    assert element(page, "message").text == ""
    element(page, "tab-own").click()
    until(page, lambda: page.find_elements("css selector", "#editor .start"))


@pytest.mark.slow
def test_a_maze_is_drawn_with_keys(page: Any) -> None:
    from selenium.webdriver.support.ui import Select

    ready(page)
    Select(element(page, "model")).select_by_index(1)
    until(page, lambda: page.find_elements("css selector", "#editor .start"))
    element(page, "clear").click()
    focus(page)
    press(page, "s", ".", "#", "g")
    first = page.find_elements("css selector", "[role=gridcell]")[:4]
    assert [cell.get_attribute("class") for cell in first] == ["start", "free", "wall", "goal"]
    element(page, "solve").click()
    assert "path from S to G" in solved(page)
    element(page, "another").click()
    until(page, lambda: page.find_elements("css selector", ".wall")[1:])
    assert len(page.find_elements("css selector", ".start")) == 1


@pytest.mark.slow
def test_a_link_opens_the_puzzle_again(page: Any, port: int) -> None:
    from selenium.webdriver.support.ui import Select

    ready(page, empty=False)
    puzzle, address = grid_of(page), page.current_url
    assert address.startswith(f"http://127.0.0.1:{port}/#model=")
    Select(element(page, "model")).select_by_index(1)
    until(page, lambda: "maze" in page.current_url)
    page.get(address)
    until(page, lambda: grid_of(page) == puzzle)
    assert page.current_url == address
    element(page, "tab-data").click()
    until(page, lambda: "row=0" in page.current_url)
    page.find_elements("css selector", "#rows button")[3].click()
    until(page, lambda: "row=3" in page.current_url)
    address = page.current_url
    page.get("about:blank")
    page.get(address)
    until(page, lambda: element(page, "puzzle").text == "puzzle 3")
    page.get("about:blank")
    page.get(f"http://127.0.0.1:{port}/#model=<b>gone")
    until(page, lambda: element(page, "message").text.endswith("is not here: <b>gone"))


@pytest.mark.slow
def test_a_thought_plays_step_by_step_to_where_it_settles(page: Any) -> None:
    ready(page, empty=False)
    page.execute_script(
        "window.places = []; new MutationObserver(() => places.push(place.textContent))"
        ".observe(place, {childList: true})"
    )
    element(page, "solve").click()
    until(page, lambda: element(page, "save").is_displayed())
    until(page, lambda: element(page, "play").text == "Play")
    numbers = [
        int(place.split(" / ")[0]) for place in page.execute_script("return places") if place
    ]
    assert sorted(set(numbers)) == list(range(numbers[-1] + 1))
    assert numbers == sorted(numbers)
    words = element(page, "words").text
    assert numbers[-1] == 3 or "settled" in words
    element(page, "back").click()
    element(page, "on").click()
    assert element(page, "words").text == words


@pytest.mark.slow
def test_the_keypad_writes_where_the_cursor_is(page: Any) -> None:
    ready(page)
    page.find_elements("css selector", "[role=gridcell]")[5].click()
    keys = page.find_elements("css selector", "#keypad button")
    assert [key.text for key in keys] == ["1", "2", "3", "4", "\u232b"]
    keys[2].click()
    assert grid_of(page) == ".....3.........."
    keys[4].click()
    assert grid_of(page).strip(".") == ""


@pytest.mark.slow
def test_the_page_says_nothing_on_the_console(page: Any) -> None:
    ready(page)
    element(page, "tab-data").click()
    until(page, lambda: page.find_elements("css selector", "#rows button"))
    assert page.get_log("browser") == []
