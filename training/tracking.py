"""Metrics: a line of JSON for every step, and other logs, none of which may ever stop a run."""

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from tqdm import tqdm

from runtime.errors import CheckpointError, disk_errors
from runtime.files import fsync, write_atomically
from training.checkpoint.store import Checkpoint
from training.config.schema import TrainConfig
from training.logs import MLflowLog, Record, SideLog, TensorBoardLog, WandbLog

METRICS_FILE = "metrics.jsonl"
WARNINGS = "diagnose/warnings"
"""Key of a record: what people should know, a list of sentences."""


class Tracker:
    """Appends records to `metrics.jsonl`, each a JSON object with its `step`, and sends them to
    other logs; closes all at the end of its block.

    Args:
        checkpoint: records of what came after it belong to a future that did not happen and are
            dropped; None empties the file.
    Raises:
        CheckpointError: the disk refused, here and in all methods; names the file and the reason.
    """

    def __init__(self, path: Path, checkpoint: Checkpoint | None) -> None:
        self.path, self.others = path, dict[str, SideLog]()
        with disk_errors(path, CheckpointError):
            kept = [] if checkpoint is None else _records_until(path, checkpoint)
            write_atomically(path, "".join(kept))
            self._file: TextIO = path.open("a")

    @property
    def run_ids(self) -> dict[str, str]:
        """Identifiers of the run in other logs, to be kept in checkpoints."""
        return {name: log.run_id for name, log in self.others.items() if log.run_id}

    def log(self, records: Sequence[Record]) -> None:
        """Write records, hand them to the operating system, and send them to the other logs."""
        with disk_errors(self.path, CheckpointError):
            for record in records:
                finite = {key: _json_number(value) for key, value in record.items()}
                self._file.write(json.dumps(finite, allow_nan=False) + "\n")
            self._file.flush()
        for log in self.others.values():
            log.log(records)

    def sync(self) -> None:
        """Flush the file to the disk, before a checkpoint claims its steps."""
        with disk_errors(self.path, CheckpointError):
            self._file.flush()
            fsync(self.path)

    def __enter__(self) -> "Tracker":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            with disk_errors(self.path, CheckpointError), self._file:
                self.sync()
        except CheckpointError:
            if kind is None:  # Otherwise it would hide what ends the run.
                raise
        finally:
            for log in self.others.values():
                log.close(kind)


def open_tracker(config: TrainConfig, run_dir: Path, checkpoint: Checkpoint | None) -> Tracker:
    """Open what `config.logger` asks for; a resumed run goes on in the same files and runs."""
    tracker = Tracker(run_dir / METRICS_FILE, checkpoint)
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
