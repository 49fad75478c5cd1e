"""A model's thinking as a moving picture: a GIF, or a page of its own to step through."""

import json
from collections.abc import Sequence
from html import escape
from io import BytesIO
from pathlib import Path
from string import Template

from apps.reports.boards import RING, legend
from apps.reports.drawing import Picture, dark_rules
from apps.reports.frames import Frame, picture_of, thinned, without_idle_end
from runtime.errors import ConfigError
from runtime.files import replacing
from runtime.text import many

SUFFIXES = (".gif", ".html")
_MOST_FRAMES = 240
_SECONDS = 15.0  # That all frames are shown for, about, each at least 0.08 s and at most 0.7.
_LAST_SECONDS = 3.0


def animate(frames: Sequence[Frame], path: Path, title: str, model: str = "") -> str:
    """Write frames into a file, whose suffix says how; of very many, evenly chosen ones.

    Args:
        title, model: what a page says of the puzzle, and of the model that thinks.
    Returns:
        What was written, in words.
    Raises:
        ConfigError: another suffix, the file cannot be written, or Pillow is missing.
    """
    require_suffix(path)
    is_gif = path.suffix == ".gif"
    frames = without_idle_end(frames) if is_gif else frames
    some = thinned(frames, _MOST_FRAMES)
    pictures = [picture_of(frame) for frame in some]
    content = as_gif(pictures) if is_gif else as_page(some, title, model).encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(content)
    except OSError as error:
        raise ConfigError(f"animate={path}: cannot be written: {error.strerror}") from None
    of_all = f"{len(some)} of " if len(some) < len(frames) else ""
    return f"{path} ({of_all}{many(len(frames), 'picture')}, {len(content) / 1000:.0f} kB)"


def require_suffix(path: Path) -> None:
    """Raise ConfigError unless a file is one that can be written here."""
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"animate={path}: accepted: a file's name with {' or '.join(SUFFIXES)}")


def as_gif(pictures: Sequence[Picture]) -> bytes:
    """Return pictures as a GIF that begins again at its end."""
    few = [picture.image().quantize(64) for picture in same_size(pictures)]
    durations = [_pause(len(few))] * (len(few) - 1) + [round(1000 * _LAST_SECONDS)]
    content = BytesIO()
    options = {"append_images": few[1:], "duration": durations, "loop": 0, "optimize": True}
    few[0].save(content, "GIF", save_all=True, **options)
    return content.getvalue()


def as_page(frames: Sequence[Frame], title: str, model: str = "") -> str:
    """Return a page, complete in itself, that steps through frames."""
    pictures, board = [picture_of(frame) for frame in frames], frames[-1].board
    drawn = [picture.svg() for picture in pictures]
    entries = "".join(
        f'<li><svg viewBox="0 0 9 9"><rect width="9" height="9" fill="{colour}"/></svg>{words}</li>'
        for colour, words in legend(board)
    )
    # Colours that mean something stay.
    is_kept = board.look.cells == "coloured"
    kept = {RING, *(one.fill for one in board.look.tokens)} if is_kept else set()
    page = Path(__file__).with_suffix(".html").read_text()
    return Template(page).substitute(
        title=escape(title),
        model=escape(model),
        legend=entries,
        dark=dark_rules("".join([*drawn, entries]), kept=kept),
        # In a script element no tag may end it.
        frames=json.dumps(drawn).replace("</", "<\\/"),
        pause=_pause(len(pictures)),
        width=max(544, *(picture.width for picture in pictures)),
    )


def same_size(pictures: Sequence[Picture]) -> list[Picture]:
    """Return pictures on paper of equal size."""
    width = max(picture.width for picture in pictures)
    height = max(picture.height for picture in pictures)
    papers = [Picture(width, height) for _ in pictures]
    for paper, picture in zip(papers, pictures, strict=True):
        paper.place(picture, 0, 0)
    return papers


def _pause(number: int) -> int:
    """Return how long each of so many pictures is shown, in milliseconds."""
    return round(1000 * min(0.7, max(0.08, _SECONDS / number)))
