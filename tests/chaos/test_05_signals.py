"""Row 5: SIGTERM or SIGINT to one rank, to all of them or to their launcher: all save the same step
and leave, nothing is lost, and a scheduler can tell.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from harness.lab import Lab
from harness.processes import ROOT
from harness.steps import before_call

from runtime.errors import EXIT_PREEMPTED, EXIT_RANK

# What is promised, and the slack that a busy machine gets.
SECONDS = 10.0
SLACK = 3.0
# A run that does not end by itself soon, and writes a record at each step.
LONG = ("epochs=12000", "log_interval=1")


def require_saved_once(files: Any, said: str) -> int:
    """Require that a run which was asked to stop has saved where it stands; returns the step."""
    step = files.steps[-1]
    assert f"asked to stop: saved at step {step}" in said, said
    assert files.train_records[-1]["step"] == step
    assert files.leftovers() == []
    return step


def require_same_end(lab: Lab, *more: str) -> None:
    """Finish the run, and require the bits of one that nobody has signalled."""
    for name in ("run", "whole"):
        lab.train_ranks(2, name, *more)
    lab.require_same_end("run")


def test_ranks_that_are_signalled_save_the_same_step(lab: Lab) -> None:
    wanted, signals, slowest, newest = lab.cases(quick=6, long=100), 0, 0.0, 0
    while signals < wanted:
        children = lab.start_ranks(2, "run", *LONG)
        lab.wait_for_training(newest)  # From then on all ranks handle signals.
        time.sleep(lab.rng.uniform(0.0, 0.2))
        number = (signal.SIGTERM, signal.SIGINT)[signals % 2]
        asked = [[children[0]], [children[1]], children][signals // 2 % 3]
        began = time.monotonic()
        for child in asked:
            child.signal(number)
        codes = [child.wait() for child in children]
        assert codes == [EXIT_PREEMPTED] * 2, [child.err for child in children]
        slowest = max(slowest, time.monotonic() - began)
        step = require_saved_once(lab.files(), children[0].err)
        assert step > newest
        signals, newest = signals + 1, step
    assert slowest < SECONDS * SLACK
    require_same_end(lab, *LONG, f"max_steps={newest + 3}")
    said = f"{signals} signals to one or all ranks: the same step saved by all within"
    lab.tally(f"{said} {slowest:.1f} s, 0 steps lost, the same bits", signals=signals)


EVALUATING = ("evaluation.in_training", "evaluate")
STARTING = (
    ("pretrain", "open_data"),
    ("training.step", "build_model"),
    ("training.checkpoint.run_folder", "take_over"),
    ("pretrain", "open_tracker"),
)
SAVING = ("training.checkpoint.tensors", "gather_carry")
TRAINING = (("training.step", "lr_factor"), SAVING, EVALUATING)


def test_a_signal_anywhere_loses_nothing(lab: Lab) -> None:
    files = lab.files()
    lab.train_ranks(2, "run", "max_steps=4")
    for place in STARTING:
        both = dict.fromkeys(range(2), [partial(before_call, *place, number=signal.SIGTERM)])
        children = lab.start_ranks(2, faults=both)
        # A rank that is late may find that the other has left.
        codes = {child.wait() for child in children}
        assert EXIT_PREEMPTED in codes, (place, [child.err for child in children])
        assert codes <= {EXIT_PREEMPTED, EXIT_RANK}, (place, codes)
        assert not any("Traceback" in child.err for child in children), place
        assert files.steps[-1] == 4
    for place in TRAINING:
        before = files.steps[-1]
        fault = partial(before_call, *place, number=signal.SIGTERM)
        children = lab.start_ranks(2, faults={1: [fault]})
        codes = [child.wait() for child in children]
        assert codes == [EXIT_PREEMPTED] * 2, (place, [child.err for child in children])
        step = require_saved_once(files, children[0].err)
        assert step > before
        if place == EVALUATING:
            assert files.state(step)["position"] > 0, "the evaluation comes again"
            assert all(record["step"] < step for record in files.eval_records)
    require_same_end(lab)
    said = f"SIGTERM at {len(STARTING)} places of a start and {len(TRAINING)} later: exit code 75"
    lab.tally(f"{said}, the same bits", signals=len(STARTING) + len(TRAINING))


@pytest.mark.parametrize(
    ("to", "number"),
    # To the group is what the terminal does.
    [("launcher", 15), ("launcher", signal.SIGINT), ("group", signal.SIGINT), ("one rank", 15)],
)
def test_the_launcher_passes_on_that_the_run_was_preempted(
    lab: Lab, torchrun: Callable[..., subprocess.Popen[str]], to: str, number: int
) -> None:
    settings = lab.settings("run", *LONG)
    process = torchrun("--standalone", "--nproc-per-node=2", ROOT / "pretrain.py", *settings)
    lab.wait_for_training()
    began = time.monotonic()
    if to == "launcher":
        process.send_signal(number)
    elif to == "group":
        os.killpg(process.pid, number)
    else:
        workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(workers[-1]), number)
    _, err = process.communicate(timeout=SECONDS * SLACK)
    seconds = time.monotonic() - began
    assert process.returncode == EXIT_PREEMPTED, err
    require_saved_once(lab.files(), err)
    name = signal.Signals(number).name
    lab.tally(f"{name} to the {to}: exit code 75 after {seconds:.1f} s", signals=1)
