"""Places for metrics beside `metrics.jsonl`; none of them may stop a run or hold it for long."""

import contextlib
import http.client
import importlib.util
import itertools
import json
import logging
import netrc
import os
import re
import secrets
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

from runtime.errors import Preempted
from runtime.files import require_no_link
from runtime.process import ENDS_WITH
from runtime.text import shown
from training.config.schema import TrainConfig, flatten

Record = Mapping[str, Any]
Ending = type[BaseException] | None

_REACH_SECONDS = 10.0
_START_SECONDS = 60.0
_SEND_SECONDS = 5.0
_FINISH_SECONDS = 30.0  # What is then left to upload lies in its folder.
_REPORT_SECONDS = 600.0
_REPORT_SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "report.py"
_EVENTS = "events.out.tfevents."
_NOT_FINITE = ("nan", "inf", "-inf")  # As in metrics.jsonl.


class SideLog:
    """A place for metrics. Its first error gives a warning and ends its use; the run goes on.

    A subclass says how to start, send and finish.

    Attributes:
        title: its name in warnings.
        package: what must be installed; the project's extra has the same name.
        left_behind: what to do when it did not finish in time, behind a semicolon.
        run_id: identifies the run there, to be kept in checkpoints; None where there is none.
    """

    title: str
    package: str
    left_behind = ""
    run_id: str | None = None

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn, self._is_open = warn, True
        self._guard(self._open)

    def log(self, records: Iterable[Record]) -> None:
        """Send records under their steps."""
        for record in records:
            if self._is_open:
                self._guard(partial(self._send, record))

    def close(self, ending: Ending = None) -> None:
        """End the log, which has 30 s for it; `ending` is the error that ends the run."""
        if self._is_open:
            self._bounded(_FINISH_SECONDS, partial(self._finish, ending), "finished")

    def _start(self) -> None:
        raise NotImplementedError

    def _send(self, record: Record) -> None:
        raise NotImplementedError

    def _finish(self, ending: Ending) -> None:
        raise NotImplementedError

    def _open(self) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                importlib.import_module(self.package)
        except ImportError:
            hint = f"(pip install '.[{self.package}]')"
            where = "metrics go to metrics.jsonl only"
            self._warn(f"{self.package} is not installed {hint}: {where}")
            self._is_open = False
        else:
            self._start()

    def _guard(self, call: Callable[[], object]) -> None:
        # Each raises many kinds of errors of its own, of its transport and of the operating system.
        try:
            call()
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            self._warn(f"{self.title} failed ({what}); metrics go on in metrics.jsonl")
            self._is_open = False

    def _bounded(self, seconds: float, call: Callable[[], object], done: str) -> None:
        if not _returns_within(seconds, partial(self._guard, call)):
            self._warn(
                f"{self.title} has not {done} within {seconds:g} s and is left behind"
                f"{self.left_behind}"
            )
            self._warn, self._is_open = lambda message: None, False  # Whatever it still raises.


class WandbLog(SideLog):
    """Weights & Biases.

    Args:
        config: names and settings of the run; `logger.mode` auto is online when there is a key and
            the server is reached within 10 s, otherwise offline (`wandb sync` sends it later).
        run_id: of the run to go on with, or None for a new one; the attribute is that of this run,
            None when W&B is not there.
    """

    title, package = "W&B", "wandb"
    left_behind = "; `wandb sync` sends what is missing"

    def __init__(
        self, config: TrainConfig, run_dir: Path, run_id: str | None, warn: Callable[[str], None]
    ) -> None:
        self.run_id, self._config, self._run_dir = run_id, config, run_dir
        super().__init__(warn)

    def _start(self) -> None:
        import wandb

        require_no_link(self._run_dir / "wandb")
        mode = self._config.logger.mode
        online = mode == "online" or (mode == "auto" and _can_reach_server())
        self.run_id = self.run_id or secrets.token_hex(4)
        # Its own process, which the interpreter waits for at its exit, gives up then too. Not
        # among the settings: older versions know none of that name.
        os.environ.setdefault("WANDB_FINISH_TIMEOUT", f"{_FINISH_SECONDS:g}")
        self._run = wandb.init(
            project=str(self._config.project_name),
            name=str(self._config.run_name),
            id=self.run_id,
            resume="allow",
            dir=str(self._run_dir),
            config=self._config.model_dump(mode="json"),
            mode="online" if online else "offline",
            settings=wandb.Settings(init_timeout=_REACH_SECONDS, silent=True),
        )

    def _send(self, record: Record) -> None:
        self._run.log(dict(_numbers(record)), step=record["step"])

    def _finish(self, ending: Ending) -> None:
        self._run.finish()


