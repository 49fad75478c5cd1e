"""The figures of a report as plotly's JSON, built without plotly. The page's script draws them.

Colours are names that the script looks up in its light or dark palette: `@0` to `@9` for curves,
`@text`, `@muted`, `@card`, `@bad`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from evaluation.metrics import Estimate

NUM_COLOURS = 10
MAX_GROUPS = 12
"""The most curves, or groups of puzzles, that a reader can tell apart."""
SHARES: dict[str, Any] = {"tickformat": ".0%", "range": [-0.02, 1.02]}
"""An axis of shares, in percent."""
SCALES: dict[str, dict[str, Any]] = {
    "shares": SHARES,
    "log": {"type": "log", "nticks": 6},
    "zero": {"rangemode": "tozero"},
    "": {},
}
"""The vertical axes of curves; "" leaves the choice to plotly."""


@dataclass
class Figure:
    """A figure with a title and a sentence below it; `data` and `layout` are plotly's."""

    title: str
    caption: str
    data: list[dict[str, Any]]
    layout: dict[str, Any] = field(default_factory=dict)


def plain(text: object) -> str:
    """Return text escaped for plotly, which reads some tags as markup."""
    return escape(str(text), quote=False)


def short(value: float | None) -> float | None:
    """Return a number rounded to five digits; None if it is not finite, as JSON has no NaN."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")


def line(
    name: str,
    xs: Sequence[float | None],
    ys: Sequence[float | None],
    colour: str,
    hover: str = "%{y:.1%}",
    *,
    size: float = 6,
    dash: str = "",
    errors: Sequence[Estimate | None] | None = None,
) -> dict[str, Any]:
    """Return a curve; `size` is the size of its points (0: none), `errors` their intervals."""
    trace = {"x": list(xs), "y": list(map(short, ys)), "name": name, "hovertemplate": hover}
    trace["mode"] = "lines+markers" if size else "lines"
    trace["line"] = {"color": colour, "width": 2} | ({"dash": dash} if dash else {})
    if size:
        trace["marker"] = {"size": size, "color": colour}
    if errors is not None:
        trace["error_y"] = _error_bars(errors, colour)
    return trace


def _error_bars(estimates: Sequence[Estimate | None], colour: str) -> dict[str, Any]:
    def ends(name: str) -> list[float | None]:
        far = [(one.value, getattr(one, name)) if one else (0.0, None) for one in estimates]
        return [None if end is None else short(abs(end - value)) for value, end in far]

    bars = {"type": "data", "symmetric": False, "array": ends("high"), "arrayminus": ends("low")}
    return {**bars, "color": colour, "thickness": 1.2, "width": 3}


def titled(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis with a title."""
    return {"title": {"text": title}, **more}
