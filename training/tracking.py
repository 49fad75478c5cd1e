"""Metrics: a line of JSON for every step, and other logs, none of which may ever stop a run."""

import contextlib
import http.client
import importlib.util
import json
import math
import netrc
import os
import secrets
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from tqdm import tqdm

from runtime.errors import CheckpointError
from runtime.files import fsync, require_no_link, write_atomically
from training.checkpoint.store import Checkpoint
from training.config.schema import TrainConfig, flatten

METRICS_FILE = "metrics.jsonl"
_REACH_SECONDS = 10.0
_FINISH_SECONDS = 30.0  # What is then left to upload lies in its folder.

Record = Mapping[str, Any]


class JsonlLog:
    """Appends records to `metrics.jsonl`, each a JSON object with its `step`.

    Args:
        checkpoint: records of what came after it belong to a future that did not happen and are
            dropped; None empties the file.
    Raises:
        CheckpointError: the disk refused, here and in all methods; names the file and the reason.
    """

    def __init__(self, path: Path, checkpoint: Checkpoint | None) -> None:
        self.path = path
        with self._disk():
            kept = [] if checkpoint is None else _records_until(path, checkpoint)
            write_atomically(path, "".join(kept))
            self._file: TextIO = path.open("a")

    def log(self, records: Iterable[Record]) -> None:
        """Write records and hand them to the operating system."""
        with self._disk():
            for record in records:
                finite = {key: _json_number(value) for key, value in record.items()}
                self._file.write(json.dumps(finite, allow_nan=False) + "\n")
            self._file.flush()

    def sync(self) -> None:
        """Flush the file to the disk, before a checkpoint claims its steps."""
        with self._disk():
            self._file.flush()
            fsync(self.path)

    def close(self) -> None:
        with self._disk(), self._file:
            self.sync()

    @contextlib.contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = f"could not be written: {error.strerror or error}"
            message = f"{self.path}: {reason}; the checkpoints are untouched"
            raise CheckpointError(message) from error


class SideLog:
    """A place for metrics beside `metrics.jsonl`. Its first error gives a warning and ends its use;
    the run goes on.

    A subclass says how to start, send and finish.

    Attributes:
        title: its name in warnings.
        run_id: identifies the run there, to be kept in checkpoints; None where there is none.
    """

    title: str
    run_id: str | None = None

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._is_open = self._guard(self._start)

    def _start(self) -> bool:
        """Open the log; returns False where it is not to be used."""
        raise NotImplementedError

    def _send(self, step: int, values: Record) -> None:
        raise NotImplementedError

    def _finish(self) -> None:
        raise NotImplementedError

    def log(self, records: Iterable[Record]) -> None:
        """Send records under their steps."""
        for record in records:
            values = {key: value for key, value in record.items() if key != "step"}
            if self._is_open:
                self._guard(partial(self._send, record["step"], values))

    def close(self) -> None:
        """End the log, which has 30 s for it."""
        if not self._is_open:
            return
        if not _returns_within(_FINISH_SECONDS, lambda: self._guard(self._finish)):
            self._warn(
                f"{self.title} has not finished within {_FINISH_SECONDS:g} s and is left behind"
                f"{self.left_behind}"
            )
            self._warn = lambda message: None  # Whatever it still raises.

    left_behind = ""
    """What can be done when it did not finish in time."""

    def _guard(self, call: Callable[[], Any]) -> Any:
        # Each raises many kinds of errors of its own, of its transport and of the operating system.
        try:
            return call()
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            self._warn(f"{self.title} failed ({what}); metrics go on in metrics.jsonl")
            self._is_open = False
            return None

    def _is_missing(self, package: str, extra: str) -> bool:
        """Warn and return True where a package is not installed."""
        if importlib.util.find_spec(package):
            return False
        hint = f"(pip install '.[{extra}]')"
        self._warn(f"{package} is not installed {hint}: metrics go to metrics.jsonl only")
        return True


class WandbLog(SideLog):
    """Weights & Biases.

    Args:
        config: names and settings of the run; `logger.mode` auto is online when there is a key and
            the server is reached within 10 s, otherwise offline (`wandb sync` sends it later).
        run_id: of the run to go on with, or None for a new one; the attribute is that of this run,
            None when W&B is not there.
    """

    title = "W&B"
    left_behind = "; `wandb sync` sends what is missing"

    def __init__(
        self, config: TrainConfig, run_dir: Path, run_id: str | None, warn: Callable[[str], None]
    ) -> None:
        self.run_id, self._config, self._run_dir = run_id, config, run_dir
        super().__init__(warn)

    def _start(self) -> bool:
        if self._is_missing("wandb", "wandb"):
            return False
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
        return True

    def _send(self, step: int, values: Record) -> None:
        self._run.log(values, step=step)

    def _finish(self) -> None:
        self._run.finish()


