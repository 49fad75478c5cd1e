"""Pictures of rectangles and words, drawn as SVG for pages or as images for GIFs."""

import re
from colorsys import hls_to_rgb, rgb_to_hls
from dataclasses import dataclass, field
from html import escape
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from runtime.errors import ConfigError

if TYPE_CHECKING:
    from PIL.Image import Image

_SCALE = 2  # Images are drawn this much larger and then reduced, for clear type.


class Rectangle(NamedTuple):
    """A filled rectangle, in pixels."""

    x: float
    y: float
    width: float
    height: float
    fill: str


class Words(NamedTuple):
    """A line of text, vertically centred on y; `anchor` is start, middle or end, at x."""

    x: float
    y: float
    text: str
    size: float
    fill: str
    bold: bool = False
    anchor: str = "middle"


@dataclass
class Picture:
    """A drawing; later shapes cover earlier ones. Colours are #RRGGBB, lengths are pixels."""

    width: int
    height: int
    shapes: list[Rectangle | Words] = field(default_factory=list)

    def rectangle(self, x: float, y: float, width: float, height: float, fill: str) -> None:
        """Add a filled rectangle; (x, y) is its upper left corner."""
        self.shapes.append(Rectangle(x, y, width, height, fill))

    def frame(
        self, x: float, y: float, width: float, height: float, line: float, fill: str
    ) -> None:
        """Add the border of a rectangle, inside it, `line` pixels thick."""
        self.rectangle(x, y, width, line, fill)
        self.rectangle(x, y + height - line, width, line, fill)
        self.rectangle(x, y, line, height, fill)
        self.rectangle(x + width - line, y, line, height, fill)

    def words(self, x: float, y: float, text: str, size: float, fill: str, **how: Any) -> None:
        """Add a line of text; `how` takes bold and anchor of `Words`."""
        self.shapes.append(Words(x, y, text, size, fill, **how))

    def place(self, other: "Picture", x: float, y: float) -> None:
        """Add another picture with its upper left corner at (x, y)."""
        self.shapes += [shape._replace(x=shape.x + x, y=shape.y + y) for shape in other.shapes]

    def svg(self, attributes: str = "") -> str:
        """Return the picture as an SVG element that scales with its place in a page."""
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'role="img" font-family="system-ui,sans-serif"{attributes}>'
        ]
        for (kind, fill), shapes in groupby(self.shapes, lambda shape: (type(shape), shape.fill)):
            if kind is Rectangle:
                paths = (
                    f"M{x:g} {y:g}h{width:g}v{height:g}h-{width:g}z"
                    for x, y, width, height, *_ in shapes
                )
                parts.append(f'<path d="{"".join(paths)}" fill="{fill}"/>')
            else:
                parts += [_text(words) for words in shapes if isinstance(words, Words)]
        return "".join([*parts, "</svg>"])

    def image(self) -> "Image":
        """Return the picture as a Pillow image.

        Raises:
            ConfigError: Pillow is not installed.
        """
        try:
            from PIL import Image, ImageDraw, ImageFont
        except ImportError:
            raise ConfigError("pillow is not installed (pip install '.[pictures]')") from None
        image = Image.new("RGB", (_SCALE * self.width, _SCALE * self.height), "#ffffff")
        canvas = ImageDraw.Draw(image)
        for shape in self.shapes:
            if isinstance(shape, Rectangle):
                corners = [round(shape.x), round(shape.y)]
                corners += [round(shape.x + shape.width), round(shape.y + shape.height)]
                left, top, right, bottom = (_SCALE * corner for corner in corners)
                if right > left and bottom > top:
                    canvas.rectangle([left, top, right - 1, bottom - 1], fill=shape.fill)
            else:
                font = ImageFont.load_default(_SCALE * shape.size)
                place = _SCALE * shape.x, _SCALE * shape.y
                stroke = _SCALE * shape.size / 30 if shape.bold else 0
                anchor = {"start": "lm", "middle": "mm", "end": "rm"}[shape.anchor]
                canvas.text(place, shape.text, shape.fill, font, anchor, stroke_width=stroke)
        return image.reduce(_SCALE)


def mixed(colour: str, background: str, share: float) -> str:
    """Return the mix of a colour and a background; `share` is the colour's, 0 to 1."""
    both = (bytes.fromhex(each[1:]) for each in (colour, background))
    parts = (round(share * over + (1 - share) * under) for over, under in zip(*both, strict=True))
    return f"#{bytes(parts).hex()}"


def is_dark(colour: str) -> bool:
    """Return whether a colour needs light letters."""
    return sum(bytes.fromhex(colour[1:])) < 380


def dark_rules(html: str, selector: str) -> str:
    """Return CSS that replaces all fill colours in `html` for dark mode, below a CSS selector."""
    colours = sorted(set(re.findall(r'fill="(#[0-9a-fA-F]{6})"', html)))
    return " ".join(f'{selector}[fill="{c}"] {{ fill: {darkened(c)} }}' for c in colours)


def darkened(colour: str) -> str:
    """Return the colour for dark mode: the same hue with light and dark swapped."""
    hue, light, saturation = rgb_to_hls(*(part / 255 for part in bytes.fromhex(colour[1:])))
    duller = 0.5 if light > 0.8 else 0.85  # Light colours lie behind digits.
    parts = hls_to_rgb(hue, 0.95 - 0.85 * light, duller * saturation)
    return f"#{bytes(round(255 * part) for part in parts).hex()}"


def _text(words: Words) -> str:
    bold = ' font-weight="700"' if words.bold else ""
    place = f'x="{words.x:g}" y="{words.y:g}" text-anchor="{words.anchor}"'
    look = f'dominant-baseline="central" font-size="{words.size:g}" fill="{words.fill}"{bold}'
    return f"<text {place} {look}>{escape(words.text)}</text>"


def require_gif(path: str | Path) -> None:
    """Raise ConfigError if the name of an animation has another ending than .gif."""
    if Path(path).suffix != ".gif":
        raise ConfigError(f"animate={path}: accepted: a file name that ends in .gif")
