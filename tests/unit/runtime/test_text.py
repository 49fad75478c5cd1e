from io import StringIO

import pytest

from runtime.text import colours, figures, many


class Stream(StringIO):
    encoding = "UTF-8"

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self.isatty = lambda: is_terminal  # type: ignore[method-assign]


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
def test_colours_are_for_terminals_that_want_them(
    is_terminal: bool, environment: dict[str, str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert colours(Stream(is_terminal)) is expected


def test_a_terminal_that_cannot_write_lines_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(Stream, "encoding", "latin-1")
    assert not colours(Stream(True))


def test_one_thing_is_told_apart_from_many() -> None:
    assert [many(number, "cell") for number in (0, 1, 2)] == ["0 cells", "1 cell", "2 cells"]
    assert [many(number, "guess", "guesses") for number in (1, 2)] == ["1 guess", "2 guesses"]


@pytest.mark.parametrize(
    ("sets", "width", "lines"), [(1, 80, 1), (6, None, 1), (6, 80, 8), (2, 35, 5)]
)
def test_figures_of_many_sets_are_a_table(sets: int, width: int | None, lines: int) -> None:
    names = ("accuracy", "exact_accuracy", "lm_loss")
    told = figures({f"s{n}/{name}": n + 0.5 for n in range(sets) for name in names}, width)
    assert len(told.split("\n")) == lines
    assert max(map(len, told.split("\n"))) <= (width or 1000)
    assert told.count(f"{sets - 1}.5000") == 3
