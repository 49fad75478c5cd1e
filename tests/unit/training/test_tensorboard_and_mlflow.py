"""TensorBoard and MLflow have what metrics.jsonl has, once; and whatever they do, the run goes on.

With the real packages: TensorBoard's own reader, and MLflow's database in the run's folder.
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
from pathlib import Path
from typing import Any

import pytest

from runtime.errors import Preempted
from training import logs, tracking
from training.checkpoint.state import RunState
from training.checkpoint.store import Checkpoint
from training.config.composition import load_config
from training.config.schema import TrainConfig
from training.tracking import Tracker, open_tracker

ROOT = Path(__file__).resolve().parents[3]
Points = dict[str, list[tuple[int, float]]]

BOTH = "logger=[tensorboard,mlflow]"
ODD = {"train/nan": float("nan"), "train/inf": float("-inf"), "eval/arc/pass@1": 1 / 3}


def trained(step: int) -> dict[str, Any]:
    return {"step": step, "train/lr": step / 7, "train/count": step}


def evaluated(step: int) -> dict[str, Any]:
    return {"step": step, "eval/accuracy": step / 9}


def written(run_dir: Path) -> Points:
    """What metrics.jsonl has, by name."""
    points: Points = defaultdict(list)
    for record in map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines()):
        for name in record.keys() - {"step", "note"}:
            points[name].append((record["step"], float(record[name])))
    return points


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


def require_equal(run_dir: Path, *, mlflow: bool = True) -> None:
    """Require that both have all of metrics.jsonl, each point once (`repr`: nan is not nan)."""
    wanted = written(run_dir)
    rounded = {name: [(s, as_float32(v)) for s, v in wanted[name]] for name in wanted}
    assert repr(sorted(in_tensorboard(run_dir).items())) == repr(sorted(rounded.items()))
    if mlflow:
        renamed = {name.replace("@", "_"): points for name, points in wanted.items()}
        assert repr(sorted(in_mlflow(run_dir).items())) == repr(sorted(renamed.items()))


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of MLflow, whose tables take seconds to make."""
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    folder = tmp_path_factory.mktemp("mlflow")
    with open_tracker(config("logger=mlflow", "project_name=other"), folder, None):
        pass
    return folder / "mlflow.db"


def config(*settings: str) -> TrainConfig:
    named = ["data_path=x", "project_name=p", "run_name=n", *settings]
    return load_config(TrainConfig, "cfg_pretrain", named)


