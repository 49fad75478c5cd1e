"""Train for some minutes, save and stop; the same command goes on: `make gpu-train`.

    python -m scripts.gpu_train EXPERIMENT [--minutes M] [--folder FOLDER] [KEY=VALUE ...]

Runs pretrain.py with experiment=EXPERIMENT and the settings in FOLDER/EXPERIMENT, on data built
beforehand, and asks it to stop when the minutes are over; it may take ten more to log a step first.
Prints the last metrics.
"""

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from runtime.errors import EXIT_PREEMPTED

ROOT = Path(__file__).resolve().parents[2]

_FIRST_SECONDS = 600.0  # Compiling, say.
_SAVE_SECONDS = 120.0
_POLL_SECONDS = 0.1


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and train; returns 0 when the run has ended or saved itself."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("experiment", help="a name in config/experiment")
    parser.add_argument("--minutes", type=float, default=9.0, help="start included (default 9)")
    parser.add_argument("--folder", type=Path, default=Path("gpu/train"), help="of the runs")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="as for pretrain.py")
    options = parser.parse_intermixed_args(arguments)
    run_dir = options.folder.resolve() / options.experiment
    own = [f"experiment={options.experiment}", f"checkpoint_path={run_dir}", "logger=jsonl"]
    command = [sys.executable, str(ROOT / "pretrain.py"), *own, *options.settings]
    metrics = run_dir / "metrics.jsonl"
    smallest = size_of(metrics)

    def has_logged() -> bool:
        nonlocal smallest
        size = size_of(metrics)
        smallest = min(smallest, size)  # A run that goes on first drops what it had not saved.
        return size > smallest

    code = run_for(command, options.minutes * 60, has_logged)
    sys.stdout.writelines(f"{line}\n" for line in last_metrics(metrics))
    return 0 if code == EXIT_PREEMPTED else code


def run_for(command: Sequence[str], seconds: float, has_begun: Callable[[], bool]) -> int:
    """Run a command that saves and ends at SIGTERM, which it gets after `seconds`, but, for ten
    minutes more, not before it has begun; returns its exit code. One that does not end is killed.
    """
    end = time.monotonic() + seconds
    with subprocess.Popen(command, cwd=ROOT) as process:
        while not has_begun() or time.monotonic() < end:
            if process.poll() is not None:
                return process.returncode
            if time.monotonic() > end + _FIRST_SECONDS:
                break
            time.sleep(_POLL_SECONDS)
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(_SAVE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            sys.stdout.write(f"not saved within {_SAVE_SECONDS:.0f} s: killed\n")
    return process.returncode


def size_of(path: Path) -> int:
    """Return the bytes of a file that may not be there yet."""
    return path.stat().st_size if path.exists() else 0


def last_metrics(path: Path) -> list[str]:
    """Return the last record of a training step and the last of an evaluation."""
    if not path.exists():
        return ["no step was logged"]
    whole, _, _ = path.read_text().rpartition("\n")  # A killed run may leave half a line.
    records = [json.loads(line) for line in whole.splitlines()]
    kinds = ("train/", "eval/")
    found = ([r for r in records if any(name.startswith(kind) for name in r)] for kind in kinds)
    return [json.dumps(kept[-1]) for kept in found if kept]
