"""Small parts of a page. All text from a run must go through `text`, which escapes it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from evaluation.metrics import Estimate
from runtime.text import shown

MAX_TEXT = 300


def text(value: object, limit: int = MAX_TEXT) -> str:
    """Return a value as one line of text, escaped for a page and for attributes."""
    return escape(shown(value, limit))


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        html: the content, already escaped.
        value: the number to sort by; None: sort by the text.
        kind: `n` for numbers, `words` for sentences.
    """

    html: str
    value: float | None = None
    kind: str = ""

    def __str__(self) -> str:
        kind = f' class="{self.kind}"' if self.kind else ""
        value = "" if self.value is None else f' data-value="{self.value!r}"'
        return f"<td{kind}{value}>{self.html}</td>"


MISSING = Cell("–", kind="n")


def words(value: object) -> Cell:
    """Return a cell of text; long names may break after `_` and `/`."""
    return Cell(text(value).replace("_", "_<wbr>").replace("/", "/<wbr>"))


def figure(value: float | None, form: str = ",.4g") -> Cell:
    """Return a cell with a number."""
    return MISSING if value is None else Cell(format(value, form), value, "n")


def share(estimate: Estimate | None) -> Cell:
    """Return a cell with a share in percent and its interval."""
    if estimate is None:
        return MISSING
    ends = interval(estimate)
    html = percent(estimate.value) + (f" <small>{ends}</small>" if ends else "")
    return Cell(html, estimate.value, "n")


def percent(value: float) -> str:
    """Return a share in percent. Only exact values are shown as 0 or 100 %."""
    if 0 < value < 0.0005:
        return "under 0.1 %"
    return "over 99.9 %" if 0.9995 < value < 1 else f"{100 * value:.1f} %"


def interval(estimate: Estimate) -> str:
    """Return the ends of a share's interval in percent, "" if not known."""
    if estimate.low is None or estimate.high is None:
        return ""
    return f"{100 * estimate.low:.1f} to {100 * estimate.high:.1f}"


def table(header: Sequence[str], rows: Sequence[Sequence[Cell]], *, sortable: bool = False) -> str:
    """Return a table, "" without rows. A wide table scrolls sideways; the first cell of each row is
    a heading. The names in `header` are already escaped.
    """
    if not rows:
        return ""
    numbers = [any(row[i].kind == "n" for row in rows) for i in range(len(header))]
    head = "".join(
        f'<th scope="col"{" class=n" if is_number else ""}>{name}</th>'
        for name, is_number in zip(header, numbers, strict=True)
    )
    body = "".join(f"<tr>{_heading(row[0])}{''.join(map(str, row[1:]))}</tr>" for row in rows)
    kind = ' class="sortable"' if sortable and len(rows) > 1 else ""
    return (
        f'<div class="scroll" tabindex="0"><table{kind}><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _heading(cell: Cell) -> str:
    return str(cell).replace("<td", '<th scope="row"', 1)[: -len("</td>")] + "</th>"


def details(summary: str, inner: str) -> str:
    """Return content that is folded until a click; both texts are already escaped."""
    return f"<details><summary>{summary}</summary>{inner}</details>"


def pairs(summary: str, values: Iterable[tuple[str, object]]) -> str:
    """Return names and their values as a folded table."""
    rows = "".join(
        f'<tr><th scope="row">{text(name)}</th><td>{text(value)}</td></tr>'
        for name, value in values
    )
    inner = f'<div class="scroll"><table class="settings"><tbody>{rows}</tbody></table></div>'
    return details(summary, inner)


def intro(sentence: str) -> str:
    """Return a sentence for the top of a section; it is already escaped."""
    return f'<p class="intro">{sentence}</p>'


def state(name: str) -> str:
    """Return the state of a run as a coloured label."""
    return f'<span class="state {name}">{name}</span>'


def tile(name: str, value: str, more: str = "", *, extra: str = "", first: bool = False) -> str:
    """Return a tile of the summary; all texts are already escaped."""
    return (
        f'<div class="tile{" first" if first else ""}"><span class="name">{name}</span>'
        f"<b>{value}</b>{extra}<span>{more}</span></div>"
    )


def interval_bar(estimate: Estimate) -> str:
    """Return a bar from 0 to 100 % that shows a share and its interval."""
    if estimate.low is None or estimate.high is None:
        return ""
    ends = [min(max(end, 0.0), 1.0) * 100 for end in (estimate.low, estimate.high, estimate.value)]
    low, high, middle = ends
    return (
        '<svg class="interval" viewBox="0 0 100 12" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="rail" y="5" width="100" height="2"/>'
        f'<rect class="span" x="{low:.2f}" y="3" width="{max(high - low, 0.4):.2f}" height="6"/>'
        f'<rect class="point" x="{min(middle, 99.4):.2f}" y="1" width="0.6" height="10"/></svg>'
    )