class TensorBoardLog(SideLog):
    """TensorBoard: event files in the run's folder, `tensorboard/`.

    Args:
        first_step: events of it and later are hidden, for the run goes on before them.
    """

    title = "TensorBoard"

    def __init__(self, run_dir: Path, first_step: int, warn: Callable[[str], None]) -> None:
        self._folder, self._first_step = run_dir / "tensorboard", first_step
        super().__init__(warn)

    def _start(self) -> bool:
        if self._is_missing("tensorboard", "tensorboard"):
            return False
        from torch.utils.tensorboard import SummaryWriter

        require_no_link(self._folder)
        self._writer = SummaryWriter(str(self._folder), purge_step=self._first_step)
        return True

    def _send(self, step: int, values: Record) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def _finish(self) -> None:
        self._writer.close()


class MLflowLog(SideLog):
    """MLflow: the server that `logger.mlflow.tracking_uri` or MLFLOW_TRACKING_URI names, otherwise
    a database in the run's folder.

    Args:
        config: names and settings of the run.
        run_id: of the run to go on with, or None for a new one.
    """

    title = "MLflow"

    def __init__(
        self, config: TrainConfig, run_dir: Path, run_id: str | None, warn: Callable[[str], None]
    ) -> None:
        self.run_id, self._config, self._run_dir = run_id, config, run_dir
        super().__init__(warn)

    def _start(self) -> bool:
        if self._is_missing("mlflow", "mlflow"):
            return False
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", f"{_REACH_SECONDS:g}")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        from mlflow import MlflowClient

        asked = self._config.logger.mlflow
        own = f"sqlite:///{(self._run_dir / 'mlflow.db').resolve()}"
        uri = (asked and asked.tracking_uri) or os.environ.get("MLFLOW_TRACKING_URI") or own
        self._client = MlflowClient(uri)
        if self.run_id is None:
            name = str(self._config.project_name)
            experiment = self._client.get_experiment_by_name(name)
            number = (
                experiment.experiment_id if experiment else self._client.create_experiment(name)
            )
            run = self._client.create_run(number, run_name=str(self._config.run_name))
            self.run_id = run.info.run_id
            for key, value in flatten(self._config.model_dump(mode="json")):
                self._client.log_param(self.run_id, key, value)
        else:
            self._client.update_run(self.run_id, status="RUNNING")
        return True

    def _send(self, step: int, values: Record) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(name, float(value), now, step) for name, value in values.items()]
        self._client.log_batch(str(self.run_id), metrics)

    def _finish(self) -> None:
        self._client.set_terminated(str(self.run_id))


class Tracker:
    """Sends records to the JSONL file and to other logs; closes all at the end of its block."""

    def __init__(self, jsonl: JsonlLog, others: Mapping[str, SideLog]) -> None:
        self._jsonl, self._others = jsonl, others

    @property
    def run_ids(self) -> dict[str, str]:
        """Identifiers of the run in other logs, to be kept in checkpoints."""
        return {name: log.run_id for name, log in self._others.items() if log.run_id}

    def log(self, records: Iterable[Record]) -> None:
        records = list(records)
        self._jsonl.log(records)
        for log in self._others.values():
            log.log(records)

    def sync(self) -> None:
        self._jsonl.sync()

    def __enter__(self) -> "Tracker":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            self._jsonl.close()
        except CheckpointError:
            if kind is None:  # Otherwise it would hide what ends the run.
                raise
        finally:
            for log in self._others.values():
                log.close()


def open_tracker(config: TrainConfig, run_dir: Path, checkpoint: Checkpoint | None) -> Tracker:
    """Open what `config.logger` asks for; a resumed run goes on in the same file and runs."""
    jsonl = JsonlLog(run_dir / METRICS_FILE, checkpoint)
    state, others = checkpoint and checkpoint.state, dict[str, SideLog]()
    if config.logger.name == "wandb":
        others["wandb"] = WandbLog(config, run_dir, state and state.wandb_id, warn)
    if config.logger.tensorboard:
        first_step = checkpoint.step + 1 if checkpoint else 0
        others["tensorboard"] = TensorBoardLog(run_dir, first_step, warn)
    if config.logger.mlflow:
        others["mlflow"] = MLflowLog(config, run_dir, state and state.mlflow_id, warn)
    return Tracker(jsonl, others)


def warn(message: str) -> None:
    """Print a warning on standard error, above the progress bar if there is one."""
    tqdm.write(f"warning: {message}", file=sys.stderr)


def _records_until(path: Path, checkpoint: Checkpoint) -> list[str]:
    if not path.exists():
        return []
    # A checkpoint inside an iteration, even behind its last batch, comes before the evaluation.
    evaluated = checkpoint.state.position == 0
    kept = []
    for line in path.read_text(errors="replace").splitlines(keepends=True):
        try:
            record = json.loads(line)
            due = checkpoint.step if evaluated or "train/lr" in record else checkpoint.step - 1
            is_due = record["step"] <= due
        except (ValueError, TypeError, KeyError):
            break  # The line a kill or a power loss cut short; nothing good follows it.
        if is_due and line.endswith("\n"):
            kept.append(line)
    return kept


def _json_number(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


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
