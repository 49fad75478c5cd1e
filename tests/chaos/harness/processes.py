"""Processes in which torch is already imported: a run starts at once.

A fork server imports the project once and forks a child for each start. What a child runs, and the
faults that are put into it first, are module-level functions or instances of classes, so that they
can be sent to it.
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
"""The environment in which a new interpreter finds the project and the harness."""

Fault = Callable[[], None]
ByRank = Mapping[int, Sequence[Fault]]


def _run(module: str, schema: str, config_name: str, *overrides: str) -> None:
    from training.config.entry_point import run_entry_point

    script = importlib.import_module(module)
    sys.argv = [f"{module.rpartition('.')[2]}.py", *overrides]
    sweep = getattr(script, "SWEEP", None)
    run_entry_point(pkgutil.resolve_name(schema), config_name, script.main, "", sweep)


# `python SCRIPT OVERRIDES`, exit code and all.
pretrain = partial(_run, "pretrain", "training.config.schema:TrainConfig", "cfg_pretrain")
evaluate = partial(_run, "evaluate", "evaluation.config:EvalConfig", "cfg_evaluate")
convert = partial(
    _run, "scripts.convert_checkpoint", "scripts.convert_checkpoint:ConvertConfig", "cfg_convert"
)


def call_main(module: str, *arguments: str) -> None:
    """`python MODULE ARGUMENTS`, of a script that parses them itself, exit code and all."""
    sys.exit(importlib.import_module(module).main(arguments))


class Child:
    """A process of the fork server, with what it prints in files."""

    def __init__(self, process: Any, log: Path) -> None:
        self._process, self._log = process, log
        self._exit_code: int | None = None
        self.pid: int = process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs (or is stopped)."""
        return not self.ended_within(0.0)

    def signal(self, number: int) -> None:
        """Send it a signal; nothing happens when it has ended."""
        with contextlib.suppress(ProcessLookupError):  # The server waits for those that end.
            if self.alive:
                os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self.wait()

    def wait(self, timeout: float = 120.0) -> int:
        """Wait for its end; returns the exit code, -N after signal N.

        Raises:
            RuntimeError: it still runs; it is ended and shows where it stood.
        """
        if not self.ended_within(timeout):
            self.signal(signal.SIGABRT)  # faulthandler tells where the threads are.
            self.ended_within(10.0)
            raise RuntimeError(f"still running after {timeout} s\n{self.out}\n{self.err}")
        assert self._exit_code is not None
        return self._exit_code

    def ended_within(self, seconds: float) -> bool:
        """Wait for its end, and return whether it came."""
        if self._exit_code is None:
            self._process.join(seconds)
            self._exit_code = self._process.exitcode
            if self._exit_code is not None:
                self._process.close()  # Thousands are started, and each keeps a descriptor.
        return self._exit_code is not None

    def require_refusal(self, code: int, *said: str) -> None:
        """Require this exit code, and one line on standard error that says all this."""
        found = self.wait()
        assert found == code, f"exit code {found}: {self.err}"
        assert self.err.count("\n") == 1, self.err
        assert all(each in self.err for each in said), self.err

    @property
    def out(self) -> str:
        """What it has written to standard output."""
        return self._log.with_suffix(".out").read_text(errors="replace")

    @property
    def err(self) -> str:
        """What it has written to standard error."""
        return self._log.with_suffix(".err").read_text(errors="replace")

    @property
    def error_line(self) -> str:
        """The last line on standard error."""
        return (self.err.splitlines() or [""])[-1]


class ForkServer:
    """Starts children, all in this environment, with what they print in the folder `logs`."""

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
        """Call `target(*arguments)` in a new process, after the faults, with what is added to the
        environment, in a working directory.
        """
        log = self._logs / f"{len(self._children)}"
        for suffix in (".out", ".err"):
            log.with_suffix(suffix).touch()
        order = (log, folder or self._logs, environment or {}, faults, target, arguments)
        process = self._context.Process(target=_obey, args=order, daemon=True)
        # The server itself starts with the first process, from this environment.
        with patch.dict(os.environ, self._environment, clear=True):
            process.start()
        child = Child(process, log)
        self._children.append(child)
        return child

    def run(
        self, target: Callable[..., Any], *arguments: Any, faults: Sequence[Fault] = ()
    ) -> Child:
        """`start`, and wait for the end."""
        child = self.start(target, *arguments, faults=faults)
        child.wait()
        return child

    def finish(self, *target: Any, faults: Sequence[Fault] = ()) -> Child:
        """`run`, and require exit code 0."""
        return require_success(self.run(*target, faults=faults))[0]

    def start_ranks(
        self, world_size: int, *target: Any, faults: ByRank | None = None
    ) -> list[Child]:
        """Start `world_size` ranks of one run, with faults by rank, as a launcher does."""
        place = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1"}
        place["MASTER_PORT"] = str(free_port())
        places = [place | {"RANK": str(r), "LOCAL_RANK": str(r)} for r in range(world_size)]
        armed = [(faults or {}).get(rank, ()) for rank in range(world_size)]
        given = zip(armed, places, strict=True)
        return [self.start(*target, faults=own, environment=each) for own, each in given]

    def end_all(self) -> None:
        """Kill whatever still runs."""
        for child in self._children:
            if child.alive:
                child.signal(signal.SIGCONT)
                child.kill()


def require_success(*children: Child) -> Sequence[Child]:
    """Wait for the ends, and require exit codes 0; returns the children."""
    for child in children:
        assert child.wait() == 0, child.err
    return children


def free_port() -> int:
    """Return a port of this machine that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def has_begun(child: Child) -> bool:
    """Whether a run has taken its folder, or ended before."""
    return "run folder" in child.out or not child.alive


def kill_at_random(children: Sequence[Child], rng: np.random.Generator, within: float) -> bool:
    """Kill one of a run's processes at a random instant `within` seconds from where the run begins,
    and then all others, as a launcher does; returns False when the run was done before.
    """
    if rng.random() < 0.8:
        # Not always while they still look at their configuration, and for each other.
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
    """Wait until something is true; a TimeoutError names what was waited for."""
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
    # The server's is a semaphore that all its children share: one killed with it would stop them.
    tqdm.set_lock(threading.RLock())
    for fault in faults:
        fault()
    target(*arguments)
