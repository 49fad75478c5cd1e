"""evaluate.py and scripts/solve.py as they are called, on published and on own checkpoints."""

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
from dataset.format.writing import write_puzzles
from evaluation.config import EvalConfig
from evaluation.job import beside, global_batch_size, open_dataset, prepare, require_thinking
from models.heads.base import HaltingRule, Outputs
from models.heads.confidence import ConfidenceHead
from puzzle_dataset import PuzzleDataset
from runtime.errors import CheckpointError, ConfigError, DatasetError
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
    # Of a published checkpoint as the published evaluation saves them.
    saved = torch.load(tmp_path / "step_7_all_preds.0", weights_only=True)
    with np.load(PUBLISHED / "expected_eval.npz") as arrays:
        assert saved.keys() == arrays.keys()
        for name, array in arrays.items():
            assert saved[name].numpy() == pytest.approx(array, abs=2e-4)
    # Where rows halt early, beside them.
    before = (tmp_path / "step_7_all_preds.0").read_bytes()
    early = ("save_outputs=[logits]", "halting=q")
    run_evaluation(tmp_path / "early.json", *published, *early)
    assert (tmp_path / "step_7_all_preds.0").read_bytes() == before
    assert torch.load(tmp_path / "step_7_all_preds_at_halt.0", weights_only=True).keys() == {
        "logits"
    }


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


def test_thinking_longer_has_a_table_a_json_and_a_csv(
    own_run: Path, sudoku_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["depth=[3,5]", "breadth=[1,4]", "select=[q,majority]", "global_batch_size=4"]
    evaluate.main([f"checkpoint={own_run}", "device=cpu", *asked])
    names = [beside(Path(output), ".csv").name for output in ("a.v1", "a.v2", "a.csv", "a.json")]
    assert names == ["a.v1.csv", "a.v2.csv", "a.csv.csv", "a.csv"]
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
    with (own_run / f"{name}.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [row["calls"] for row in table] == [str(one["calls"]) for one in result["chains"]]
    out = capsys.readouterr().out
    assert re.search(r"^all +5 +4 +majority ", out, re.MULTILINE)


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        (["seed=3"], "seed3"),
        (["depth=[16,4,4]"], "thinking_depth4-16"),
        (["depth=1"], "thinking_depth1"),
        (["breadth=2", "perturb=noise", "noise=0.5", "seed=3"], "thinking_breadth2_noise0.5_seed3"),
        (["breadth=[1,8]", "select=majority"], "thinking_breadth1-8_symmetry_majority"),
        (["max_examples=4", "split=train"], "train_first4"),
        # There is no average.
        (["weights=last", "arch_overrides.halt_max_steps=7"], "halt_max_steps-7"),
        (["arch_overrides.attention=math", "seed=3"], "attention-math_seed3"),
        (["evaluators=[sudoku]", "halting=q"], "at_halt_evaluators-sudoku"),
        # What the run would measure by itself.
        (["max_examples=10", "arch_overrides.halt_max_steps=3", "evaluators=[]"], ""),
        (["data_path=OWN", "halting=both", "save_records=true"], ""),
    ],
)
def test_other_settings_have_another_file(
    own_run: Path, sudoku_data: Path, asked: list[str], name: str
) -> None:
    asked = [f"checkpoint={own_run}", *(one.replace("OWN", str(sudoku_data)) for one in asked)]
    job = prepare(load_config(EvalConfig, "cfg_evaluate", asked))
    assert job.output == own_run / f"eval_step_12{'_' * bool(name)}{name}.json"


def test_a_name_that_is_too_long_is_told_before_the_work(own_run: Path) -> None:
    depths = list(range(1, 200))
    config = load_config(EvalConfig, "cfg_evaluate", [f"checkpoint={own_run}", f"depth={depths}"])
    with pytest.raises(ConfigError, match="File name too long"):
        prepare(config)


