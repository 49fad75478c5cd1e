"""A page in one file: sections, figures, style and scripts. It loads nothing.

The browser runs only two scripts, ours and plotly's, because the page's security policy names their
hashes. Plotly is compressed; a browser that cannot unpack it shows the tables, and a sentence in
place of each figure.
"""

import base64
import gzip
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from pathlib import Path

from apps.reports.drawing import dark_rules
from apps.reports.figure import Figure
from apps.reports.html import text
from runtime.errors import ConfigError

MAX_BYTES = 5_000_000

_UNPLOTTED = (
    "A script draws this figure, but it did not run: it needs a browser of 2023 or later. The "
    "tables have the numbers."
)


@dataclass
class Page:
    """A page that sections and figures are added to.

    Attributes:
        title: not escaped.
        header: HTML above all sections.
        sections: (name, title, HTML); links use the name.
        figures: all figures; `draw` returns their places.
        footer: HTML.
    """

    title: str
    header: str = ""
    sections: list[tuple[str, str, str]] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    footer: str = ""

    def add(self, name: str, title: str, html: str) -> None:
        """Add a section, unless it is empty."""
        if html:
            self.sections.append((name, title, html))

    def draw(self, figures: Sequence[Figure]) -> str:
        """Add figures; return the HTML with their places, side by side."""
        cards = []
        for number, figure in enumerate(figures, start=len(self.figures)):
            caption = f'<p class="caption">{escape(figure.caption)}</p>' if figure.caption else ""
            cards.append(
                f'<figure class="card"><h3>{escape(figure.title)}</h3>{caption}'
                f'<div class="plot" id="plot-{number}">'
                f'<p class="unplotted">{_UNPLOTTED}</p></div></figure>'
            )
        self.figures += figures
        return f'<div class="figures">{"".join(cards)}</div>' if cards else ""

    def to_html(self) -> str:
        """Return the whole page."""
        library = plotly_script() if self.figures else ""
        here = Path(__file__).parent
        style, script = ((here / name).read_text() for name in ("page.css", "page.js"))
        drawn = [{"data": figure.data, "layout": figure.layout} for figure in self.figures]
        data = json.dumps(drawn, separators=(",", ":"), allow_nan=False)
        data = data.replace("<", "\\u003c")  # It would end the element.
        allowed = " ".join(_digest(code) for code in (script, library) if code)
        policy = (
            f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
            "img-src data: blob:; base-uri 'none'; form-action 'none'"
        )
        links = "".join(f'<li><a href="#{n}">{t}</a></li>' for n, t, _ in self.sections)
        sections = "".join(
            f'<section><h2 id="{name}">{title}</h2>{html}</section>'
            for name, title, html in self.sections
        )
        # ARC keeps its colours in dark mode, because they have a meaning.
        dark = dark_rules(sections, ".row:not(.coloured) ")
        style += f"@media screen and (prefers-color-scheme: dark) {{ {dark} }}"
        return "\n".join(
            (
                '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
                f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
                '<meta name="viewport" content="width=device-width, initial-scale=1">',
                '<meta name="referrer" content="no-referrer">',
                '<meta name="color-scheme" content="light dark">',
                f"<title>{text(self.title)}</title>\n<style>{style}</style>\n</head>\n<body>",
                f"<header>{self.header}</header>",
                f'<nav aria-label="Sections"><ul>{links}</ul></nav>' if links else "",
                f"<main>{sections}</main>\n<footer>{self.footer}</footer>",
                f'<script type="application/json" id="figures">{data}</script>',
                f'<script type="text/plain" id="library">{_packed(library)}</script>',
                f"<script>{script}</script>\n</body>\n</html>\n",
            )
        )


@cache
def plotly_script() -> str:
    """Return plotly's script.

    Raises:
        ConfigError: plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise ConfigError("plotly is not installed (pip install '.[pictures]')") from None
    return get_plotlyjs()


@cache
def _packed(code: str) -> str:
    return base64.b64encode(gzip.compress(code.encode(), 9, mtime=0)).decode()


def _digest(code: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'"
