import io

import pytest

from runtime import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def at_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setattr("sys.stderr", stream := Terminal())
    monkeypatch.setattr(progress, "_DELAY_SECONDS", 0)
    return stream


def test_a_terminal_shows_what_is_done_and_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_terminal(monkeypatch)
    with progress.bar(None, "counting", "things", total=4) as shown:
        shown.update(1)
        shown.refresh()
    assert "counting:  25%" in terminal.getvalue()
    assert "things" in terminal.getvalue()


def test_items_come_through_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_terminal(monkeypatch)
    assert list(progress.bar([3, 1, 2], "sorting", "numbers")) == [3, 1, 2]
    assert "sorting" in terminal.getvalue()


def test_who_does_not_wait_sees_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_terminal(monkeypatch)
    list(progress.bar([1], "x", "y", show=False))
    with progress.bar(None, "x", "y", total=0) as shown:
        shown.update(1)
    assert terminal.getvalue() == ""
    monkeypatch.setattr("sys.stderr", pipe := io.StringIO())
    list(progress.bar([1], "x", "y"))
    assert pipe.getvalue() == ""
