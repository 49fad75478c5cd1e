import socket
from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def run_on_ranks(start: Callable[..., Any]) -> Callable[..., None]:
    """Run an entry point with settings on several ranks of this machine; all must succeed."""

    def run(world_size: int, *arguments: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = str(server.getsockname()[1])
        place = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        processes = [
            start(*arguments, env={**place, "RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank in range(world_size)
        ]
        for process in processes:
            _, err = process.communicate(timeout=120)
            assert process.returncode == 0, err

    return run
