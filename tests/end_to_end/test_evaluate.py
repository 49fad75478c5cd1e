"""The commands evaluate.py and scripts/solve.py, on published checkpoints and on our own."""

import csv
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import evaluate
from apps.reports import solving as solve
from evaluation.config import EvalConfig
from evaluation.job import beside, global_batch_size, open_energy_set, prepare, require_thinking
from models.heads.base import HaltingRule, Outputs
from models.heads.confidence import ConfidenceHead
from puzzle_dataset import PuzzleDataset
from runtime.errors import ConfigError, DatasetError
from training.checkpoint.trained_model import find_trained_model
from training.config.composition import load_config

Run = Callable[..., Any]
PUBLISHED = Path(__file__).resolve().parents[1] / "parity" / "published_format"


@pytest.fixture(scope="module")
def own_run(
    sudoku_data: Path, tmp_path_factory: pytest.TempPathFactory, save_run: Callable[..., Path]
) -> Path:
    return save_run(tmp_path_factory.mktemp("run"), sudoku_data)


def test_a_published_checkpoint_gives_the_published_figures(
    run_evaluation: Run, tmp_path: Path
) -> None:
    published = [
        f"checkpoint={PUBLISHED / 'checkpoint' / 'step_7'}",
        f"data_path={PUBLISHED / 'data'}",
    ]
    fields = "logits,q_halt_logits,q_continue_logits"
    result = run_evaluation(tmp_path / "result.json", *published, f"save_outputs=[{fields}]")
    expected = json.loads((PUBLISHED / "expected_eval.json").read_bytes())
    assert result["metrics"]["count"] == expected["count"]
    for name, value in expected["metrics"].items():
        assert result["metrics"][name] == pytest.approx(value, abs=1e-6)
    with np.load(PUBLISHED / "expected_eval.npz") as arrays:
        for name, array in arrays.items():
            saved = np.load(tmp_path / "result_outputs" / f"all__{name}.npy")
            assert saved == pytest.approx(array, abs=2e-4)


def test_a_trained_run_is_measured_as_during_training(
    train: Run,
    tiny_settings: list[str],
    files_of: Callable[[Path], Any],
    run_evaluation: Run,
    tmp_path: Path,
) -> None:
    train(tiny_settings)
    files = files_of(tmp_path / "run")
    record = files.eval_records[-1].items()
    logged = {name[5:]: value for name, value in record if name.startswith("eval/")}
    result = run_evaluation(tmp_path / "result.json", f"checkpoint={tmp_path / 'run'}")
    assert result["step"] == files.steps[-1]
    assert result["checkpoint"] == str(tmp_path / "run" / f"step_{files.steps[-1]}")
    assert result["metrics"] == logged


