"""The viewer: requests to its server, and its page in a real browser."""

import csv
import http.client
import json
import re
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from apps.reports.boards import board_of_candidates
from apps.reports.frames import Frame
from apps.viewer import command as viewer
from apps.viewer.adapting import Adapter
from apps.viewer.server import Server, _Handler
from apps.viewer.shelf import Model, find
from apps.viewer.thinking import Options, Thinker, shown
from dataset.arc.tasks import encode_canvas
from dataset.build_arc_dataset import main as build_arc
from dataset.build_maze_dataset import main as build_mazes
from dataset.kinds.arc import ARC
from dataset.kinds.base import Puzzle
from dataset.kinds.sudoku import SUDOKU
from evaluation import think
from evaluation.puzzles import puzzles_of
from puzzle_dataset import PuzzleDataset
from runtime.errors import DatasetError

JSON = {"Content-Type": "application/json"}
RECORDS: dict[str, Any] = {"model": 0, "of": "records", "number": 0}
EMPTY = "." * 16


class Client:
    """A running viewer, with requests as the page sends them."""

    def __init__(self, runs: list[Path], data: list[Path]) -> None:
        self.server = Server(partial(find, runs, data), 0)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def send(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, Any]:
        """Return the status and the content of a response, JSON parsed."""
        told = {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, body or None, told)
        answer = connection.getresponse()
        is_json = answer.headers["Content-Type"] == "application/json"
        self.headers, content = answer.headers, answer.read()
        return answer.status, json.loads(content) if is_json else content

    def post(self, name: str, sent: Any) -> tuple[int, Any]:
        return self.send("POST", f"/api/{name}", json.dumps(sent).encode(), **JSON)

    def ask(self, name: str, **sent: Any) -> Any:
        status, answer = self.post(name, sent)
        assert status == 200, answer
        return answer

    def refused(self, name: str, **sent: Any) -> str:
        status, answer = self.post(name, sent)
        assert status == 400
        return answer["error"]

    def events(self, **asked: Any) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.ask("think", model=0, **asked).splitlines()]


@pytest.fixture
def opened() -> Iterator[Callable[..., Client]]:
    clients: list[Client] = []

    def open_(runs: list[Path], data: list[Path]) -> Client:
        clients.append(Client(runs, data))
        return clients[-1]

    yield open_
    for client in clients:
        client.server.shutdown()
        client.server.server_close()


@pytest.fixture
def sudoku_run(save_run: Callable[..., Path], sudoku_data: Path, tmp_path: Path) -> Path:
    return save_run(tmp_path / "<b>run", sudoku_data)


@pytest.fixture
def maze_run(save_run: Callable[..., Path], tmp_path: Path) -> Path:
    flags = "--source=generate --size=6 --min-length=7 --subsample-size=8 --test-size=4"
    assert build_mazes([*flags.split(), f"--output-dir={tmp_path / 'maze'}"]) == 0
    return save_run(tmp_path / "maze-run", tmp_path / "maze")


@pytest.fixture
def client(opened: Callable[..., Client], sudoku_run: Path, sudoku_data: Path) -> Client:
    return opened([sudoku_run], [sudoku_data])


def test_what_is_there_is_listed(client: Client, sudoku_run: Path, sudoku_data: Path) -> None:
    found = client.ask("found")
    (model,) = found["models"]
    assert (model["name"], model["kind"], model["size"]) == (str(sudoku_run), "Sudoku", 4)
    # Its own data come first, the test set before the training set.
    names = [found["data"][number]["name"] for number in model["data"]]
    assert names == [f"{sudoku_data} ({split})" for split in ("test", "train")]
    assert found["records"] == model["records"] == []


def test_a_thought_is_told_step_by_step_and_saved(client: Client, sudoku_data: Path) -> None:
    (puzzle,) = puzzles_of(PuzzleDataset([sudoku_data], "test"), SUDOKU, slice(2, 3))
    text = "".join(map(str, puzzle.question.flat))
    typed = client.events(puzzle={"text": text}, steps=3)
    titles = ["the puzzle", *(f"ACT step {step} of 3" for step in (1, 2, 3))]
    assert [event["frame"]["title"] for event in typed[:-1]] == titles
    done, settled = typed[-1]["done"], typed[-1]["settled"]
    assert done == [event["frame"] for event in typed[:-1]]
    changed = [frame["words"][0] for frame in done[1:]]
    assert changed[settled:] == ["0 cells changed"] * (3 - settled)
    assert settled == 0 or changed[settled - 1] != "0 cells changed"
    names = [each["name"] for each in client.ask("found")["data"]]
    chosen = {"data": names.index(f"{sudoku_data} (test)"), "row": 2}
    assert client.events(puzzle=chosen, steps=3)[-1]["done"] == done
    several = client.events(puzzle={"text": text}, steps=2, chains=3)
    assert several[1]["frame"]["title"] == "chain 1 of 3, ACT step 1 of 2"
    assert re.search(r"(1 of 3 gives|[23] of 3 give) this answer", several[-1]["summary"])
    thought = several[-1]["thought"]
    assert client.ask("save", thought=thought).startswith(b"GIF89a")
    told = client.refused("save", thought=thought - 1)
    assert told == "these steps are no longer kept: solve the puzzle again"


