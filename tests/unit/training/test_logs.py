"""Logs beside metrics.jsonl. If they fail or hang, the run and the file go on.

TensorBoard and MLflow are tested with the real packages: with TensorBoard's reader and MLflow's
database.
"""

import json
import os
import shutil
import socket
import struct
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from runtime.errors import NonFiniteError, Preempted
from training import logs, tracking
from training.checkpoint.store import Checkpoint, RunState
from training.config.composition import load_config
from training.config.schema import TrainConfig
from training.tracking import Tracker, open_tracker

ROOT = Path(__file__).resolve().parents[3]
Points = dict[str, list[tuple[int, float]]]


def config(*settings: str) -> TrainConfig:
    named = ["data_path=x", "project_name=p", "run_name=n", *settings]
    return load_config(TrainConfig, "cfg_pretrain", named)


def trained(step: int) -> dict[str, Any]:
    return {"step": step, "train/lr": step / 7, "train/count": step}


def evaluated(step: int) -> dict[str, Any]:
    return {"step": step, "eval/accuracy": step / 9}


def at(step: int, tracker: Tracker | None = None, position: int = 1) -> Checkpoint:
    """Return a checkpoint before the evaluation of its step; after it with position 0."""
    ids = {f"{name}_id": run_id for name, run_id in (tracker.run_ids if tracker else {}).items()}
    return Checkpoint(Path("unused"), RunState(step=step, position=position, **ids))


def written(run_dir: Path) -> Points:
    """Return the numbers in metrics.jsonl, by name."""
    points: Points = defaultdict(list)
    for record in map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines()):
        for name in record.keys() - {"step", "note"}:
            points[name].append((record["step"], float(record[name])))
    return points


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remove keys and servers from the environment, and restore it afterwards."""
    names = [name for name in os.environ if name.startswith(("MLFLOW_", "WANDB_"))]
    for name in [*names, *(name for name in os.environ if name.lower().endswith("_proxy"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", os.devnull)
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The warnings so far."""
    said: list[str] = []
    monkeypatch.setattr(tracking, "warn", said.append)
    return said


@pytest.fixture
def three_steps(tmp_path: Path, warnings: list[str]) -> Callable[..., Any]:
    """Make a run of three steps that calls `meanwhile` after the first. Return its tracker."""

    def run(
        *settings: str,
        checkpoint: Checkpoint | None = None,
        meanwhile: Callable[[Tracker], None] | None = None,
    ) -> Any:
        warnings.clear()
        with open_tracker(config(*settings), tmp_path, checkpoint) as tracker:
            tracker.log([trained(1)])
            if meanwhile:
                meanwhile(tracker)
            tracker.log([trained(2)])
            tracker.log([trained(3)])
        assert [step for step, _ in written(tmp_path)["train/lr"]][-3:] == [1, 2, 3]
        return tracker

    return run


# W&B


class FakeWandb:
    """A stand-in for the module `wandb` and its run, which fails in the calls named in `faults`."""

    Settings = dict
    Video: Any = None

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.faults: set[str] = set()
        self.released = threading.Event()

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
        if "hang" in self.faults:
            self.released.wait(60.0)
        self._called("finish", None)


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


WHOLE = ["init", "log", "log", "log", "finish"]


def test_wandb_receives_every_record_under_its_step(
    wandb: FakeWandb, three_steps: Any, warnings: list[str], tmp_path: Path
) -> None:
    tracker = three_steps("logger=wandb")
    assert wandb.names == WHOLE
    logged = [value for name, value in wandb.calls if name == "log"]
    assert logged == [(s, {"train/lr": s / 7, "train/count": float(s)}) for s in (1, 2, 3)]
    options = wandb.calls[0][1]
    assert (options["project"], options["name"], options["dir"]) == ("p", "n", str(tmp_path))
    assert options["id"] == tracker.run_ids["wandb"]
    assert options["settings"]["init_timeout"] == 10.0
    assert warnings == []


