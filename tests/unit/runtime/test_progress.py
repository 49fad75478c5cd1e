import io
from collections.abc import Iterator
from weakref import WeakSet

import pytest

from runtime import progress
from training.config.entry_point import say


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def at_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setattr("sys.stderr", stream := Terminal())
    monkeypatch.setattr(progress, "_DELAY_SECONDS", 0)
    monkeypatch.setattr(progress.Bar, "_instances", WeakSet())  # Other tests' bars take no line.
    return stream


def test_a_terminal_shows_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_terminal(monkeypatch)
    with progress.bar(None, "counting", "things", total=4) as shown:
        shown.update(1)
        shown.refresh()
    assert "counting:  25%" in terminal.getvalue()
    assert "things" in terminal.getvalue()
    assert list(progress.bar([3, 1, 2], "sorting", "numbers")) == [3, 1, 2]
    assert "sorting" in terminal.getvalue()


@pytest.mark.parametrize(
    ("width", "names"),
    [(60, "a"), (80, "a first"), (100, "a first second"), (None, "a first second")],
)
def test_figures_fit_into_the_line(
    monkeypatch: pytest.MonkeyPatch, width: int | None, names: str
) -> None:
    terminal = at_terminal(monkeypatch)
    monkeypatch.setattr(progress, "terminal_width", lambda stream: width)
    with progress.bar(None, "counting", "things", total=4000, leave=True) as shown:
        shown.ncols, shown.dynamic_ncols = width or 200, None
        figures = {"a": "1", "first": "2" * 20, "second": "3" * 10}
        shown.show(figures)
        shown.update(1)
        shown.refresh()
    lines = [line for line in terminal.getvalue().split("\r") if "a=1" in line]
    assert lines
    for line in lines:
        assert [name for name in figures if f"{name}=" in line] == names.split()
        assert line.rstrip().endswith("]")
        assert len(line.rstrip()) <= (width or 200)


def test_without_work_or_show_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_terminal(monkeypatch)
    list(progress.bar([1], "x", "y", show=False))
    with progress.bar(None, "x", "y", total=0) as shown:
        shown.update(1)
    assert terminal.getvalue() == ""


def test_a_log_gets_whole_lines_at_most_one_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0
    monkeypatch.setattr("sys.stderr", log := io.StringIO())
    monkeypatch.setattr("tqdm.std.time", lambda: clock)
    with progress.bar(None, "training", "steps", total=2000, done=500) as shown:
        for _ in range(20):
            clock += 25
            shown.set_postfix({"loss": "1.2"}, refresh=False)
            shown.update(50)
    first, *others = log.getvalue().splitlines()
    assert first == "training: 650 of 2,000 steps (32 %), about 11:15 left, loss=1.2"
    assert len(others) == 5
    assert others[-1].startswith("training: 1,400 of 2,000 steps (70 %), about 05:00 left")
    assert log.getvalue()[-1] == "\n"
    assert "\r" not in log.getvalue()

    def slow() -> Iterator[int]:
        nonlocal clock
        for number in range(3):
            clock += 60
            yield number

    before = len(log.getvalue())
    assert list(progress.bar(slow(), "reading", "rows")) == [0, 1, 2]
    assert log.getvalue()[before:] == "".join(f"reading: {n} rows\n" for n in (1, 2, 3))
    assert list(progress.bar([1], "x", "y", show=False)) == [1]
    clock += 1000
    assert len(log.getvalue().splitlines()) == 9


def test_a_bar_may_exceed_its_total_and_have_lines_between(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0
    monkeypatch.setattr("sys.stderr", log := io.StringIO())
    monkeypatch.setattr("tqdm.std.time", lambda: clock)
    with progress.bar(None, "sweep", "jobs", total=1) as shown:
        for _ in range(3):
            clock += 100
            say("a job was queued again")
            shown.update(1)
    assert log.getvalue().splitlines() == [
        f"sweep: {n} of {n} jobs (100 %), about 00:00 left" for n in (1, 2, 3)
    ]
