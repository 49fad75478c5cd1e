"""Row 12: whatever Weights & Biases does, the run trains as without it, starts in time, and has all
metrics in its own file.
"""

import signal
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from harness import mutants
from harness.processes import Child, Fault, ForkServer, pretrain
from harness.ranks import SignalIn
from harness.trackers import FailingWandb, deaf_server, no_server, silent_server

from runtime.errors import EXIT_PREEMPTED

SERVERS = {"refused": no_server, "silent": silent_server, "deaf": deaf_server}
MODES = ("auto", "online")
START_DELAYED_AT_MOST, END_DELAYED_AT_MOST = 3 * 10.0, 3 * 30.0


@pytest.fixture
def whole(fork_server: ForkServer, settings: Callable[..., list[str]], files_of: Any) -> Any:
    """The files of a run without W&B."""
    fork_server.finish(pretrain, *settings("whole"))
    return files_of(Path(settings("whole")[-1].partition("=")[2]))


def require_same(run: Any, whole: Any) -> None:
    """Demand the bits and the records of a run without W&B."""
    assert run.digest() == whole.digest()
    assert run.records == whole.records


def require_one_warning(child: Child, wanted: str) -> None:
    """Require that a run warned once, and of this."""
    warnings = [line for line in child.err.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 1, warnings
    assert wanted in warnings[0], warnings


def require_indifference(
    server: ForkServer,
    settings: Callable[..., list[str]],
    files_of: Any,
    whole: Any,
    tmp_path: Path,
    call: str,
    *faults: Fault,
) -> None:
    """Let W&B fail in `call`, and demand that the run says so in one line and ends well."""
    faults = (*faults, FailingWandb(call))
    child = server.finish(pretrain, *settings("run", "logger.name=wandb"), faults=faults)
    wanted = "wandb is not installed" if call == "import" else "W&B failed (Error: told to fail"
    require_one_warning(child, wanted)
    require_same(files_of(tmp_path / "run"), whole)


@pytest.mark.row(12)
@pytest.mark.parametrize("call", FailingWandb.calls)
def test_a_failing_package_changes_nothing(
    fork_server: ForkServer,
    settings: Callable[..., list[str]],
    files_of: Any,
    whole: Any,
    tmp_path: Path,
    call: str,
    tally: Callable[..., None],
) -> None:
    require_indifference(fork_server, settings, files_of, whole, tmp_path, call)
    tally(f"raises in {call}: same bits, all {len(whole.records)} records")


@pytest.mark.row(12)
def test_a_finish_that_hangs_keeps_no_run_that_was_asked_to_stop(
    fork_server: ForkServer,
    settings: Callable[..., list[str]],
    files_of: Any,
    whole: Any,
    tmp_path: Path,
    tally: Callable[..., None],
) -> None:
    overrides = settings("run", "logger.name=wandb")
    asked = SignalIn(signal.SIGTERM, "training.trainer", "sum_in_order")
    began = time.monotonic()
    child = fork_server.start(
        pretrain, *overrides, faults=[FailingWandb("finish", hangs=True), asked]
    )
    assert child.wait(END_DELAYED_AT_MOST) == EXIT_PREEMPTED, child.err
    seconds = time.monotonic() - began
    require_one_warning(child, "W&B has not finished within 30 s")
    assert "Traceback" not in child.err
    fork_server.finish(pretrain, *settings("run"))
    require_same(files_of(tmp_path / "run"), whole)
    tally(f"hangs in finish: asked to stop, start and end within {seconds:.0f} s, resumed exactly")


@pytest.mark.row(12)
def test_a_server_that_does_not_answer_delays_the_start_a_little(
    start: Callable[..., Any],
    settings: Callable[..., list[str]],
    files_of: Any,
    whole: Any,
    tmp_path: Path,
    tally: Callable[..., None],
) -> None:
    delays: dict[str, float] = {}
    for mode in MODES:
        runs = {}
        with ExitStack() as opened:
            for server, address in SERVERS.items():
                name = f"{server} {mode}"
                overrides = settings(name, "logger.name=wandb", f"logger.mode={mode}")
                url = opened.enter_context(address())
                environment = {"WANDB_API_KEY": "k" * 40, "WANDB_BASE_URL": url}
                runs[name] = start("pretrain.py", *overrides, env=environment)
            delays |= seconds_to_first_steps(runs, tmp_path)
            for name, process in runs.items():
                _, err = process.communicate()
                assert process.returncode == 0, err
                require_same(files_of(tmp_path / name), whole)
                sent_later = list((tmp_path / name / "wandb").glob("offline-run-*/*.wandb"))
                assert len(sent_later) == 1 or mode == "online"
    slowest = max(delays.values())
    assert slowest < START_DELAYED_AT_MOST, delays
    tally(
        f"{len(SERVERS)} servers (refusing, silent, deaf) asked in {len(MODES)} modes: same bits",
        f"first steps at most {slowest:.0f} s late",
    )


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


@pytest.mark.row(12, mutant=f"{mutants.omit_guard.__doc__}")
def test_a_package_that_may_raise_into_the_run_is_noticed(
    fork_server: ForkServer,
    settings: Callable[..., list[str]],
    files_of: Any,
    whole: Any,
    tmp_path: Path,
) -> None:
    with pytest.raises(AssertionError, match="told to fail in log"):
        require_indifference(
            fork_server, settings, files_of, whole, tmp_path, "log", mutants.omit_guard
        )