def test_a_resumed_run_goes_on_in_the_same_wandb_run_and_others_have_their_own(
    wandb: FakeWandb, three_steps: Any
) -> None:
    first = three_steps("logger=wandb")
    again = three_steps("logger=wandb", checkpoint=at(0, first))
    other = three_steps("logger=wandb")
    assert first.run_ids == again.run_ids != other.run_ids
    resumed = [value for name, value in wandb.calls if name == "init"][1]
    assert (resumed["id"], resumed["resume"]) == (first.run_ids["wandb"], "allow")


@pytest.mark.parametrize(
    ("fault", "called"), [("init", WHOLE[:1]), ("log", WHOLE[:2]), ("finish", WHOLE)]
)
def test_whatever_wandb_raises_is_said_once_and_the_run_goes_on(
    wandb: FakeWandb, three_steps: Any, warnings: list[str], fault: str, called: list[str]
) -> None:
    wandb.faults = {fault}

    def wait(tracker: Any) -> None:
        tracker.others["wandb"]._thread.join(0.2)

    three_steps("logger=wandb", meanwhile=wait)
    assert wandb.names == called
    (warning,) = warnings
    assert warning.startswith("W&B failed (")


def test_a_finish_that_hangs_is_left_alone(
    wandb: FakeWandb, three_steps: Any, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_FINISH_SECONDS", 0.2)
    wandb.faults = {"hang", "finish"}
    tracker = three_steps("logger=wandb")
    wandb.released.set()
    tracker.others["wandb"]._thread.join()
    assert wandb.names[-1] == "finish"
    (warning,) = warnings
    assert warning.startswith("W&B has not finished within 0.2 s; the run goes on without it, and")


KEY = "k" * 40


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, int]]:
    """Ports of a server that answers (with an error), of one that accepts connections but never
    answers, and of no server.
    """
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as answering,
    ):
        threading.Thread(target=answering.serve_forever, daemon=True).start()
        silence = silent.getsockname()[1]
        yield {"answering": answering.server_port, "silent": silence, "refused": 1}
        answering.shutdown()


@pytest.mark.parametrize(
    ("server", "login", "mode", "asked"),
    [
        *(("answering", "key", "online", []), ("answering", "127.0.0.1", "online", [])),
        *(("answering", "elsewhere", "offline", []), ("answering", "?", "offline", [])),
        *((server, "key", "offline", []) for server in ("silent", "refused", "not a url")),
        ("answering", "key", "offline", ["logger.mode=offline"]),
        ("refused", "?", "online", ["logger.mode=online"]),
    ],
)
def test_online_is_asked_for_or_needs_a_key_for_the_server_and_its_answer(
    wandb: FakeWandb,
    three_steps: Any,
    servers: dict[str, int],
    warnings: list[str],
    tmp_path: Path,
    monkeypatch: Any,
    server: str,
    login: str,
    mode: str,
    asked: list[str],
) -> None:
    line = "not of this form" if login == "?" else f"machine {login} login user password {KEY}"
    (tmp_path / "netrc").write_text(line)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    url = f"http://127.0.0.1:{servers[server]}" if server in servers else server
    monkeypatch.setenv("WANDB_BASE_URL", url)
    if login == "key":
        monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setattr(logs, "_REACH_SECONDS", 0.3)
    three_steps("logger=wandb", *asked)
    assert (wandb.calls[0][1]["mode"], warnings) == (mode, [])


