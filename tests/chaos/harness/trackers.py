"""Weights & Biases that fails: a stand-in for the package, and servers that do not answer."""

import socket
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar


@dataclass(frozen=True)
class FailingWandb:
    """Put a module in the place of wandb that raises in `call` (of the run: from its third record
    on), with what the real one raises: its own errors are no OSError; `hangs`: that never returns
    from it.
    """

    call: str
    hangs: bool = False

    calls: ClassVar[tuple[str, ...]] = ("import", "init", "log", "finish")

    def __call__(self) -> None:
        """Arm this process."""
        if self.call == "import":
            sys.modules["wandb"] = None  # type: ignore[assignment]
            return

        class Error(Exception):
            pass

        def raise_in(call: str) -> None:
            if call == self.call and self.hangs:
                threading.Event().wait()
            if call == self.call:
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
def silent_server() -> Iterator[str]:
    """The address of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@contextmanager
def deaf_server() -> Iterator[str]:
    """The address of a server that neither takes connections nor refuses them."""
    with ExitStack() as opened:
        server = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            client = opened.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@contextmanager
def no_server() -> Iterator[str]:
    """An address where connections are refused."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    yield f"http://127.0.0.1:{port}"
