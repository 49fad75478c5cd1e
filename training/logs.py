"""Logs beside `metrics.jsonl`: W&B, TensorBoard, MLflow. None may stop or delay a run."""

import contextlib
import http.client
import importlib
import logging
import netrc
import os
import re
import secrets
import shlex
import struct
import sys
import threading
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, ClassVar
from urllib.parse import urlsplit

from runtime.errors import ConfigError, Preempted
from runtime.files import require_no_link
from runtime.progress import Bar
from runtime.text import shown
from training.checkpoint.store import RunState
from training.config.schema import TrainConfig, flatten

Record = Mapping[str, Any]

_REACH_SECONDS = 10.0
_START_SECONDS = 60.0
_FINISH_SECONDS = 30.0  # The rest stays in its folder, for a later upload.


class SideLog:
    """A log served by its own thread: the run waits only for its start and its end. After its first
    error it is given up with a warning, and the run goes on.

    A subclass defines `_start`, `_send` and `_finish`.

    Args:
        state: of the checkpoint that a run resumes from; the log goes on in the same place.
    """

    title: str  # The name in warnings.
    package: str  # The package to install; also the name of the project's extra.
    environment: ClassVar[Mapping[str, str]] = {}  # Variables for the package, if they are not set.

    def __init__(
        self,
        config: TrainConfig,
        run_dir: Path,
        state: RunState | None,
        warn: Callable[[str], None],
    ) -> None:
        self._config, self._run_dir, self._state = config, run_dir, state
        # The identifier of the run in this log, kept in checkpoints. TensorBoard has none.
        self.run_id: str | None = getattr(state, f"{self.package}_id", None)
        self._warn, self._is_open = warn, True
        # Records to send. None marks the end.
        self._waiting: SimpleQueue[Sequence[Record] | None] = SimpleQueue()
        self._ending: type[BaseException] | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()
        if not self._started.wait(_START_SECONDS):
            self._leave_behind("started", _START_SECONDS)

    def log(self, records: Sequence[Record]) -> None:
        """Queue records for sending."""
        if self._is_open:
            self._waiting.put(records)

    def close(self, ending: type[BaseException] | None = None) -> None:
        """End the log within 30 s. `ending` is the class of the error that ends the run."""
        self._ending = ending
        if self._is_open:
            self._waiting.put(None)
            self._thread.join(_FINISH_SECONDS)
            if self._thread.is_alive():
                self._leave_behind("finished", _FINISH_SECONDS)

    def _start(self) -> None:
        raise NotImplementedError

    def _send(self, records: Sequence[Record]) -> None:
        raise NotImplementedError

    def _finish(self) -> None:
        raise NotImplementedError

    def _work(self) -> None:
        self._guard(self._open)
        self._started.set()
        while self._is_open:
            if (records := self._waiting.get()) is None:
                return self._guard(self._finish)
            self._guard(partial(self._send, records))

    def _open(self) -> None:
        for name, value in self.environment.items():
            os.environ.setdefault(name, value)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                importlib.import_module(self.package)
        except ImportError:
            hint = f"(pip install '.[{self.package}]')"
            self._warn(f"{self.package} is not installed {hint}: metrics go only to metrics.jsonl")
            self._is_open = False
        else:
            self._start()

    def _guard(self, call: Callable[[], object]) -> None:
        # These packages raise many kinds of errors, of their own and of the libraries below.
        try:
            call()
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            self._warn(f"{self.title} failed ({what}); metrics go on in metrics.jsonl")
            self._is_open = False

    def _leave_behind(self, done: str, seconds: float) -> None:
        late = f"{self.title} has not {done} within {seconds:g} s; the run goes on without it"
        self._warn(f"{late}, and all metrics are in metrics.jsonl")
        self._warn, self._is_open = lambda message: None, False  # It may raise later.


class WandbLog(SideLog):
    """Weights & Biases. `logger.mode=auto` means WANDB_MODE if it is set, else online if there is a
    key and the server answers within 10 s, else offline (`wandb sync` uploads the run later).
    """

    title, package = "W&B", "wandb"
    # Also ends W&B's own process, for which the interpreter waits at its exit. An environment
    # variable, because older versions have no setting for it.
    environment: ClassVar = {"WANDB_FINISH_TIMEOUT": f"{_FINISH_SECONDS:g}"}

    def _start(self) -> None:
        import wandb

        require_no_link(self._run_dir / "wandb")
        mode = self._config.logger.mode
        if mode == "auto" and os.environ.get("WANDB_MODE"):
            mode = None  # W&B reads the variable.
        elif mode == "auto":
            why = _why_offline()
            mode = "offline" if why else "online"
            if why:
                sync = f"wandb sync {shlex.quote(str(self._run_dir / 'wandb'))}/offline-run-*"
                Bar.write(f"W&B is offline, because {why}; to upload: {sync}", file=sys.stderr)
        self.run_id = self.run_id or secrets.token_hex(4)
        self._run = wandb.init(
            project=str(self._config.project_name),
            name=str(self._config.run_name),
            id=self.run_id,
            resume="allow",
            dir=str(self._run_dir),
            config=self._config.model_dump(mode="json"),
            mode=mode,
            settings=wandb.Settings(init_timeout=_REACH_SECONDS, silent=True),
        )

    def _send(self, records: Sequence[Record]) -> None:
        import wandb

        for record in records:
            films = {name: wandb.Video(str(gif)) for name, gif in _gifs(record).items()}
            self._run.log(dict(_numbers(record)) | films, step=record["step"])

    def _finish(self) -> None:
        self._run.finish()