def test_a_checkpoint_that_its_run_removes_meanwhile_is_left_unless_it_was_named(
    sudoku_data: Path, save_run: Callable[..., Path], tmp_path: Path
) -> None:
    run = tmp_path / "step_3"  # A run may have such a name.
    for step in (11, 12):
        save_run(run, sudoku_data, step=step)
    for named, read in ((run, True), (run / "step_12", False)):
        config = load_config(EvalConfig, "cfg_evaluate", [f"checkpoint={named}", "device=cpu"])
        job = prepare(config)
        assert job.trained.step == 12
        (run / "step_12").rename(tmp_path / "gone")
        if read:
            evaluate.run(job)
            assert json.loads((run / "eval_step_11.json").read_bytes())["step"] == 11
        else:
            with pytest.raises(CheckpointError, match="step_12"):
                evaluate.run(job)
        (tmp_path / "gone").rename(run / "step_12")


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["breadth=8", "data_path=ARC"], "perturb=symmetry: .*12 tokens and 25 cells"),
        (["breadth=9", "data_path=MAZES"], "breadth=9: such puzzles have 8 views"),
        (["breadth=2", "halting=q"], "halting says nothing where depth or breadth is set"),
    ],
)
def test_what_has_no_meaning_is_refused(
    own_run: Path, arc_data: Path, tmp_path: Path, settings: list[str], told: str
) -> None:
    maze = np.full((1, 16), 2, np.uint8)
    maze[0, :2] = 3, 4
    write_puzzles(tmp_path / "mazes" / "test", maze, maze, vocab_size=6, views=1)
    (tmp_path / "mazes" / "identifiers.json").write_text('["<blank>"]\n')
    folders = {"ARC": str(arc_data), "MAZES": str(tmp_path / "mazes")}
    own = list(settings)
    for name, folder in folders.items():
        own = [setting.replace(f"={name}", f"={folder}") for setting in own]
    with pytest.raises(ConfigError, match=told):
        prepare(load_config(EvalConfig, "cfg_evaluate", [f"checkpoint={own_run}", *own]))


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


def test_other_rows_steps_and_batches(own_run: Path, run_evaluation: Run, tmp_path: Path) -> None:
    whole = run_evaluation(tmp_path / "a.json", f"checkpoint={own_run}", "split=train")
    assert (whole["metrics"]["count"], whole["metrics"]["steps"]) == (32, 3)
    fewer = ("split=train", "max_examples=5", "global_batch_size=2")
    arch = ("arch_overrides.halt_max_steps=7", "arch_overrides.attention=math")
    part = run_evaluation(tmp_path / "b.json", f"checkpoint={own_run / 'step_12'}", *fewer, *arch)
    assert (part["metrics"]["count"], part["metrics"]["steps"]) == (5, 7)
    assert part["arch"]["attention"] == "math"
    assert part["global_batch_size"] == 2


def test_two_data_sets_are_reported_one_by_one_and_together(
    own_run: Path, sudoku_data: Path, run_evaluation: Run, tmp_path: Path
) -> None:
    # The second folder's test split is the first one's training split: other rows, other figures.
    other = tmp_path / "other"
    shutil.copytree(sudoku_data / "train", other / "test")
    run = f"checkpoint={own_run}"
    first = run_evaluation(tmp_path / "a.json", run)["metrics"]
    second = run_evaluation(tmp_path / "b.json", run, f"data_path={other}")["metrics"]
    both = run_evaluation(tmp_path / "c.json", run, f"data_paths=[{sudoku_data},{other}]")
    assert list(both["sets"]) == ["all", "all1"]
    for result, name in ((first, "all"), (second, "all1")):
        metrics = both["sets"][name]["metrics"]
        assert metrics["accuracy"]["value"] == pytest.approx(result["accuracy"], abs=1e-12)
    assert first["accuracy"] != second["accuracy"]
    assert both["metrics"]["count"] == 42
    expected = (10 * first["accuracy"] + 32 * second["accuracy"]) / 42
    assert both["metrics"]["accuracy"] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("world_size", "batch_size", "halting"), [(2, 4, "q"), (4, 8, "both"), (4, 32, "steps")]
)
@pytest.mark.slow
def test_ranks_together_give_what_one_gives(
    own_run: Path,
    run_evaluation: Run,
    run_on_ranks: Run,
    tmp_path: Path,
    world_size: int,
    batch_size: int,
    halting: str,
) -> None:
    batch, outputs = f"global_batch_size={batch_size}", "save_outputs=[inputs,preds,logits]"
    settings = [f"checkpoint={own_run}", batch, outputs, f"halting={halting}"]
    alone = run_evaluation(tmp_path / "alone.json", *settings)
    output = f"output={tmp_path / 'together.json'}"
    run_on_ranks(world_size, "evaluate.py", *settings, "device=cpu", output)
    together = json.loads((tmp_path / "together.json").read_bytes())
    assert together["environment"]["world_size"] == world_size
    for name in ("count", "accuracy", "exact_accuracy", "q_halt_accuracy", "steps"):
        assert together["metrics"][name] == alone["metrics"][name]
    for name in ("lm_loss", "q_halt_loss"):
        assert together["metrics"][name] == pytest.approx(alone["metrics"][name], abs=1e-6)
    for name in ("inputs", "preds", "logits"):
        expected = np.load(tmp_path / "alone_outputs" / f"all__{name}.npy")
        found = np.load(tmp_path / "together_outputs" / f"all__{name}.npy")
        assert found.shape == expected.shape
        difference = np.abs(found.astype(np.float64) - expected).max()
        assert difference <= (1e-5 if name == "logits" else 0)


