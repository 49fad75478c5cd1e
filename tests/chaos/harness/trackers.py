"""Places for metrics that fail: a stand-in for W&B, calls of TensorBoard and MLflow that raise or
hang, and servers that do not answer.
"""

import itertools
import os
import pkgutil
import socket
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from harness.processes import free_port

CALLS = ("import", "init", "log", "finish")


def failing_wandb(failing: str, hangs: bool = False) -> None:
    """Put a module in the place of wandb that raises in one of `CALLS` (of `log`: in the third),
    with what the real one raises: its own errors are no OSError; `hangs`: that never returns.
    """
    if failing == "import":
        sys.modules["wandb"] = None  # type: ignore[assignment]
        return

    class Error(Exception):
        pass

    def raise_in(call: str) -> None:
        if call == failing and hangs:
            threading.Event().wait()
        if call == failing:
            raise Error(f"told to fail in {call}")

    class Run:
        num_logged = 0

        def log(self, values: Any, step: int) -> None:
            self.num_logged += 1
            if self.num_logged == 3:
                raise_in("log")

        def finish(self) -> None:
            raise_in("finish")

    def init(**options: Any) -> Run:
        raise_in("init")
        return Run()

    _replace_wandb(init)


def missing(package: str) -> None:
    """Let a package be not installed."""
    sys.modules[package] = None  # type: ignore[assignment]


def failing_call(name: str, num_good: int = 0, hangs: bool = False) -> None:
    """Let a function of an installed package raise after `num_good` calls; or never return."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    number, original = itertools.count(), pkgutil.resolve_name(name)

    class Error(Exception):
        pass

    def call(*arguments: Any, **options: Any) -> Any:
        if next(number) < num_good:
            return original(*arguments, **options)
        if hangs:
            threading.Event().wait()
        raise Error(f"told to fail in {name}")

    patch(name, call).start()


def writing_wandb() -> None:
    """Put a module in the place of wandb that writes where the real one does."""

    def init(*, dir: str, **options: Any) -> Any:
        folder = Path(dir) / "wandb"
        folder.mkdir(exist_ok=True)
        (folder / "debug.log").write_text("begun")
        return types.SimpleNamespace(log=lambda values, step: None, finish=lambda: None)

    _replace_wandb(init)


def _replace_wandb(init: Callable[..., Any]) -> None:
    module = types.ModuleType("wandb")
    vars(module).update(init=init, Settings=lambda **options: options)
    sys.modules["wandb"] = module


@contextmanager
def silent_server() -> Iterator[int]:
    """The port of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield server.getsockname()[1]


@contextmanager
def deaf_server() -> Iterator[int]:
    """The port of a server that neither takes connections nor refuses them."""
    with ExitStack() as opened:
        server = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            client = opened.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield server.getsockname()[1]


@contextmanager
def no_server() -> Iterator[int]:
    """A port where connections are refused."""
    yield free_port()
