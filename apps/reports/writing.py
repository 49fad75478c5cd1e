"""Write the report of one run or of several."""

import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from apps.reports import comparison, single
from apps.reports.html import text
from apps.reports.page import MAX_BYTES, plotly_script
from apps.reports.reading import find_runs, read_run
from apps.reports.status import SWEEP
from apps.reports.values import MAX_VALUES
from runtime.errors import ConfigError, disk_errors
from runtime.files import replacing

FILE = "report.html"

_MAX_RUNS = 500
_MAX_NAMED = 3
_DETAILS = (1.0, 0.5, 0.2, 0.0)
_MIN_VALUES = 20_000  # Values of JSON to read from each run, even if there are many runs.


def write_report(folders: Sequence[Path], output: Path | None = None) -> tuple[Path, int]:
    """Write the page about the runs in some folders; return its path and its size in bytes.

    Args:
        output: path of the page; None: `report.html` in the folder of a single run or sweep,
            otherwise in the working folder.
    Raises:
        ConfigError: there is no run, the page cannot be written, or plotly is not installed.
    """
    plotly_script()  # Raises early if plotly is missing.
    found = list(dict.fromkeys(run for folder in folders for run in _runs_in(folder.resolve())))
    if len(found) > _MAX_RUNS:
        raise ConfigError(f"{len(found):,} runs; accepted: at most {_MAX_RUNS}")
    most = max(_MIN_VALUES, MAX_VALUES // len(found))
    runs = [read_run(folder, most) for folder in found]
    output = output or _place(folders, found) / FILE
    names = [run.name for run in runs]
    title = " · ".join(names) if len(names) <= _MAX_NAMED else f"{len(names)} runs"
    title = folders[0].resolve().name if len(folders) == 1 else title
    for detail in _DETAILS:
        is_single = len(runs) == 1
        page = single.page_of(runs[0], detail) if is_single else comparison.page_of(runs, title)
        page.footer = _footer(folders)
        content = page.to_html().encode()
        if len(content) < MAX_BYTES:
            break
    else:
        raise ConfigError(f"{output}: the page has over {MAX_BYTES / 1e6:.0f} MB: give fewer runs")
    with disk_errors(output, ConfigError), replacing(output) as file:
        file.write(content)
    return output, len(content)


def _runs_in(folder: Path) -> list[Path]:
    with disk_errors(folder, ConfigError):
        if not folder.is_dir():
            raise ConfigError(f"{folder}: no such folder")
    if runs := find_runs(folder):
        return runs
    raise ConfigError(f"{folder}: holds no run (no config.yaml, metrics.jsonl or checkpoints)")


def _place(folders: Sequence[Path], found: Sequence[Path]) -> Path:
    """Return the folder of a single run or sweep, otherwise the working folder."""
    if len(folders) == 1 and (folders[0].resolve() == found[0] or (folders[0] / SWEEP).exists()):
        return folders[0]
    return Path(os.path.relpath(found[0])) if len(found) == 1 else Path()


def _footer(folders: Sequence[Path]) -> str:
    now = datetime.now().astimezone().isoformat(sep=" ", timespec="minutes")
    named = ", ".join(str(folder) for folder in folders[:10])
    return (
        f"Written on {text(now)} from {text(named)} by scripts/report.py. The page loads nothing "
        "from elsewhere."
    )
