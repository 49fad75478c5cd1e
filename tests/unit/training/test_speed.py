"""The stopwatch of a run, the figures of its blocks, and its last words."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from runtime.device import memory_in_use
from training import speed
from training.checkpoint.run import Progress
from training.config import schema
from training.speed import Speed


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return a function that moves the clock on."""
    now = 0.0

    def wait(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(speed.time, "monotonic", lambda: now)
    return wait


@pytest.fixture
def watch(clock: object, monkeypatch: pytest.MonkeyPatch) -> Speed:
    """A stopwatch of rank 0 of two, with steps of 4 GFLOP (2 for a shallow one) a row."""
    monkeypatch.setattr(speed, "peak_of", lambda device, dtype: 1e12)
    monkeypatch.setattr(
        speed, "train_step_flop", lambda arch, facts, depth: 2e9 if depth == (1, 1) else 4e9
    )
    learner: Any = SimpleNamespace(
        config=SimpleNamespace(global_batch_size=10),
        ranks=SimpleNamespace(device=torch.device("cpu"), world_size=2),
        arch=SimpleNamespace(forward_dtype="float32"),
        facts=None,
        depth_of_step=lambda step: (1, 1) if step < 3 else None,
    )
    return Speed(learner)


def make_steps(watch: Speed, clock: Callable[[float], None], steps: range) -> None:
    """Make steps: 0.02 s for the data, 0.07 s for a step (but 3 s for the first one)."""
    for step in steps:
        clock(0.02)
        watch.lap("data")
        clock(3.0 if step == 1 else 0.07)
        watch.made_step(step, first=step == 1)


def figures(watch: Speed) -> dict[str, float]:
    """Return the speeds of a block."""
    block = watch.block()
    assert block["memory/process_gib"] > 0
    return {name: value for name, value in block.items() if not name.startswith("memory/")}


def test_a_block_has_its_own_times(watch: Speed, clock: Callable[[float], None]) -> None:
    make_steps(watch, clock, range(1, 2))
    assert figures(watch) == {}  # Only a first step.
    clock(0.02)
    watch.lap("logging")
    make_steps(watch, clock, range(2, 4))
    shown = {"data_ms": 20, "step_ms": 70, "logging_ms": 10, "ms_per_step": 100}
    shown["examples_per_second"] = 100
    expected = {f"speed/{name}": value for name, value in shown.items()}
    assert figures(watch) == pytest.approx(expected)
    # Saving and evaluating are shown, but do not slow the training down.
    clock(1.0)
    watch.lap("saving")
    clock(2.0)
    watch.lap("evaluating")
    make_steps(watch, clock, range(4, 6))
    found = figures(watch)
    assert found["speed/ms_per_step"] == pytest.approx(90)
    assert found["speed/saving_ms"] == pytest.approx(500)
    assert found["speed/evaluating_ms"] == pytest.approx(1000)


def test_operations_are_counted_once_the_run_is_long(
    watch: Speed, clock: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_steps(watch, clock, range(1, 3))
    assert "speed/gflop_per_second" not in figures(watch)
    clock(speed._SETTLED_SECONDS)
    watch.lap("evaluating")
    make_steps(watch, clock, range(2, 3))
    shallow = figures(watch)
    # 10 rows in 0.09 s; two ranks have twice the peak.
    assert shallow["speed/gflop_per_second"] == pytest.approx(10 * 2 / 0.09)
    assert shallow["speed/share_of_peak"] == pytest.approx(10 * 2e9 / 0.09 / 2e12)
    make_steps(watch, clock, range(3, 4))
    assert figures(watch)["speed/gflop_per_second"] == pytest.approx(10 * 4 / 0.09)

    def failing(*arguments: object) -> None:
        raise RuntimeError("a plug-in reads a value")

    monkeypatch.setattr(speed, "train_step_flop", failing)
    watch._flop.clear()
    monkeypatch.setattr(speed, "peak_of", lambda device, dtype: None)
    make_steps(watch, clock, range(4, 5))
    found = figures(watch)
    assert "speed/examples_per_second" in found
    assert "speed/gflop_per_second" not in found
    assert "speed/share_of_peak" not in found


def test_the_last_words(watch: Speed, clock: Callable[[float], None], tmp_path: Path) -> None:
    run = tmp_path / "a run"
    make_steps(watch, clock, range(1, 62))
    clock(540)
    watch.lap("evaluating")
    progress = Progress(step=61, best_score=0.9, best_step=60)
    assert watch.ending(progress, run).splitlines() == [
        "time     9 min 8 s: evaluating 98%, training 1%, first step 1%",
        "speed    111 examples/s, 90.3 ms a step",
        "best     exact_accuracy 0.9000 at step 60",
        f"saved    {run}/step_61",
        f"measure  python evaluate.py '{run}'",
        f"watch    python scripts/viewer.py '{run}'",
        f"report   python scripts/report.py '{run}'",
    ]


def test_the_last_words_name_the_commands_of_an_installed_wheel(
    watch: Speed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "ROOT", tmp_path)
    assert watch.ending(Progress(step=3), tmp_path).splitlines()[1:] == [
        f"measure  recursive-reasoning evaluate {tmp_path}",
        f"watch    recursive-reasoning view {tmp_path}",
        f"report   recursive-reasoning report {tmp_path}",
    ]


def test_a_run_without_a_step_tells_no_times(watch: Speed, tmp_path: Path) -> None:
    words = watch.ending(Progress(step=3), tmp_path).splitlines()
    assert [line.split()[0] for line in words] == ["saved", "measure", "watch", "report"]


def test_memory_of_a_gpu_is_read_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {"allocated_bytes.all.current": 2**30, "reserved_bytes.all.current": 3 * 2**30}
    kept["allocated_bytes.all.peak"] = 2**31
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: kept)
    used = memory_in_use(torch.device("cuda", 0))
    assert used.pop("process_gib") > 0
    assert used == {"cuda_allocated_gib": 1, "cuda_reserved_gib": 3, "cuda_peak_gib": 2}
