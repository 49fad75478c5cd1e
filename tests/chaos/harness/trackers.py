"""Trackers that fail: a stand-in for W&B, calls that raise or hang, servers that do not answer."""

import itertools
import os
import pkgutil
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from harness.processes import free_port


def stand_in_wandb() -> None:
    """Replace wandb by a module that only writes its log, where the real one does."""

    class Run:
        def log(self, values: Any, step: int) -> None:
            pass

        def finish(self) -> None:
            pass

    def init(*, dir: str, **options: Any) -> Run:
        folder = Path(dir) / "wandb"
        folder.mkdir(exist_ok=True)
        (folder / "debug.log").write_text("begun")
        return Run()

    sys.modules["wandb"] = SimpleNamespace(init=init, Run=Run, Settings=dict)  # type: ignore


def missing(package: str) -> None:
    """Make the import of a package fail."""
    sys.modules[package] = None  # type: ignore[assignment]


def failing_call(name: str, num_good: int = 0, hangs: bool = False) -> None:
    """Make a function raise an unknown error, or hang, after `num_good` calls."""
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


@contextmanager
def servers() -> Iterator[dict[str, int]]:
    """Yield ports that refuse connections, accept and never answer, or do neither."""
    with ExitStack() as opened:
        silent = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=64))
        deaf = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            client = opened.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(deaf.getsockname())
        ports = {"silent": silent.getsockname()[1], "deaf": deaf.getsockname()[1]}
        yield {"refusing": free_port(), **ports}
