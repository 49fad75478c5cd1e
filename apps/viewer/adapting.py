"""Adapt to an ARC task from the page: a run of scripts/adapt.py, told step by step."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from apps.reports.boards import draw_panels, panel_of
from apps.viewer.thinking import Event
from dataset.format.files import read_json
from dataset.format.schema import ARC_FIRST_COLOUR_TOKEN, ARC_SIDE
from dataset.kinds.arc import ARC
from runtime.process import PARENT_PID
from runtime.text import many
from training.tracking import METRICS_FILE

_PROJECT = Path(__file__).resolve().parents[2]
_PAUSE = 0.3  # Seconds between two looks at a run.
_VIEWS = ("as given", "turned left", "turned twice", "turned right", "mirrored")
_VIEWS += ("upside down", "transposed", "transposed the other way")


@dataclass
class Adapter:
    """Adapts to one task at a time; a new request stops the one before."""

    _process: subprocess.Popen[bytes] | None = None

    def adapt(
        self, task: Mapping[str, Any], settings: list[str], tell: Callable[[Event], object]
    ) -> None:
        """Adapt to a task with settings of scripts/adapt.py. Report to `tell` the `loss` of each
        logged `step`, which begins anew with each model; then `guesses`, for each test input; or an
        `error`.
        """
        self.stop()
        with TemporaryDirectory() as folder:
            place = Path(folder)
            (place / "task.json").write_text(json.dumps(task))
            own = [f"tasks={place}/task.json", f"output={place}/out.json", *settings]
            with open(place / "errors", "wb") as errors:
                process = self._process = subprocess.Popen(
                    [sys.executable, "-m", "scripts.adapt", *own],
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    env=os.environ | {"PYTHONPATH": str(_PROJECT), PARENT_PID: str(os.getpid())},
                )
            try:
                for event in self._events(process, place):
                    tell(event)
            except (ConnectionError, TimeoutError):
                pass  # The page has been closed.
            finally:
                process.kill()
                process.wait()

    def stop(self) -> None:
        """End the adaptation that goes on."""
        if self._process is not None:
            self._process.kill()

    def _events(self, process: subprocess.Popen[bytes], place: Path) -> Iterator[Event]:
        position = dict[Path, int]()
        while True:
            has_ended = process.poll() is not None
            for metrics in sorted(place.glob(f"out_runs/task/*/{METRICS_FILE}")):
                with open(metrics) as file:
                    file.seek(position.get(metrics, 0))
                    lines = file.read().rpartition("\n")[0]
                position[metrics] = position.get(metrics, 0) + len(lines.encode()) + bool(lines)
                for record in map(json.loads, lines.splitlines()):
                    if "train/lm_loss" in record:
                        yield {"step": record["step"], "loss": record["train/lm_loss"]}
            if has_ended:
                break
            yield {}  # Shows whether the page is still open.
            time.sleep(_PAUSE)
        if process.returncode:
            words = (place / "errors").read_text().strip().splitlines()
            yield {"error": words[-1] if words else "stopped"}
        else:
            yield {"guesses": guesses_in(place)}


def guesses_in(place: Path) -> list[list[Event]]:
    """Return the two guesses for each test input: the grid as `svg`, and the `votes` in words."""
    answers = read_json(place / "out.json")["task"]
    votes = read_json(place / "out_steps.json")["task"]["votes"]["task"]
    return [
        [
            {"svg": drawn(grid), "votes": voters(views, of_input["of"])}
            for grid, views in zip(attempts.values(), of_input["views"], strict=False)
        ]
        for attempts, of_input in zip(answers, votes, strict=True)
    ]


def drawn(grid: list[list[int]]) -> str:
    tokens = np.array(grid) + ARC_FIRST_COLOUR_TOKEN
    return draw_panels(ARC.board(ARC_SIDE), [panel_of(tokens)]).svg()


def voters(views: list[int], total: int) -> str:
    """Return the number of votes, and which views gave them."""
    named = [
        name + (f" ({number})" if number > 1 else "")
        for name, number in zip(_VIEWS, views, strict=True)
        if number
    ]
    return f"{sum(views)} of {many(total, 'vote')}: {', '.join(named)}"
