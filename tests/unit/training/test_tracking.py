"""metrics.jsonl, and Weights & Biases beside it: whatever W&B does, the run and the file go on."""

import json
import os
import socket
import sys
import threading
import types
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from runtime.errors import CheckpointError, Preempted
from training import tracking
from training.checkpoint.store import Checkpoint
from training.config.composition import load_config
from training.config.schema import LoggerConfig, TrainConfig
from training.tracking import JsonlLog, Tracker, WandbLog, open_tracker


def at(step: int, position: int = 1) -> Checkpoint:
    """A checkpoint inside an iteration; with position 0 after an evaluation."""
    return Checkpoint(Path("unused"), {"step": step, "position": position})


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def trained(step: int) -> dict[str, Any]:
    return {"step": step, "train/lr": 1.0}


def evaluated(step: int) -> dict[str, Any]:
    return {"step": step, "eval/accuracy": 0.5}


# The file


def test_records_are_there_as_soon_as_they_are_logged(tmp_path: Path) -> None:
    log = JsonlLog(tmp_path / "m.jsonl", None)
    log.log([trained(1), trained(2)])
    assert lines(tmp_path / "m.jsonl") == [trained(1), trained(2)]
    log.close()


def test_numbers_that_json_has_no_name_for_are_strings(tmp_path: Path) -> None:
    log = JsonlLog(tmp_path / "m.jsonl", None)
    log.log([{"step": 1, "loss": float("nan"), "norm": float("-inf")}])
    log.close()
    assert lines(tmp_path / "m.jsonl") == [{"step": 1, "loss": "nan", "norm": "-inf"}]


def write(path: Path, records: list[dict[str, Any]], end: str = "") -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records) + end)


def reopened(path: Path, checkpoint: Checkpoint | None) -> list[dict[str, Any]]:
    JsonlLog(path, checkpoint).close()
    return lines(path)


def test_a_new_run_starts_the_file_anew(tmp_path: Path) -> None:
    write(tmp_path / "m.jsonl", [trained(1)])
    assert reopened(tmp_path / "m.jsonl", None) == []


def test_a_resumed_run_drops_what_came_after_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    write(path, [trained(1), trained(2), evaluated(2), trained(3), trained(4)])
    assert reopened(path, at(3)) == [trained(1), trained(2), evaluated(2), trained(3)]


