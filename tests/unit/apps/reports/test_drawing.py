import sys
import xml.etree.ElementTree as ET

import pytest

from apps.reports.drawing import Picture, darkened
from runtime.errors import ConfigError


def small() -> Picture:
    picture = Picture(20, 10)
    picture.rectangle(0, 0, 20, 10, "#ffffff")
    picture.rectangle(2, 3, 4, 5, "#ff0000")
    picture.rectangle(10, 3, 4, 5, "#ff0000")
    return picture


def test_an_image_has_each_colour_in_its_place() -> None:
    image = small().image()
    assert image.size == (20, 10)
    red = {(x, y) for x in range(20) for y in range(10) if image.getpixel((x, y)) == (255, 0, 0)}
    assert red == {(x, y) for x in (*range(2, 6), *range(10, 14)) for y in range(3, 8)}


def test_words_are_escaped() -> None:
    picture = small()
    picture.words(5, 5, '</text><script>alert("1")</script>', 8, "#000000")
    root = ET.fromstring(picture.svg())
    (text,) = root.findall("{http://www.w3.org/2000/svg}text")
    assert text.text == '</text><script>alert("1")</script>'
    assert not list(text)


def test_dark_mode_swaps_light_and_dark_and_keeps_hues() -> None:
    paper, ink, red = map(darkened, ("#ffffff", "#16202c", "#c81e1e"))
    assert int(paper[1:3], 16) < 40 < 180 < int(ink[1:3], 16)
    assert int(red[1:3], 16) > 2 * int(red[3:5], 16)


def test_letters_do_not_touch() -> None:
    picture = Picture(60, 30)
    picture.words(4, 15, "ll", 20, "#000000", bold=True, anchor="start")
    image = picture.image().convert("L")
    columns = [min(image.getpixel((x, y)) for y in range(30)) for x in range(60)]
    inked = [x for x, value in enumerate(columns) if value < 100]
    assert max(columns[inked[0] : inked[-1]]) > 150


def test_missing_pillow_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(
        ConfigError, match=r"pillow is not installed \(pip install '\.\[pictures\]'\)"
    ):
        small().image()
    assert small().svg().startswith("<svg")
