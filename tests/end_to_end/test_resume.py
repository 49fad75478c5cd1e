"""A run that was stopped, killed or set back ends in the same bits as an undisturbed run."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.optim import SGD

from evaluation import measure
from models.registry import build_model
from runtime import device
from runtime.errors import CheckpointError
from runtime.registry import Part
from training.checkpoint.store import EMA, MODEL
from training.checkpoint.tensors import load_tensors
from training.config.schema import OPTIMIZERS, OptimizerConfig

EXACT, VOTED = "eval/exact_accuracy", "eval/arc/pass@2"
EXPLORES = "arch.halt_exploration_prob=0.5"
SHALLOW = "{until:0.3,H_cycles:1,L_cycles:2}"
MEDIUM = "{until:0.6,H_cycles:2,L_cycles:4}"
VARIANTS = {
    "float32": [EXPLORES],
    "puzzle embedding": ["data_path=tasks", EXPLORES, "puzzle_emb_lr=0.1", "checkpoint_interval=5"],
    "bfloat16": ["data_path=tasks", EXPLORES, "arch.forward_dtype=bfloat16"],
    "adamw in groups": ["optimizer=grouped", "arch.pos_encodings=learned", "loss=act_softmax"],
    "trm with an average": ["arch=trm", "data_path=tasks", "ema=true", "ema_rate=0.8", EXPLORES],
    "one latent": ["arch=trm_singlez", "arch.mlp_t=true", "arch.puzzle_emb_len=2"],
    "transformer": ["arch=transformer", "data_path=tasks", EXPLORES],
    "frozen weights": ["data_path=tasks", "freeze_weights=true", "puzzle_emb_lr=0.1"],
    "tied head": ["heads=tied", "arch.heads.lm.norm=layer", "arch.heads.lm.dropout=0.2", EXPLORES],
    "more heads": ["heads=enhanced", "arch.loss.weighting=uncertainty", "optimizer=grouped"],
    "diagnosed": ["data_path=tasks", EXPLORES, "diagnose_interval=2"],
    "micro-batches": ["data_path=tasks", EXPLORES, "micro_batch_size=2", "diagnose_interval=2"],
    "few rows look ahead": [EXPLORES, "techniques=[sparse_look_ahead]", "reduction=exact"]
    + ["arch.techniques.sparse_look_ahead.every=2", "ema=true"],
    "random starts": ["techniques=[random_starts,damped_noise]", EXPLORES],
    "anchors": ["techniques=[anchors]", "arch.techniques.anchors.prob=0.5", EXPLORES],
    "a curriculum": [
        "arch=trm",
        "arch.mlp_t=true",
        EXPLORES,
        "techniques=[curriculum,step_weights]",
    ]
    + [f"arch.techniques.curriculum.stages=[{SHALLOW},{MEDIUM}]", "ema=true"],
    "muon": ["optimizer=muon", "ema=true"],
    "digits alike": ["arch=dec", "arch.hidden_size=16", "ema=true", EXPLORES],
    "candidates": ["arch=lattice", "heads=lattice", "arch.loops=2", "ema=true"]
    + ["arch.guided_guesses=0.5", "arch.learn_after_mistakes=false"],
    "mixer": ["arch.mlp_t=true", "arch.gradient=last_cycle", "arch.puzzle_emb_ndim=0"],
}


def build_eager_model(config: Any, facts: Any) -> Any:
    """Build a model that always wants to halt, so that exploration decides which slots do."""
    model = build_model(config, facts)
    with torch.no_grad():
        if config.heads.q is not None:
            model.model.inner.q_head.bias.copy_(torch.tensor([2.0, -2.0]))
    return model


# All other variants are slow tests.
QUICK = ("float32", "puzzle embedding", "candidates")


@pytest.fixture(
    params=[
        pytest.param(more, id=name, marks=[] if name in QUICK else pytest.mark.slow)
        for name, more in VARIANTS.items()
    ]
)
def settings(
    request: Any, tiny_settings: list[str], tasks_data: Path, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """The settings that a variant adds to `tiny_settings`."""
    # Without hardware for bfloat16 this is slow, but gives the same bits.
    monkeypatch.setattr(device, "cpu_has_bfloat16", lambda: True)
    monkeypatch.setattr("training.step.build_model", build_eager_model)
    lacks = {"arch=transformer": "arch.L_layers=1"}
    lacks |= dict.fromkeys(("arch=dec", "arch=lattice"), "arch.H_layers=1")
    for setting in lacks.keys() & request.param:
        tiny_settings.remove(lacks[setting])
    return [setting.replace("=tasks", f"={tasks_data}") for setting in request.param]


class Killed(BaseException):
    """Acts like kill -9: nothing is saved on the way out."""


# Stopping


def test_stops_anywhere_change_no_bit(run: Any, settings: list[str]) -> None:
    whole = run(*settings, name="whole")
    last = whole.steps[-1]
    if EXPLORES in settings:
        assert len({record["train/count"] for record in whole.train_records}) > 3
    border = whole.eval_records[0]["step"]
    # Stop after the first steps, at and after an evaluation, and before and at the end.
    for stop in (1, 2, border, border + 1, last - 2, last):
        part = run(*settings, f"max_steps={stop}", name="parts")
        assert part.steps[-1] == stop
        assert [record["step"] for record in part.train_records] == [*range(1, stop + 1)]
    part = run(*settings, name="parts")
    assert part.digest() == whole.digest()
    assert part.leftovers() == []


def test_the_best_evaluation_is_remembered(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    results = iter([{"eval/exact_accuracy": score} for score in (0.2, 0.9, 0.5, 0.7)] * 2)
    monkeypatch.setattr("evaluation.measure.flatten", lambda _: next(results))
    whole = run("keep_best=1", name="whole")
    run("keep_best=1", "max_steps=10", name="parts")
    parts = run("keep_best=1", name="parts")
    assert parts.digest() == whole.digest()
    assert whole.state(16)["best_score"] == 0.9
    assert 8 in whole.steps
    assert 8 in parts.steps


def test_the_best_score_starts_anew_on_other_puzzles(
    run: Any, sudoku_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = iter([{"eval/exact_accuracy": score} for score in (0.8, 0.9, 0.5, 0.4)])
    monkeypatch.setattr("evaluation.measure.flatten", lambda _: next(results))
    own = ["keep_best=1", "checkpoint_interval=1", f"data_path={sudoku_data}"]
    assert run(*own, "max_steps=10").state(10)["best_score"] == 0.9
    files = run(*own, f"data_paths_test=[{sudoku_data}]")
    assert files.state(16)["best_score"] == 0.5
    assert {8, 12} <= set(files.steps)


def test_the_best_for_arc_is_by_pass_2_and_starts_anew_when_the_measure_changes(
    run: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    exact, votes = (0.9, 0.1, 0.2, 0.3), (None, None, 0.4, 0.3)
    results = (
        {EXACT: share} | ({} if vote is None else {VOTED: vote})
        for share, vote in zip(exact, votes, strict=True)
    )
    monkeypatch.setattr("evaluation.measure.flatten", lambda _: next(results))
    own = ["keep_best=1", "checkpoint_interval=1"]
    before = run(*own, "max_steps=10").state(10)
    assert (before["measure"], before["best_score"], before["best_step"]) == (EXACT, 0.9, 4)
    files = run(*own)
    after = files.state(16)
    assert (after["measure"], after["best_score"], after["best_step"]) == (VOTED, 0.4, 12)
    assert {4, 12} <= set(files.steps)
    assert "arc/pass@2 0.4000 at step 12" in capsys.readouterr().out


def test_a_finished_run_stays_unchanged(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    first = run("max_steps=6").digest()
    for stop in (6, 5):
        assert run(f"max_steps={stop}").digest() == first
        assert "nothing to do: step 6 has reached max_steps" in capsys.readouterr().out
    first = run().digest()
    capsys.readouterr()
    again = run()
    assert (again.digest(), again.steps[-1]) == (first, 16)
    told = capsys.readouterr().out
    assert "training ended at step 16\nbest " in told
    assert f"saved    {again.folder}/step_16" in told


def test_checkpoint_and_log_settings_may_change_when_resuming(run: Any) -> None:
    whole = run(name="whole").digest()
    run("max_steps=5")
    own = ["checkpoint_interval=1", "checkpoint_every_eval=true", "keep_last=4", "keep_best=1"]
    assert run(*own, "log_interval=7", "diagnose_interval=50").digest() == whole


# Kills


def test_a_kill_in_an_evaluation_loses_nothing(run: Any) -> None:
    whole = run("checkpoint_interval=1000", name="whole")
    with patch.object(measure, "evaluate", side_effect=Killed), pytest.raises(Killed):
        run("checkpoint_interval=1000", name="killed")
    assert run("checkpoint_interval=1000", "max_steps=5", name="killed").steps == [4, 5]
    assert run("checkpoint_interval=1000", name="killed").digest() == whole.digest()


# Going back, and refused changes


def content(files: Any) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in files.folder.rglob("*") if path.is_file()}


def test_a_run_can_go_back_to_an_earlier_step(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    keep = ["checkpoint_interval=4", "keep_last=10"]
    whole = run(*keep)
    before = whole.digest()
    again = run(*keep, "resume=8")
    assert again.digest() == before
    assert again.steps == [4, 8, 12, 16]
    abandoned = {path.name for path in again.folder.glob("abandoned_*")}
    assert abandoned == {"abandoned_step_12", "abandoned_step_16", "abandoned_metrics.jsonl"}
    assert "resumed exactly from" in capsys.readouterr().out


def test_a_change_that_does_not_fit_leaves_the_folder_alone(run: Any) -> None:
    part = run("checkpoint_interval=1", "keep_last=3", "max_steps=3")
    before = content(part)
    told = r"step_1: optimizer state of unknown parameters: .* and \d+ more; .*load_checkpoint="
    with pytest.raises(CheckpointError, match=told):
        run("resume=1", "freeze_weights=true", "resume_changed=true")
    with pytest.raises(CheckpointError, match="optimizer=muon cannot go on from the state of adam"):
        run("resume=1", "optimizer=muon", "resume_changed=true")
    assert part.steps == [1, 2, 3]
    assert content(part) == before


def test_a_run_goes_on_with_an_optimizer_that_keeps_the_same_state(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("max_steps=2")
    assert run("optimizer.name=adamw", "max_steps=3", "resume_changed=true").steps[-1] == 3
    of_plugin = Part(
        OptimizerConfig, lambda: lambda _, groups, betas: SGD(groups, momentum=0.9, fused=True), ""
    )
    monkeypatch.setitem(OPTIMIZERS._parts, "theirs", of_plugin)
    run("optimizer.name=theirs", "max_steps=2", name="theirs")
    with pytest.raises(CheckpointError, match="=adam_atan2 cannot go on from the state of theirs"):
        run("resume_changed=true", name="theirs")


def test_muon_goes_on_with_the_matrices_that_it_updated(run: Any) -> None:
    muon, trunk = ("optimizer=muon", "resume_changed=true"), "optimizer.groups.trunk.params"
    run(*muon, "max_steps=2")
    same = run(*muon, f"{trunk}=['*H_level.*','*L_level.*']", "max_steps=3")
    assert same.steps[-1] == 3
    other = [f"{trunk}=['*L_level.*']"]
    other.append("optimizer.groups.rest.params=['*H_level.*','*_head.*','*.embed_*']")
    with pytest.raises(CheckpointError, match="=muon cannot go on from the state of muon"):
        run(*muon, *other)


def test_iterations_of_another_length_are_converted_or_refused(run: Any) -> None:
    assert run().steps[-1] == 16
    longer = ("epochs=32", "resume_changed=true")
    with pytest.raises(CheckpointError, match="4 times 4 epochs; eval_interval=4 goes on"):
        run(*longer, "eval_interval=32")
    assert run(*longer, "eval_interval=8").steps[-1] == 32


def test_another_batch_size_or_number_of_threads_is_reported(
    run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run("max_steps=3")
    run("max_steps=4", "num_threads=2")
    assert "resumed not bit for bit (num_threads: 1 -> 2)" in capsys.readouterr().out
    run("max_steps=5", "micro_batch_size=4")
    assert "micro_batch_size: None -> 4" in capsys.readouterr().out
    changed = run("global_batch_size=4", "ema=true", "resume_changed=true")
    assert "the saved carry belongs to another batch size" in capsys.readouterr().out
    assert changed.steps[-1] > 16


def test_a_new_average_starts_at_the_saved_weights(run: Any) -> None:
    run("max_steps=3")
    more = ("ema=true", "ema_rate=0.5", "keep_last=2", "resume_changed=true")
    files = run("max_steps=4", *more)
    old, new = (load_tensors(files.folder / f"step_{step}/{MODEL}") for step in (3, 4))
    average = load_tensors(files.folder / f"step_4/{EMA}")
    assert average
    for name, value in average.items():
        torch.testing.assert_close(value, (old[name] + new[name]) / 2)


def test_other_seeds_give_other_weights(run: Any) -> None:
    first, second = run("seed=1", name="a").digest(), run("seed=2", name="b").digest()
    assert not any(first[name] == second[name] for name in first if "." in name)
