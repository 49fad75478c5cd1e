"""The chaos programme: one test file per row of faults, and the page with their results.

`CHAOS_FORM` is quick (default) or long; `CHAOS_SEED` (0) seeds all random draws.
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
from harness import report as report_page
from harness.lab import Lab
from harness.mutants import MUTANTS
from harness.processes import IMPORTS, ForkServer

from dataset.format.reading import load_metadata
from training.checkpoint.store import MODEL, RunState, save_checkpoint
from training.checkpoint.tensors import load_weights, write_tensors
from training.checkpoint.trained_model import find_trained_model
from training.data import data_facts

HERE = Path(__file__).resolve().parent
FORM = os.environ.get("CHAOS_FORM", "quick")
SEED = int(os.environ.get("CHAOS_SEED", "0"))


def pytest_configure(config: pytest.Config) -> None:
    """Register the collector of results."""
    if FORM not in ("quick", "long"):
        raise pytest.UsageError(f"CHAOS_FORM={FORM}: accepted are quick and long")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Account(), "chaos-account")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this folder, and read their row from the name of their file."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("chaos")
            # Set here, so that a test that is skipped before it runs has its row too.
            item.user_properties.append(("row", int(item.path.name.split("_")[1])))
            for marker in item.iter_markers("mutant"):
                item.user_properties.append(("mutant", MUTANTS[marker.args[0]][0]))


class _Account:
    """Collects the results of all tests and workers. A run of all rows writes the page."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._rows: dict[int, report_page.Row] = {}
        self._mutants: dict[str, tuple[int, bool]] = {}
        self._lines: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        noted: dict[str, Any] = dict(report.user_properties)
        if "row" not in noted or (report.when != "call" and report.passed):
            return
        if report.skipped:
            self._lines.append(f"a row of the programme may not be skipped: {report.nodeid}")
        if "mutant" in noted:
            caught = report.passed and self._mutants.get(noted["mutant"], (0, True))[1]
            self._mutants[noted["mutant"]] = noted["row"], caught
            return
        row = self._rows.setdefault(noted["row"], report_page.Row())
        (row.passed if report.passed else row.failed).append(report.nodeid)
        row.figures[report.nodeid] = json.loads(noted.get("figures", "{}"))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        is_partial = session.config.option.keyword
        if HERE in {Path(name).resolve() for name in session.config.args} and not is_partial:
            missing = sorted(set(report_page.ROWS) - set(self._rows))
            self._lines += [f"row {number:2}: not run" for number in missing]
        if self._lines:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        for number, row in sorted(self._rows.items()):
            self._lines.append(f"row {number:2}: {row.result}; {row.text}")
        for title, (number, caught) in sorted(self._mutants.items()):
            word = "caught" if caught else "NOT CAUGHT"
            self._lines.append(f"mutant of row {number}: {title}: {word}")
        if set(self._rows) == set(report_page.ROWS):
            seconds = time.monotonic() - self._began
            page = report_page.write(self._rows, self._mutants, FORM, seconds)
            self._lines.append(f"written: {page}")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for line in self._lines:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def fork_server(
    clean_environment: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ForkServer]:
    """Return the server that starts processes in which torch is already imported."""
    server = ForkServer(clean_environment, tmp_path_factory.mktemp("logs"))
    yield server
    server.end_all()


@pytest.fixture
def lab(
    request: pytest.FixtureRequest,
    fork_server: ForkServer,
    tmp_path: Path,
    full_settings: list[str],
    files_of: Callable[[Path], Any],
    record_property: Callable[[str, object], None],
) -> Iterator[Lab]:
    """Return the test's lab; its random numbers depend on CHAOS_SEED and the test's name."""
    print(f"CHAOS_SEED={SEED}")  # noqa: T201
    rng, is_long = np.random.default_rng([SEED, *request.node.name.encode()]), FORM == "long"
    yield Lab(fork_server, tmp_path, full_settings, rng, is_long, files_of, record_property)
    fork_server.end_all()


@pytest.fixture
def torchrun(start: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that starts torchrun (`scripts/launch.py`) with arguments."""
    return lambda *arguments: start("scripts/launch.py", *arguments, env=IMPORTS)


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder to copy: a published run, the same run as our checkpoint, and the data."""
    folder = tmp_path_factory.mktemp("original")
    published = HERE.parent / "parity" / "published_format"
    shutil.copytree(published / "checkpoint", folder / "published")
    shutil.copytree(published / "data", folder / "data")
    trained = find_trained_model(folder / "published", pytest.fail)
    facts = data_facts(load_metadata(folder / "data" / "train"))
    config = trained.run.model_dump(mode="json")
    state = RunState(step=7, weights_only=True, config=config, facts=facts.to_dict())
    (folder / "own").mkdir()
    weights = partial(write_tensors, load_weights(trained.weights))
    save_checkpoint(folder / "own", state, {MODEL: weights})
    return folder


@pytest.fixture
def full_settings(tiny_settings: list[str], tasks_data: Path) -> list[str]:
    """Return the overrides of a tiny run in which each part of a checkpoint changes the result.

    It has a puzzle embedding, an average, dropout (torch's random stream), exploration, slots that
    halt at different steps, evaluations and diagnoses, and saves every 3 of its 24 steps.
    """
    more = """heads=tied arch.heads.lm.dropout=0.2 arch.heads.q.init_bias=0.0
        arch.heads.q.init_std=1.0 arch.halt_exploration_prob=0.5 arch.halt_max_steps=4
        puzzle_emb_lr=0.05 ema=true ema_rate=0.8 epochs=24 eval_interval=12 checkpoint_interval=3
        diagnose_interval=5 log_interval=2"""
    return [*tiny_settings, f"data_path={tasks_data}", *more.split()]
