"""Two ranks with gloo give the same results as one; with `reduction=exact`, the same bits.

Kills, changes of the number of ranks and non-finite numbers are tested in tests/chaos.
"""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from runtime.compiler import FOLDER_VARIABLE
from training.checkpoint.tensors import load_tensors
from training.step import Learner

Train = Callable[[Sequence[str]], None]

# The promised tolerance of losses.
CLOSE = 1e-5


@pytest.fixture
def settings(tiny_settings: list[str], tasks_data: Path, train: Train, tmp_path: Path) -> list[str]:
    """The settings of a run with puzzle embedding, halting, exploration and evaluations.

    Its start weights always want to halt, so that exploration decides which slots do.
    """
    common = [*tiny_settings, f"data_path={tasks_data}"]
    train([*common, f"checkpoint_path={tmp_path / 'start'}", "max_steps=1"])
    weights = load_tensors(tmp_path / "start" / "step_1" / "model.safetensors")
    weights["model.inner.q_head.bias"] = torch.tensor([2.0, -2.0])
    torch.save(weights, tmp_path / "eager")
    more = """epochs=24 eval_interval=12 eval_batch_size=10 lr=1e-3 puzzle_emb_lr=1e-2
        arch.halt_max_steps=4 arch.halt_exploration_prob=0.5 checkpoint_interval=10
        diagnose_interval=5 keep_last=99"""
    return [*common, f"load_checkpoint={tmp_path / 'eager'}", *more.split()]


@pytest.fixture
def run(
    start_ranks: Any, train: Train, files_of: Any, tmp_path: Path
) -> Callable[..., tuple[Any, list[str]]]:
    """Run `pretrain.py` in `tmp_path / name` on some ranks (one rank: in this process). Return the
    run's files and each rank's output.
    """

    def begin(name: str, settings: Sequence[str], *more: str, ranks: int = 1) -> Any:
        settings = [*settings, *more, f"checkpoint_path={tmp_path / name}"]
        said = []
        if ranks == 1:
            train(settings)
        else:
            for process in start_ranks(*[["pretrain.py", *settings]] * ranks):
                out, err = process.communicate(timeout=300)
                assert process.returncode == 0, err
                assert "Warning" not in err
                said.append(out)
        return files_of(tmp_path / name), said

    return begin


def assert_close(first: Any, second: Any, since: int = 0) -> None:
    """Require the records of two runs to agree: counts exactly, everything else closely."""
    assert len(first.records) == len(second.records)
    for own, other in zip(first.records, second.records, strict=True):
        assert own.keys() == other.keys()
        for name, value in own.items():
            exact = name in ("step", "train/count", "eval/count", "train/lr")
            if exact or own["step"] < since or isinstance(value, str):  # "nan"
                assert other[name] == value, (own["step"], name)
            elif "grad_norm" in name:
                assert other[name] == pytest.approx(value, rel=1e-3)
            else:
                assert other[name] == pytest.approx(value, abs=CLOSE), (own["step"], name)


def assert_same_carry(first: Path, second: Path) -> None:
    """Require two saved carries to hold the same examples in the same rows."""
    own, other = (load_tensors(path / "carry.safetensors") for path in (first, second))
    assert own.keys() == other.keys()
    for name, value in own.items():
        if value.is_floating_point():
            torch.testing.assert_close(other[name], value, atol=1e-3, rtol=1e-3)
        else:
            assert torch.equal(other[name], value), name


def test_two_ranks_train_and_measure_as_one(settings: list[str], run: Any, tmp_path: Path) -> None:
    one, _ = run("one", settings)
    two, said = run("two", settings, ranks=2)
    assert "2 x cpu" in said[0]
    assert said[1] == ""
    assert len(one.train_records) >= 20
    assert len(one.eval_records) == 2
    assert len({record["train/count"] for record in one.train_records}) > 3
    assert_close(one, two)
    assert one.steps == two.steps
    assert two.leftovers() == []
    for step in one.steps:
        assert_same_carry(one.folder / f"step_{step}", two.folder / f"step_{step}")
    weights = [f.folder / f"step_{f.steps[-1]}" / "model.safetensors" for f in (one, two)]
    tables = [load_tensors(path)["model.inner.puzzle_emb.weights"] for path in weights]
    assert tables[0].abs().max() > 0.01
    torch.testing.assert_close(tables[0], tables[1], atol=CLOSE, rtol=0)

    # One rank resumes the run of two.
    shutil.copytree(two.folder / "step_10", tmp_path / "from_two" / "step_10")
    shutil.copy(two.folder / "metrics.jsonl", tmp_path / "from_two")
    resumed, _ = run("from_two", settings)
    assert_close(two, resumed, since=11)
    assert resumed.state(20)["environment"]["world_size"] == 1


