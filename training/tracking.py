"""Metrics: a line of JSON for every step, and Weights & Biases, which may never stop a run."""

import contextlib
import http.client
import json
import math
import netrc
import os
import secrets
import sys
import threading
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
from training.config.schema import TrainConfig

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


class WandbLog:
    """Weights & Biases. Its first error gives a warning and ends its use; the run goes on.

    Args:
        config: names and settings of the run; `logger.mode` auto is online when there is a key and
            the server is reached within 10 s, otherwise offline (`wandb sync` sends it later).
        run_id: of the run to go on with, or None for a new one; the attribute is that of this run,
            None when W&B is not there.
    """

    def __init__(
        self, config: TrainConfig, run_dir: Path, run_id: str | None, warn: Callable[[str], None]
    ) -> None:
        self.run_id, self._warn = run_id, warn
        self._run: Any = None
        try:
            import wandb
        except ImportError:
            hint = "(pip install '.[wandb]')"
            warn(f"wandb is not installed {hint}: metrics go to metrics.jsonl only")
            return

        def start() -> Any:
            require_no_link(run_dir / "wandb")
            mode = config.logger.mode
            online = mode == "online" or (mode == "auto" and _can_reach_server())
            self.run_id = run_id or secrets.token_hex(4)
            # Its own process, which the interpreter waits for at its exit, gives up then too. Not
            # among the settings: older versions know none of that name.
            os.environ.setdefault("WANDB_FINISH_TIMEOUT", f"{_FINISH_SECONDS:g}")
            return wandb.init(
                project=str(config.project_name),
                name=str(config.run_name),
                id=self.run_id,
                resume="allow",
                dir=str(run_dir),
                config=config.model_dump(mode="json"),
                mode="online" if online else "offline",
                settings=wandb.Settings(init_timeout=_REACH_SECONDS, silent=True),
            )

        self._run = self._guard(start)

    def log(self, records: Iterable[Record]) -> None:
        """Send records under their steps."""
        for record in records:
            values = {key: value for key, value in record.items() if key != "step"}
            if self._run is not None:
                self._guard(partial(self._send, record["step"], values))

    def _send(self, step: int, values: Record) -> None:
        self._run.log(values, step=step)

    def close(self) -> None:
        """End the run; W&B has 30 s for it."""
        if self._run is None:
            return
        if not _returns_within(_FINISH_SECONDS, lambda: self._guard(self._run.finish)):
            self._warn(
                f"W&B has not finished within {_FINISH_SECONDS:g} s and is left behind; "
                "`wandb sync` sends what is missing"
            )
            self._warn = lambda message: None  # Whatever it still raises.

    def _guard(self, call: Callable[[], Any]) -> Any:
        # W&B raises many kinds of errors of its own, of its transport and of the operating system.
        try:
            return call()
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            self._warn(f"W&B failed ({what}); metrics go on in metrics.jsonl")
            self._run = None
            return None


class Tracker:
    """Sends records to the JSONL file and to W&B; closes both at the end of its block."""

    def __init__(self, jsonl: JsonlLog, wandb: WandbLog | None) -> None:
        self._jsonl, self._wandb = jsonl, wandb

    @property
    def run_id(self) -> str | None:
        """Identifier of the W&B run, to be kept in checkpoints."""
        return self._wandb.run_id if self._wandb else None

    def log(self, records: Iterable[Record]) -> None:
        records = list(records)
        self._jsonl.log(records)
        if self._wandb:
            self._wandb.log(records)

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
            if self._wandb:
                self._wandb.close()


def open_tracker(config: TrainConfig, run_dir: Path, checkpoint: Checkpoint | None) -> Tracker:
    """Open what `config.logger` asks for; a resumed run goes on in the same file and W&B run."""
    jsonl, wandb = JsonlLog(run_dir / METRICS_FILE, checkpoint), None
    if config.logger.name == "wandb":
        run_id = checkpoint.state.wandb_id if checkpoint else None
        wandb = WandbLog(config, run_dir, run_id=run_id, warn=warn)
    return Tracker(jsonl, wandb)


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
