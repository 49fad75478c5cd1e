"""The metrics of a run: one line of JSON for every step, and copies in other logs."""

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from runtime.errors import CheckpointError, disk_errors
from runtime.files import fsync, write_atomically
from runtime.process import env_rank
from runtime.progress import Bar
from training.checkpoint.store import Checkpoint
from training.config.schema import TrainConfig
from training.logs import MLflowLog, Record, SideLog, TensorBoardLog, WandbLog

METRICS_FILE = "metrics.jsonl"
WARNINGS = "diagnose/warnings"
"""Key of a record: a list of warnings, one sentence each."""


class Tracker:
    """The writer of `metrics.jsonl`, which appends a JSON object for each record and sends records
    to other logs. A context manager; it closes all logs at its end.

    Args:
        checkpoint: the run goes on from it, so later records are dropped. None empties the file.
        keep_dropped: append the dropped records to `abandoned_metrics.jsonl`.
    Raises:
        CheckpointError: the file cannot be written; names it and the reason. All methods raise it.
    """

    def __init__(
        self, path: Path, checkpoint: Checkpoint | None, keep_dropped: bool = False
    ) -> None:
        self.path, self.others = path, dict[str, SideLog]()
        with disk_errors(path, CheckpointError):
            kept, dropped = ([], []) if checkpoint is None else _records_until(path, checkpoint)
            if keep_dropped:
                with path.with_name(f"abandoned_{path.name}").open("a") as file:
                    file.writelines(dropped)
            write_atomically(path, "".join(kept))
            self._file: TextIO = path.open("a")

    @property
    def run_ids(self) -> dict[str, str]:
        """The identifiers of the run in other logs, for checkpoints."""
        return {name: log.run_id for name, log in self.others.items() if log.run_id}

    def log(self, records: Sequence[Record]) -> None:
        """Write records to the file, flush it, and send them to the other logs."""
        with disk_errors(self.path, CheckpointError):
            for record in records:
                finite = {key: _json_number(value) for key, value in record.items()}
                self._file.write(json.dumps(finite, allow_nan=False) + "\n")
            self._file.flush()
        for log in self.others.values():
            log.log(records)

    def sync(self) -> None:
        """Write the file to the disk, before a checkpoint claims its steps. From any thread."""
        with disk_errors(self.path, CheckpointError):
            fsync(self.path)

    def __enter__(self) -> "Tracker":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            with disk_errors(self.path, CheckpointError), self._file:
                self.sync()
        except CheckpointError:
            if kind is None:  # Else it would hide the error that ends the run.
                raise
        finally:
            for log in self.others.values():
                log.close(kind)


def open_tracker(
    config: TrainConfig, run_dir: Path, checkpoint: Checkpoint | None, newer: Sequence[Path] = ()
) -> Tracker:
    """Open the logs of `config.logger`. A resumed run goes on in the same files and runs. With
    resume=STEP and later checkpoints (`newer`) it keeps the later records, too.
    """
    went_back = bool(newer) and isinstance(config.resume, int)
    tracker = Tracker(run_dir / METRICS_FILE, checkpoint, went_back)
    logger, state = config.logger, checkpoint and checkpoint.state
    wanted = {
        WandbLog: logger.name == "wandb",
        TensorBoardLog: logger.tensorboard,
        MLflowLog: logger.mlflow is not None,
    }
    for log in (log for log, is_wanted in wanted.items() if is_wanted):
        tracker.others[log.package] = log(config, run_dir, state, warn)
    return tracker


def warn(message: str) -> None:
    """Print a warning of rank 0 on standard error, above any progress bar."""
    if env_rank() == 0:
        Bar.write(f"warning: {message}", file=sys.stderr)


def _records_until(path: Path, checkpoint: Checkpoint) -> tuple[list[str], list[str]]:
    """Return the lines up to a checkpoint, and the later ones."""
    if not path.exists():
        return [], []
    # A checkpoint inside an iteration, even after its last batch, comes before the evaluation.
    evaluated = checkpoint.state.position == 0
    kept, later = list[str](), list[str]()
    for line in path.read_text(errors="replace").splitlines(keepends=True):
        try:
            record = json.loads(line)
            due = checkpoint.step if evaluated or "train/lr" in record else checkpoint.step - 1
            is_due = record["step"] <= due
        except (ValueError, TypeError, KeyError):
            break  # A kill or a power loss cut this line short.
        if line.endswith("\n"):
            (kept if is_due else later).append(line)
    return kept, later


def _json_number(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