def test_a_task_is_known_by_its_own_name() -> None:
    model, arc = Model("model", Path("model")), cast(Any, SimpleNamespace(kind=ARC))
    vars(model)["identifiers"] = ["<blank>", "abc|||t0|||0213456789", "bad|||t9|||0"]
    question = ARC.to_grid(encode_canvas(np.array([[1]], np.uint8)))
    known = model.as_known(Puzzle(ARC, question, name="abc"))
    assert (known.identifier, known.question[0, 0]) == (1, 4)
    assert "abc" in (model.known(arc) or ())
    with pytest.raises(DatasetError, match="the model has not seen bc in training"):
        model.as_known(Puzzle(ARC, question, name="bc"))


def test_a_round_counts_what_is_open_after_it() -> None:
    puzzle = SUDOKU.parse("1234" + 12 * ".")
    candidates = np.tile(np.arange(6) > 1, (16, 1))
    candidates[:4] = np.eye(6, dtype=bool)[2:]
    board = board_of_candidates(puzzle, candidates)
    told = shown(Frame(board, "round 1 of 2", ["13 cells open", "4 candidates struck", ""]))
    assert (told["verdict"], told["words"]) == ("12 cells open", ["4 candidates struck"])


def test_examples_are_of_the_models_kind_and_size(
    client: Client, opened: Callable[..., Client], maze_run: Path, tmp_path: Path
) -> None:
    (model,) = client.ask("found")["models"]
    example = client.ask("example", model=0, seed=5)
    assert (example["data"], len(example["text"])) == (model["data"][0], 16)
    # Without data a puzzle is made.
    shutil.rmtree(tmp_path / "maze")
    made = opened([maze_run], []).ask("example", model=0)
    assert list(made) == ["text"]
    assert sorted(made["text"].replace("#", "").replace(" ", "").split()) == ["G", "S"]


def test_arc_is_listed_by_task_with_its_demonstrations(
    opened: Callable[..., Client],
    save_run: Callable[..., Path],
    sudoku_run: Path,
    sudoku_data: Path,
    tmp_path: Path,
) -> None:
    data, tasks = tmp_path / "arc", tmp_path / "tasks" / "evaluation"
    tasks.mkdir(parents=True)
    pairs = [{"input": [[i, 1]], "output": [[1, i]]} for i in (2, 3, 4)]
    task = {"train": pairs[:2], "test": pairs[2:]}
    for name in ("first", "second"):
        (tasks / f"{name}.json").write_text(json.dumps(task))
    flags = f"--dataset-dirs={tmp_path / 'tasks'} --num-aug=3 --output-dir={data}"
    assert build_arc(flags.split()) == 0
    client = opened([save_run(tmp_path / "arc-run", data), sudoku_run], [sudoku_data])
    found = client.ask("found")
    kinds = [{found["data"][n]["kind"] for n in model["data"]} for model in found["models"]]
    assert sorted(kinds, key=str) == [{"ARC"}, {"Sudoku"}]
    model = kinds.index({"ARC"})
    listed = {"model": model, "of": "data", "number": found["models"][model]["data"][0]}
    first, second = client.ask("rows", **listed)["rows"]
    for name, row in (("first", first), ("second", second)):
        assert row["words"] == f"task {name}, puzzle {row['row']}, 2 cells of the input"
    assert client.ask("rows", **listed, text="SEC")["rows"] == [second]
    puzzle = {"data": listed["number"], "row": second["row"]}
    assert len(client.ask("board", model=model, puzzle=puzzle)["pairs"]) == 2
    told = client.refused("board", model=model, puzzle={"text": "12"})
    assert told == "ARC puzzles cannot be typed: choose one of a data set"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"puzzle": {"text": "12"}}, "2 cells do not form a Sudoku"),
        ({"puzzle": {"text": "." * 81}}, "81 cells; the model reads 16"),
        ({"puzzle": {"text": "11.............."}}, "digit 1 stands twice in row 1"),
        ({"puzzle": {"text": "x" * 300_000}}, "puzzle.text"),
        ({"puzzle": {"data": 99, "row": 0}}, "there is no data set with number 99"),
        ({"puzzle": {"data": 0, "row": 10**9}}, "but no number 1000000000"),
        ({"puzzle": {"data": -1, "row": 0}}, "puzzle.data"),
        ({"puzzle": {"text": EMPTY}, "steps": 10**6}, "steps"),
        ({"puzzle": {"text": EMPTY}, "model": 7}, "there is no model with number 7"),
        ({"puzzle": {"text": EMPTY}, "path": "/etc/passwd"}, "path"),
    ],
)
def test_mistakes_are_answered_with_a_sentence(client: Client, body: Any, told: str) -> None:
    assert told in client.refused("think", **{"model": 0, **body})


HERE, LENGTH = {"Host": "localhost:1", "Origin": "http://localhost:1"}, {"Content-Length": "2"}