@pytest.mark.parametrize(
    ("key", "why"),
    [("", "nobody is logged in (wandb login)"), (KEY, "http://127.0.0.1:1 does not answer")],
)
def test_a_run_that_is_not_uploaded_says_why_and_how_to_upload_it(
    wandb: FakeWandb,
    three_steps: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    key: str,
    why: str,
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("WANDB_API_KEY", key)
    three_steps("logger=wandb")
    how = f"wandb sync {tmp_path}/wandb/offline-run-*"
    assert capsys.readouterr().err == f"W&B is offline, because {why}; to upload: {how}\n"


def test_the_variable_of_wandb_decides_unless_a_setting_does(
    wandb: FakeWandb, three_steps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    three_steps("logger=wandb")
    three_steps("logger=wandb", "logger.mode=offline")
    assert [given["mode"] for name, given in wandb.calls if name == "init"] == [None, "offline"]


# Pictures


@pytest.fixture
def gif(tmp_path: Path) -> Path:
    """A GIF of 7 x 5 pixels with two frames."""
    image = pytest.importorskip("PIL.Image")
    first, second = (image.new("RGB", (7, 5), colour) for colour in ("red", "blue"))
    first.save(tmp_path / "two.gif", save_all=True, append_images=[second])
    return tmp_path / "two.gif"


def test_pictures_go_to_wandb_and_tensorboard_alone(
    wandb: FakeWandb, gif: Path, warnings: list[str], tmp_path: Path
) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    wandb.Video = lambda path: f"video of {path}"
    with open_tracker(config("logger=[wandb,tensorboard]"), tmp_path, None) as tracker:
        tracker.log([trained(1)])
        for log in tracker.others.values():
            log.log([{"step": 1, "pictures": gif}])
    assert warnings == []
    assert wandb.calls[2] == ("log", (1, {"pictures": f"video of {gif}"}))
    events = reading.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    (image,) = events.Images("pictures")
    assert (image.step, image.width, image.height) == (1, 7, 5)
    assert image.encoded_image_string == gif.read_bytes()
    assert written(tmp_path).keys() == {"train/lr", "train/count"}


# TensorBoard and MLflow


BOTH = "logger=[tensorboard,mlflow]"
ODD = {"train/nan": float("nan"), "train/inf": float("-inf"), "eval/arc/pass@1": 1 / 3}


def as_float32(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]


def in_tensorboard(run_dir: Path) -> Points:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = reading.EventAccumulator(str(run_dir / "tensorboard"), {"scalars": 0})
    events.Reload()
    names = events.Tags()["scalars"]
    return {name: [(e.step, e.value) for e in events.Scalars(name)] for name in names}


def in_mlflow(run_dir: Path) -> Points:
    client, run = the_mlflow_run(run_dir)
    histories = {
        name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics
    }
    return {name: [(m.step, m.value) for m in points] for name, points in histories.items()}


def the_mlflow_run(run_dir: Path) -> Any:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{run_dir / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("p").experiment_id])
    return client, run


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database with its tables, which take seconds to make."""
    for package in ("tensorboard", "mlflow", "sqlalchemy"):
        pytest.importorskip(package)
    folder = tmp_path_factory.mktemp("mlflow")
    with open_tracker(config("logger=mlflow", "project_name=other"), folder, None):
        pass
    return folder / "mlflow.db"


@pytest.fixture
def run_dir(tmp_path: Path, empty_database: Path) -> Path:
    """A run's folder, with a database."""
    shutil.copy(empty_database, tmp_path)
    return tmp_path


def require_equal(run_dir: Path) -> None:
    """Require that both have all of metrics.jsonl (as `repr`, because nan != nan)."""
    wanted = written(run_dir)
    rounded = {name: [(s, as_float32(v)) for s, v in wanted[name]] for name in wanted}
    assert repr(sorted(in_tensorboard(run_dir).items())) == repr(sorted(rounded.items()))
    most = sys.float_info.max  # Databases store no infinity.
    renamed = {
        name.replace("@", "_"): [(s, min(max(v, -most), most)) for s, v in points]
        for name, points in wanted.items()
    }
    assert repr(sorted(in_mlflow(run_dir).items())) == repr(sorted(renamed.items()))


def test_both_have_every_record_of_the_file_also_after_a_resume(
    run_dir: Path, warnings: list[str]
) -> None:
    long = "optimizer.groups.all.params=[" + ",".join(["x" * 999] * 9) + ",*]"
    many = {f"more/{number}": number for number in range(1200)}  # More than one request takes.
    with open_tracker(config(BOTH, long), run_dir, None) as tracker:
        tracker.log([trained(1), {**trained(2), **ODD, "note": "text is left out"}])
        tracker.log([evaluated(2), {**trained(3), **many}])
    with open_tracker(config(BOTH, long), run_dir, at(3, tracker, position=0)) as resumed:
        resumed.log([trained(4), evaluated(4)])
    assert resumed.run_ids == tracker.run_ids
    assert len(written(run_dir)["train/lr"]) == 4
    require_equal(run_dir)
    _, run = the_mlflow_run(run_dir)
    assert (run.info.run_name, run.info.status) == ("n", "FINISHED")
    assert (run.data.params["lr"], run.data.params["arch.loss.loss_type"][:4]) == ("0.0001", "stab")
    assert len(run.data.params["optimizer.groups.all.params"]) == 6000
    assert warnings == []


def test_a_future_that_did_not_happen_is_hidden_in_tensorboard(run_dir: Path) -> None:
    with open_tracker(config("logger=tensorboard"), run_dir, None) as tracker:
        tracker.log([*map(trained, range(1, 9))])
    with open_tracker(config("logger=tensorboard"), run_dir, at(3)) as tracker:
        tracker.log([trained(4)])
    assert [step for step, _ in in_tensorboard(run_dir)["train/lr"]] == [1, 2, 3, 4]


def test_a_run_that_the_server_does_not_know_begins_anew(run_dir: Path) -> None:
    elsewhere = Checkpoint(Path("unused"), RunState(step=0, position=1, mlflow_id="f" * 32))
    with open_tracker(config("logger=mlflow"), run_dir, elsewhere) as tracker:
        tracker.log([trained(1)])
    assert tracker.run_ids["mlflow"] == the_mlflow_run(run_dir)[1].info.run_id


@pytest.mark.parametrize(("error", "status"), [(Preempted, "KILLED"), (NonFiniteError, "FAILED")])
def test_mlflow_is_told_how_a_run_ended(run_dir: Path, error: Any, status: str) -> None:
    tracker = open_tracker(config("logger=mlflow"), run_dir, None)
    with pytest.raises(error), tracker:
        raise error
    assert the_mlflow_run(run_dir)[1].info.status == status


# What goes wrong


@pytest.mark.parametrize("package", ["wandb", "tensorboard", "mlflow"])
def test_without_the_package_a_notice_says_how_to_get_it(
    three_steps: Any, monkeypatch: pytest.MonkeyPatch, warnings: list[str], package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert three_steps(f"logger={package}").run_ids == {}
    said = f"{package} is not installed (pip install '.[{package}]'): metrics go only to"
    assert warnings == [f"{said} metrics.jsonl"]


@pytest.mark.parametrize("name", ["wandb", "tensorboard", "mlflow.db"])
def test_nothing_is_written_through_a_link(
    three_steps: Any, run_dir: Path, wandb: FakeWandb, warnings: list[str], name: str
) -> None:
    (run_dir / "elsewhere").mkdir()
    (run_dir / name).unlink(missing_ok=True)
    (run_dir / name).symlink_to(run_dir / "elsewhere")
    three_steps(f"logger={name.removesuffix('.db')}")
    assert f"is a link, expected a folder: '{run_dir / name}'" in warnings[0]
    assert list((run_dir / "elsewhere").iterdir()) == wandb.names == []


@pytest.mark.parametrize("call", ["create_run", "set_terminated"])
def test_whatever_mlflow_raises_is_said_once(
    three_steps: Any, run_dir: Path, warnings: list[str], monkeypatch: Any, call: str
) -> None:
    monkeypatch.setattr(f"mlflow.MlflowClient.{call}", lambda *arguments, **options: 1 / 0)
    three_steps("logger=mlflow")
    (warning,) = warnings
    assert warning.startswith("MLflow failed (ZeroDivisionError")


def test_a_full_disk_ends_the_event_file(
    three_steps: Any, run_dir: Path, warnings: list[str]
) -> None:
    with Path("/dev/full").open("wb", buffering=0) as full:

        def fill(tracker: Any) -> None:
            writer = tracker.others["tensorboard"]._writer
            writer._writer, opened = full, writer._writer
            tracker.others["tensorboard"]._waiting.put([trained(2)])
            tracker.others["tensorboard"]._thread.join()
            opened.close()

        three_steps("logger=tensorboard", meanwhile=fill)
    assert "TensorBoard failed (OSError: [Errno 28] No space left on device)" in warnings[0]


@pytest.mark.parametrize(
    ("call", "place", "done"),
    [("create_run", "_START_SECONDS", "started"), ("log_batch", "_FINISH_SECONDS", "finished")],
)
def test_a_call_that_hangs_delays_no_step_and_is_left_behind(
    three_steps: Any,
    run_dir: Path,
    warnings: list[str],
    monkeypatch: Any,
    call: str,
    place: str,
    done: str,
) -> None:
    released = threading.Event()

    def hang(tracker: Any = None) -> None:
        name = f"mlflow.MlflowClient.{call}"
        monkeypatch.setattr(name, lambda *a, **o: released.wait(60.0) and 1 / 0)

    if done == "started":
        hang()
    monkeypatch.setattr(logs, place, 3.0)
    tracker = three_steps("logger=mlflow", meanwhile=hang)
    (warning,) = warnings
    assert warning.startswith(f"MLflow has not {done} within 3 s; the run goes on without it, and")
    released.set()
    tracker.others["mlflow"]._thread.join()
    assert len(warnings) == 1


@pytest.mark.parametrize(("kind", "said"), [("refused", "refused"), ("silent", "timed out")])
def test_an_mlflow_server_that_does_not_answer(
    three_steps: Any, warnings: list[str], monkeypatch: Any, kind: str, said: str
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1] if kind == "silent" else 1
        three_steps("logger=mlflow", f"logger.mlflow.tracking_uri=http://127.0.0.1:{port}")
    (warning,) = warnings
    assert warning.startswith("MLflow failed (MlflowException: API request to http://127.0.0.1")
    assert said in warning


QUIET = """
import sys
from pathlib import Path
asked = []
names = ("socket.connect", "socket.getaddrinfo", "socket.sendto")
sys.addaudithook(lambda event, values: asked.append(values) if event in names else None)
from training.config.composition import load_config
from training.config.schema import TrainConfig
from training.tracking import open_tracker
settings = ["data_path=x", "project_name=p", "run_name=n", sys.argv[1]]
with open_tracker(load_config(TrainConfig, "cfg_pretrain", settings), Path(), None) as tracker:
    tracker.log([{"step": 1, "train/lr": 1.0}])
loaded = {"wandb", "tensorboard", "mlflow", "torch", "tensorflow", "pandas"} & sys.modules.keys()
print(sorted(loaded), asked)
"""


@pytest.mark.parametrize(
    "logger", ["jsonl", "tensorboard", pytest.param("mlflow", marks=pytest.mark.slow)]
)
def test_only_what_was_asked_for_is_loaded_nothing_is_printed_and_nobody_called(
    run_python: Any, tmp_path: Path, logger: str
) -> None:
    """Telemetry is off without any variable in the environment."""
    asked = [] if logger == "jsonl" else [logger]
    for package in asked:
        pytest.importorskip(package)
    finished = run_python(
        "-c", QUIET, f"logger={logger}", env={"PYTHONPATH": str(ROOT)}, timeout=180
    )
    assert (finished.code, finished.out, finished.err) == (0, f"{asked} []\n", "")
    made = {"jsonl": [], "tensorboard": ["tensorboard"], "mlflow": ["mlflow.db"]}[logger]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", *made]
