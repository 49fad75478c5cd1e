"""Processes in which torch is already imported: a run starts at once.

A fork server imports the project once and forks a child for each start. What a child runs, and the
faults that are put into it first, are module-level functions or instances of classes, so that they
can be sent to it.
"""

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any
from unittest.mock import patch

import numpy as np
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[3]
IMPORTS = {"PYTHONPATH": os.pathsep.join((str(ROOT), str(Path(__file__).resolve().parents[1])))}
"""The environment in which a new interpreter finds the project and the harness."""

Fault = Callable[[], None]


def pretrain(*overrides: str) -> None:
    """`python pretrain.py OVERRIDES`, exit code and all."""
    import pretrain as script
    from training.config.schema import TrainConfig

    _run(script, TrainConfig, "cfg_pretrain", overrides)


def evaluate(*overrides: str) -> None:
    """`python evaluate.py OVERRIDES`, exit code and all."""
    import evaluate as script
    from evaluation.config import EvalConfig

    _run(script, EvalConfig, "cfg_evaluate", overrides)


def convert(*overrides: str) -> None:
    """`python scripts/convert_checkpoint.py OVERRIDES`, exit code and all."""
    from scripts import convert_checkpoint as script

    _run(script, script.ConvertConfig, "cfg_convert", overrides)


def _run(script: Any, schema: Any, name: str, overrides: Sequence[str]) -> None:
    from training.config.entry_point import run_entry_point

    sys.argv = [Path(script.__file__).name, *overrides]
    run_entry_point(schema, name, script.main, "")


class Child:
    """A process of the fork server, with what it prints in files.

    Attributes:
        pid: its number.
    """

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
        # The server has waited for one that has ended, so that its number is gone at once.
        with contextlib.suppress(ProcessLookupError):
            if self.alive:
                os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self.wait()

    def wait(self, timeout: float = 120.0) -> int:
        """Wait for its end; returns the exit code, -N after signal N.

        Raises:
            RuntimeError: it still runs. It is ended and shows where it stood.
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


@dataclass(frozen=True)
class _Order:
    """What a child is to do before its target: see `ForkServer.start`."""

    target: Callable[..., Any]
    arguments: tuple[Any, ...]
    faults: tuple[Fault, ...]
    environment: dict[str, str]
    folder: Path
    log: Path


class ForkServer:
    """Starts children, all in one environment with one thread and an empty home.

    Args:
        environment: complete environment of the server and its children.
        logs: folder for what they print.
    """

    def __init__(self, environment: Mapping[str, str], logs: Path) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["harness.preload"])
        self._environment = {**environment, **IMPORTS}
        self._logs = logs
        self._children: list[Child] = []

    def start(
        self,
        target: Callable[..., Any],
        *arguments: Any,
        faults: Sequence[Fault] = (),
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> Child:
        """Call `target(*arguments)` in a new process.

        Args:
            target: a module-level function or an instance of a class.
            arguments: of the target.
            faults: called first, in this order.
            environment: added to the server's.
            folder: the working directory.
        """
        log = self._logs / f"{len(self._children)}"
        place = (dict(environment or {}), folder or self._logs, log)
        order = _Order(target, arguments, tuple(faults), *place)
        for suffix in (".out", ".err"):
            log.with_suffix(suffix).touch()
        process = self._context.Process(target=_obey, args=(order,), daemon=True)
        # The server itself starts with the first process, from this environment.
        with patch.dict(os.environ, self._environment, clear=True):
            process.start()
        child = Child(process, log)
        self._children.append(child)
        return child

    def run(
        self,
        target: Callable[..., Any],
        *arguments: Any,
        faults: Sequence[Fault] = (),
        timeout: float = 120.0,
    ) -> Child:
        """`start`, and wait for the end."""
        child = self.start(target, *arguments, faults=faults)
        child.wait(timeout)
        return child

    def finish(
        self, target: Callable[..., Any], *arguments: Any, faults: Sequence[Fault] = ()
    ) -> Child:
        """`run`, and require exit code 0."""
        child = self.run(target, *arguments, faults=faults)
        assert child.wait() == 0, child.err
        return child

    def start_ranks(
        self,
        world_size: int,
        target: Callable[..., Any],
        *arguments: Any,
        faults: Mapping[int, Sequence[Fault]] | None = None,
    ) -> list[Child]:
        """Start `world_size` ranks of one run, with faults by rank, as a launcher on one machine
        does.
        """
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = str(server.getsockname()[1])
        place = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        return [
            self.start(
                target,
                *arguments,
                faults=(faults or {}).get(rank, ()),
                environment={**place, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(world_size)
        ]

    def end_all(self) -> None:
        """Kill whatever still runs."""
        for child in self._children:
            if child.alive:
                child.signal(signal.SIGCONT)
                child.kill()

    def __enter__(self) -> "ForkServer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end_all()


def kill_at_random(children: Sequence[Child], rng: np.random.Generator, within: float) -> bool:
    """Kill one of a run's processes at a random instant, and then all others, as a launcher does;
    returns False when the run was done before.

    Args:
        children: the processes.
        rng: draws the victim and the instant.
        within: seconds, from where the run begins.
    """
    if rng.random() < 0.8:
        # Not always while they still look at their configuration, and for each other.
        until(lambda: "run folder" in children[0].out or not children[0].alive, "the run begins")
    victim = children[int(rng.integers(len(children)))]
    if not victim.ended_within(rng.uniform(0.0, within)):
        victim.kill()
        for child in children:
            child.kill()
        return True
    for child in children:
        assert child.wait() == 0, child.err
    return False


def until(true: Callable[[], bool], what: str, timeout: float = 60.0) -> None:
    """Wait until something is true.

    Raises:
        TimeoutError: names what was waited for.
    """
    deadline = time.monotonic() + timeout
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout} s: {what}")
        time.sleep(0.002)


def _obey(order: _Order) -> None:
    os.environ.update(order.environment)
    os.chdir(order.folder)
    for number, suffix in ((1, ".out"), (2, ".err")):
        descriptor = os.open(order.log.with_suffix(suffix), os.O_WRONLY | os.O_APPEND)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.enable()
    # The server's is a semaphore that all its children share: one killed with it would stop them.
    tqdm.set_lock(threading.RLock())
    for fault in order.faults:
        fault()
    order.target(*order.arguments)