@pytest.mark.parametrize(
    ("headers", "body", "status", "told"),
    [
        *((JSON, c, 400, "not a JSON object") for c in (b"{", b"[]", b"\xff\xfe", b"[" * 100_000)),
        ({"Content-Type": "text/plain"}, b"{}", 415, "accepted: application/json"),
        (JSON | {"Content-Length": "1000001"}, b"", 413, "more than 1,000,000 bytes"),
        (JSON | {"Content-Length": "9" * 5000}, b"", 413, "more than 1,000,000 bytes"),
        (JSON | {"Content-Length": "x"}, b"", 411, "length"),
        (JSON | LENGTH | {"Transfer-Encoding": "chunked"}, b"", 411, "length"),
        (JSON | LENGTH | {"content-length": "20"}, b"", 411, "length"),
        *(
            (JSON | {"Host": host}, b"{}", 403, "ssh -L PORT:localhost:PORT")
            for host in (
                *("evil.example:8765", "127.0.0.1.evil.example:80", "127.0.0.1:80@evil.example"),
                *("localhost:80:80", "0.0.0.0:8765", "localhost.evil.example", "gpu-box:8765"),
            )
        ),
        *(
            (JSON | {"Host": "127.0.0.1:8765", "Origin": origin}, b"{}", 403, "another site's page")
            for origin in (
                *("http://127.0.0.1:80", "http://localhost:8765", "http://evil.example", "null"),
                "https://127.0.0.1:8765",
            )
        ),
        *(
            (JSON | {"Sec-Fetch-Site": site}, b"{}", 403, "another site's page")
            for site in ("cross-site", "same-site")
        ),
        # A request through a forwarded ssh port.
        (JSON | HERE | {"Sec-Fetch-Site": "same-origin"}, b"{}", 200, ""),
        (JSON | {"Host": "[::1]:80"}, b"{}", 200, ""),
    ],
)
def test_what_a_page_of_its_own_does_not_send_is_refused(
    client: Client, headers: dict[str, str], body: bytes, status: int, told: str
) -> None:
    """The request is refused before its body is read, and the connection ends."""
    found, answer = client.send("POST", "/api/found", body, **headers)
    assert (found, told in answer.get("error", "")) == (status, True)
    if status == 403:
        assert client.send("GET", "/", **headers)[0] == 403


@pytest.mark.parametrize(
    "part", ["", "GET / HTTP/1.1\r\nHost: 127", "POST /api/board HTTP/1.1\r\n{}\r\n\r\n{{"]
)
def test_a_request_that_does_not_come_ends(
    client: Client, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Handler, "timeout", 0.2)
    headers = ["Content-Type: application/json", "Content-Length: 9", "Host: localhost"]
    with socket.create_connection(("127.0.0.1", client.port), timeout=30) as sent:
        sent.sendall(part.format("\r\n".join(headers)).encode())
        assert sent.recv(1) == b""


def test_the_page_loads_nothing_from_elsewhere(client: Client) -> None:
    for name in ("", "viewer.css", "common.js", "editor.js", "player.js", "viewer.js"):
        status, content = client.send("GET", f"/{name}", Sec_Fetch_Site="none")
        text = content.decode()
        assert status == 200
        assert client.headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert "unsafe" not in client.headers["Content-Security-Policy"]
        assert not re.search("https?:", text)
        assert "//" not in re.sub(r"//\s.*|/\*\*.*", "", text)
    assert client.send("GET", "/../../etc/passwd")[0] == 404
    assert client.send("POST", "/api/_model", b"{}", **JSON)[0] == 404
    assert client.send("PUT", "/")[0] == 501


def test_rows_are_listed_by_the_page(client: Client, sudoku_data: Path) -> None:
    """The rows of original puzzles, each followed by three augmentations."""
    inputs = np.load(sudoku_data / "train" / "all__inputs.npy")[::4]
    names = [data["name"] for data in client.ask("found")["data"]]
    asked = {"model": 0, "of": "data", "number": names.index(f"{sudoku_data} (train)")}
    answer = client.ask("rows", **asked)
    assert answer["total"] == len(inputs)
    assert [row["row"] for row in answer["rows"]] == list(range(0, 4 * len(inputs), 4))
    assert answer["rows"][1]["words"] == f"puzzle 4, {(inputs[1] > 1).sum()} clues"
    assert answer["rows"][0]["svg"].startswith("<svg")
    assert client.ask("rows", **asked, page=10**6)["rows"] == []


def test_mistakes_of_an_evaluation_come_with_the_surest_first(
    opened: Callable[..., Client],
    sudoku_run: Path,
    sudoku_data: Path,
    tmp_path: Path,
    run_evaluation: Callable[..., Any],
) -> None:
    run_evaluation(tmp_path / "eval.json", f"checkpoint='{sudoku_run}'", "save_records=true")
    path = Path(shutil.move(tmp_path / "eval_records.csv", sudoku_run))
    client = opened([sudoku_run], [])
    assert [one["name"] for one in client.ask("found")["records"]] == [
        f"eval: {sudoku_data} (test)"
    ]
    records = list(csv.DictReader(path.read_text().splitlines()))
    wrong = [record for record in records if record["exact_accuracy"] != "1"]
    wrong.sort(key=lambda record: -float(record["q_halt"]))
    answer = client.ask("rows", **RECORDS)
    assert answer["total"] == len(wrong)
    first = answer["rows"][0]
    assert first["row"] == int(wrong[0]["index"])
    assert first["words"].startswith(f"puzzle {wrong[0]['index']}: wrong, ")
    assert "% of the cells right" in first["words"]
    assert client.ask("rows", **RECORDS, wrong_only=False)["total"] == len(records)
    path.write_text("set,index,exact_accuracy\nother,x,1\n")
    told = opened([sudoku_run], []).refused("rows", **RECORDS)
    assert "not the records of an evaluation" in told
    path.write_text("set,index,exact_accuracy,q_halt,odd\nall,1,0,nan,inf\nall,2,0,0.5,x\n")
    answer = opened([sudoku_run], []).ask("rows", **RECORDS)
    assert [row["row"] for row in answer["rows"]] == [2, 1]
    path.write_text("set,index,valid,exact_accuracy,q_halt\nall,1,1,0,0.5\nall,2,0,0,0.5\n")
    answer = opened([sudoku_run], []).ask("rows", **RECORDS)
    assert [row["row"] for row in answer["rows"]] == [2]


