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
    """Keep the account of this run."""
    if FORM not in ("quick", "long"):
        raise pytest.UsageError(f"CHAOS_FORM={FORM}: accepted are quick and long")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Account(), "chaos-account")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything here; the name of a file begins with the row of its tests."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("chaos")
            # Also of a test that is skipped before anything of it runs.
            item.user_properties.append(("row", int(item.path.name.split("_")[1])))
            for marker in item.iter_markers("mutant"):
                item.user_properties.append(("mutant", MUTANTS[marker.args[0]][0]))


class _Account:
    """Gathers what the tests counted, also those of workers; a run of all rows writes the page."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._rows: dict[int, report_page.Row] = {}
        self._mutants: dict[str, tuple[int, bool]] = {}
        self._told: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        told: dict[str, Any] = dict(report.user_properties)
        if "row" not in told or (report.when != "call" and report.passed):
            return
        if report.skipped:
            self._told.append(f"a row of the programme may not be skipped: {report.nodeid}")
        if "mutant" in told:
            caught = report.passed and self._mutants.get(told["mutant"], (0, True))[1]
            self._mutants[told["mutant"]] = told["row"], caught
            return
        row = self._rows.setdefault(told["row"], report_page.Row())
        (row.passed if report.passed else row.failed).append(report.nodeid)
        row.figures[report.nodeid] = json.loads(told.get("figures", "{}"))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        asked = session.config.option
        if HERE in {Path(name).resolve() for name in session.config.args} and not asked.keyword:
            missing = sorted(set(report_page.ROWS) - set(self._rows))
            self._told += [f"row {number:2}: not run" for number in missing]
        if self._told:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        for number, row in sorted(self._rows.items()):
            self._told.append(f"row {number:2}: {row.result}; {row.text}")
        for title, (number, caught) in sorted(self._mutants.items()):
            word = "caught" if caught else "NOT CAUGHT"
            self._told.append(f"mutant of row {number}: {title}: {word}")
        if set(self._rows) == set(report_page.ROWS):
            seconds = time.monotonic() - self._began
            page = report_page.write(self._rows, self._mutants, FORM, seconds)
            self._told.append(f"written: {page}")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for line in self._told:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def fork_server(
    clean_environment: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ForkServer]:
    """Starts processes in which torch is already imported."""
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
    """What a test works with; whatever still runs at its end is killed. Random numbers are the
    test's own, from CHAOS_SEED; which it was is printed when it fails.
    """
    print(f"CHAOS_SEED={SEED}")  # noqa: T201
    rng, is_long = np.random.default_rng([SEED, *request.node.name.encode()]), FORM == "long"
    yield Lab(fork_server, tmp_path, full_settings, rng, is_long, files_of, record_property)
    fork_server.end_all()


@pytest.fixture
def torchrun(start: Callable[..., Any]) -> Callable[..., Any]:
    """Start `scripts/launch.py`, which is torchrun, with arguments."""
    return lambda *arguments: start("scripts/launch.py", *arguments, env=IMPORTS)


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to copy: a published run, the same as a checkpoint of ours, and their data."""
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
    """Overrides of a tiny run in which everything that a checkpoint holds makes a difference.

    Puzzle embedding, average, dropout (torch's random stream), exploration, slots that halt at
    different steps, evaluations and diagnoses; 24 steps and more, saved after every third.
    """
    more = """heads=tied arch.heads.lm.dropout=0.2 arch.heads.q.init_bias=0.0
        arch.heads.q.init_std=1.0 arch.halt_exploration_prob=0.5 arch.halt_max_steps=4
        puzzle_emb_lr=0.05 ema=true ema_rate=0.8 epochs=24 eval_interval=12 checkpoint_interval=3
        diagnose_interval=5 log_interval=2"""
    return [*tiny_settings, f"data_path={tasks_data}", *more.split()]
