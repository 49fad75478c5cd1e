"""Flat pictures of rectangles and words: as SVG for pages, as an image for GIF and PNG."""

from dataclasses import dataclass, field
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from runtime.errors import ConfigError

if TYPE_CHECKING:
    from PIL.Image import Image


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
    bold: bool
    anchor: str


@dataclass
class Picture:
    """A drawing: what comes later lies above. Colours are #RRGGBB; lengths are pixels."""

    width: int
    height: int
    shapes: list[Rectangle | Words] = field(default_factory=list)

    def rectangle(self, x: float, y: float, width: float, height: float, fill: str) -> None:
        """Fill a rectangle whose upper left corner is (x, y)."""
        self.shapes.append(Rectangle(x, y, width, height, fill))

    def frame(
        self, x: float, y: float, width: float, height: float, line: float, fill: str
    ) -> None:
        """Draw the border of a rectangle, inside it, as thick as `line`."""
        self.rectangle(x, y, width, line, fill)
        self.rectangle(x, y + height - line, width, line, fill)
        self.rectangle(x, y, line, height, fill)
        self.rectangle(x + width - line, y, line, height, fill)

    def words(
        self,
        x: float,
        y: float,
        text: str,
        size: float,
        fill: str,
        *,
        bold: bool = False,
        anchor: str = "middle",
    ) -> None:
        """Write a line."""
        self.shapes.append(Words(x, y, text, size, fill, bold, anchor))

    def place(self, other: "Picture", x: float, y: float) -> None:
        """Draw another picture here, its upper left corner at (x, y)."""
        self.shapes += [shape._replace(x=shape.x + x, y=shape.y + y) for shape in other.shapes]

    def svg(self) -> str:
        """Return it as an SVG element, which grows and shrinks with its place in a page."""
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            'role="img" font-family="system-ui,sans-serif">'
        ]
        for fill, shapes in groupby(self.shapes, lambda shape: shape.fill):
            paths = ""
            for shape in shapes:
                if isinstance(shape, Rectangle):
                    x, y, width, height = (f"{value:g}" for value in shape[:4])
                    paths += f"M{x} {y}h{width}v{height}h-{width}z"
                else:
                    parts += [_path(paths, fill)] * bool(paths) + [_text(shape)]
                    paths = ""
            parts += [_path(paths, fill)] * bool(paths)
        return "".join([*parts, "</svg>"])

    def image(self) -> "Image":
        """Return it as an image of Pillow.

        Raises:
            ConfigError: Pillow is not installed.
        """
        try:
            from PIL import Image, ImageDraw, ImageFont
        except ImportError:
            raise ConfigError("pillow is not installed (pip install '.[pictures]')") from None
        image = Image.new("RGB", (self.width, self.height), "#ffffff")
        canvas = ImageDraw.Draw(image)
        for shape in self.shapes:
            if isinstance(shape, Rectangle):
                corners = [round(shape.x), round(shape.y)]
                corners += [round(shape.x + shape.width) - 1, round(shape.y + shape.height) - 1]
                if corners[2] >= corners[0] and corners[3] >= corners[1]:
                    canvas.rectangle(corners, fill=shape.fill)
            else:
                font = ImageFont.load_default(shape.size)
                anchor = {"start": "lm", "middle": "mm", "end": "rm"}[shape.anchor]
                stroke = shape.size / 30 if shape.bold else 0
                at = (shape.x, shape.y)
                canvas.text(at, shape.text, shape.fill, font, anchor, stroke_width=stroke)
        return image


def mixed(colour: str, background: str, share: float) -> str:
    """Return so large a share of a colour over a background, all #RRGGBB."""
    both = (bytes.fromhex(each[1:]) for each in (colour, background))
    parts = (round(share * over + (1 - share) * under) for over, under in zip(*both, strict=True))
    return f"#{bytes(parts).hex()}"


def _path(paths: str, fill: str) -> str:
    return f'<path d="{paths}" fill="{fill}"/>'


def _text(words: Words) -> str:
    bold = ' font-weight="700"' if words.bold else ""
    place = f'x="{words.x:g}" y="{words.y:g}" text-anchor="{words.anchor}"'
    look = f'dominant-baseline="central" font-size="{words.size:g}" fill="{words.fill}"{bold}'
    return f"<text {place} {look}>{escape(words.text)}</text>"
