"""Make the pictures of the README and the docs: python scripts/pictures.py.

Needs the runs of `make demo` and `make demo-extreme`, and Chromium with its driver (in Debian: apt
install chromium-driver) for the pictures of pages.
"""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runtime.errors import EXIT_CONFIG

FOLDER = Path("docs/pictures")
_DEMO, _EXTREME = Path("checkpoints/sudoku-demo"), Path("checkpoints/lattice-demo")
# Not among the demo's puzzles, and of those that take its model some steps.
_PUZZLE = "2.....51..4..1...9...5..7......7.694..6.9.....3..6.2....58.....6.....8.3.82.379.1"
# One that takes the deducing model some guesses.
_GUESSED = ".2...6...78.........53.7.6...2.8......37...94.....2.7..3....1.7...49....45......."
_MOST_BYTES = 1_000_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Make all pictures; return the exit code."""
    parser = argparse.ArgumentParser(prog="pictures.py", description=str(__doc__).split("\n\n")[0])
    parser.parse_args(arguments)
    programs = [name for name in ("chromium", "chromedriver") if not shutil.which(name)]
    missing = [str(run) for run in (_DEMO, _EXTREME) if not run.is_dir()] + programs
    if missing:
        sys.stderr.write(f"error: not there: {', '.join(missing)} (--help says what is needed)\n")
        return EXIT_CONFIG
    FOLDER.mkdir(parents=True, exist_ok=True)
    animate("thinking.gif", _DEMO, f"puzzle={_PUZZLE}", "steps=10")
    animate("deducing.gif", _EXTREME, f"puzzle={_GUESSED}", "search.chains=1")
    photograph_report()
    photograph_viewer()
    for path in sorted(FOLDER.iterdir()):
        size = path.stat().st_size
        sys.stdout.write(f"{path}: {size / 1000:.0f} kB\n")
        if size > _MOST_BYTES:
            sys.stderr.write(f"error: {path}: more than {_MOST_BYTES:,} bytes\n")
            return EXIT_CONFIG
    return 0


def animate(name: str, run: Path, *settings: str) -> None:
    """Draw how a run's model solves a puzzle."""
    _run("scripts/solve.py", f"checkpoint={run}", *settings, f"animate={FOLDER / name}")


def photograph_report() -> None:
    """Take a picture of the top of the demo's report."""
    _run("scripts/report.py", str(_DEMO))
    with _browser(1200, 1150) as browser:
        browser.get((_DEMO / "report.html").absolute().as_uri())
        _wait(browser, lambda: browser.find_elements("css selector", ".main-svg"))
        browser.save_screenshot(str(FOLDER / "report.png"))


def photograph_viewer() -> None:
    """Take a picture of the viewer amid the steps of a puzzle."""
    command = [sys.executable, "scripts/viewer.py", str(_DEMO), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        server.stdout.readline()
        address = server.stdout.readline().split()[0]
        with _browser(1200, 900) as browser:
            browser.get(address)
            _wait(browser, lambda: browser.find_elements("css selector", "#board svg"))
            browser.execute_script("document.querySelector('[role=gridcell]').focus()")
            for key in _PUZZLE:
                browser.switch_to.active_element.send_keys(key)
            browser.find_element("id", "solve").click()
            _wait(browser, lambda: "valid" in browser.find_element("id", "verdict").text)
            step = browser.find_element("id", "step")
            browser.execute_script("arguments[0].value = 3; arguments[0].oninput()", step)
            browser.save_screenshot(str(FOLDER / "viewer.png"))
    finally:
        server.terminate()
        server.wait()


def _run(*command: str) -> None:
    subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)


@contextmanager
def _browser(width: int, height: int) -> Iterator[Any]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for argument in ("headless=new", "no-sandbox", "hide-scrollbars"):
        options.add_argument(f"--{argument}")
    browser = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    try:
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        yield browser
    finally:
        browser.quit()


def _wait(browser: Any, holds: Any) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 60).until(lambda _: holds())
