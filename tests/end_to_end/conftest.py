from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def files(files_of: Any, tmp_path: Path) -> Any:
    """What is in the folder of `run`, also after an error."""
    return files_of(tmp_path / "run")


@pytest.fixture
def run_on_ranks(start_ranks: Callable[..., Any]) -> Callable[..., None]:
    """Run an entry point with settings on several ranks of this machine; all must succeed."""

    def run(world_size: int, *arguments: str) -> None:
        for process in start_ranks(*[arguments] * world_size):
            _, err = process.communicate(timeout=120)
            assert process.returncode == 0, err

    return run
