"""A model's thinking as a moving picture: a GIF, or a page of its own to step through."""

import json
from collections.abc import Sequence
from html import escape
from io import BytesIO
from pathlib import Path

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

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }}
body {{ margin: 0 auto; padding: 1rem; max-width: {width}px; }}
h1 {{ font-size: 1.5rem; margin: 0; overflow-wrap: anywhere; }}
p {{ margin: 0 0 .75rem; overflow-wrap: anywhere; }}
#board svg {{ width: 100%; height: auto; border-radius: 8px; }}
.bar {{ display: flex; gap: .75rem; align-items: center; margin: .75rem 0; }}
.bar input {{ flex: 1; min-width: 0; }}
button {{ font: inherit; min-width: 5rem; padding: .3rem .8rem; }}
.legend {{ list-style: none; display: flex; flex-wrap: wrap; gap: .25rem 1rem; padding: 0; }}
.legend svg {{ width: 1em; height: 1em; margin-right: .4em; vertical-align: -.1em; }}
.legend rect {{ stroke: #8a96a3; }}
.small {{ opacity: .75; font-size: .875rem; }}
@media (prefers-color-scheme: dark) {{ {dark} }}
</style></head><body>
<h1>{title}</h1>
<p class="small">{model}</p>
<div id="board" aria-live="polite"></div>
<div class="bar"><button id="play">Play</button>
<input id="step" type="range" min="0" value="0" aria-label="step"><output id="place"></output></div>
<ul class="legend small">{legend}</ul>
<p class="small">Space plays and stops; , and . or the arrow keys go a step back and on.</p>
<noscript>This page needs scripts to show the steps.</noscript>
<script id="frames" type="application/json">{frames}</script>
<script>
const frames = JSON.parse(document.getElementById("frames").textContent);
const [board, step, play, place] = ["board", "step", "play", "place"].map((id) =>
  document.getElementById(id));
let timer = 0;
step.max = frames.length - 1;
function show(number) {{
  step.value = Math.max(0, Math.min(frames.length - 1, number));
  board.innerHTML = frames[step.value];
  place.value = step.value + " / " + step.max;
}}
function stop() {{ clearInterval(timer); timer = 0; play.textContent = "Play"; }}
function toggle() {{
  if (timer) return stop();
  if (+step.value === frames.length - 1) show(0);
  play.textContent = "Stop";
  timer = setInterval(() => {{
    show(+step.value + 1);
    if (+step.value === frames.length - 1) stop();
  }}, {pause});
}}
step.oninput = () => {{ stop(); show(+step.value); }};
play.onclick = toggle;
document.onkeydown = (event) => {{
  const move = {{ ArrowLeft: -1, ",": -1, ArrowRight: 1, ".": 1 }}[event.key];
  if (event.key === " " && event.target !== play) {{ event.preventDefault(); toggle(); }}
  else if (move) {{ event.preventDefault(); stop(); show(+step.value + move); }}
}};
show(0);
if (!matchMedia("(prefers-reduced-motion: reduce)").matches) toggle();
</script></body></html>
"""


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
    pictures = many(len(some), "picture")
    if len(some) < len(frames):
        pictures = f"{len(some)} of {many(len(frames), 'picture')}"
    return f"{path} ({pictures}, {len(content) / 1000:.0f} kB)"


def require_suffix(path: Path) -> None:
    """Raise ConfigError unless a file is one that can be written here."""
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"animate={path}: accepted: a file's name with {' or '.join(SUFFIXES)}")


def as_gif(pictures: Sequence[Picture]) -> bytes:
    """Return pictures as a GIF that begins again at its end."""
    images = [picture.image() for picture in same_size(pictures)]
    durations = [_pause(len(images)) for _ in images]
    durations[-1] = round(1000 * _LAST_SECONDS)
    few = [image.quantize(64) for image in images]
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
    return _PAGE.format(
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