def test_longer_thinking_has_a_table_and_a_json(
    own_run: Path, sudoku_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["steps=[3,5]", "chains=[1,4]", "select=[q,majority]", "global_batch_size=4"]
    evaluate.main([f"checkpoint={own_run}", "device=cpu", *asked])
    names = [beside(Path(output), ".csv").name for output in ("a.v1", "a.csv", "a.json")]
    assert names == ["a.v1.csv", "a.csv.csv", "a.csv"]
    name = "eval_step_12_thinking_depth3-5_breadth1-4_symmetry_q-majority"
    result = json.loads((own_run / f"{name}.json").read_bytes())
    lines = [(one["depth"], one["breadth"], one["select"]) for one in result["chains"]]
    expected = [(1, "q"), (4, "q"), (4, "majority")]
    assert lines == [(depth, *rest) for depth in (3, 5) for rest in expected]
    assert result["arch"]["halt_max_steps"] == 5
    assert result["thinking"]["depth"] == [3, 5]
    assert result["seed"] == 0
    for one in result["chains"]:
        assert one["calls"] == one["depth"] * one["breadth"]
        assert one["num_puzzles"] == 10
        assert one["single"]["value"] <= one["oracle"]["value"]
        missed = one["oracle"]["value"] - one["selected"]["value"]
        assert one["spurious"]["value"] == pytest.approx(missed)
    out = capsys.readouterr().out
    assert re.search(r"^all +5 +4 +majority ", out, re.MULTILINE)


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        (["seed=3"], "seed3"),
        (["steps=[16,4,4]"], "thinking_depth4-16"),
        (["depth=1"], "thinking_depth1"),  # `depth` is the former name of `steps`.
        (["chains=2", "perturb=noise", "noise=0.5", "seed=3"], "thinking_breadth2_noise0.5_seed3"),
        (["chains=[1,8]", "select=majority"], "thinking_breadth1-8_symmetry_majority"),
        (
            ["chains=2", "select=energy", "energy.puzzles=8", "energy.data_path=OWN"],
            "thinking_breadth2_symmetry_energy_OWN_puzzles-8",
        ),
        (["max_examples=4", "split=train"], "train_first4"),
        # The run has no average.
        (["weights=last", "arch_overrides.halt_max_steps=7"], "halt_max_steps-7"),
        (["arch_overrides.attention=math", "seed=3"], "attention-math_seed3"),
        (["arch_overrides.H_cycles=3", "steps=4"], "thinking_depth4_H_cycles-3"),
        (["evaluators=[sudoku]", "halting=q"], "at_halt_evaluators-sudoku"),
        (["probes=[path,{name:escapes,chains:16}]"], "inside-path-escapes-chains-16"),
        # The same as in the run's own evaluations.
        (["max_examples=10", "arch_overrides.halt_max_steps=3", "evaluators=[]"], ""),
        (["data_path=OWN", "save_records=true"], ""),
    ],
)
def test_other_settings_have_another_file(
    own_run: Path, sudoku_data: Path, asked: list[str], name: str
) -> None:
    asked = [f"checkpoint={own_run}", *(one.replace("OWN", str(sudoku_data)) for one in asked)]
    job, name = (
        prepare(load_config(EvalConfig, "cfg_evaluate", asked)),
        name.replace("OWN", sudoku_data.name),
    )
    assert job.output == own_run / f"eval_step_12{'_' * bool(name)}{name}.json"


def test_an_energy_is_learned_from_the_run_s_training_puzzles(
    own_run: Path, tmp_path: Path
) -> None:
    asked = [f"checkpoint={own_run}", "chains=4", "select=[q,energy]", "perturb=noise"]
    job = prepare(load_config(EvalConfig, "cfg_evaluate", [*asked, "energy.puzzles=8"]))
    assert [folder.name for folder in job.energy_set.split_dirs] == ["train"]
    with pytest.raises(DatasetError, match="train has puzzles of 16 cells, the test set of 81; ch"):
        open_energy_set(job.config, job.trained, seq_len=81)
    output = f"output={tmp_path / 'x.json'}"
    with pytest.raises(DatasetError, match="select=energy: gone: no such .*energy.data_path"):
        evaluate.main([*asked, "energy.data_path=gone", output])