class TensorBoardLog(SideLog):
    """TensorBoard: an event file of this process in the run's folder `tensorboard/`.

    Not by a SummaryWriter, whose thread prints a traceback where the disk is full.

    Args:
        metrics: the records so far.
        first_step: of what goes on; readers drop older files' events from this step on, of which
            the records that were kept are written again.
    """

    title, package = "TensorBoard", "tensorboard"

    def __init__(
        self, run_dir: Path, metrics: Path, first_step: int, warn: Callable[[str], None]
    ) -> None:
        self._folder, self._metrics, self._first_step = run_dir / "tensorboard", metrics, first_step
        super().__init__(warn)

    def _start(self) -> None:
        from tensorboard.compat.proto.event_pb2 import SessionLog  # pyright: ignore

        require_no_link(self._folder)
        self._folder.mkdir(exist_ok=True)
        # Readers take the files of a folder in the order of their names.
        last = max((path.name for path in self._folder.glob(f"{_EVENTS}*")), default="")
        number = int(last.removeprefix(_EVENTS) or -1) + 1
        self._file = (self._folder / f"{_EVENTS}{number:06d}").open("xb", buffering=0)
        self._write(file_version="brain.Event:2")
        start = SessionLog(status=SessionLog.START)
        self._write(step=self._first_step, session_log=start)
        lines = reversed(self._metrics.read_text().splitlines())
        kept = itertools.takewhile(self._is_to_come, map(json.loads, lines))
        for record in reversed(list(kept)):
            self._send(record)

    def _is_to_come(self, record: Record) -> bool:
        return record["step"] >= self._first_step

    def _send(self, record: Record) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore

        values = [Summary.Value(tag=name, simple_value=value) for name, value in _numbers(record)]
        self._write(step=record["step"], summary=Summary(value=values))

    def _write(self, **event: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore
        from tensorboard.summary.writer.record_writer import RecordWriter

        content = BytesIO()
        RecordWriter(content).write(Event(wall_time=time.time(), **event).SerializeToString())
        try:
            if self._file.write(content.getbuffer()) < content.tell():
                raise OSError("the disk is full")
        except OSError:
            self._file.close()
            raise

    def _finish(self, ending: Ending) -> None:
        self._file.close()


class MLflowLog(SideLog):
    """MLflow: the server that `logger.mlflow.tracking_uri` or MLFLOW_TRACKING_URI names, otherwise
    a database in the run's folder.

    A thread sends what `metrics.jsonl` has, so that a slow server delays no step. How many lines
    were sent is a tag of the run there: a resumed run sends each line once, and those that a dead
    one still owed.

    Args:
        config: names and settings of the run.
        metrics: the records, with those so far.
        run_id: of the run to go on with, or None for a new one.
    """

    title, package = "MLflow", "mlflow"
    left_behind = "; metrics.jsonl has what is missing"

    def __init__(
        self,
        config: TrainConfig,
        run_dir: Path,
        metrics: Path,
        run_id: str | None,
        warn: Callable[[str], None],
    ) -> None:
        self.run_id, self._config, self._run_dir = run_id, config, run_dir
        self._metrics, self._offset, self._num_read, self._num_sent = metrics, 0, 0, 0
        self._is_ending = threading.Event()
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", f"{_REACH_SECONDS:g}")
        super().__init__(warn)

    def _start(self) -> None:
        logging.getLogger("mlflow").setLevel(logging.CRITICAL)  # It tells of each new table.
        warnings.filterwarnings("ignore", module="mlflow|sqlalchemy|alembic")
        # At the start a server that is not there is not asked again and again.
        with _environment("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0"):
            self._bounded(_START_SECONDS, self._connect, "started")
        follow = partial(self._guard, self._follow)
        self._thread = threading.Thread(target=follow, daemon=True)
        if self._is_open:
            self._thread.start()

    def _connect(self) -> None:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        self._client = MlflowClient(self._uri())
        if self.run_id is not None:
            try:
                tags = self._client.get_run(self.run_id).data.tags
                self._num_sent = int(tags.get("lines_sent", 0))
                return self._client.update_run(self.run_id, status="RUNNING")
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":  # Of a server used before.
                    raise
        self._begin()

    def _uri(self) -> str:
        asked = self._config.logger.mlflow
        uri = (asked and asked.tracking_uri) or os.environ.get("MLFLOW_TRACKING_URI")
        if uri:
            return uri
        database = (self._run_dir / "mlflow.db").absolute()
        require_no_link(database)
        if set("?%") & set(str(database)):  # They would lead elsewhere.
            raise ValueError(f"has no address for a database at {database}: rename the folder")
        return f"sqlite:///{database}"

    def _begin(self) -> None:
        from mlflow.entities import Param
        from mlflow.exceptions import MlflowException

        name = str(self._config.project_name)
        try:
            experiment = self._client.create_experiment(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            there = self._client.get_experiment_by_name(name)
            experiment = there.experiment_id if there else ""
        run = self._client.create_run(experiment, run_name=str(self._config.run_name))
        self.run_id = run.info.run_id
        settings = flatten(self._config.model_dump(mode="json"))
        params = [Param(_mlflow_name(key), str(value)[:6000]) for key, value in settings]
        for first in range(0, len(params), 100):
            batch = params[first : first + 100]
            self._client.log_batch(run.info.run_id, params=batch, synchronous=True)

    def _follow(self) -> None:
        while not self._is_ending.wait(_SEND_SECONDS):
            self._send_new()

    def _send(self, record: Record) -> None:
        """The thread reads them from the file."""

    def _send_new(self) -> None:
        from mlflow.entities import Metric, RunTag

        run = str(self.run_id)
        while lines := self._next_lines():
            unsent = lines[max(0, self._num_sent - self._num_read) :]
            self._num_read += len(lines)
            now = int(time.time() * 1000)
            metrics = [
                Metric(_mlflow_name(name), value, now, record["step"])
                for record in map(json.loads, unsent)
                for name, value in _numbers(record)
            ]
            self._num_sent = max(self._num_sent, self._num_read)
            sent = RunTag("lines_sent", str(self._num_sent))
            for first in range(0, len(metrics), 900):
                batch, is_last = metrics[first : first + 900], first + 900 >= len(metrics)
                tags = [sent] if is_last else []
                self._client.log_batch(run, metrics=batch, tags=tags, synchronous=True)

    def _next_lines(self) -> list[bytes]:
        """Read on in the file: some whole lines, none at its end."""
        with self._metrics.open("rb") as file:
            file.seek(self._offset)
            lines = [line for line in file.readlines(1 << 16) if line.endswith(b"\n")]
        self._offset += sum(map(len, lines))
        return lines

    def _finish(self, ending: Ending) -> None:
        self._is_ending.set()
        self._thread.join()
        if self._is_open:
            self._send_new()
            status = "KILLED" if ending is Preempted else "FAILED" if ending else "FINISHED"
            self._client.set_terminated(str(self.run_id), status)


class ReportLog(SideLog):
    """The run's page `report.html`, which a process of low priority writes anew after each
    evaluation; what comes while it is at work is left to the next one.

    The process ends with this one, and its libraries are never loaded here.
    """

    title, package = "the report", "plotly"
    left_behind = "; scripts/report.py writes it"

    def __init__(self, run_dir: Path, warn: Callable[[str], None]) -> None:
        self._command = [sys.executable, str(_REPORT_SCRIPT), "--", str(run_dir)]
        self._process: subprocess.Popen[bytes] | None = None
        self._began, self._is_due = 0.0, False
        super().__init__(warn)

    def _open(self) -> None:
        if importlib.util.find_spec(self.package) is None:
            self._warn("plotly is not installed (pip install '.[pictures]'): no report is written")
            self._is_open = False

    def _send(self, record: Record) -> None:
        self._is_due = True
        if "train/lr" not in record and not self._is_busy():
            self._write_anew()

    def _is_busy(self) -> bool:
        """Return whether the process is at work; raises an error where it failed or hangs."""
        if self._process is None:
            return False
        if self._process.poll() is None:
            if time.monotonic() - self._began > _REPORT_SECONDS:
                self._kill()
                raise TimeoutError(f"it took over {_REPORT_SECONDS:g} s")
            return True
        code, (_, errors) = self._process.returncode, self._process.communicate()
        self._process = None
        if code:
            last = errors.decode(errors="replace").strip().rpartition("\n")[2]
            raise RuntimeError(shown(last, 300) or f"exit code {code}")
        return False

    def _write_anew(self) -> None:
        self._began, self._is_due = time.monotonic(), False
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=os.environ | {ENDS_WITH: str(os.getpid())},
        )
        with contextlib.suppress(OSError):  # It may have ended.
            os.setpriority(os.PRIO_PROCESS, self._process.pid, 19)

    def _finish(self, ending: Ending) -> None:
        try:
            while ending is not Preempted and (self._is_busy() or self._is_due):
                if self._process is None:
                    self._write_anew()
                time.sleep(0.05)
        finally:
            self._kill()

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _numbers(record: Record) -> Iterator[tuple[str, float]]:
    """Yield the values that are numbers, also those that JSON has no names for."""
    for name, value in record.items():
        if name != "step" and (isinstance(value, int | float) or value in _NOT_FINITE):
            yield name, float(value)


def _mlflow_name(name: str) -> str:
    """Return a name with `_` for what MLflow takes in none, such as the `@` of `pass@1`."""
    return re.sub(r"[^\w./ -]", "_", name, flags=re.ASCII)[:250]


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


def _can_reach_server() -> bool:
    """Return whether there is a key and the server answers within 10 s, name look-up included."""
    url = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")
    answers = []

    def ask() -> None:
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
            try:
                urllib.request.urlopen(url, timeout=_REACH_SECONDS).close()
            except urllib.error.HTTPError as answer:
                answer.close()  # Any answer is one.
            answers.append(True)

    return _has_key(url) and _returns_within(_REACH_SECONDS, ask) and bool(answers)


def _returns_within(seconds: float, call: Callable[[], object]) -> bool:
    """Call in a thread, which a slow network may outlast; returns whether it ended."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def _has_key(url: str) -> bool:
    """Whether somebody is logged in at `url`, by the environment or by `wandb login`."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        keys = netrc.netrc(os.environ.get("NETRC") or Path.home() / ".netrc")
        return keys.authenticators(urllib.parse.urlsplit(url).hostname or "") is not None
    except (OSError, ValueError, RuntimeError, netrc.NetrcParseError):
        return False