def test_an_evaluation_comes_with_the_data_that_it_measured(
    opened: Callable[..., Client], sudoku_run: Path, sudoku_data: Path
) -> None:
    records, result = sudoku_run / "eval_records.csv", sudoku_run / "eval.json"
    records.write_text("set,index,exact_accuracy\nall,7,0\n")
    result.write_text(json.dumps({"data": [str(sudoku_data / "train")]}))
    client = opened([sudoku_run], [])
    number, found = client.ask("rows", **RECORDS)["data"], client.ask("found")
    assert found["data"][number]["name"] == f"{sudoku_data} (train)"
    records.unlink()
    records.mkdir()
    assert "eval_records.csv: " in opened([sudoku_run], []).refused("rows", **RECORDS)
    result.write_text(json.dumps({"data": ["elsewhere/test"]}))
    assert opened([sudoku_run], []).ask("found")["records"] == []


def test_the_mistakes_of_a_search_are_listed(
    opened: Callable[..., Client], sudoku_run: Path
) -> None:
    lines = ["set,index,solved,wrong,abstained", "all,1,1,0,0", "all,2,0,1,0", "all,3,0,0,1"]
    (sudoku_run / "eval_records.csv").write_text("\n".join(lines))
    rows = opened([sudoku_run], []).ask("rows", **RECORDS)["rows"]
    assert [row["words"] for row in rows] == ["puzzle 2: wrong", "puzzle 3: no answer"]