def test_the_result_lies_in_the_run_and_ends_the_output(
    own_run: Path, sudoku_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate.main([f"checkpoint={own_run}", "device=cpu", "global_batch_size=3"])
    result = json.loads((own_run / "eval_step_12.json").read_bytes())
    exact = result["metrics"]["exact_accuracy"]
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == f"exact_accuracy: {exact:.4f}"
    assert result["data"] == [str(sudoku_data / "test")]
    assert result["data_fingerprint"] == PuzzleDataset([sudoku_data], "test").fingerprint()
    assert result["sets"]["all"]["num_examples"] == 10
    low, high = (result["sets"]["all"]["metrics"]["exact_accuracy"][key] for key in ("low", "high"))
    assert 0 <= low <= exact <= high <= 1
    assert f"{exact:.4f} [{low:.4f}, {high:.4f}]" in out


def test_mistakes_are_reported_before_torch_is_loaded(
    own_run: Path, sudoku_data: Path, tasks_data: Path, run_python: Run, tmp_path: Path
) -> None:
    cut = tmp_path / "cut"
    shutil.copytree(sudoku_data, cut)
    labels = cut / "test" / "all__labels.npy"
    os.truncate(labels, labels.stat().st_size - 5)
    run = f"checkpoint={own_run}"
    cases = [
        (["checkpoint=nowhere"], "CheckpointError", "nowhere: no such checkpoint"),
        ([], "ConfigError", "checkpoint"),
        ([run, "lr=3"], "ConfigError", "unknown setting lr=3"),
        ([run, "save_outputs=[pred]"], "ConfigError", "pred"),
        ([run, "data_path=nowhere"], "DatasetError", "nowhere: no such data folder"),
        ([run, f"data_path={cut}"], "DatasetError", str(labels)),
        ([run, f"data_path={tasks_data}"], "CheckpointError", "vocab_size 6, not 8"),
        ([run, "output=/proc/nowhere/x.json"], "ConfigError", "output=/proc/nowhere/x.json"),
        ([run, f"output={tmp_path}"], "ConfigError", "is a folder"),
        ([run, f"steps={list(range(1, 200))}"], "ConfigError", "File name too long"),
        ([run, "arch_overrides.loops=3"], "ConfigError", "loops: arch=hrm has no such setting"),
    ]
    script = tmp_path / "mistakes.py"
    code = f"""
import sys
sys.path.insert(0, {str(Path(evaluate.__file__).parent)!r})
import evaluate
for settings, kind, told in {cases!r}:
    try:
        evaluate.main(settings)
    except Exception as error:
        assert type(error).__name__ == kind, (settings, repr(error))
        assert told in str(error), (settings, str(error))
        assert "\\n" not in str(error), str(error)
    else:
        raise AssertionError(settings)
assert "torch" not in sys.modules
"""
    script.write_text(code)
    finished = run_python(script)
    assert finished.code == 0, finished.err


def test_unwritable_outputs_are_a_mistake_in_the_settings(
    own_run: Path, run_evaluation: Run, tmp_path: Path
) -> None:
    (tmp_path / "result_outputs").write_text("a file where the folder should be")
    with pytest.raises(ConfigError, match=r"files cannot be written: .*result_outputs"):
        run_evaluation(tmp_path / "result.json", f"checkpoint={own_run}", "save_outputs=[preds]")
    assert not (tmp_path / "result.json").exists()


@pytest.mark.slow
def test_two_ranks_give_the_result_of_one(
    own_run: Path, run_evaluation: Run, run_on_ranks: Run, tmp_path: Path
) -> None:
    outputs, halting = "save_outputs=[inputs,preds,logits]", "halting=q"
    settings = [f"checkpoint={own_run}", "global_batch_size=4", outputs, halting]
    alone = run_evaluation(tmp_path / "alone.json", *settings)
    output = tmp_path / "together.json"
    run_on_ranks(2, "evaluate.py", *settings, "device=cpu", f"output={output}")
    together = json.loads(output.read_bytes())
    assert together["environment"]["world_size"] == 2
    assert together["metrics"] == pytest.approx(alone["metrics"], abs=1e-6)
    for name, tolerance in (("inputs", 0), ("preds", 0), ("logits", 1e-5)):
        expected = np.load(tmp_path / "alone_outputs" / f"all__{name}.npy")
        found = np.load(tmp_path / "together_outputs" / f"all__{name}.npy")
        assert found == pytest.approx(expected, abs=tolerance)


@pytest.mark.parametrize(
    ("settings", "num_rows", "expected"),
    [
        # The batch by (ranks, rows that fit on each): at least the run's, at most `num_rows`.
        ({}, 32, {(1, 0): 4, (3, 0): 6, (8, 0): 8, (2, 8): 16, (2, 100): 32}),
        ({"max_examples": 3}, 32, {(1, 0): 3, (2, 100): 4}),
        # With early halting there are few slots for many rows.
        ({"halting": "q"}, 1000, {(1, 0): 4, (1, 500): 62, (4, 500): 64}),
        ({"halting": "q"}, 100, {(1, 500): 32}),
    ],
)
def test_a_batch_has_room_for_what_fits(
    own_run: Path, settings: dict[str, Any], num_rows: int, expected: dict[tuple[int, int], int]
) -> None:
    config = EvalConfig(checkpoint=str(own_run), **settings)
    dataset: Any = SimpleNamespace(sets={"all": SimpleNamespace(num_examples=num_rows)})
    size = partial(global_batch_size, config, find_trained_model(own_run, print), dataset)
    assert {asked: size(*asked) for asked in expected} == expected


def test_a_record_of_each_puzzle(own_run: Path, run_evaluation: Run, tmp_path: Path) -> None:
    run = (f"checkpoint={own_run}", "global_batch_size=4", "save_records=true", "halting=q")
    metrics = run_evaluation(tmp_path / "early.json", *run)["metrics"]
    assert 1 <= metrics["steps"] < 3
    with (tmp_path / "early_records.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert ",".join(lines[0]) == "set,index,rating,clues,exact_accuracy,accuracy,steps,q_halt"
    assert [line["index"] for line in lines] == [str(index) for index in range(10)]
    for name in ("exact_accuracy", "accuracy", "steps"):
        mean = sum(float(line[name]) for line in lines) / 10
        assert mean == pytest.approx(metrics[name], abs=1e-6)
    assert all(0 <= float(line["q_halt"]) <= 1 and line["rating"] == "" for line in lines)


def test_a_model_that_cannot_halt_is_refused(own_run: Path) -> None:
    trained = find_trained_model(own_run, print)
    heads = trained.run.arch.heads.model_copy(update={"q": None})
    arch = trained.run.arch.model_copy(update={"heads": heads})
    recorded = trained.run.model_copy(update={"arch": arch})
    cannot = replace(trained, run=recorded)
    for settings, told in (
        ({"halting": "q"}, "no head of .* says .*halting=steps"),
        ({"chains": 2}, "select=q: no head of .* says .*majority"),
        ({"chains": 2, "select": ["residual", "first_halt"]}, "select=first_halt: no head of"),
        ({"steps": 4, "select": "first_halt"}, "select=first_halt: no head of"),
    ):
        config = EvalConfig.model_validate({"checkpoint": "x", **settings})
        require_thinking(config, trained, trained.may_halt)
        with pytest.raises(ConfigError, match=told):
            require_thinking(config, cannot, cannot.may_halt)


def test_learned_weights_of_losses_need_not_fit(own_run: Path) -> None:
    trained = find_trained_model(own_run, print)
    arch, facts = trained.run.arch, trained.facts
    assert facts is not None
    learned = arch.loss.model_copy(update={"weighting": "uncertainty"})
    model = trained.load(arch.model_copy(update={"loss": learned}), facts, "x", torch.device("cpu"))
    assert [s.item() for s in model.log_variances.values()] == [0.0] * 3


class Sure(HaltingRule):
    """A plug-in's rule: the mean confidence ends a puzzle."""

    def wants_to_halt(self, outputs: Outputs) -> Tensor:
        return outputs["confidence_logits"].mean(-1) > -100


def test_any_head_with_a_rule_can_halt(
    save_run: Callable[..., Path],
    sudoku_data: Path,
    run_evaluation: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = save_run(tmp_path, sudoku_data, q=None, confidence={})
    arguments = (tmp_path / "result.json", f"checkpoint={run}", "halting=q")
    with pytest.raises(ConfigError, match="no head of .* says .*halting=steps"):
        run_evaluation(*arguments)
    monkeypatch.setattr(ConfidenceHead, "rule", Sure(compares=False))
    assert run_evaluation(*arguments)["metrics"]["steps"] == 1


def test_several_chains_solve_puzzles(
    own_run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    asked = ["count=3", "steps=4", "chains=5", "select=majority", "num_threads=1", "seed=3"]
    outs = []
    for more in ([], [], ["perturb=noise", "noise=0.9"]):
        solve.main([f"checkpoint={own_run}", "device=cpu", *asked, *more])
        outs.append(capsys.readouterr().out)
    assert len(re.findall(r"^chain [1-5] of 5 answers; [1-5] of them", outs[0], re.M)) == 3
    assert outs[0].count(" of 4") == 3
    assert outs[0] == outs[1] != outs[2]