@pytest.mark.slow
def test_two_ranks_resume_the_run_of_one(settings: list[str], run: Any) -> None:
    one, _ = run("one", settings)
    run("moved", settings, "max_steps=7")
    moved, said = run("moved", settings, ranks=2)
    assert "resumed not bit for bit (world_size: 1 -> 2)" in said[0]
    assert_close(one, moved, since=8)


# Stops and steps that are left out

# A plug-in with a fault: before two steps the carry of one of the eight rows becomes NaN.
FAULT = """
import torch
from training.step import Learner

step = Learner.step

def struck(learner, number, *rest):
    row = 5 - learner.ranks.rank * learner.local_batch_size
    if number in (4, 5) and 0 <= row < learner.local_batch_size:
        learner.carry.halted[row] = False
        learner.carry.inner["z_H"][row] = torch.nan
    step(learner, number, *rest)

Learner.step = struck
"""


def test_all_ranks_leave_out_the_same_steps(
    settings: list[str], run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip = ["on_nonfinite=skip", "max_nonfinite=3", "max_steps=8", "checkpoint_interval=4"]
    (tmp_path / "fault.py").write_text(FAULT)
    two, _ = run("two", settings, *skip, "plugins=[fault]", ranks=2)
    monkeypatch.setattr(Learner, "step", Learner.step)  # Restored after the fault.
    exec(FAULT, {})
    one, _ = run("one", settings, *skip)
    counts = [record["train/nonfinite"] for record in two.train_records]
    assert counts == [0, 0, 0, 1, 2, 0, 0, 0]
    assert_close(one, two)
    assert [two.state(step)["nonfinite"] for step in (4, 8)] == [1, 0]
    for step in (4, 8):
        assert_same_carry(one.folder / f"step_{step}", two.folder / f"step_{step}")


# A plug-in: the clock of the first rank stands still.
CLOCK = """
import os
from training.stop_signals import StopSignals

if os.environ["RANK"] == "0":
    StopSignals.out_of_time = False
"""


def test_all_ranks_stop_when_the_time_of_one_is_over(
    settings: list[str], start_ranks: Any, files_of: Any, tmp_path: Path
) -> None:
    (tmp_path / "clock.py").write_text(CLOCK)
    folder = f"checkpoint_path={tmp_path / 'run'}"
    command = ["pretrain.py", *settings, folder, "epochs=120000", "max_time=1s", "plugins=[clock]"]
    for process in start_ranks(command, command):
        _, err = process.communicate(timeout=300)
        assert process.returncode == 75, err
    files = files_of(tmp_path / "run")
    assert files.train_records[-1]["step"] == files.steps[-1] > 0


# Callbacks

PLUGIN = """
from pathlib import Path

from training.callbacks.base import CALLBACKS, Callback


class Mine(Callback):
    stop_at: int

    def logged(self, run, records):
        Path("calls").open("a").write("x")
        self._state["events"] = self._state.get("events", 0) + 1
        if run.step == 6:
            run.save()
        if run.step == self.stop_at:
            run.stop("enough")


CALLBACKS.add("mine", Mine)
"""


def test_two_ranks_agree_on_what_a_callback_of_a_plugin_asks_for(
    settings: list[str], run: Any, tmp_path: Path
) -> None:
    (tmp_path / "my_callbacks.py").write_text(PLUGIN)
    own = [*settings, "checkpoint_interval=null", "plugins=[my_callbacks]"]
    two, said = run("two", own, "callbacks=[{name: mine, stop_at: 12}]", ranks=2)
    assert two.steps == [6, 12]
    assert "ended at step 12 by mine: enough" in said[0]
    assert said[1] == ""
    assert (tmp_path / "calls").read_text() == "xxxx"
    assert two.state(12)["callbacks"] == {"mine": {"events": 4}}


# reduction=exact


@pytest.fixture
def exact_settings(settings: list[str]) -> list[str]:
    """The same run with dropout and an average; its evaluations end with an incomplete batch."""
    more = """reduction=exact heads=tied arch.heads.lm.dropout=0.2 ema=true ema_rate=0.8
        eval_batch_size=12 load_checkpoint=null arch.heads.q.init_bias=0.0
        arch.heads.q.init_std=1.0"""
    return [*settings, *more.split()]


TECHNIQUES = {
    "a look-ahead of some rows": "techniques=[sparse_look_ahead,anchors] arch.puzzle_emb_ndim=32 "
    "arch.techniques.sparse_look_ahead.every=2 arch.techniques.anchors.prob=0.5 max_steps=4",
    "random starts and noise": "techniques=[random_starts,damped_noise] eval_interval=3 "
    "max_steps=6",
}


@pytest.mark.slow
@pytest.mark.parametrize("technique", TECHNIQUES)
def test_micro_batches_are_the_same_on_two_ranks(
    exact_settings: Any, run: Any, technique: str
) -> None:
    more = ["global_batch_size=16", "eval_batch_size=16", "micro_batch_size=2"]
    more += TECHNIQUES[technique].split()
    one, _ = run("one", exact_settings, *more)
    two, _ = run("two", exact_settings, *more, ranks=2)
    assert two.digest() == one.digest()


@pytest.mark.slow
def test_candidate_sets_are_the_same_on_two_ranks(tiny_settings: list[str], run: Any) -> None:
    tiny_settings.remove("arch.H_layers=1")
    more = ["arch=lattice", "heads=lattice", "arch.loops=2", "reduction=exact", "epochs=64"]
    more += ["global_batch_size=16", "micro_batch_size=2", "max_steps=9"]
    more += ["arch.guided_guesses=0.5", "arch.learn_after_mistakes=false"]
    one, _ = run("one", tiny_settings, *more)
    run("two", tiny_settings, *more, "max_steps=5", ranks=2)
    # One rank resumes the run of two.
    two, _ = run("two", tiny_settings, *more)
    assert two.state(5)["environment"]["world_size"] == 2
    assert two.digest() == one.digest()


@pytest.mark.slow
def test_dropout_differs_between_ranks(settings: list[str], run: Any) -> None:
    dropout = ["heads=tied", "arch.heads.lm.dropout=0.2", "load_checkpoint=null", "max_steps=2"]
    two, _ = run("two", settings, *dropout, ranks=2)
    states = load_tensors(two.folder / "step_2" / "rng.safetensors")
    assert states.keys() == {"rank0.cpu", "rank1.cpu"}
    assert not torch.equal(states["rank0.cpu"], states["rank1.cpu"])


@pytest.mark.slow
def test_ranks_with_other_checkpoints_or_data_are_refused(
    settings: list[str], start_ranks: Any, train: Train, tasks_data: Path, tmp_path: Path
) -> None:
    train([*settings, "checkpoint_interval=1", "max_steps=2"])
    other = shutil.copytree(tasks_data, tmp_path / "other")
    labels = np.load(other / "test" / "all__labels.npy")
    np.save(other / "test" / "all__labels.npy", labels[::-1])
    run = tmp_path / "run"
    checkpoints = [[f"checkpoint={run / step}"] for step in ("step_1", "step_2")]
    data = [[f"checkpoint={run}", f"data_path={folder}"] for folder in (tasks_data, other)]
    for differs, code, told in (
        (checkpoints, 4, "rank 1 has found another checkpoint than rank 0: name one"),
        (data, 3, "rank 1 read other data than rank 0"),
    ):
        for process in start_ranks(*(["evaluate.py", *own, "device=cpu"] for own in differs)):
            _, err = process.communicate(timeout=120)
            assert process.returncode == code, err
            assert told in err.splitlines()[-1]
    assert not list(run.glob("eval*.json"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute:UserWarning")
def test_compiled_blocks_give_the_same_bits_on_two_ranks_and_when_resumed(
    settings: list[str],
    run: Any,
    clean_environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    # All runs share one folder of compiled code.
    code = os.environ.get(FOLDER_VARIABLE, str(tmp_path / "code"))
    monkeypatch.setenv(FOLDER_VARIABLE, code)
    monkeypatch.setitem(clean_environment, FOLDER_VARIABLE, code)
    settings = [*settings, "reduction=exact", "eval_batch_size=12"]
    one, _ = run("one", settings, "compile=block")
    two, said = run("two", settings, "compile=block", ranks=2)
    assert "the block is compiled: compile=block" in said[0]
    assert one.state(one.steps[-1])["environment"]["compiled"] == "block"
    run("parts", settings, "compile=block", "max_steps=7", ranks=2)
    parts, said = run("parts", settings, "compile=auto", ranks=2)
    assert "the block is compiled: as when the run began" in said[0]
    assert "resumed exactly" in said[0]
    assert one.digest() == two.digest() == parts.digest()
