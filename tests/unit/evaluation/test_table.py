"""Tables of figures: the text of cells."""

import json
from dataclasses import dataclass

from evaluation.metrics import Estimate
from evaluation.table import as_text, plain


@dataclass(frozen=True)
class Line:
    name: str
    share: Estimate | None
    seconds: float
    calls: tuple[int, int]


LINES = [Line("a", Estimate(0.5, 0.25, 0.75), 1.5, (1, 2)), Line("b", None, float("nan"), (3, 4))]


def test_estimates_have_their_intervals_for_people_and_programs() -> None:
    cells = [[one.name, one.share, one.seconds, len(one.calls)] for one in LINES]
    assert as_text(["name", "share", "seconds", "n"], cells, "explained").splitlines() == [
        "name  share                    seconds  n",
        "a     0.5000 [0.2500, 0.7500]  1.5000   2",
        "b     -                        nan      2",
        "explained",
    ]
    first, second = json.loads(json.dumps(plain(LINES), allow_nan=False))
    share = {"value": 0.5, "low": 0.25, "high": 0.75}
    assert first == {"name": "a", "share": share, "seconds": 1.5, "calls": [1, 2]}
    assert second == {"name": "b", "share": None, "seconds": "nan", "calls": [3, 4]}
