"""Tables of figures: what stands in a cell."""

import json
from dataclasses import dataclass

import numpy as np

from evaluation.metrics import Estimate
from evaluation.table import as_csv, as_json, as_text, rows_as_csv


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
    first, second = json.loads(json.dumps(as_json(LINES), allow_nan=False))
    share = {"value": 0.5, "low": 0.25, "high": 0.75}
    assert first == {"name": "a", "share": share, "seconds": 1.5, "calls": [1, 2]}
    assert second == {"name": "b", "share": None, "seconds": "nan", "calls": [3, 4]}


def test_a_csv_has_the_values_alone() -> None:
    lines = [Line("a", Estimate(0.5, None, None), 1.5, (1, 2))]
    assert as_csv(lines) == "name,share,seconds,calls\na,0.5,1.5,(1, 2)\n"
    assert as_csv([]) == "\n"


def test_a_table_leaves_empty_what_is_not_known() -> None:
    numbers = np.array([1.0, np.nan, 1e6])
    sets = {"a": {"x": numbers, "y": None, "z": np.array([1234567, 2, 3, 4])}}
    assert rows_as_csv(["z", "x", "y"], sets).splitlines() == [
        "set,index,z,x,y",
        "a,0,1234567,1,",
        "a,1,2,,",
        "a,2,3,1e+06,",
    ]