@pytest.fixture
def run_dir(
    tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A run's folder, with a database; the environment is put back."""
    pytest.importorskip("tensorboard")
    for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
        monkeypatch.delenv(name)
    before = dict(os.environ)
    shutil.copy(empty_database, tmp_path)
    yield tmp_path
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was warned of."""
    said: list[str] = []
    monkeypatch.setattr(tracking, "warn", said.append)
    return said


def at(step: int, tracker: Tracker | None = None, position: int = 1) -> Checkpoint:
    """A checkpoint before (with position 0 after) the evaluation of its step."""
    ids = {f"{name}_id": run_id for name, run_id in (tracker.run_ids if tracker else {}).items()}
    return Checkpoint(Path("unused"), RunState(step=step, position=position, **ids))


# What they hold


def test_both_have_every_record_of_the_file(run_dir: Path, warnings: list[str]) -> None:
    long = "optimizer.groups.all.params=[" + ",".join(["x" * 999] * 9) + ",*]"
    with open_tracker(config(BOTH, long), run_dir, None) as tracker:
        tracker.log([trained(1), {**trained(2), **ODD, "note": "text is left out"}])
        tracker.log([evaluated(2), trained(3)])
    wanted = written(run_dir)
    assert len(wanted["train/lr"]) == 3
    require_equal(run_dir, mlflow=False)
    # Databases know no infinity.
    wanted["train/inf"] = [(2, -sys.float_info.max)]
    wanted["eval/arc/pass_1"] = wanted.pop("eval/arc/pass@1")
    assert repr(sorted(in_mlflow(run_dir).items())) == repr(sorted(wanted.items()))
    _, run = the_mlflow_run(run_dir)
    assert (run.info.run_name, run.info.status) == ("n", "FINISHED")
    assert (run.data.params["lr"], run.data.params["arch.loss.loss_type"][:4]) == ("0.0001", "stab")
    assert len(run.data.params["optimizer.groups.all.params"]) == 6000
    assert warnings == []


@pytest.mark.parametrize("position", [0, 1])
def test_a_resumed_run_goes_on_in_both_and_nothing_shows_twice(
    run_dir: Path, warnings: list[str], position: int
) -> None:
    records = [trained(1), trained(2), evaluated(2), trained(3), trained(4), evaluated(4)]
    with open_tracker(config(BOTH), run_dir, None) as tracker:
        tracker.log(records)
    kept = 3 if position == 0 else 2
    with open_tracker(config(BOTH), run_dir, at(2, tracker, position)) as resumed:
        resumed.log(records[kept:])
        resumed.log([trained(5)])
    assert resumed.run_ids == tracker.run_ids
    assert len(written(run_dir)["train/lr"]) == 5
    require_equal(run_dir)
    assert warnings == []


def test_what_a_shorter_future_lacks_is_hidden_in_tensorboard(run_dir: Path) -> None:
    with open_tracker(config("logger=tensorboard"), run_dir, None) as tracker:
        tracker.log(map(trained, range(1, 9)))
    with open_tracker(config("logger=tensorboard"), run_dir, at(3)) as tracker:
        tracker.log([trained(4)])
    require_equal(run_dir, mlflow=False)


def test_mlflow_is_sent_later_what_it_has_missed(run_dir: Path, warnings: list[str]) -> None:
    more = {f"more/{number}": number for number in range(30)}  # More than one request takes.
    with open_tracker(config("logger=jsonl"), run_dir, None) as tracker:
        tracker.log([{**trained(step), **more} for step in range(1, 40)])
    # The run was at another server before.
    elsewhere = Checkpoint(Path("unused"), RunState(step=39, position=1, mlflow_id="f" * 32))
    with open_tracker(config("logger=mlflow"), run_dir, elsewhere) as tracker:
        tracker.log([trained(40)])
    assert in_mlflow(run_dir) == written(run_dir)
    assert tracker.run_ids["mlflow"] == the_mlflow_run(run_dir)[1].info.run_id
    assert warnings == []


@pytest.mark.parametrize(
    ("error", "status"), [(None, "FINISHED"), (Preempted, "KILLED"), (ValueError, "FAILED")]
)
def test_mlflow_is_told_how_a_run_ended(run_dir: Path, error: Any, status: str) -> None:
    def run() -> None:
        with open_tracker(config("logger=mlflow"), run_dir, None) as tracker:
            tracker.log([trained(1)])
            if error:
                raise error

    if error:
        with pytest.raises(error):
            run()
    else:
        run()
    assert the_mlflow_run(run_dir)[1].info.status == status


# What goes wrong


@pytest.fixture
def three_steps(run_dir: Path, warnings: list[str]) -> Callable[..., str]:
    """Make a run of three steps; returns the one warning."""

    def run(*settings: str, meanwhile: Callable[[Tracker], None] | None = None) -> str:
        with open_tracker(config(*settings), run_dir, None) as tracker:
            tracker.log([trained(1)])
            if meanwhile:
                meanwhile(tracker)
            tracker.log([trained(2)])
            tracker.log([trained(3)])
        assert [step for step, _ in written(run_dir)["train/lr"]] == [1, 2, 3]
        (warning,) = warnings
        return warning

    return run


@pytest.mark.parametrize("package", ["tensorboard", "mlflow"])
def test_without_the_package_a_notice_says_how_to_get_it(
    three_steps: Any, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    wanted = f"{package} is not installed (pip install '.[{package}]'): metrics go to metrics.jsonl"
    assert three_steps(f"logger={package}").startswith(wanted)


@pytest.mark.parametrize("name", ["tensorboard", "mlflow.db"])
def test_nothing_is_written_through_a_link(three_steps: Any, run_dir: Path, name: str) -> None:
    (run_dir / "elsewhere").mkdir()
    (run_dir / name).unlink(missing_ok=True)
    (run_dir / name).symlink_to(run_dir / "elsewhere")
    assert f"is a link, expected a folder: '{run_dir / name}'" in three_steps(
        f"logger={name.removesuffix('.db')}"
    )
    assert list((run_dir / "elsewhere").iterdir()) == []


def test_a_folder_whose_name_would_lead_the_database_elsewhere(
    run_dir: Path, warnings: list[str]
) -> None:
    (folder := run_dir / "a" / "b?c").mkdir(parents=True)
    with open_tracker(config("logger=mlflow"), folder, None):
        pass
    assert [path.name for path in (run_dir / "a").iterdir()] == ["b?c"]
    assert "MLflow failed (ValueError: has no address for a database" in warnings[0]


def test_a_full_disk_ends_the_event_file(three_steps: Any) -> None:
    def fill(tracker: Tracker) -> None:
        log: Any = tracker._others["tensorboard"]
        log._file.close()
        log._file = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115

    wanted = "TensorBoard failed (OSError: [Errno 28] No space left on device)"
    assert three_steps("logger=tensorboard", meanwhile=fill).startswith(wanted)


@pytest.mark.parametrize("call", ["create_run", "log_batch", "set_terminated"])
def test_whatever_mlflow_raises_is_said_once(
    three_steps: Any, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("told to fail")

    monkeypatch.setattr(f"mlflow.MlflowClient.{call}", fail)
    assert three_steps("logger=mlflow").startswith("MLflow failed (RuntimeError: told to fail)")


def test_an_error_while_the_run_goes_on_ends_mlflow(
    three_steps: Any, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_SEND_SECONDS", 0.01)

    def fail(tracker: Tracker) -> None:
        monkeypatch.setattr("mlflow.MlflowClient.log_batch", lambda *a, **o: 1 / 0)
        log: Any = tracker._others["mlflow"]
        tracker.log([{"step": 1, "eval/accuracy": 1.0}])
        log._thread.join(60.0)
        assert not log._thread.is_alive()
        assert len(warnings) == 1

    assert three_steps("logger=mlflow", meanwhile=fail).startswith("MLflow failed (ZeroDivision")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "place", "done"),
    [
        ("create_run", "_START_SECONDS", "started"),
        ("set_terminated", "_FINISH_SECONDS", "finished"),
    ],
)
def test_a_call_that_hangs_is_left_behind(
    three_steps: Any, monkeypatch: pytest.MonkeyPatch, call: str, place: str, done: str
) -> None:
    released = threading.Event()
    monkeypatch.setattr(f"mlflow.MlflowClient.{call}", lambda *a, **o: released.wait(60.0))
    monkeypatch.setattr(logs, place, 3.0)
    assert three_steps("logger=mlflow").startswith(f"MLflow has not {done} within 3 s and is left")
    released.set()


def test_a_send_that_hangs_delays_no_step(
    three_steps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, released = threading.Event(), threading.Event()
    monkeypatch.setattr(logs, "_SEND_SECONDS", 0.01)
    monkeypatch.setattr(logs, "_FINISH_SECONDS", 0.3)

    def hang(*arguments: Any, **options: Any) -> None:
        entered.set()
        released.wait(60.0)

    def meanwhile(tracker: Tracker) -> None:
        monkeypatch.setattr("mlflow.MlflowClient.log_batch", hang)
        tracker.log([{"step": 1, "eval/accuracy": 1.0}])
        assert entered.wait(60.0)

    warning = three_steps("logger=mlflow", meanwhile=meanwhile)
    assert not released.is_set()
    released.set()
    assert warning.startswith("MLflow has not finished within 0.3 s")


@pytest.fixture
def silent_server() -> Iterator[str]:
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("server", ["refused", "silent_server"])
def test_a_server_that_does_not_answer(
    three_steps: Any, request: Any, monkeypatch: pytest.MonkeyPatch, server: str
) -> None:
    refused = server == "refused"
    url = "http://127.0.0.1:1" if refused else request.getfixturevalue(server)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    warning = three_steps("logger=mlflow", f"logger.mlflow.tracking_uri={url}")
    assert warning.startswith("MLflow failed (MlflowException: API request to http://127.0.0.1")
    assert ("refused" if refused else "timed out") in warning


# What a user sees of them, and the network


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
    """Telemetry would call home; it is off without any help of the environment."""
    asked = [] if logger == "jsonl" else [logger]
    for package in asked:
        pytest.importorskip(package)
    finished = run_python(
        "-c", QUIET, f"logger={logger}", env={"PYTHONPATH": str(ROOT)}, timeout=180
    )
    assert (finished.code, finished.out, finished.err) == (0, f"{asked} []\n", "")
    made = {"jsonl": [], "tensorboard": ["tensorboard"], "mlflow": ["mlflow.db"]}[logger]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", *made]


SERVER = """
import sys
from mlflow.server import app, handlers
from werkzeug.serving import make_server
handlers.initialize_backend_stores(sys.argv[1], default_artifact_root="artifacts")
server = make_server("127.0.0.1", 0, app, threaded=True)
print(server.server_port, flush=True)
server.serve_forever()
"""


@pytest.mark.slow
def test_an_mlflow_server_has_every_record_once(
    run_dir: Path, start: Any, warnings: list[str]
) -> None:
    for package in ("flask", "flask_cors", "graphene"):  # mlflow-skinny comes without.
        pytest.importorskip(package)
    path = os.pathsep.join((str(ROOT), *sys.path))
    env = {"PYTHONPATH": path, "MLFLOW_DISABLE_TELEMETRY": "true"}
    server = start("-c", SERVER, f"sqlite:///{run_dir / 'mlflow.db'}", env=env)
    url = f"http://127.0.0.1:{int(server.stdout.readline())}"
    settings = config("logger=mlflow", f"logger.mlflow.tracking_uri={url}")
    with open_tracker(settings, run_dir, None) as tracker:
        tracker.log([trained(1), {**trained(2), **ODD}, trained(3)])
    with open_tracker(settings, run_dir, at(2, tracker)) as tracker:
        tracker.log([trained(3), trained(4)])
    assert warnings == []
    wanted = written(run_dir)
    wanted["train/inf"] = [(2, -sys.float_info.max)]
    wanted["eval/arc/pass_1"] = wanted.pop("eval/arc/pass@1")
    assert repr(sorted(in_mlflow(run_dir).items())) == repr(sorted(wanted.items()))
    assert the_mlflow_run(run_dir)[1].info.status == "FINISHED"
