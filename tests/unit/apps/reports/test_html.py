import pytest

from apps.reports.html import percent, text, words
from runtime.text import duration


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        *((0.2, "0 s"), (59.4, "59 s"), (60, "1 min"), (370.5, "6 min 10 s"), (3600, "1 h")),
        *((11100, "3 h 5 min"), (86400 * 1.5, "36 h"), (86400 * 4 + 7200, "4 days 2 h")),
        (1e300, "11,574,074 days 1 h"),
    ],
)
def test_times_for_people(seconds: float, expected: str) -> None:
    assert duration(seconds) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((0.0, "0.0 %"), (1e-9, "under 0.1 %"), (0.0006, "0.1 %"), (0.98, "98.0 %")),
        *((0.9994, "99.9 %"), (0.99999, "over 99.9 %"), (1.0, "100.0 %")),
    ],
)
def test_shares_for_people(value: float, expected: str) -> None:
    assert percent(value) == expected


def test_text_is_harmless() -> None:
    assert text("<a href='x'>&\x00") == "&lt;a href=&#x27;x&#x27;&gt;&amp;\\x00"
    assert len(text("x" * 1000)) == 300
    assert str(words("a_b/<c>")) == "<td>a_<wbr>b/<wbr>&lt;c&gt;</td>"
