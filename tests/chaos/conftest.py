"""The chaos programme: faults on purpose, row by row, and the page that tells what happened.

`CHAOS_FORM` is quick (default) or long; `CHAOS_SEED` seeds what is drawn at random (0).
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import report
from harness.lab import Lab, report_to
from harness.processes import IMPORTS, ForkServer, convert

HERE = Path(__file__).resolve().parent
FORM = os.environ.get("CHAOS_FORM", "quick")


def pytest_configure(config: pytest.Config) -> None:
    """Keep the account of this run."""
    if FORM not in ("quick", "long"):
        raise pytest.UsageError(f"CHAOS_FORM={FORM}: accepted are quick and long")
    config.pluginmanager.register(_Account(config), "chaos-account")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything here, and demand a row of each test."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("chaos")
            marker = item.get_closest_marker("row")
            if marker is None:
                raise pytest.UsageError(f"{item.nodeid}: which row of the programme?")
            # Also of a test that is skipped before anything of it runs.
            item.user_properties.append(("row", marker.args[0]))
            item.user_properties.extend(marker.kwargs.items())


class _Account:
    """Gathers what the tests counted, also those of workers; a run of all rows writes the page."""

    def __init__(self, config: pytest.Config) -> None:
        self._is_worker = hasattr(config, "workerinput")
        self._began = time.monotonic()
        self._rows: dict[int, report.Row] = {}
        self._mutants: dict[str, tuple[int, bool]] = {}
        self._skipped: list[str] = []
        self._missing: list[int] = []
        self._page: Path | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        told = dict(report.user_properties)
        if self._is_worker or "row" not in told or (report.when != "call" and report.passed):
            return
        if report.skipped:
            self._skipped.append(report.nodeid)
        number = int(str(told["row"]))
        if "mutant" in told:
            name = str(told["mutant"])
            caught = report.passed and self._mutants.get(name, (number, True))[1]
            self._mutants[name] = (number, caught)
            return
        row = self._row(number)
        (row.passed if report.passed else row.failed).append(report.nodeid)
        row.figures[report.nodeid] = json.loads(str(told.get("figures", "{}")))

    def _row(self, number: int) -> report.Row:
        return self._rows.setdefault(number, report.Row())

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._is_worker:
            return
        asked = session.config.option
        if HERE in {Path(name).resolve() for name in session.config.args} and not asked.keyword:
            self._missing = sorted(set(report.ROWS) - set(self._rows))
        if self._skipped or self._missing:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if set(self._rows) == set(report.ROWS):
            page = report.render(
                self._rows, self._mutants, form=FORM, seconds=time.monotonic() - self._began
            )
            self._page = report.write(page)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for nodeid in self._skipped:
            terminalreporter.write_line(f"a row of the programme may not be skipped: {nodeid}")
        for number in self._missing:
            terminalreporter.write_line(f"row {number:2}: not run")
        for number, row in sorted(self._rows.items()):
            terminalreporter.write_line(f"row {number:2}: {row.result}; {row.text}")
        for name, (number, caught) in sorted(self._mutants.items()):
            word = "caught" if caught else "NOT CAUGHT"
            terminalreporter.write_line(f"mutant of row {number}: {name}: {word}")
        if self._page is not None:
            terminalreporter.write_line(f"written: {self._page}")


@pytest.fixture
def tally(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """Report what a test counted: `tally("100 kills of 32 runs", kills=100, wrong_ends=0)`."""
    return partial(report_to, record_property)


@pytest.fixture
def cases() -> Callable[..., int]:
    """Return the number of cases in the present form: `cases(quick=100, long=3000)`."""
    return lambda *, quick, long: long if FORM == "long" else quick


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers of a test's own, from CHAOS_SEED; which it was is printed when it fails."""
    seed = int(os.environ.get("CHAOS_SEED", "0"))
    print(f"CHAOS_SEED={seed}")  # noqa: T201
    return np.random.default_rng([seed, *request.node.name.encode()])


@pytest.fixture(scope="session")
def fork_server(
    clean_environment: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ForkServer]:
    """Starts processes in which torch is already imported."""
    with ForkServer(clean_environment, tmp_path_factory.mktemp("logs")) as server:
        yield server


@pytest.fixture
def lab(
    fork_server: ForkServer,
    tmp_path: Path,
    full_settings: list[str],
    rng: np.random.Generator,
    files_of: Callable[[Path], Any],
    record_property: Callable[[str, object], None],
) -> Iterator[Lab]:
    """What a test works with; whatever still runs at its end is killed."""
    is_long = FORM == "long"
    yield Lab(fork_server, tmp_path, full_settings, rng, is_long, files_of, record_property)
    fork_server.end_all()


@pytest.fixture
def torchrun(start: Callable[..., Any]) -> Callable[..., Any]:
    """Start `scripts/launch.py`, which is torchrun, with arguments."""
    return lambda *arguments: start("scripts/launch.py", *arguments, env=IMPORTS)


@pytest.fixture(scope="session")
def original(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to copy: a published run, the same as a checkpoint of ours, and their data."""
    folder = tmp_path_factory.mktemp("original")
    published = HERE.parent / "parity" / "published_format"
    shutil.copytree(published / "checkpoint", folder / "published")
    shutil.copytree(published / "data", folder / "data")
    overrides = (f"checkpoint={folder / 'published'}", f"output={folder / 'own'}")
    child = fork_server.run(convert, *overrides, f"data_path={folder / 'data'}")
    assert child.wait() == 0, child.err
    return folder


@pytest.fixture
def full_settings(tiny_settings: list[str], tasks_data: Path) -> list[str]:
    """Overrides of a tiny run in which everything that a checkpoint holds makes a difference.

    Puzzle embedding, average, dropout (torch's random stream), exploration, slots that halt at
    different steps, evaluations and diagnoses; 24 steps and more, saved after every third.
    """
    return [
        *tiny_settings,
        f"data_path={tasks_data}",
        "heads=tied",
        "arch.heads.lm.dropout=0.2",
        "arch.heads.q.init_bias=0.0",
        "arch.heads.q.init_std=1.0",
        "arch.halt_exploration_prob=0.5",
        "arch.halt_max_steps=4",
        "puzzle_emb_lr=0.05",
        "ema=true",
        "ema_rate=0.8",
        "epochs=24",
        "eval_interval=12",
        "checkpoint_interval=3",
        "diagnose_interval=5",
        "log_interval=2",
    ]