class TensorBoardLog(SideLog):
    """TensorBoard: an event file for each start, in `tensorboard/` in the run's folder."""

    title, package = "TensorBoard", "tensorboard"

    def _start(self) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # pyright: ignore
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder = self._run_dir / "tensorboard"
        require_no_link(folder)
        folder.mkdir(exist_ok=True)
        # Readers order the files of a folder by name.
        path = folder / f"events.out.tfevents.{time.time_ns()}"
        self._writer, self._event = RecordWriter(path.open("xb", buffering=0)), Event
        self._write(file_version="brain.Event:2")
        # Readers drop the events of older files from this step on.
        first_step = self._state.step + 1 if self._state else 0
        self._write(step=first_step, session_log=SessionLog(status=SessionLog.START))

    def _send(self, records: Sequence[Record]) -> None:
        for record in records:
            values = [{"tag": name, "simple_value": value} for name, value in _numbers(record)]
            for name, gif in _gifs(record).items():
                content = gif.read_bytes()
                width, height = struct.unpack_from("<HH", content, 6)
                image = {"encoded_image_string": content, "width": width, "height": height}
                values.append({"tag": name, "image": {**image, "colorspace": 3}})
            self._write(step=record["step"], summary={"value": values})

    def _write(self, **event: Any) -> None:
        self._writer.write(self._event(wall_time=time.time(), **event).SerializeToString())

    def _finish(self) -> None:
        self._writer.close()


class MLflowLog(SideLog):
    """MLflow: the server of `logger.mlflow.tracking_uri` or MLFLOW_TRACKING_URI, else a database in
    the run's folder.
    """

    title, package = "MLflow", "mlflow"
    environment: ClassVar = {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": f"{_REACH_SECONDS:g}",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    }

    def _start(self) -> None:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        logging.getLogger("mlflow").setLevel(logging.CRITICAL)  # It reports every new table.
        warnings.filterwarnings("ignore", module="mlflow|sqlalchemy|alembic")
        self._client: Any = MlflowClient(self._uri())
        try:
            if self.run_id is not None:
                return self._client.update_run(self.run_id, status="RUNNING")
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":  # The run was on another server.
                raise
        self.run_id = self._new_run()

    def _uri(self) -> str:
        asked = self._config.logger.mlflow
        if uri := (asked and asked.tracking_uri) or os.environ.get("MLFLOW_TRACKING_URI"):
            return uri
        database = (self._run_dir / "mlflow.db").absolute()
        if set("?%") & set(str(database)):  # In a URI they would end the path.
            raise ConfigError(f"{database}: MLflow takes no ? or % in a path; rename the folder")
        require_no_link(database)
        return f"sqlite:///{database}"

    def _new_run(self) -> str:
        from mlflow.entities import Param
        from mlflow.exceptions import MlflowException

        name = str(self._config.project_name)
        if (experiment := self._client.get_experiment_by_name(name)) is None:
            with contextlib.suppress(MlflowException):  # Another run may just have created it.
                self._client.create_experiment(name)
            experiment = self._client.get_experiment_by_name(name)
        run = self._client.create_run(experiment.experiment_id, run_name=self._config.run_name)
        settings = flatten(self._config.model_dump(mode="json"))
        params = [Param(_mlflow_name(key), str(value)[:6000]) for key, value in settings]
        for first in range(0, len(params), 100):  # It takes no more.
            batch = params[first : first + 100]
            self._client.log_batch(run.info.run_id, params=batch, synchronous=True)
        return run.info.run_id

    def _send(self, records: Sequence[Record]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [
            Metric(_mlflow_name(name), value, now, record["step"])
            for record in records
            for name, value in _numbers(record)
        ]
        for first in range(0, len(metrics), 1000):  # It takes no more.
            batch = metrics[first : first + 1000]
            self._client.log_batch(str(self.run_id), metrics=batch, synchronous=True)

    def _finish(self) -> None:
        ending = self._ending
        status = "KILLED" if ending is Preempted else "FAILED" if ending else "FINISHED"
        self._client.set_terminated(str(self.run_id), status)


def _numbers(record: Record) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a record, by name."""
    for name, value in record.items():
        if name != "step" and isinstance(value, int | float):
            yield name, float(value)


def _gifs(record: Record) -> dict[str, Path]:
    """Return the paths of GIFs in a record, by name."""
    return {name: value for name, value in record.items() if isinstance(value, Path)}


def _mlflow_name(name: str) -> str:
    """Return a name with `_` for characters that MLflow refuses (the `@` of `pass@1`)."""
    return re.sub(r"[^\w./ -]", "_", name, flags=re.ASCII)[:250]


def _why_offline() -> str:
    """Return why nothing can be uploaded to W&B now, or "" if the user is logged in (by environment
    or `wandb login`) and the server answers within 10 s.
    """
    url = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")
    refused = (OSError, ValueError, http.client.HTTPException, netrc.NetrcParseError)
    login: object = os.environ.get("WANDB_API_KEY")
    with contextlib.suppress(*refused):
        if not login:
            logins = netrc.netrc(os.environ.get("NETRC") or Path.home() / ".netrc")
            login = logins.authenticators(urlsplit(url).hostname or "")
    if not login:
        return "nobody is logged in (wandb login)"
    try:
        urllib.request.urlopen(url, timeout=_REACH_SECONDS).close()
    except urllib.error.HTTPError as answer:
        answer.close()  # An error is an answer too.
    except refused:
        return f"{shown(url)} does not answer"
    return ""
