"""Places for metrics beside metrics.jsonl: whatever they do, the run and the file go on."""

import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from training import logs
from training.config.composition import load_config
from training.config.schema import TrainConfig
from training.logs import WandbLog
from training.tracking import JsonlLog, Tracker, open_tracker


def config(*settings: str) -> TrainConfig:
    named = ["data_path=x", "project_name=p", "run_name=n", *settings]
    return load_config(TrainConfig, "cfg_pretrain", named)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def trained(step: int) -> dict[str, Any]:
    return {"step": step, "train/lr": 1.0}


# W&B


class FakeWandb:
    """Stands for the module and for its run; fails where it is told to."""

    Settings = dict

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.faults: set[str] = set()
        self.released, self.finishes_in = threading.Event(), threading.main_thread()

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.calls]

    def _called(self, name: str, value: Any) -> None:
        self.calls.append((name, value))
        if name in self.faults:
            raise (ConnectionError if name == "log" else RuntimeError)("told to fail")

    def init(self, **options: Any) -> "FakeWandb":
        self._called("init", options)
        return self

    def log(self, values: dict[str, Any], step: int) -> None:
        self._called("log", (step, values))

    def finish(self) -> None:
        self.finishes_in = threading.current_thread()
        if "hang" in self.faults:
            self.released.wait()
        self._called("finish", None)


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    for name in ("WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", os.devnull)
    return fake


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., tuple[Tracker, WandbLog, list[str]]]:
    """Open both logs; returns tracker, W&B log and the warnings."""

    def open_both(run_id: str | None = None, mode: str = "auto") -> Any:
        warnings: list[str] = []
        log = WandbLog(config(f"logger.mode={mode}"), tmp_path, run_id, warnings.append)
        return Tracker(JsonlLog(tmp_path / "m.jsonl", None), {"wandb": log}), log, warnings

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
    assert wandb.names == WHOLE
    logged = [value for name, value in wandb.calls if name == "log"]
    assert logged == [(step, {"train/lr": 1.0}) for step in (1, 2, 3)]
    options = wandb.calls[0][1]
    assert (options["project"], options["name"], options["dir"]) == ("p", "n", str(tmp_path))
    assert options["mode"] == "offline"
    assert options["id"] == log.run_id == tracker.run_ids["wandb"]
    assert options["settings"]["init_timeout"] == 10.0
    assert len(lines(tmp_path / "m.jsonl")) == 3
    assert warnings == []


def test_a_resumed_run_goes_on_in_the_same_wandb_run_and_others_have_their_own(
    wandb: FakeWandb, opened: Any
) -> None:
    ids = set()
    for run_id in ("abc", None, None):
        tracker, _, _ = opened(run_id=run_id)
        run_three_steps(tracker)
        ids.add(tracker.run_ids["wandb"])
    assert len(ids) == 3
    assert "abc" in ids
    assert (wandb.calls[0][1]["id"], wandb.calls[0][1]["resume"]) == ("abc", "allow")


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_a_mode_asked_for_is_taken(wandb: FakeWandb, opened: Any, mode: str) -> None:
    run_three_steps(opened(mode=mode)[0])
    assert wandb.calls[0][1]["mode"] == mode


WHOLE = ["init", "log", "log", "log", "finish"]


@pytest.mark.parametrize(
    ("fault", "called"), [("init", WHOLE[:1]), ("log", WHOLE[:2]), ("finish", WHOLE)]
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
    monkeypatch.setattr(logs, "_FINISH_SECONDS", 0.1)
    wandb.faults = {"hang", "finish"}
    tracker, _, warnings = opened()
    run_three_steps(tracker)
    wandb.released.set()
    wandb.finishes_in.join()
    assert wandb.names[-1] == "finish"
    assert warnings == [
        "W&B has not finished within 0.1 s and is left behind; `wandb sync` sends what is missing"
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
    assert tracker.run_ids == {}
    assert [record["step"] for record in lines(tmp_path / "m.jsonl")] == [1, 2, 3]


# Online or offline


@pytest.fixture
def silent_server() -> Iterator[str]:
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


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


@pytest.fixture
def chosen_mode(wandb: FakeWandb, opened: Any, monkeypatch: Any) -> Callable[..., str]:
    def choose(url: str, key: str | None) -> str:
        monkeypatch.setenv("WANDB_BASE_URL", url)
        if key is not None:
            monkeypatch.setenv("WANDB_API_KEY", key)
        for proxy in [name for name in os.environ if name.lower().endswith("_proxy")]:
            monkeypatch.delenv(proxy)
        monkeypatch.setattr(logs, "_REACH_SECONDS", 0.3)
        tracker, _, warnings = opened()
        run_three_steps(tracker)
        assert warnings == []
        return wandb.calls[0][1]["mode"]

    return choose


KEY = "k" * 40


@pytest.mark.parametrize(
    ("login", "mode"),
    [("key", "online"), (None, "offline"), ("127.0.0.1", "online"), ("elsewhere", "offline")],
)
def test_online_needs_a_key_for_the_server(
    chosen_mode: Any, monkeypatch: Any, tmp_path: Path, answering_server: str, login: Any, mode: str
) -> None:
    logins = tmp_path / "netrc"
    logins.write_text(f"machine {login}\n  login user\n  password {KEY}\n")
    monkeypatch.setenv("NETRC", str(logins))
    assert chosen_mode(answering_server, KEY if login == "key" else None) == mode


@pytest.mark.parametrize("server", ["silent_server", "refused", "no address"])
def test_offline_when_the_server_does_not_answer(
    chosen_mode: Any, request: Any, server: str
) -> None:
    fixed = {"refused": "http://127.0.0.1:1", "no address": "not a url"}
    url = fixed.get(server) or request.getfixturevalue(server)
    assert chosen_mode(url, KEY) == "offline"


# What a run opens


@pytest.mark.parametrize(("logger", "calls"), [("jsonl", []), ("wandb", WHOLE)])
def test_only_what_was_asked_for_is_opened(
    wandb: FakeWandb, tmp_path: Path, logger: str, calls: list[str]
) -> None:
    run_three_steps(open_tracker(config(f"logger={logger}"), tmp_path, None))
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
    assert wandb.names == calls
