"""scripts/benchmark.py: the timed calls and the report."""

import copy
import errno
import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from apps.bench import benchmark
from models.config import DataFacts
from training.config.composition import load_config
from training.config.schema import TrainConfig

SUDOKU = DataFacts(vocab_size=11, seq_len=81, num_puzzle_identifiers=1)
TINY = (
    *("arch.hidden_size=32", "arch.num_heads=2", "arch.H_layers=1", "arch.L_layers=1"),
    *("arch.halt_max_steps=3", "arch.forward_dtype=float32"),
    *("global_batch_size=4", "log_interval=2", "compile=false"),
)


@pytest.fixture(scope="module", autouse=True)
def _host() -> Iterator[None]:
    """Leave the settings of the whole process alone: threads and number formats."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(benchmark, "prepare_host", lambda num_threads: None)
        yield


def run(*settings: str) -> dict[str, Any]:
    return benchmark.run({"tiny": (*TINY, *settings)}, 0.01, (16, 32))


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return run()


@pytest.fixture
def trainer() -> Iterator[benchmark.StepTrainer]:
    with benchmark.stepping(load_config(TrainConfig, "cfg_pretrain", TINY)) as trainer:
        yield trainer


@pytest.mark.parametrize("heads", ["action", "pixel", "sage", "enhanced", "puzzle", "moe"])
def test_every_head_can_be_timed(heads: str) -> None:
    (case,) = run(f"heads={heads}")["cases"]
    assert all(line["milliseconds"] > 0 for line in case["lines"])


# Timing


def test_step_is_the_trainers_and_runs_past_a_block_of_metrics(trainer: Any) -> None:
    # 10 groups give 2 batches of 4 an epoch, so five batches need more than one iteration.
    trainer.batches.epochs_per_iter = 1
    before = trainer.learner.model.model.inner.lm_head.weight.clone()
    for batch in itertools.islice(benchmark.endless(trainer.batches), 5):
        assert batch.inputs.shape == (4, 81)
        trainer.step(batch)
    assert trainer.num_steps == 5
    assert not torch.equal(trainer.learner.model.model.inner.lm_head.weight, before)


def test_evaluation_step_moves_the_carry_without_gradients(trainer: Any, monkeypatch: Any) -> None:
    forward = MagicMock(wraps=trainer.learner.forward)
    monkeypatch.setattr(trainer.learner, "forward", forward)
    step = benchmark.evaluation_step(trainer, next(benchmark.endless(trainer.batches)))
    for _ in range(3):
        step()
    carries = [call.args[0] for call in forward.call_args_list]
    assert [carry.steps.tolist() for carry in carries] == [[0] * 4, [1] * 4, [2] * 4]
    assert not carries[-1].inner["z_H"].requires_grad
    assert forward.call_args.kwargs == {"measured": False}
    assert not trainer.learner.model.training


def test_each_optimizer_moves_the_weights(trainer: Any) -> None:
    weight = trainer.learner.model.model.inner.lm_head.weight
    table = trainer.learner.model.puzzle_embedding.weights
    moved = {}
    for activity in benchmark.activities(trainer, {"train_step": 0, "act_step": 0}):
        before = weight.clone(), table.clone()
        if activity.steps == 0:
            activity.call()
            moved[activity.name] = [not torch.equal(weight, before[0])]
            moved[activity.name] += [not torch.equal(table, before[1])]
    assert moved == {
        "AdamATan2 step": [True, False],
        "AdamW step": [True, False],
        "SparseSignSGD step": [False, True],
    }


# Reporting


def test_report_has_every_activity(report: Any) -> None:
    (case,) = report["cases"]
    assert [line["activity"] for line in case["lines"]] == [
        *("train step", "evaluation, ACT step", "data loading"),
        *("AdamATan2 step", "AdamW step", "SparseSignSGD step"),
    ]
    assert case["settings"] == list(TINY)
    assert report["environment"]["torch"] == torch.__version__
    assert json.loads(json.dumps(report, allow_nan=False)) == report


def test_rates_follow_from_time_and_count(report: Any) -> None:
    (case,) = report["cases"]
    peak = max(report["product_gflop_per_second"]["float32"].values())
    train, evaluation, data, *optimizers = case["lines"]
    per_second = 4 / (train["milliseconds"] / 1e3)
    assert train["examples_per_second"] == pytest.approx(per_second)
    gflop = case["flop_per_example"]["train_step"] / 1e9
    assert train["gflop_per_second"] == pytest.approx(per_second * gflop)
    assert train["share_of_peak"] == pytest.approx(per_second * gflop / peak)
    per_second = 4 / (evaluation["milliseconds"] / 1e3)
    gflop = case["flop_per_example"]["act_step"] / 1e9
    assert evaluation["examples_per_second"] == pytest.approx(per_second / 3)  # 3 ACT steps each
    assert evaluation["gflop_per_second"] == pytest.approx(per_second * gflop)
    assert data["gflop_per_second"] is None
    assert all(line["examples_per_second"] is None for line in optimizers)


def test_peak_is_the_best_of_all_passes(monkeypatch: Any) -> None:
    rates = iter([{16: 1e9, 32: 5e9}, {16: 2e9, 32: 4e9}])
    monkeypatch.setattr(benchmark, "product_rates", lambda *arguments: next(rates))
    report = run()
    assert report["product_gflop_per_second"] == {"float32": {"16": 2.0, "32": 5.0}}
    train = report["cases"][0]["lines"][0]
    assert train["share_of_peak"] == pytest.approx(train["gflop_per_second"] / 5.0)


# Comparing with an earlier report


def rows(text: str) -> list[list[str]]:
    """Return the words of each line of the case."""
    return [line.split() for line in text.splitlines() if line.startswith("tiny  ")]


@pytest.mark.parametrize(
    ("environment", "case", "ratio", "mark", "note"),
    [
        ({}, {}, 1.04, "1.040", ""),
        ({}, {}, 1.06, "SLOWER", ""),
        ({}, {}, 0.9, "faster", ""),
        ({"cpu": "abacus"}, {}, 1, "1.000", "more than the code has changed: cpu abacus -> "),
        ({}, {"compiled": True}, 1, "1.000", "tiny: compiled True -> False"),
        ({}, {"batch_size": 8}, 1, None, "tiny: batch_size 8 -> 4"),
        ({}, {"name": "small"}, 1, None, ""),
    ],
)
def test_times_are_compared_with_an_earlier_report(
    report: Any, environment: Any, case: Any, ratio: float, mark: str | None, note: str
) -> None:
    old = copy.deepcopy(report)
    old["environment"] |= environment
    old["cases"][0] |= case
    for line in old["cases"][0]["lines"]:
        line["milliseconds"] /= ratio
    text = benchmark.as_table(report, old)
    if mark is None:  # Another case.
        assert rows(text) == rows(benchmark.as_table(report))
    else:
        assert [row[-1] for row in rows(text)] == [mark] * len(report["cases"][0]["lines"])
    assert ("note: " in text) == bool(note)
    assert note in text


# The command line


def test_main_writes_the_json_and_prints_the_table(
    report: Any, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    asked = []

    def run(cases: Any, seconds: float) -> dict[str, Any]:
        asked.append((cases, seconds))
        return report

    monkeypatch.setattr(benchmark, "run", run)
    output = tmp_path / "figures.json"
    arguments = ["--case", "demo", "lr=1e-5", "--seconds", "0.5", "--output", str(output)]
    assert benchmark.main(arguments) == 0
    assert asked == [({"demo": (*benchmark.CASES["demo"], "lr=1e-5")}, 0.5)]
    assert json.loads(output.read_text()) == report
    assert benchmark.as_table(report) in capsys.readouterr().out


def test_on_a_full_disk_the_table_is_printed(
    report: Any, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    def write(path: Path, content: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(benchmark, "run", lambda cases, seconds: report)
    monkeypatch.setattr(benchmark, "write_atomically", write)
    output = tmp_path / "figures.json"
    assert benchmark.main(["--case", "demo", "--output", str(output)]) == 2
    out, err = capsys.readouterr()
    assert benchmark.as_table(report) in out
    assert err == f"error: {output}: No space left on device\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["arch.hiden_size=3"], "did you mean arch.hidden_size"),
        (["num_threads=0"], "num_threads=0"),
        (["arch.attention=fa3", "device=cpu"], "arch.attention=fa3 needs a CUDA device"),
        (["--output", "no/such/folder/x.json"], "--output no/such/folder/x.json"),
        (["--compare", "gone.json"], "--compare gone.json: not a file of this script"),
        (["--compare", "/dev/null"], "Expecting value"),
        (["--compare", "list.json"], "list indices must be integers"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, monkeypatch: Any, tmp_path: Path, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list.json").write_text("[]")
    monkeypatch.setattr(benchmark, "measure", lambda *arguments: pytest.fail("it measured"))
    assert benchmark.main(["--case", "small", *arguments]) == 2
    *_, last = capsys.readouterr().err.splitlines()
    assert message in last
    assert last.startswith("error: ")
    assert [path.name for path in tmp_path.iterdir()] == ["list.json"]


def test_on_a_cpu_nothing_is_compiled_unless_asked() -> None:
    given = [*TINY[:-1], "device=cpu"]
    for asked in ("auto", "block", "model"):
        assert benchmark._runnable([*given, f"compile={asked}"]).compile == asked
    assert benchmark._runnable(given).compile is False