def test_mistakes_are_told_before_torch_is_loaded(
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


@pytest.mark.parametrize(
    ("settings", "code", "told"),
    [
        (["checkpoint=nowhere"], 4, "nowhere: no such checkpoint"),
        (["checkpoint=RUN", "global_batch_size=7"], 2, "global_batch_size=7 .* ranks, 2: try"),
        (["checkpoint=RUN", "data_path=nowhere"], 3, "nowhere: no such data folder"),
    ],
)
def test_a_mistake_is_one_line_and_an_exit_code(
    own_run: Path, run_python: Run, settings: list[str], code: int, told: str
) -> None:
    arguments = [setting.replace("RUN", str(own_run)) for setting in settings]
    finished = run_python("evaluate.py", *arguments, env={"WORLD_SIZE": "2", "RANK": "1"})
    assert finished.code == code
    assert len(finished.err_lines) == 1
    assert finished.out == ""
    assert re.search(told, finished.err_lines[0])


def test_a_disk_that_refuses_the_outputs_is_a_mistake_in_the_settings(
    own_run: Path, run_evaluation: Run, tmp_path: Path
) -> None:
    (tmp_path / "result_outputs").write_text("a file where the folder should be")
    with pytest.raises(ConfigError, match=r"files cannot be written: .*result_outputs"):
        run_evaluation(tmp_path / "result.json", f"checkpoint={own_run}", "save_outputs=[preds]")
    assert not (tmp_path / "result.json").exists()


def test_without_a_batch_size_the_runs_own_is_rounded_up_to_the_ranks(own_run: Path) -> None:
    trained = find_trained_model(own_run, print)
    config = EvalConfig(checkpoint=str(own_run), split="train")
    dataset = open_dataset(config, trained)
    size = partial(global_batch_size, config, trained, dataset)
    assert [size(world_size) for world_size in (1, 2, 3, 8)] == [4, 4, 6, 8]
    # Where more fit on each rank, as many; never more than the 32 rows.
    assert [size(2, fits=fits) for fits in (1, 3, 8, 100)] == [4, 6, 16, 32]


def test_where_rows_halt_early_slots_are_few_beside_the_rows(own_run: Path) -> None:
    trained = find_trained_model(own_run, print)
    config = EvalConfig(checkpoint=str(own_run), halting="q")
    rows = SimpleNamespace(num_examples=1000)
    dataset: Any = SimpleNamespace(sets={"all": rows})
    size = partial(global_batch_size, config, trained, dataset)
    assert [size(1), size(1, fits=500), size(4, fits=500)] == [4, 62, 64]
    rows.num_examples = 100
    assert size(1, fits=500) == 32


def test_both_figures_and_a_record_of_each_puzzle(
    own_run: Path, run_evaluation: Run, tmp_path: Path
) -> None:
    run = (f"checkpoint={own_run}", "global_batch_size=4", "save_records=true")
    early = run_evaluation(tmp_path / "early.json", *run, "halting=q")
    both = run_evaluation(tmp_path / "both.json", *run, "halting=both")
    assert both["at_halt"]["metrics"] == early["metrics"]
    assert 1 <= early["metrics"]["steps"] < both["metrics"]["steps"] == 3
    with (tmp_path / "both_records.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["index"] for line in lines] == [str(index) for index in range(10)]
    for prefix, metrics in (("", both["metrics"]), ("at_halt_", early["metrics"])):
        for name in ("exact_accuracy", "accuracy", "steps"):
            mean = sum(float(line[prefix + name]) for line in lines) / 10
            assert mean == pytest.approx(metrics[name], abs=1e-6)
    assert all(0 <= float(line["q_halt"]) <= 1 and line["rating"] == "" for line in lines)
    # Of the other halting only this run's own columns.
    header = (tmp_path / "early_records.csv").read_text().splitlines()[0]
    assert header == "set,index,rating,clues,exact_accuracy,accuracy,steps,q_halt"


def test_a_model_that_cannot_halt_is_refused(own_run: Path) -> None:
    trained = find_trained_model(own_run, print)
    heads = trained.run.arch.heads.model_copy(update={"q": None})
    arch = trained.run.arch.model_copy(update={"heads": heads})
    recorded = trained.run.model_copy(update={"arch": arch})
    cannot = replace(trained, run=recorded)
    for settings, told in (
        ({"halting": "q"}, "no head of .* says .*halting=steps"),
        ({"breadth": 2}, "select=q: no head of .* says .*majority"),
        ({"breadth": 2, "select": ["residual", "first_halt"]}, "select=first_halt: no head of"),
    ):
        config = EvalConfig.model_validate({"checkpoint": "x", **settings})
        require_thinking(config, trained, trained.may_halt)
        with pytest.raises(ConfigError, match=told):
            require_thinking(config, cannot, cannot.may_halt)


class Sure(HaltingRule):
    """Of a plug-in: the mean confidence ends a puzzle."""

    def wants_to_halt(self, outputs: Outputs) -> Tensor:
        return outputs["confidence_logits"].mean(-1) > -100


def test_of_a_head_of_another_name_the_model_tells_whether_it_halts(
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


def test_solving_puzzles_of_the_run(own_run: Path, run_python: Run) -> None:
    settings = ("count=2", "steps=4", "device=cpu")
    finished = run_python("scripts/solve.py", f"checkpoint={own_run}", *settings)
    assert finished.code == 0, finished.err
    assert finished.out.count("ACT step") == 2
    assert "settled at step" in finished.out
    assert "of 4" in finished.out
    assert re.fullmatch(r"solved: .* of 2", finished.out.splitlines()[-1])


def test_several_chains_solve_puzzles(
    own_run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    asked = ["count=3", "depth=4", "breadth=5", "select=majority", "num_threads=1", "seed=3"]
    outs = []
    for more in ([], [], ["perturb=noise", "noise=0.9"]):
        solve.main([f"checkpoint={own_run}", "device=cpu", *asked, *more])
        outs.append(capsys.readouterr().out)
    assert len(re.findall(r"^chain [1-5] of 5 answers; [1-5] of them", outs[0], re.M)) == 3
    assert outs[0].count(" of 4") == 3
    assert outs[0] == outs[1] != outs[2]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["breadth=[1,8]"], r"breadth=\[1, 8\]: a puzzle gets one answer"),
        (["depth=[2,4]"], r"depth=\[2, 4\]: a puzzle gets one answer"),
        (["depth=2", "steps=2"], "steps and depth are both set"),
        (["breadth=2", "perturb=init"], "perturb=init: all chains of this model start alike"),
    ],
)
def test_chains_that_a_puzzle_cannot_have_are_refused(
    own_run: Path, settings: list[str], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        solve.main([f"checkpoint={own_run}", "puzzle=1..............4", *settings])


def test_puzzles_that_are_none_are_data_mistakes(own_run: Path, run_python: Run) -> None:
    finished = run_python("scripts/solve.py", f"checkpoint={own_run}", "puzzle=1..x")
    assert (finished.code, len(finished.err_lines)) == (3, 1)
    assert "'x'" in finished.err_lines[0]
    puzzles = {"puzzle=5...............": "1 to 4", f"puzzle={'.' * 36}": "36 cells"}
    for given, told in (puzzles | {"file=/dev/null": "no puzzle to solve"}).items():
        with pytest.raises(DatasetError, match=told):
            solve.main([f"checkpoint={own_run}", given])