def test_records_are_found_where_evaluate_writes_them(
    sudoku_run: Path, sudoku_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    models = [Path("zoo:sudoku-4x4"), sudoku_run / "step_12"]
    places = [Path("outputs/zoo--sudoku-4x4/eval_sudoku-4x4"), sudoku_run / "eval_step_12"]
    for place in (*places, sudoku_run / "eval_step_123"):
        place.parent.mkdir(parents=True, exist_ok=True)
        Path(f"{place}.json").write_text(json.dumps({"data": [str(sudoku_data / "test")]}))
        Path(f"{place}_records.csv").write_text("set,index,exact_accuracy\nall,7,0\n")
    found = find(models, [sudoku_data]).records
    assert [(one.model, one.name) for one in found] == [
        (model, place.name) for model, place in zip(models, places, strict=True)
    ]


def test_a_checkpoint_without_facts_is_shown_as_its_data(
    maze_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Model, "trained", replace(Model("run", maze_run).trained, facts=None))
    for place in ("maze", "moved"):  # The run knows only the first.
        shelf = find([maze_run], [(tmp_path / "maze").rename(tmp_path / place)])
        facts = shelf.models[0].facts(shelf)
        assert (facts["kind"], facts["size"]) == ("maze", 6)


def test_puzzles_without_one_solution_are_told(client: Client) -> None:
    for text, told in ((EMPTY, "several solutions"), ("123........4....", "no solution")):
        events = client.events(puzzle={"text": text}, steps=1)
        assert told in events[0]["note"]
        assert events[-1]["done"]


def test_what_nobody_foresaw_is_told_too(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apps.viewer.server.svg_of", lambda board: 1 / 0)
    status, answer = client.post("board", {"model": 0, "puzzle": {"text": EMPTY}})
    told = "the viewer failed: ZeroDivisionError: division by zero"
    assert (status, answer["error"]) == (500, told)


def test_broken_things_are_listed_with_their_reason(
    opened: Callable[..., Client], sudoku_run: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "data" / "broken"
    (broken / "test").mkdir(parents=True)
    (broken / "test" / "dataset.json").write_text("{")
    for path in sudoku_run.glob("step_*/model.safetensors"):
        path.write_bytes(b"")
    (tmp_path / "nothing").mkdir()
    runs = [sudoku_run, tmp_path / "nothing", tmp_path / "gone"]
    found = opened(runs, [tmp_path / "data"]).ask("found")
    assert len(found["models"]) == 2
    assert all("error" in model for model in found["models"])
    assert "dataset.json" in found["data"][0]["error"]


def test_a_broken_data_set_hinders_no_example(
    opened: Callable[..., Client], maze_run: Path, tmp_path: Path
) -> None:
    shutil.rmtree(tmp_path / "maze")
    broken = tmp_path / "data" / "broken" / "test"
    broken.mkdir(parents=True)
    (broken / "dataset.json").write_text("{")
    client = opened([maze_run], [tmp_path / "data"])
    assert client.ask("found")["models"][0]["data"] == [0]
    assert list(client.ask("example", model=0)) == ["text"]


def test_what_has_come_since_is_found_when_a_page_is_opened(
    opened: Callable[..., Client], save_run: Callable[..., Path], sudoku_data: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    save_run(folder / "m", sudoku_data)
    client = opened([folder], [sudoku_data])

    def names() -> list[str]:
        return [Path(model["name"]).name for model in client.ask("found")["models"]]

    assert names() == ["m"]
    save_run(folder / "a", sudoku_data)
    assert names() == ["m", "a"]
    # A newer checkpoint replaces the newest one.
    save_run(folder / "m", sudoku_data, step=13)
    shutil.rmtree(folder / "m" / "step_12")
    assert client.events(puzzle={"data": 0, "row": 0}, steps=1)[-1]["train_step"] == 13
    shutil.rmtree(folder / "m")
    assert names() == ["m", "a"]


def test_a_new_question_ends_the_one_before(sudoku_run: Path, sudoku_data: Path) -> None:
    (puzzle,) = puzzles_of(PuzzleDataset([sudoku_data], "test"), SUDOKU, slice(0, 1))
    thinker, trained = Thinker(), find([sudoku_run], []).models[0].trained
    first, second, begun = list[Any](), list[Any](), threading.Event()

    def tell(event: Any) -> None:
        first.append(event)
        if len(first) == 2:
            begun.set()

    asked = (trained, puzzle, Options(steps=1024), tell)
    thinking = threading.Thread(target=thinker.think, args=asked)
    thinking.start()
    assert begun.wait(60)
    thinker.think(trained, puzzle, Options(steps=2), second.append)
    thinking.join()
    assert second[-1]["done"][-1]["title"] == "ACT step 2 of 2"
    titles = [event["frame"]["title"] for event in first[:2]]
    assert titles == ["the puzzle", "ACT step 1 of 1024"]
    assert first[-1] == {"error": "stopped"}
    assert len(first) < 1024


def test_a_port_that_is_taken_is_named(
    client: Client, sudoku_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert viewer.main([str(sudoku_run), "--port", str(client.port)]) == 2
    told = f"--port {client.port}: Address already in use; --port 0 takes any free one"
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("port", ["87650", "-1"])
def test_a_port_that_cannot_be_is_refused(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        viewer.main([f"--port={port}"])
    assert "accepted: an integer, 0 to 65535" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["gone"], "error: gone: no such file or folder\n"),
        ([".", "--data", "gone"], "error: gone: no such file or folder\n"),
        (["."], "error: .: no run found; train one (make demo), or name a run's folder\n"),
        (["zoo:sudoku-4by4"], "error: zoo:sudoku-4by4: the zoo has no such model; did you mean"),
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
    out, err = capsys.readouterr()
    assert (out, err[: len(told)]) == ("", told)


# In a browser


@pytest.fixture
def page(
    browser: Any,
    opened: Callable[..., Client],
    sudoku_run: Path,
    maze_run: Path,
    sudoku_data: Path,
    tmp_path: Path,
) -> Iterator[Any]:
    """The page of a viewer with a Sudoku model and a maze model, with its example."""
    client = opened([sudoku_run, maze_run], [sudoku_data, tmp_path / "maze"])
    browser.set_window_size(1280, 960)
    browser.get_log("browser")  # Clears the log of the page before.
    browser.get(f"http://127.0.0.1:{client.port}/")
    until(browser, lambda: browser.find_elements("css selector", "#board svg"))
    yield browser
    assert browser.get_log("browser") == []
    browser.get("about:blank")


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


def leave_fields(page: Any) -> None:
    page.execute_script("document.activeElement.blur()")


def type_in(page: Any, *keys: str) -> None:
    """Clear the grid, and type keys from its first cell on."""
    element(page, "clear").click()
    page.execute_script("document.querySelector('[role=gridcell]').focus()")
    press(page, *keys)


def grid_of(page: Any) -> str:
    cells = page.find_elements("css selector", "[role=gridcell]")
    return "".join(cell.text or "." for cell in cells)


def solved(page: Any) -> str:
    """Skip to the last step; return the verdict on the answer."""
    element(page, "skip").click()
    until(page, lambda: element(page, "save").is_displayed())
    return element(page, "verdict").text


def digits_of(page: Any) -> str:
    return "".join(text.text for text in page.find_elements("css selector", "#board svg text"))


def choose(page: Any, number: int) -> None:
    from selenium.webdriver.support.ui import Select

    Select(element(page, "model")).select_by_index(number)


@pytest.mark.slow
def test_a_typed_sudoku_is_solved_by_the_newest_checkpoint(
    page: Any, save_run: Callable[..., Path], sudoku_run: Path, sudoku_data: Path
) -> None:
    from selenium.webdriver.common.keys import Keys

    (puzzle,) = puzzles_of(PuzzleDataset([sudoku_data], "test"), SUDOKU, slice(0, 1))
    cells = "".join(str(digit) if digit else "." for digit in puzzle.question.flat)
    type_in(page, *cells)
    assert grid_of(page) == cells
    save_run(sudoku_run, sudoku_data, step=1300)
    press(page, Keys.ENTER)
    verdict, told = solved(page), list[Any]()
    chosen = element(page, "model").find_element("css selector", "option:checked")
    assert chosen.text == f"{sudoku_run}, step 1,300 (Sudoku)"
    Thinker().think(find([sudoku_run], []).models[0].trained, puzzle, Options(), told.append)
    last = told[-1]["done"][-1]
    assert verdict == last["verdict"]
    assert digits_of(page) == "".join(re.findall(r">([^<]*)</text>", last["svg"]))
    assert element(page, "place").text == f"{told[-1]['settled']} / 3"
    leave_fields(page)
    press(page, ",", ",", ",", ".")
    assert element(page, "place").text == "1 / 3"
    assert "ACT step 1 of 3" in element(page, "words").text


@pytest.mark.slow
def test_the_grid_takes_keys_the_keypad_and_what_is_pasted(page: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    type_in(page, "3", Keys.ARROW_LEFT, Keys.BACKSPACE)
    assert grid_of(page) == EMPTY
    page.find_elements("css selector", "[role=gridcell]")[5].click()
    keys = page.find_elements("css selector", "#keypad button")
    assert [key.text for key in keys] == ["1", "2", "3", "4", "\u232b"]
    keys[2].click()
    assert grid_of(page) == ".....3.........."
    keys[4].click()
    assert grid_of(page) == EMPTY
    paste = """
        const data = new DataTransfer(); data.setData("text", arguments[0]);
        const event = new ClipboardEvent("paste", {clipboardData: data, bubbles: true});
        document.querySelector("[role=gridcell]").dispatchEvent(event);"""
    page.execute_script(paste, "12|34\n34|..\n..|..\n43|.1")
    assert grid_of(page) == "123434......43.1"
    page.execute_script(paste, "+--+--+\n|12|--|\n|34|--|\n+--+--+\n|--|34|\n|43|-1|\n+--+--+")
    assert grid_of(page) == "12..34....3443.1"
    page.execute_script(paste, "12345")
    assert element(page, "message").text == "5 cells; the model reads 16"


@pytest.mark.slow
def test_each_tab_solves_what_it_shows(page: Any) -> None:
    type_in(page, "4")
    element(page, "tab-data").click()
    rows = until(page, lambda: page.find_elements("css selector", "#rows button"))
    # The first puzzle of the list is chosen.
    until(page, lambda: page.find_elements("css selector", "[aria-current=true]"))
    until(page, lambda: len(digits_of(page)) > 1)
    assert element(page, "puzzle").text == "puzzle 0"
    assert element(page, "pages").text == f"{len(rows)} puzzles, page 1 of 1"
    element(page, "solve").click()
    assert solved(page)
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
def test_another_model_ends_the_thoughts_of_the_one_before(page: Any) -> None:
    type_in(page, "1", "2")
    element(page, "steps").send_keys("1024")
    element(page, "solve").click()

    def steps() -> int:
        return int(element(page, "step").get_attribute("max"))

    until(page, lambda: steps() > 3)
    # A user who goes back stays at that step.
    leave_fields(page)
    press(page, ",")
    place, number = element(page, "place").text.partition(" / ")[0], steps()
    until(page, lambda: steps() > number)
    assert element(page, "place").text.partition(" / ")[0] == place
    choose(page, 1)
    assert element(page, "board").get_attribute("aria-busy") is None
    assert element(page, "place").text == ""
    # The board of the other kind shows a puzzle of its data.
    until(page, lambda: page.find_elements("css selector", "#editor .start"))
    until(page, lambda: element(page, "verdict").text == "the puzzle")
    type_in(page, "s", ".", "#", "g")
    first = page.find_elements("css selector", "[role=gridcell]")[:4]
    assert [cell.get_attribute("class") for cell in first] == ["start", "free", "wall", "goal"]
    element(page, "steps").clear()
    element(page, "solve").click()
    assert "path from S to G" in solved(page)
    element(page, "another").click()
    until(page, lambda: page.find_elements("css selector", ".wall")[1:])
    assert len(page.find_elements("css selector", ".start")) == 1
    choose(page, 0)
    assert "path" not in element(page, "verdict").text
    # The list is that of the new model, too.
    element(page, "tab-data").click()
    until(page, lambda: "clues" in element(page, "rows").text)
    choose(page, 1)
    until(page, lambda: "path" in element(page, "rows").text)
    until(page, lambda: element(page, "puzzle").text == "puzzle 0")
    assert element(page, "message").text == ""


@pytest.mark.slow
def test_a_link_opens_the_puzzle_again(page: Any) -> None:
    puzzle, address = grid_of(page), page.current_url
    choose(page, 1)
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
    page.get(address.partition("#")[0] + "#model=<b>gone")
    until(page, lambda: element(page, "message").text.endswith("model of this link: <b>gone"))


@pytest.mark.slow
def test_a_link_opens_while_a_list_is_shown(page: Any) -> None:
    puzzle, address = grid_of(page), page.current_url

    def show_list() -> None:
        element(page, "tab-data").click()
        until(page, lambda: "row=0" in page.current_url)

    show_list()
    page.get(address)
    until(page, lambda: grid_of(page) == puzzle)
    until(page, lambda: digits_of(page) == puzzle.replace(".", ""))
    show_list()
    page.get(address.partition("&")[0])  # It names only the model.
    until(page, lambda: "puzzle=" in page.current_url)
    assert element(page, "own").is_displayed()


@pytest.mark.slow
def test_quick_clicks_stay_within_the_pages(page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apps.viewer.server._PER_PAGE", 3)
    back, on, shown = (element(page, name) for name in ("before", "after", "pages"))
    click = "for (let n = 0; n < 9; n++) arguments[0].click()"
    element(page, "tab-data").click()
    until(page, on.is_enabled)
    page.execute_script(click, on)
    until(page, lambda: re.search(r"page (\d+) of \1$", shown.text))
    page.execute_script(click, back)
    until(page, lambda: "page 1 of " in shown.text)
    assert page.find_elements("css selector", "#rows button")
    element(page, "tab-records").click()  # There are none.
    assert not any(button.is_enabled() for button in (back, on))


@pytest.mark.slow
def test_a_thought_plays_step_by_step_to_where_it_settles(page: Any) -> None:
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
def test_the_note_on_a_puzzle_goes_when_it_is_corrected(page: Any) -> None:
    type_in(page, "1")
    until(page, lambda: "several solutions" in element(page, "message").text)
    press(page, *"23434122143432")
    until(page, lambda: digits_of(page) == "123434122143432")
    assert element(page, "message").text == ""


@pytest.mark.slow
def test_the_page_tells_that_the_viewer_has_ended(
    page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Thinker, "think", lambda *_: None)
    monkeypatch.setattr(Adapter, "adapt", lambda *_: None)
    told = "the viewer ended before it answered"
    element(page, "solve").click()
    until(page, lambda: element(page, "message").text == told)
    assert element(page, "play").text == "Play"
    assert element(page, "verdict").text == ""
    element(page, "tab-task").click()
    assert element(page, "message").text == ""
    element(page, "adapt").click()
    until(page, lambda: element(page, "message").text == told)
    assert element(page, "progress").text == ""


# Look inside


def test_a_puzzle_of_a_data_set_draws_the_numbers_of_its_row(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, with_draws = list[int](), think.with_draws

    def watch(arrays: Any, model: Any, seed: int, first: Any, chain: int = 0) -> Any:
        rows.append(int(np.ravel(first)[0]))
        return with_draws(arrays, model, seed, first, chain)

    monkeypatch.setattr("apps.inside.course.with_draws", watch)
    monkeypatch.setattr("evaluation.think.with_draws", watch)
    for puzzle, row in (({"data": 0, "row": 2}, 2), ({"text": EMPTY}, 0)):
        client.events(puzzle=puzzle, steps=4)
        client.ask("inside", model=0, puzzle=puzzle, steps=4)
        client.ask("influence", model=0, puzzle=puzzle, steps=4, step=1)
        assert rows == [row] * 6  # Solve, the course, three tries, the course again.
        rows.clear()


def test_what_a_model_does_inside(client: Client) -> None:
    asked = {"model": 0, "puzzle": {"text": "1...2..........3"}, "steps": 6}
    thoughts = client.events(puzzle=asked["puzzle"], steps=6)
    found = client.ask("inside", **asked)
    assert np.shape(found["paths"]) == (1 + 3 + 3, 6, 2)
    assert np.isfinite(found["paths"]).all()
    assert found["tries"] == 3
    assert 0 < found["in_plane"] <= 1
    assert len(found["residual"]) == 5
    assert min(found["residual"]) > 0
    assert re.match("a fixed point|a cycle of|a drift|still moving", found["fate"])
    assert list(found["said"]) == ["z_L"]
    assert len(found["said"]["z_L"]) == 6
    assert all(board.startswith("<svg") for board in found["said"]["z_L"])
    again = client.ask("inside", **asked)
    assert again == found
    assert "fate needs 4 ACT steps" in client.refused("inside", **asked | {"steps": 2})
    later = client.events(puzzle=asked["puzzle"], steps=6)
    assert [e.get("frame") for e in later] == [e.get("frame") for e in thoughts]


@pytest.mark.parametrize("of", ["influence", "attention"])
def test_who_listens_to_whom(client: Client, of: str) -> None:
    asked = {"model": 0, "puzzle": {"text": "1...2..........3"}, "steps": 6, "of": of}
    found = np.array(client.ask("influence", step=2, **asked)["map"])
    assert found.shape == (16, 16)
    assert found.min() >= 0
    assert 0 < found.max() <= 1
    assert not np.array_equal(client.ask("influence", step=3, **asked)["map"], found)
    assert "step=7: this model took 6 steps" in client.refused("influence", step=7, **asked)


def test_a_search_has_no_steps_to_look_into(opened: Callable[..., Client]) -> None:
    client = opened([Path("zoo/sudoku-search").resolve()], [])
    number = next(i for i, m in enumerate(client.ask("found")["models"]) if m.get("searches"))
    puzzle = {"text": "." * 81}
    assert "this model searches" in client.refused("inside", model=number, puzzle=puzzle)


@pytest.mark.slow
def test_the_page_looks_inside(page: Any) -> None:
    type_in(page, "1", "2", "3")
    page.execute_script("document.querySelector('#steps').value = 6")
    element(page, "solve").click()
    solved(page)
    assert not page.find_elements("css selector", "#path circle")  # Closed: nothing is asked.
    page.find_element("css selector", "#inside summary").click()
    until(page, lambda: len(page.find_elements("css selector", "#path circle")) == 6)
    assert [t.text for t in page.find_elements("css selector", "#path text")] == list("123456")
    assert element(page, "fate").text
    page.execute_script("arguments[0].selectedIndex = 1", element(page, "latent"))
    page.execute_script("document.querySelector('#latent').onchange()")
    assert page.find_elements("css selector", "#said svg")
    element(page, "measure").click()
    until(page, lambda: len(page.find_elements("css selector", "#map button")) == 16)
    cells = page.find_elements("css selector", "#map button")
    page.execute_script("arguments[0].focus()", cells[5])
    assert cells[5].get_attribute("class") == "here"
    heard = [page.execute_script("return arguments[0].style.cssText", cell) for cell in cells]
    assert sum(float(re.search(r"--hears: ([\d.e-]+)", one)[1]) > 0 for one in heard) > 3  # type: ignore[index]
    page.execute_script("arguments[0].focus()", cells[5])
    press(page, "\ue014")  # The right arrow.
    assert cells[6].get_attribute("class") == "here"
    element(page, "clear").click()
    assert not element(page, "panels").is_displayed()


@pytest.mark.slow
def test_keys_open_and_close_the_inside(page: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    page.execute_script("document.querySelector('#inside summary').focus()")
    for key, is_open in ((Keys.ENTER, "true"), (Keys.SPACE, None)):
        press(page, key)
        assert element(page, "inside").get_attribute("open") == is_open
    assert element(page, "verdict").text == "the puzzle"


@pytest.mark.slow
def test_the_inside_of_several_chains_is_that_of_the_first(page: Any) -> None:
    page.execute_script("steps.value = 6; chains.value = 2")
    page.find_element("css selector", "#inside summary").click()
    element(page, "solve").click()
    until(page, lambda: element(page, "fate").text.endswith(" of the first chain"))


# Learning a new ARC task

TASK: dict[str, Any] = {
    "train": [{"input": [[c, 0]], "output": [[c, c]]} for c in (1, 2, 3)],
    "test": [{"input": [[4, 0]]}],
}


@pytest.mark.slow
def test_a_task_is_learnt(client: Client) -> None:
    answer = client.ask("adapt", task=TASK, minutes=0.1)
    events = [event for event in map(json.loads, answer.splitlines()) if event]
    steps = [event["step"] for event in events[:-1]]
    assert 0 < steps[0] < steps[1]
    assert all(event["loss"] > 0 for event in events[:-1])
    (two,) = events[-1]["guesses"]
    assert [set(guess) for guess in two] == [{"svg", "votes"}] * len(two)
    assert re.match(r"[1-8] of [48] votes: \w", two[0]["votes"])


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        ({"task": {"train": [], "test": []}}, "train is list of 0, expected a list of at least"),
        (
            {"task": {**TASK, "test": [{"input": [[11]]}]}},
            "test pair 1: input: row 1, column 1: 11",
        ),
        ({"task": TASK, "model": 0}, "this model does not read ARC tasks"),
        ({"task": TASK, "minutes": 0}, "minutes"),
        ({"task": [1]}, "task"),
    ],
)
def test_tasks_that_cannot_be_learnt_are_refused(client: Client, sent: Any, told: str) -> None:
    assert told in client.refused("adapt", **sent)


@pytest.mark.slow
def test_the_page_learns_a_task(page: Any) -> None:
    element(page, "tab-task").click()
    cells = page.find_elements("css selector", ".grid button")
    assert len(cells) == 27  # Two grids of a pair and a test input.
    page.find_element("css selector", "[aria-label='colour 3']").click()
    page.find_element("css selector", "[aria-label='pair 1, output'] button").click()
    drawn = json.loads(element(page, "json").get_property("value"))
    assert drawn["train"][0]["output"] == [[3, 0, 0], [0, 0, 0], [0, 0, 0]]
    script = (
        "const at = arguments[0]; at.value = arguments[1]; at.dispatchEvent(new Event('change'))"
    )
    page.execute_script(script, element(page, "json"), json.dumps({"train": 1}))
    assert element(page, "message").text == "this is no ARC task: see docs/arc.md"
    page.execute_script(script, element(page, "json"), "{")
    element(page, "adapt").click()
    assert element(page, "progress").text == ""
    page.execute_script(script, element(page, "json"), json.dumps(TASK))
    assert len(page.find_elements("css selector", ".grid button")) == 14
    page.execute_script(script, element(page, "minutes"), "0.1")
    element(page, "adapt").click()
    until(page, lambda: page.find_elements("css selector", "#losses polyline"))
    assert element(page, "losses").is_displayed()
    assert "loss" in element(page, "progress").text
    until(page, lambda: page.find_elements("css selector", "#guesses svg"))
    assert re.search("of [48] votes: ", element(page, "guesses").text)
    element(page, "tab-own").click()
    assert element(page, "board").is_displayed()
