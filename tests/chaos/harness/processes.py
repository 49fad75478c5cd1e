"""Processes in which torch is already imported, so that a run starts at once.

A fork server imports the project once and forks a child for each start. A child's function and its
faults are pickled: they must be functions of a module, or `functools.partial` of one.
"""

import contextlib
import faulthandler
import importlib
import multiprocessing
import os
import pkgutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[3]
IMPORTS = {"PYTHONPATH": os.pathsep.join((str(ROOT), str(Path(__file__).resolve().parents[1])))}
"""The environment variable by which a new interpreter finds the project and the harness."""

Fault = Callable[[], None]
ByRank = Mapping[int, Sequence[Fault]]


def _run(module: str, schema: str, config_name: str, *overrides: str) -> None:
    from training.config.entry_point import run_entry_point

    script = importlib.import_module(module)
    sys.argv = [f"{module.rpartition('.')[2]}.py", *overrides]
    sweep = getattr(script, "SWEEP", None)
    run_entry_point(pkgutil.resolve_name(schema), config_name, script.main, "", sweep)


# Each acts as `python SCRIPT OVERRIDES`, with its exit code.
pretrain = partial(_run, "pretrain", "training.config.schema:TrainConfig", "cfg_pretrain")
evaluate = partial(_run, "evaluate", "evaluation.config:EvalConfig", "cfg_evaluate")
convert = partial(
    _run, "scripts.convert_checkpoint", "scripts.convert_checkpoint:ConvertConfig", "cfg_convert"
)


def call_main(module: str, *arguments: str) -> None:
    """Act as `python MODULE ARGUMENTS` for a script that parses them itself, with its exit code."""
    sys.exit(importlib.import_module(module).main(arguments))


class Child:
    """A process of the fork server; its output goes to files."""

    def __init__(self, process: Any, log: Path) -> None:
        self._process, self._log = process, log
        self._exit_code: int | None = None
        self.pid: int = process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs (a stopped process counts)."""
        return not self.ended_within(0.0)

    def signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):  # The server reaps children that end.
            if self.alive:
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end."""
        self.signal(signal.SIGKILL)
        self.wait()

    def wait(self, timeout: float = 120.0) -> int:
        """Wait for its end, and return the exit code (-N after signal N).

        Raises:
            RuntimeError: it still runs. It is ended, and the message shows its stacks.
        """
        if not self.ended_within(timeout):
            self.signal(signal.SIGABRT)  # faulthandler prints the stacks.
            self.ended_within(10.0)
            raise RuntimeError(f"still running after {timeout} s\n{self.out}\n{self.err}")
        assert self._exit_code is not None
        return self._exit_code

    def ended_within(self, seconds: float) -> bool:
        """Wait for its end, and return whether it has ended."""
        if self._exit_code is None:
            self._process.join(seconds)
            self._exit_code = self._process.exitcode
            if self._exit_code is not None:
                self._process.close()  # There are thousands, and each keeps a descriptor open.
        return self._exit_code is not None

    def require_refusal(self, code: int, *said: str) -> None:
        """Require this exit code, and one line on standard error that contains all of `said`."""
        found = self.wait()
        assert found == code, f"exit code {found}: {self.err}"
        assert self.err.count("\n") == 1, self.err
        assert all(each in self.err for each in said), self.err

    @property
    def out(self) -> str:
        """Its standard output so far."""
        return self._log.with_suffix(".out").read_text(errors="replace")

    @property
    def err(self) -> str:
        """Its standard error so far."""
        return self._log.with_suffix(".err").read_text(errors="replace")

    @property
    def error_line(self) -> str:
        """The last line on standard error."""
        return (self.err.splitlines() or [""])[-1]


class ForkServer:
    """Starts children in one environment; their output goes to the folder `logs`."""

    def __init__(self, environment: Mapping[str, str], logs: Path) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["harness.preload"])
        self._environment, self._logs = {**environment, **IMPORTS}, logs
        self._children: list[Child] = []

    def start(
        self,
        target: Callable[..., Any],
        *arguments: Any,
        faults: Sequence[Fault] = (),
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> Child:
        """Call the faults and then `target(*arguments)` in a new process.

        `environment` is added to the server's; `folder` is the working directory.
        """
        log = self._logs / f"{len(self._children)}"
        for suffix in (".out", ".err"):
            log.with_suffix(suffix).touch()
        order = (log, folder or self._logs, environment or {}, faults, target, arguments)
        process = self._context.Process(target=_obey, args=order, daemon=True)
        # The first start also starts the server, which takes this environment.
        with patch.dict(os.environ, self._environment, clear=True):
            process.start()
        child = Child(process, log)
        self._children.append(child)
        return child

    def run(
        self, target: Callable[..., Any], *arguments: Any, faults: Sequence[Fault] = ()
    ) -> Child:
        """Start a child, and wait for its end."""
        child = self.start(target, *arguments, faults=faults)
        child.wait()
        return child

    def finish(self, *target: Any, faults: Sequence[Fault] = ()) -> Child:
        """Run a child, and require exit code 0."""
        return require_success(self.run(*target, faults=faults))[0]

    def start_ranks(
        self, world_size: int, *target: Any, faults: ByRank | None = None
    ) -> list[Child]:
        """Start `world_size` ranks of one run as a launcher does; `faults` are given by rank."""
        place = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1"}
        place["MASTER_PORT"] = str(free_port())
        places = [place | {"RANK": str(r), "LOCAL_RANK": str(r)} for r in range(world_size)]
        armed = [(faults or {}).get(rank, ()) for rank in range(world_size)]
        given = zip(armed, places, strict=True)
        return [self.start(*target, faults=own, environment=each) for own, each in given]

    def end_all(self) -> None:
        """Kill all children that still run."""
        for child in self._children:
            if child.alive:
                child.signal(signal.SIGCONT)
                child.kill()


def require_success(*children: Child) -> Sequence[Child]:
    """Wait for all ends, require exit codes 0, and return the children."""
    for child in children:
        assert child.wait() == 0, child.err
    return children


def free_port() -> int:
    """Return a port of this machine on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def has_begun(child: Child) -> bool:
    """Return whether a run has taken its folder, or ended before."""
    return "run folder" in child.out or not child.alive


def kill_at_random(children: Sequence[Child], rng: np.random.Generator, within: float) -> bool:
    """Kill a run's processes at a random instant `within` seconds after the run began.

    One is killed first, then all others, as a launcher does. Return False if the run ended before.
    """
    if rng.random() < 0.8:
        # Otherwise most kills would come while they read their settings and meet each other.
        until(lambda: has_begun(children[0]), "the run begins")
    victim = children[int(rng.integers(len(children)))]
    if not victim.ended_within(rng.uniform(0.0, within)):
        victim.kill()
        for child in children:
            child.kill()
        return True
    require_success(*children)
    return False


def until(true: Callable[[], bool], what: str, timeout: float = 60.0) -> None:
    """Wait until `true()` holds; a TimeoutError says `what` did not happen."""
    deadline = time.monotonic() + timeout
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout} s: {what}")
        time.sleep(0.002)


def _obey(
    log: Path, folder: Path, environment: Any, faults: Any, target: Any, arguments: Any
) -> None:
    os.environ.update(environment)
    os.chdir(folder)
    for number, suffix in ((1, ".out"), (2, ".err")):
        descriptor = os.open(log.with_suffix(suffix), os.O_WRONLY | os.O_APPEND)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.enable()
    # All children share the server's lock; if one were killed while it held it, all would hang.
    tqdm.set_lock(threading.RLock())
    for fault in faults:
        fault()
    target(*arguments)
