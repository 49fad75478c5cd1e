"""The report in a browser: it draws its figures without a network, follows light and dark mode,
sorts by the keyboard, and never runs a name as code.
"""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from apps.reports.writing import write_report

pytestmark = pytest.mark.slow
pytest.importorskip("plotly", reason="plotly is not installed (pip install '.[pictures]')")

HOSTILE = "<script>document.title='stolen'</script><img src=x onerror=alert(1)>"


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Any]]:
    """Yield a function that opens a page from the disk, offline, and waits for its script."""

    def open_page(path: Path, scheme: str = "light", width: int = 1200) -> Any:
        browser.execute_cdp_cmd("Network.enable", {})
        offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        browser.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        emulate(browser, scheme)
        for log in ("browser", "performance"):
            browser.get_log(log)
        browser.get(path.as_uri())
        wait_until(browser, "document.documentElement.dataset.drawn")
        return browser

    yield open_page
    browser.execute_cdp_cmd("Network.disable", {})
    browser.get("about:blank")


def emulate(browser: Any, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def wait_until(browser: Any, holds: str) -> None:
    end = time.monotonic() + 60
    while not browser.execute_script(f"return {holds}"):
        failed = browser.execute_script("return document.documentElement.dataset.failed")
        assert failed is None
        assert time.monotonic() < end, holds
        time.sleep(0.05)


def errors(browser: Any) -> list[str]:
    """Return the browser's error messages, except those about drawing in software."""
    logged = [entry["message"] for entry in browser.get_log("browser")]
    return [message for message in logged if "WebGL" not in message and "GL Driver" not in message]


def requests(browser: Any) -> list[str]:
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [one["params"] for one in events if one["method"] == "Network.requestWillBeSent"]
    urls = [one["request"]["url"] for one in sent]
    return [url for url in urls if not url.startswith(("data:", "blob:"))]


def test_a_run_from_the_disk(opened: Any, make_run_folder: Any) -> None:
    path, _ = write_report([make_run_folder()])
    page = opened(path)
    assert requests(page) == [path.as_uri()]
    assert errors(page) == []
    drawn, figures = page.execute_script(
        "return [document.querySelectorAll('.plot svg.main-svg').length, figures.length]"
    )
    assert figures > 10
    assert drawn >= figures
    assert page.execute_script("return document.querySelectorAll('.unplotted').length") == 0
    # The loss falls, and so does its line.
    assert page.execute_script(
        "const d = document.querySelector('#plot-1 .scatterlayer .js-line').getAttribute('d');"
        "const ys = d.slice(1).split('L').map(p => +p.split(',')[1]);"
        "return ys.length > 10 && ys.at(-1) > ys[0]"
    )
    assert (
        page.execute_script("return document.querySelectorAll('.board svg.grid text').length") > 32
    )
    assert not page.execute_script("return document.documentElement.scrollWidth > innerWidth")


def test_a_telephone_scrolls_in_one_direction(opened: Any, make_sweep: Any) -> None:
    sweep = make_sweep()
    run = next(path for path in sweep.iterdir() if path.is_dir())
    for folder in (sweep, run):
        page = opened(write_report([folder])[0], width=390)
        assert not page.execute_script("return document.documentElement.scrollWidth > innerWidth")
        # The first share of each table is visible without scrolling.
        shares = page.execute_script(
            "return [...document.querySelectorAll('.scroll tbody tr:first-child')]"
            ".map((row) => [...row.cells].find((cell) => cell.textContent.includes('%')))"
            ".filter((cell) => cell?.checkVisibility())"
            ".map((cell) => cell.getBoundingClientRect().right)"
        )
        assert shares
        assert max(shares) <= 390
        assert errors(page) == []


BACKGROUND = "return getComputedStyle(document.body).backgroundColor"
LINE = "return getComputedStyle(document.querySelector('#plot-0 .scatterlayer .js-line')).stroke"


def test_the_page_follows_a_change_of_light_and_dark(opened: Any, make_run_folder: Any) -> None:
    path, _ = write_report([make_run_folder()])
    page = opened(path, "dark")
    dark, dark_line = page.execute_script(BACKGROUND), page.execute_script(LINE)
    emulate(page, "light")
    wait_until(page, "document.documentElement.dataset.drawn === 'light'")
    light = page.execute_script(BACKGROUND)
    dark_sum, light_sum = (sum(map(int, c[4:-1].split(","))) for c in (dark, light))
    assert dark_sum < 150 < 600 < light_sum
    assert page.execute_script(LINE) != dark_line


def test_printing_is_light_and_opens_everything(opened: Any, make_run_folder: Any) -> None:
    page = opened(write_report([make_run_folder()])[0], "dark")
    page.execute_script("dispatchEvent(new Event('beforeprint'))")
    wait_until(page, "document.documentElement.dataset.drawn === 'light'")
    assert (
        page.execute_script("return document.querySelectorAll('details:not([open])').length") == 0
    )
    page.execute_script("dispatchEvent(new Event('afterprint'))")
    wait_until(page, "document.documentElement.dataset.drawn === 'dark'")
    assert page.execute_script("return document.querySelectorAll('details[open]').length") == 0
    printed = page.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert len(printed["data"]) > 50_000


def column(page: Any, number: int) -> list[str]:
    return page.execute_script(
        "return [...document.querySelectorAll('table.sortable')[0].tBodies[0].rows]"
        f".map((row) => row.cells[{number}].textContent.trim())"
    )


def test_a_sweep_is_sorted_by_the_keyboard(opened: Any, make_sweep: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    page = opened(write_report([make_sweep(rates=(1e-3, 1e-2, 3e-3, 5e-3))])[0])
    assert errors(page) == []
    names = column(page, 0)
    assert names[0] == "lr-0.005__seed-1"  # The best one.
    button = page.find_element("css selector", "table.sortable thead th button")
    button.send_keys(Keys.ENTER)
    assert column(page, 0) == sorted(names)
    button.send_keys(Keys.SPACE)
    assert column(page, 0) == sorted(names, reverse=True)
    (sorted_by,) = page.find_elements("css selector", "th[aria-sort]")
    assert sorted_by.get_attribute("aria-sort") == "descending"
    heads = page.find_elements("css selector", "table.sortable")[0].find_elements(
        "css selector", "thead th"
    )
    (lr,) = [number for number, head in enumerate(heads) if head.text.startswith("lr")]
    heads[lr].find_element("css selector", "button").send_keys(Keys.ENTER)
    values = list(map(float, column(page, lr)))
    assert values == sorted(values, reverse=True)


def test_hostile_names_are_text(opened: Any, make_run_folder: Any) -> None:
    folders = []
    for name in ("<script>alert(1)<", "b"):
        folder = make_run_folder(name, settings={"data_path": HOSTILE, "seed": HOSTILE})
        record = {"train/lr": 1.0, "diagnose/warnings": [HOSTILE], f"train/lr/{HOSTILE[:20]}": 1.0}
        with (folder / "metrics.jsonl").open("a") as file:
            for step in (41, 42):
                file.write(json.dumps({"step": step} | record) + "\n")
        for path in folder.glob("*.json"):
            path.write_text(path.read_text().replace('"all"', json.dumps(HOSTILE)))
        folders.append(folder)
    for named in (folders[:1], folders):
        page = opened(write_report(named, folders[0] / "page.html")[0])
        assert "script" in page.title
        assert "<script>alert(1)<" in page.find_element("css selector", "h1").text
        assert page.execute_script("return document.querySelectorAll('img').length") == 0
        assert HOSTILE in page.execute_script("return document.body.textContent")
        assert errors(page) == []
        assert len(requests(page)) == 1


def test_a_browser_that_cannot_unpack_keeps_the_tables(browser: Any, make_run_folder: Any) -> None:
    path, _ = write_report([make_run_folder()])
    gone = {"source": "delete window.DecompressionStream"}
    script = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", gone)
    try:
        browser.get(path.as_uri())
        end = time.monotonic() + 30
        while not browser.execute_script("return document.documentElement.dataset.failed"):
            assert time.monotonic() < end
            time.sleep(0.05)
    finally:
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)
    assert browser.execute_script("return document.querySelectorAll('.unplotted').length") > 10
    button = browser.find_element("css selector", "table.sortable thead button")
    assert button.is_enabled()
