"""Fixtures that run entry points in this process."""

import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest

from runtime.schema import Schema
from training.config.entry_point import run_entry_point
from training.config.schema import TrainConfig


@pytest.fixture
def enter(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int | str | None]:
    """Run an entry point on arguments. Return its exit code, or 0 if it returned."""

    def run(
        *arguments: str,
        main: Callable[[list[str]], None] = refuse,
        schema: type[Schema] = TrainConfig,
        config_name: str = "cfg_pretrain",
        **options: Any,
    ) -> int | str | None:
        monkeypatch.setattr(sys, "argv", ["/x/pretrain.py", *arguments])
        before = signal.getsignal(signal.SIGTERM)
        try:
            run_entry_point(schema, config_name, main, "How to use it.", **options)
        except SystemExit as end:
            return end.code
        finally:
            signal.signal(signal.SIGTERM, before)
        return 0

    return run


def refuse(overrides: list[str]) -> None:
    """Fail: this entry point must not be called."""
    raise AssertionError(f"called with {overrides}")
