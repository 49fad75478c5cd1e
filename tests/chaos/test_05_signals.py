"""Row 5: after a SIGTERM or SIGINT to a rank, all ranks or the launcher, all save the same step.

Nothing is lost, and the exit code tells a scheduler that the run was stopped.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
from harness.lab import Lab
from harness.processes import ROOT, Child
from harness.steps import before_call

from runtime.errors import EXIT_PREEMPTED, EXIT_RANK

# The promised time, and the slack for a busy machine.
SECONDS = 10.0
SLACK = 3.0
# A run that does not end soon, with a record for each step.
LONG = ("epochs=12000", "log_interval=1")
EVALUATING = ("evaluation.measure", "evaluate")
STARTING = (
    ("pretrain", "open_data"),
    ("training.step", "build_model"),
    ("training.checkpoint.run_folder", "agree_on_checkpoint"),
    ("pretrain", "open_tracker"),
)
SAVING = ("training.checkpoint.tensors", "gather_carry")
TRAINING = (("training.step", "lr_factor"), SAVING, EVALUATING)


def require_saved_once(lab: Lab, said: str) -> int:
    """Require that a run that was asked to stop has saved its last step; return that step."""
    files = lab.files()
    step = files.steps[-1]
    assert f"asked to stop: saved at step {step}" in said, said
    assert files.train_records[-1]["step"] == step
    assert files.leftovers() == []
    return step


def require_all_saved(lab: Lab, children: Sequence[Child]) -> int:
    """Do the same for two ranks, and require the exit code of each."""
    codes = [child.wait() for child in children]
    assert codes == [EXIT_PREEMPTED] * 2, [child.err for child in children]
    return require_saved_once(lab, children[0].err)


def require_same_end(lab: Lab, *more: str) -> None:
    """Finish the run, and require the same bits as a run without signals."""
    for name in ("run", "whole"):
        lab.train_ranks(2, name, *more)
    lab.require_same_end()


def test_ranks_that_are_signalled_save_the_same_step(lab: Lab) -> None:
    wanted, slowest, newest = lab.cases(quick=6, long=100), 0.0, 0
    for number in range(wanted):
        children = lab.start_ranks(2, "run", *LONG)
        lab.wait_for_training(newest)  # Now all ranks handle signals.
        time.sleep(lab.rng.uniform(0.0, 0.2))
        began = time.monotonic()
        for child in [children[:1], children[1:], children][number // 2 % 3]:
            child.signal((signal.SIGTERM, signal.SIGINT)[number % 2])
        step = require_all_saved(lab, children)
        slowest = max(slowest, time.monotonic() - began)
        assert step > newest
        newest = step
    assert slowest < SECONDS * SLACK
    require_same_end(lab, *LONG, f"max_steps={newest + 3}")
    said = f"{wanted} signals to one or all ranks: the same step saved by all within"
    lab.tally(f"{said} {slowest:.1f} s, 0 steps lost, the same bits", signals=wanted)


def test_a_signal_anywhere_loses_nothing(lab: Lab) -> None:
    files = lab.files()
    lab.train_ranks(2, "run", "max_steps=4")
    for place in STARTING:
        fault = partial(before_call, *place, number=signal.SIGTERM)
        children = lab.start_ranks(2, faults={0: [fault], 1: [fault]})
        # A late rank may find that the other one has left.
        codes = {child.wait() for child in children}
        said = (place, codes, [child.err for child in children])
        assert EXIT_PREEMPTED in codes, said
        assert codes <= {EXIT_PREEMPTED, EXIT_RANK}, said
        assert "Traceback" not in str(said)
        assert files.steps[-1] == 4
    for place in TRAINING:
        before = files.steps[-1]
        fault = partial(before_call, *place, number=signal.SIGTERM)
        step = require_all_saved(lab, lab.start_ranks(2, faults={1: [fault]}))
        assert step > before
        if place == EVALUATING:
            assert files.state(step)["position"] > 0, "the evaluation is made again"
            assert all(record["step"] < step for record in files.eval_records)
    require_same_end(lab)
    said = f"SIGTERM at {len(STARTING)} places of a start and {len(TRAINING)} later: exit code 75"
    lab.tally(f"{said}, the same bits", signals=len(STARTING) + len(TRAINING))


@pytest.mark.parametrize(
    ("to", "number"),
    # A terminal sends Ctrl-C to the whole group.
    [("launcher", 15), ("launcher", signal.SIGINT), ("group", signal.SIGINT), ("one rank", 15)],
)
def test_the_launcher_passes_on_that_the_run_was_preempted(
    lab: Lab, torchrun: Callable[..., subprocess.Popen[str]], to: str, number: int
) -> None:
    settings = lab.settings("run", *LONG)
    process = torchrun("--standalone", "--nproc-per-node=2", ROOT / "pretrain.py", *settings)
    lab.wait_for_training()
    began = time.monotonic()
    if to == "one rank":
        workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(workers[-1]), number)
    else:
        (os.killpg if to == "group" else os.kill)(process.pid, number)
    _, err = process.communicate(timeout=SECONDS * SLACK)
    seconds = time.monotonic() - began
    assert process.returncode == EXIT_PREEMPTED, err
    require_saved_once(lab, err)
    name = signal.Signals(number).name
    lab.tally(f"{name} to the {to}: exit code 75 after {seconds:.1f} s", signals=1)
