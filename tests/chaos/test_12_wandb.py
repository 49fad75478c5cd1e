"""Row 12: whatever Weights & Biases, TensorBoard and MLflow do, the run trains as without them,
starts in time, and has all metrics in its own file.
"""

import signal
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from harness import mutants
from harness.lab import Lab
from harness.processes import Child, Fault, pretrain
from harness.steps import before_call
from harness.trackers import (
    CALLS,
    deaf_server,
    failing_call,
    failing_wandb,
    missing,
    no_server,
    silent_server,
)

from runtime.errors import EXIT_PREEMPTED

SERVERS = {"refused": no_server, "silent": silent_server, "deaf": deaf_server}
MODES = ("auto", "online")
EVENT = "tensorboard.summary.writer.record_writer.RecordWriter.write"
CLIENT = "mlflow.MlflowClient"
OTHERS = {
    "TensorBoard raises at its start": ("tensorboard", partial(failing_call, EVENT)),
    "TensorBoard raises while it logs": ("tensorboard", partial(failing_call, EVENT, 9)),
    "TensorBoard is not installed": ("tensorboard", partial(missing, "tensorboard")),
    "MLflow raises at its start": ("mlflow", partial(failing_call, f"{CLIENT}.__init__")),
    "MLflow raises while it logs": ("mlflow", partial(failing_call, f"{CLIENT}.log_batch", 2)),
    "MLflow raises at its end": ("mlflow", partial(failing_call, f"{CLIENT}.set_terminated")),
    "MLflow hangs": ("mlflow", partial(failing_call, f"{CLIENT}.log_batch", 2, hangs=True)),
    "MLflow is not installed": ("mlflow", partial(missing, "mlflow")),
}
START_DELAYED_AT_MOST, END_DELAYED_AT_MOST = 3 * 10.0, 3 * 30.0


@pytest.fixture
def lab(lab: Lab) -> Lab:
    """With a run without W&B."""
    lab.train("whole")
    return lab


def require_one_warning(child: Child, wanted: str) -> None:
    """Require that a run warned once, and of this."""
    warnings = [line for line in child.err.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 1, warnings
    assert wanted in warnings[0], warnings


def require_indifference(lab: Lab, call: str, *faults: Fault) -> None:
    """Let W&B fail in `call`, and demand that the run says so in one line and ends well."""
    failing = partial(failing_wandb, call)
    child = lab.train("run", "logger.name=wandb", faults=(*faults, failing))
    wanted = "wandb is not installed" if call == "import" else "W&B failed (Error: told to fail"
    require_one_warning(child, wanted)
    lab.require_same_end("run")


@pytest.mark.parametrize("call", CALLS)
def test_a_failing_package_changes_nothing(lab: Lab, call: str) -> None:
    require_indifference(lab, call)
    num_records = len(lab.files().records)
    lab.tally(f"raises in {call}: same bits, all {num_records} records", failures=1)


def test_a_finish_that_hangs_keeps_no_run_that_was_asked_to_stop(lab: Lab) -> None:
    overrides = lab.settings("run", "logger.name=wandb")
    asked = partial(before_call, "training.step", "sum_in_order", number=signal.SIGTERM)
    began = time.monotonic()
    faults = [partial(failing_wandb, "finish", hangs=True), asked]
    child = lab.server.start(pretrain, *overrides, faults=faults)
    assert child.wait(END_DELAYED_AT_MOST) == EXIT_PREEMPTED, child.err
    seconds = time.monotonic() - began
    require_one_warning(child, "W&B has not finished within 30 s")
    assert "Traceback" not in child.err
    lab.train()
    lab.require_same_end("run")
    said = f"asked to stop, start and end within {seconds:.0f} s, resumed exactly"
    lab.tally(f"hangs in finish: {said}", failures=1)


def test_a_server_that_does_not_answer_delays_the_start_a_little(
    lab: Lab, start: Callable[..., Any]
) -> None:
    delays: dict[str, float] = {}
    for mode in MODES:
        runs = {}
        with ExitStack() as opened:
            for server, address in SERVERS.items():
                name = f"{server} {mode}"
                overrides = lab.settings(name, "logger.name=wandb", f"logger.mode={mode}")
                url = f"http://127.0.0.1:{opened.enter_context(address())}"
                environment = {"WANDB_API_KEY": "k" * 40, "WANDB_BASE_URL": url}
                runs[name] = start("pretrain.py", *overrides, env=environment)
            delays |= seconds_to_first_steps(runs, lab.folder)
            for name, process in runs.items():
                _, err = process.communicate()
                assert process.returncode == 0, err
                assert lab.digest(name) == lab.digest("whole")
                sent_later = list((lab.folder / name / "wandb").glob("offline-run-*/*.wandb"))
                assert len(sent_later) == 1 or mode == "online"
    slowest = max(delays.values())
    assert slowest < START_DELAYED_AT_MOST, delays
    said = f"{len(SERVERS)} servers (refusing, silent, deaf) asked in {len(MODES)} modes: same bits"
    lab.tally(f"{said}, first steps at most {slowest:.0f} s late", failures=len(delays))


@pytest.mark.parametrize("what", OTHERS)
def test_tensorboard_and_mlflow_change_nothing(lab: Lab, what: str) -> None:
    logger, fault = OTHERS[what]
    child = lab.train("run", f"logger={logger}", faults=[fault])
    title, *_, last = what.split()
    wanted = {"hangs": "MLflow has not finished within 30 s", "installed": "is not installed"}
    require_one_warning(child, wanted.get(last, f"{title} failed (Error: told to fail"))
    lab.require_same_end("run")
    lab.tally(f"{what}: same bits", failures=1)


def test_an_mlflow_server_that_does_not_answer_delays_the_start_a_little(
    lab: Lab, start: Callable[..., Any]
) -> None:
    with ExitStack() as opened:
        runs = {}
        for server, address in SERVERS.items():
            environment = {
                "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{opened.enter_context(address())}"
            }
            overrides = lab.settings(server, "logger=mlflow")
            runs[server] = start("pretrain.py", *overrides, env=environment)
        delays = seconds_to_first_steps(runs, lab.folder)
        for server, process in runs.items():
            _, err = process.communicate()
            assert process.returncode == 0, err
            assert err.count("warning: MLflow failed (MlflowException: API request to") == 1, err
            assert lab.digest(server) == lab.digest("whole")
    slowest = max(delays.values())
    assert slowest < START_DELAYED_AT_MOST, delays
    said = f"{len(SERVERS)} MLflow servers (refusing, silent, deaf): same bits"
    lab.tally(f"{said}, first steps at most {slowest:.0f} s late", failures=len(delays))


def seconds_to_first_steps(runs: Mapping[str, Any], folder: Path) -> dict[str, float]:
    """Return for each run how long W&B was asked before steps were made and logged."""
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


@pytest.mark.mutant(fault=mutants.omit_guard)
def test_a_package_that_may_raise_into_the_run_is_noticed(lab: Lab) -> None:
    with pytest.raises(AssertionError, match="assert 0 == 1"):  # No warning: its thread is dead.
        require_indifference(lab, "log", mutants.omit_guard)
