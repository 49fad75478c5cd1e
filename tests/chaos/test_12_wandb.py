"""Row 12: failures of W&B, TensorBoard and MLflow change nothing in a run.

It starts in time, trains to the same bits, and has all metrics in its own file.
"""

import signal
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from harness import mutants
from harness.lab import Lab
from harness.processes import Child, Fault, pretrain
from harness.steps import before_call
from harness.trackers import failing_call, missing, servers, stand_in_wandb

from runtime.errors import EXIT_PREEMPTED

EVENT = "tensorboard.summary.writer.record_writer.RecordWriter.write"
CLIENT = "mlflow.MlflowClient"
FAILURES = {
    "W&B is not installed": ("logger.name=wandb", partial(missing, "wandb")),
    "W&B raises at its start": ("logger.name=wandb", partial(failing_call, "wandb.init")),
    "W&B raises while it logs": ("logger.name=wandb", partial(failing_call, "wandb.Run.log", 2)),
    "W&B raises at its end": ("logger.name=wandb", partial(failing_call, "wandb.Run.finish")),
    "TensorBoard raises at its start": ("logger=tensorboard", partial(failing_call, EVENT)),
    "TensorBoard raises while it logs": ("logger=tensorboard", partial(failing_call, EVENT, 9)),
    "TensorBoard is not installed": ("logger=tensorboard", partial(missing, "tensorboard")),
    "MLflow raises at its start": ("logger=mlflow", partial(failing_call, f"{CLIENT}.__init__")),
    "MLflow raises while it logs": (
        "logger=mlflow",
        partial(failing_call, f"{CLIENT}.log_batch", 2),
    ),
    "MLflow raises at its end": (
        "logger=mlflow",
        partial(failing_call, f"{CLIENT}.set_terminated"),
    ),
    "MLflow hangs": ("logger=mlflow", partial(failing_call, f"{CLIENT}.log_batch", 2, hangs=True)),
    "MLflow is not installed": ("logger=mlflow", partial(missing, "mlflow")),
}
START_DELAYED_AT_MOST, END_DELAYED_AT_MOST = 3 * 10.0, 3 * 30.0


@pytest.fixture
def lab(lab: Lab) -> Lab:
    """Return a lab with a whole run without trackers."""
    lab.train("whole")
    return lab


def require_one_warning(child: Child, wanted: str) -> None:
    """Require exactly one warning, with these words."""
    warnings = [line for line in child.err.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 1, warnings
    assert wanted in warnings[0], warnings


def require_indifference(lab: Lab, what: str, *faults: Fault) -> None:
    """Make a package fail, and require one warning and the same bits."""
    logger, fault = FAILURES[what]
    child = lab.train("run", logger, faults=(*faults, stand_in_wandb, fault))
    title, *_, last = what.split()
    wanted = {"hangs": "MLflow has not finished within 30 s", "installed": "is not installed"}
    require_one_warning(child, wanted.get(last, f"{title} failed (Error: told to fail"))
    lab.require_same_end()


@pytest.mark.parametrize("what", FAILURES)
def test_a_failing_package_changes_nothing(lab: Lab, what: str) -> None:
    require_indifference(lab, what)
    lab.tally(f"{what}: same bits, all {len(lab.files().records)} records", failures=1)


def test_a_finish_that_hangs_does_not_keep_a_run_from_stopping(lab: Lab) -> None:
    hangs = partial(failing_call, "wandb.Run.finish", hangs=True)
    asked = partial(before_call, "training.step", "sum_in_order", number=signal.SIGTERM)
    began = time.monotonic()
    overrides = lab.settings("run", "logger.name=wandb")
    child = lab.server.start(pretrain, *overrides, faults=[stand_in_wandb, hangs, asked])
    assert child.wait(END_DELAYED_AT_MOST) == EXIT_PREEMPTED, child.err
    seconds = time.monotonic() - began
    require_one_warning(child, "W&B has not finished within 30 s")
    assert "Traceback" not in child.err
    lab.train()
    lab.require_same_end()
    said = f"W&B hangs in finish: started and stopped within {seconds:.0f} s, resumed exactly"
    lab.tally(said, failures=1)


@pytest.mark.parametrize(
    "logger", ["logger.name=wandb", "logger.name=wandb logger.mode=online", "logger=mlflow"]
)
def test_a_server_that_does_not_answer_delays_the_start_a_little(
    lab: Lab, start: Callable[..., Any], logger: str
) -> None:
    runs = {}
    with servers() as ports:
        for server, port in ports.items():
            urls = dict.fromkeys(
                ("WANDB_BASE_URL", "MLFLOW_TRACKING_URI"), f"http://127.0.0.1:{port}"
            )
            settings = lab.settings(server, *logger.split())
            environment = {"WANDB_API_KEY": "k" * 40, **urls}
            runs[server] = start("pretrain.py", *settings, env=environment)
        slowest = max(seconds_to_first_steps(runs, lab.folder).values())
        for server, process in runs.items():
            _, err = process.communicate()
            assert process.returncode == 0, err
            asked = err.count("warning: MLflow failed (MlflowException: API request to")
            assert asked == (logger == "logger=mlflow"), err
            lab.require_same_end(server)
            sent_later = list((lab.folder / server / "wandb").glob("offline-run-*/*.wandb"))
            assert len(sent_later) == (logger == "logger.name=wandb") or "online" in logger
    assert slowest < START_DELAYED_AT_MOST
    said = f"3 servers ({', '.join(runs)}) asked by {logger}: same bits"
    lab.tally(f"{said}, first steps at most {slowest:.0f} s late", failures=len(runs))


def seconds_to_first_steps(runs: Mapping[str, Any], folder: Path) -> dict[str, float]:
    """Return the seconds of each run between its start of logging and its first steps."""
    began: dict[str, float] = {}
    seconds: dict[str, float] = {}
    while seconds.keys() != runs.keys():
        for name, process in runs.items():
            log, now = folder / name / "metrics.jsonl", time.monotonic()
            ended = process.poll() is not None
            if name not in began and log.exists():
                began[name] = now
            elif name in began and name not in seconds and log.read_text():
                seconds[name] = now - began[name]
            else:
                assert name in seconds or not ended, process.communicate()
        time.sleep(0.01)
    return seconds


@pytest.mark.parametrize("mutant", mutants.params("omit_guard"))
def test_a_package_that_may_raise_into_the_run_is_noticed(lab: Lab, mutant: Fault) -> None:
    with pytest.raises(AssertionError, match="assert 0 == 1"):  # No warning: its thread is dead.
        require_indifference(lab, "W&B raises while it logs", mutant)
