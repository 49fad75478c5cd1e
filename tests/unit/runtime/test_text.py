from types import SimpleNamespace
from typing import Any

import pytest

from runtime.text import colours, figures


def stream(is_terminal: bool, encoding: str) -> Any:
    return SimpleNamespace(isatty=lambda: is_terminal, encoding=encoding)


@pytest.mark.parametrize(
    ("is_terminal", "environment", "expected"),
    [
        (True, {}, True),
        (True, {"NO_COLOR": ""}, True),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
        (False, {}, False),
    ],
)
def test_only_capable_terminals_get_colours(
    is_terminal: bool, environment: dict[str, str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert colours(stream(is_terminal, "UTF-8")) is expected
    assert not colours(stream(is_terminal, "latin-1"))


@pytest.mark.parametrize(("width", "lines"), [(200, 1), (None, 1), (80, 7)])
def test_figures_that_are_too_wide_get_one_line_each(width: int | None, lines: int) -> None:
    names = ("accuracy", "exact_accuracy", "lm_loss")
    told = figures({f"s{n}/{name}": n + 0.5 for n in range(2) for name in names}, width)
    assert len(told.split("\n")) == lines
    assert told.count("1.5000") == 3