def test_an_evaluation_that_comes_again_is_not_there_twice(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    write(path, [trained(1), trained(2), evaluated(2), trained(3)])
    assert reopened(path, at(2, position=0)) == [trained(1), trained(2), evaluated(2)]
    assert reopened(path, at(2, position=2)) == [trained(1), trained(2)]


@pytest.mark.parametrize("end", [b"\0\0\0", b"\xff\xfe\n", b"[]\n", b"{}\n", b"7\n"])
def test_what_a_power_loss_left_of_a_line_is_dropped(tmp_path: Path, end: bytes) -> None:
    path = tmp_path / "m.jsonl"
    write(path, [trained(1)])
    path.write_bytes(path.read_bytes() + end)
    assert reopened(path, at(3)) == [trained(1)]


def test_a_line_cut_by_a_kill_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    whole = json.dumps(trained(2))
    for end in ("{", '{"step": 2, "tr', whole, "\0\0\0"):
        write(path, [trained(1)], end)
        assert reopened(path, at(5)) == [trained(1)]


def test_a_file_that_was_deleted_is_started_anew(tmp_path: Path) -> None:
    assert reopened(tmp_path / "m.jsonl", at(5)) == []


@pytest.fixture
def on_full_disk(tmp_path: Path) -> Tracker:
    """A tracker whose file refuses whatever it is given, with half a line on its way there."""
    log = JsonlLog(tmp_path / "m.jsonl", None)
    log._file.close()
    log._file = Path("/dev/full").open("a")  # noqa: SIM115
    log._file.write("{")
    return Tracker(log, None)


REFUSED = r"m\.jsonl: could not be written: No space left on device; the checkpoints are untouched"


def test_a_disk_that_refuses_is_one_error_that_names_the_file(on_full_disk: Tracker) -> None:
    with pytest.raises(CheckpointError, match=REFUSED):
        on_full_disk.log([trained(1)])
    with pytest.raises(CheckpointError, match=REFUSED):
        on_full_disk.sync()
    with pytest.raises(CheckpointError, match=REFUSED), on_full_disk:
        pass


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").mkdir()
    with pytest.raises(CheckpointError, match=r"m\.jsonl: could not be written: Is a directory"):
        JsonlLog(tmp_path / "m.jsonl", None)


def test_closing_hides_no_other_error(on_full_disk: Tracker) -> None:
    with pytest.raises(Preempted), on_full_disk:
        raise Preempted


# W&B


class FakeRun:
    def __init__(self, calls: list[tuple[str, Any]], faults: set[str]) -> None:
        self.calls, self.faults = calls, faults
        self.released, self.finishes_in = threading.Event(), threading.main_thread()

    def log(self, values: dict[str, Any], step: int) -> None:
        self.calls.append(("log", (step, values)))
        if "log" in self.faults:
            raise ConnectionError("lost")

    def finish(self) -> None:
        self.calls.append(("finish", None))
        self.finishes_in = threading.current_thread()
        if "hang" in self.faults:
            self.released.wait()
        if "finish" in self.faults:
            raise RuntimeError("stuck")


class FakeWandb:
    """Stands for the module; fails where it is told to."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.faults: set[str] = set()

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        module = types.ModuleType("wandb")
        module.init = self.init  # type: ignore[attr-defined]
        module.Settings = lambda **settings: settings  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "wandb", module)
        for name in ("WANDB_API_KEY", "WANDB_BASE_URL"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("NETRC", os.devnull)

    def init(self, **options: Any) -> FakeRun:
        self.calls.append(("init", options))
        if "init" in self.faults:
            raise RuntimeError("no")
        return FakeRun(self.calls, self.faults)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    fake = FakeWandb()
    fake.install(monkeypatch)
    return fake


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., tuple[Tracker, WandbLog, list[str]]]:
    """Open both logs; returns tracker, W&B log and the warnings."""

    def open_both(run_id: str | None = None, mode: str = "auto") -> Any:
        warnings: list[str] = []
        log = WandbLog(
            LoggerConfig.model_validate({"mode": mode}),
            tmp_path,
            project="p",
            name="n",
            run_id=run_id,
            settings={"lr": 1.0},
            warn=warnings.append,
        )
        return Tracker(JsonlLog(tmp_path / "m.jsonl", None), log), log, warnings

    return open_both


def run_three_steps(tracker: Tracker) -> None:
    with tracker:
        for step in (1, 2, 3):
            tracker.log([trained(step)])
            tracker.sync()


def test_wandb_receives_every_record_under_its_step(
    wandb: FakeWandb, opened: Any, tmp_path: Path
) -> None:
    tracker, log, warnings = opened()
    run_three_steps(tracker)
    assert wandb.names == ["init", "log", "log", "log", "finish"]
    assert [value for name, value in wandb.calls if name == "log"] == [
        (step, {"train/lr": 1.0}) for step in (1, 2, 3)
    ]
    options = wandb.calls[0][1]
    assert (options["project"], options["name"], options["dir"]) == ("p", "n", str(tmp_path))
    assert options["mode"] == "offline"
    assert options["id"] == log.run_id == tracker.run_id
    assert options["settings"]["init_timeout"] == 10.0
    assert len(lines(tmp_path / "m.jsonl")) == 3
    assert warnings == []


def test_a_resumed_run_goes_on_in_the_same_wandb_run(wandb: FakeWandb, opened: Any) -> None:
    tracker, _, _ = opened(run_id="abc")
    run_three_steps(tracker)
    assert wandb.calls[0][1]["id"] == tracker.run_id == "abc"
    assert wandb.calls[0][1]["resume"] == "allow"


def test_new_runs_have_different_ids(wandb: FakeWandb, opened: Any) -> None:
    ids = set()
    for _ in range(3):
        tracker, _, _ = opened()
        run_three_steps(tracker)
        ids.add(tracker.run_id)
    assert len(ids) == 3


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_a_mode_asked_for_is_taken(wandb: FakeWandb, opened: Any, mode: str) -> None:
    run_three_steps(opened(mode=mode)[0])
    assert wandb.calls[0][1]["mode"] == mode


@pytest.mark.parametrize(
    ("fault", "called"),
    [
        ("init", ["init"]),
        ("log", ["init", "log"]),
        ("finish", ["init", "log", "log", "log", "finish"]),
    ],
)
def test_whatever_wandb_raises_is_said_once_and_the_run_goes_on(
    wandb: FakeWandb, opened: Any, tmp_path: Path, fault: str, called: list[str]
) -> None:
    wandb.faults = {fault}
    tracker, _, warnings = opened()
    run_three_steps(tracker)
    assert wandb.names == called
    assert len(warnings) == 1
    assert warnings[0].startswith("W&B failed (")
    assert [record["step"] for record in lines(tmp_path / "m.jsonl")] == [1, 2, 3]


def test_a_finish_that_hangs_is_left_alone(
    wandb: FakeWandb, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "_FINISH_SECONDS", 0.1)
    wandb.faults = {"hang", "finish"}
    tracker, log, warnings = opened()
    run = log._run
    run_three_steps(tracker)
    run.released.set()
    run.finishes_in.join()
    assert wandb.names[-1] == "finish"
    assert warnings == [
        "W&B has not finished within 0.1 s and is left alone; `wandb sync` sends what is missing"
    ]


def test_nothing_is_written_through_a_link_in_the_folder(
    wandb: FakeWandb, opened: Any, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "wandb").symlink_to(tmp_path / "elsewhere")
    tracker, _, warnings = opened()
    run_three_steps(tracker)
    assert wandb.names == []
    assert len(warnings) == 1
    assert f"is a link, expected a folder: '{tmp_path / 'wandb'}'" in warnings[0]
    assert lines(tmp_path / "m.jsonl") == [trained(1), trained(2), trained(3)]


def test_without_wandb_a_notice_says_how_to_get_it(
    opened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    tracker, _, warnings = opened()
    run_three_steps(tracker)
    assert len(warnings) == 1
    assert "pip install" in warnings[0]
    assert tracker.run_id is None
    assert [record["step"] for record in lines(tmp_path / "m.jsonl")] == [1, 2, 3]


# Online or offline


@pytest.fixture
def silent_server() -> Iterator[str]:
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def black_hole() -> Iterator[str]:
    """An address whose queue of connections is full: new ones are neither taken nor refused."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        address = server.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for client in waiting:
            client.setblocking(False)
            client.connect_ex(address)
        yield f"http://127.0.0.1:{address[1]}"
        for client in waiting:
            client.close()


class AnswersNotFound(BaseHTTPRequestHandler):
    def do_GET(self) -> None:  # noqa: N802
        self.send_error(404)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def answering_server() -> Iterator[str]:
    """A server that answers, if only that it has no such page."""
    with HTTPServer(("127.0.0.1", 0), AnswersNotFound) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def chosen_mode(
    wandb: FakeWandb, opened: Any, monkeypatch: pytest.MonkeyPatch, url: str, key: str | None
) -> str:
    monkeypatch.setenv("WANDB_BASE_URL", url)
    if key is not None:
        monkeypatch.setenv("WANDB_API_KEY", key)
    for proxy in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(proxy)
    monkeypatch.setattr(tracking, "_REACH_SECONDS", 0.3)
    tracker, _, warnings = opened()
    run_three_steps(tracker)
    assert warnings == []
    return wandb.calls[0][1]["mode"]


def test_online_with_a_key_and_a_server_that_answers(
    wandb: FakeWandb, opened: Any, monkeypatch: pytest.MonkeyPatch, answering_server: str
) -> None:
    assert chosen_mode(wandb, opened, monkeypatch, answering_server, "k" * 40) == "online"


def test_offline_without_a_key(
    wandb: FakeWandb, opened: Any, monkeypatch: pytest.MonkeyPatch, answering_server: str
) -> None:
    assert chosen_mode(wandb, opened, monkeypatch, answering_server, None) == "offline"


@pytest.mark.parametrize(("host", "mode"), [("127.0.0.1", "online"), ("elsewhere", "offline")])
def test_a_key_that_was_stored_by_a_login_counts_for_its_server(
    wandb: FakeWandb,
    opened: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    answering_server: str,
    host: str,
    mode: str,
) -> None:
    (tmp_path / "netrc").write_text(f"machine {host}\n  login user\n  password {'k' * 40}\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert chosen_mode(wandb, opened, monkeypatch, answering_server, None) == mode


@pytest.mark.parametrize("server", ["silent_server", "black_hole", "refused", "no address"])
def test_offline_when_the_server_does_not_answer(
    wandb: FakeWandb,
    opened: Any,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    server: str,
) -> None:
    fixed = {"refused": "http://127.0.0.1:1", "no address": "not a url"}
    url = fixed.get(server) or request.getfixturevalue(server)
    assert chosen_mode(wandb, opened, monkeypatch, url, "k" * 40) == "offline"


# What a run opens


@pytest.mark.parametrize(
    ("logger", "is_main", "files", "modules"),
    [
        ("jsonl", True, ["metrics.jsonl"], []),
        ("wandb", True, ["metrics.jsonl"], ["init", "log", "log", "log", "finish"]),
        ("wandb", False, [], []),
    ],
)
def test_only_the_first_rank_writes_and_only_what_was_asked_for(
    wandb: FakeWandb,
    tmp_path: Path,
    logger: str,
    is_main: bool,
    files: list[str],
    modules: list[str],
) -> None:
    settings = ["data_path=x", "project_name=p", "run_name=n", f"logger={logger}"]
    config = load_config(TrainConfig, "cfg_pretrain", settings)
    run_three_steps(open_tracker(config, tmp_path, None, is_main=is_main))
    assert [path.name for path in tmp_path.iterdir()] == files
    assert wandb.names == modules


def test_a_warning_is_one_line_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    tracking.warn("look here")
    assert capsys.readouterr() == ("", "warning: look here\n")
