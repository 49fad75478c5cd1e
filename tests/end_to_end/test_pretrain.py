"""Training runs: the files they write and keep, and the errors that stop them."""

import math
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from models import act
from models.act import ACTLossHead, min_halt_steps
from runtime import progress
from runtime.errors import CheckpointError, ConfigError, NonFiniteError
from runtime.streams import Address
from training.checkpoint import store as checkpoint_module
from training.checkpoint.tensors import load_tensors, model_tensors, optimizer_tensors
from training.config.schema import TrainConfig
from training.optim.groups import lr_factor
from training.speed import Speed
from training.tracking import WandbLog
from training.trainer import Trainer

# Records


def test_every_step_has_a_record(run: Any) -> None:
    # 16 steps in blocks of 5: the last block is not full.
    records = run("log_interval=5", "arch.halt_exploration_prob=0.5").train_records
    assert [record["step"] for record in records] == list(range(1, 17))
    names = ["lr", "lr/all", "grad_norm/all", "count", "lm_loss", "q_halt_loss", "q_continue_loss"]
    always = {"step", *(f"train/{name}" for name in names)}
    counted = {f"train/{n}" for n in ("accuracy", "exact_accuracy", "q_halt_accuracy", "steps")}
    for record in records:
        assert record.keys() == (always | counted if record["train/count"] else always)
        assert all(math.isfinite(value) for value in record.values())
    counts = [record["train/count"] for record in records]
    assert 0 in counts
    assert max(counts) > 0
    (record,) = run("max_steps=1", "arch.no_ACT_continue=true", name="halting").train_records
    assert "train/q_continue_loss" not in record


def test_every_block_has_its_speed_and_memory(
    run: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.speed._SETTLED_SECONDS", 0.0)
    files = run("log_interval=3", "max_steps=10")
    # A block ends with an evaluation, and the second one after 3 steps.
    timed = {r["step"]: r for r in files.all_records if "memory/process_gib" in r}
    assert list(timed) == [3, 4, 7, 8, 10]
    names = ("examples_per_second", "ms_per_step", "step_ms", "gflop_per_second", "share_of_peak")
    assert all(one[f"speed/{name}"] > 0 for one in timed.values() for name in names)
    assert timed[7]["speed/evaluating_ms"] > 0
    assert "speed/evaluating_ms" not in timed[8]
    words = capsys.readouterr().out.split("stopped at max_steps=10")[1].splitlines()
    starts = ["time", "speed", "best", "saved", "measure", "watch", "report"]
    assert [line.split()[0] for line in words[1:]] == starts


def test_the_start_is_not_counted_as_waiting_for_data(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    laps, lap = list[str](), Speed.lap

    def noting(speed: Speed, part: Any) -> None:
        laps.append(part)
        lap(speed, part)

    monkeypatch.setattr(Speed, "lap", noting)
    run("max_steps=1")
    assert laps[:3] == ["starting", "data", "starting"]


def test_rates_follow_the_schedule(run: Any) -> None:
    own = ["optimizer=grouped", "optimizer.groups.q_head.lr=0.5"]
    for record in run(*own).train_records:
        factor = lr_factor(record["step"], warmup_steps=3, total_steps=16, min_ratio=0.1)
        assert record["train/lr"] == 1e-2 * factor
        assert record["train/lr/q_head"] == 0.5 * factor
        assert record["train/lr/trunk"] == 1e-2 * factor
        assert record["train/grad_norm/trunk"] >= 0


@pytest.mark.parametrize(
    ("at_terminal", "parts"),
    [
        (True, ["| 16/16", "loss=", "exact=", "ex/s="]),
        (False, ["\ntraining: 16 of 16 steps (100 %)", " left, loss=", ", ms/step=", ", act="]),
    ],
)
def test_every_iteration_is_evaluated(
    run: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    at_terminal: bool,
    parts: list[str],
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: at_terminal)
    monkeypatch.setattr(progress, "_LINE_SECONDS", 0.0)
    records = run().eval_records
    assert [record["step"] for record in records] == [4, 8, 12, 16]
    for record in records:
        assert record["eval/count"] == 10
        assert record["eval/steps"] == 3
        assert 0 <= record["eval/exact_accuracy"] <= record["eval/accuracy"] <= 1
    told = capsys.readouterr().err
    assert [part for part in parts if part not in told] == [], told


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        (["eval_interval=null"], [16]),
        (["min_eval_interval=2"], [12, 16]),
        (["min_eval_interval=99"], [16]),
        (["eval_max_examples=3", "eval_batch_size=2", "eval_interval=8"], [8, 16]),
    ],
)
def test_evaluations_come_when_asked_for(run: Any, settings: list[str], steps: list[int]) -> None:
    records = run(*settings).eval_records
    assert [record["step"] for record in records] == steps
    assert {record["eval/count"] for record in records} <= {3, 10}


def test_the_size_of_evaluation_batches_changes_no_figure(run: Any) -> None:
    runs = [run(f"eval_batch_size={n}", "epochs=4", name=f"by_{n}") for n in (1, 3, 10, 64)]
    (first,), *others = [files.eval_records for files in runs]
    for (record,) in others:
        assert record == pytest.approx(first, rel=1e-5)


def test_without_a_test_split_there_are_no_evaluations(
    run: Any, sudoku_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(sudoku_data / "train", tmp_path / "data" / "train")
    files = run(f"data_path={tmp_path / 'data'}")
    assert files.eval_records == []
    assert files.steps == [16]
    assert "there is no test split" in capsys.readouterr().err


def test_settings_and_outputs_of_evaluations_are_saved(run: Any) -> None:
    folder = run("eval_save_outputs=[preds,q_halt_logits]", "eval_interval=8").folder
    for outputs in (folder / "eval_step_8", folder / "eval_step_16"):
        names = {"all__preds.npy", "all__q_halt_logits.npy"}
        assert {path.name for path in outputs.iterdir()} == names
        assert np.load(outputs / "all__preds.npy").shape == (10, 16)
    saved = TrainConfig.model_validate(yaml.safe_load((folder / "config.yaml").read_text()))
    assert (saved.lr, saved.run_name, saved.arch.puzzle_emb_ndim) == (1e-2, "run", 32)


def test_outputs_that_cannot_be_written_are_no_wrong_setting(run: Any, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "eval_step_4").touch()
    told = "cannot write the files of an evaluation: .*/eval_step_4: File exists"
    with pytest.raises(CheckpointError, match=told):
        run("eval_save_outputs=[preds]")


def test_a_run_prints_its_folder(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    own = ["checkpoint_path=null", "project_name=p", "max_steps=1"]
    run(*own)
    (folder,) = (tmp_path / "checkpoints" / "p").iterdir()
    assert f"run folder: checkpoints/p/{folder.name}\n" in capsys.readouterr().out
    assert (folder / "step_1").is_dir()
    run(*own)
    assert len(list((tmp_path / "checkpoints" / "p").iterdir())) == 2


def test_exploration_draws_anew_at_every_step(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, used = [], []

    def noting(at: Address, *options: Any) -> np.ndarray:
        drawn.append((at.seed, at.step, at.num_rows, *options))
        used.append(min_halt_steps(at, *options).tolist())
        return min_halt_steps(at, *options)

    monkeypatch.setattr(act, "min_halt_steps", noting)
    run("arch.halt_exploration_prob=0.5", "seed=3")
    assert drawn == [(3, step, 8, 0.5, 3) for step in range(16)]
    assert len(set(map(tuple, used))) > 8


# Checkpoints


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ([], [16]),
        (["checkpoint_interval=3"], [15, 16]),
        (["checkpoint_interval=3", "keep_last=3"], [12, 15, 16]),
        (["checkpoint_every_eval=true"], [4, 8, 12, 16]),
        (["checkpoint_every_eval=true", "checkpoint_interval=5"], [4, 8, 12, 15, 16]),
        (["checkpoint_every_eval=true", "min_eval_interval=2"], [12, 16]),
        (["max_steps=6"], [6]),
    ],
)
def test_checkpoints_are_kept_as_asked(run: Any, settings: list[str], kept: list[int]) -> None:
    files = run(*settings)
    assert files.steps == kept
    for step in kept:
        assert checkpoint_module.load_checkpoint(files.folder / f"step_{step}").step == step


def test_the_best_evaluations_are_kept(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    results = iter({"eval/exact_accuracy": s} for s in (0.1, 0.7, 0.3, 0.9, 0.2, 0.5, 0.6, 0.4))
    monkeypatch.setattr("evaluation.measure.flatten", lambda _: next(results))
    files = run("keep_best=2", "eval_interval=2", "checkpoint_interval=1")
    assert files.steps == [4, 8, 15, 16]
    assert [files.state(step)["score"] for step in files.steps] == [0.7, 0.9, None, 0.4]
    assert files.state(16)["best_score"] == 0.9
    results = iter({"eval/exact_accuracy": s} for s in (0.1, 0.9, 0.8, 0.7, 0.2, 0.5, 0.6, 0.4))
    assert run("keep_best=2", "eval_interval=2", name="falling").steps == [4, 6, 14, 16]


# Starts


def test_start_weights_are_trained_on_and_not_needed_again(run: Any, tmp_path: Path) -> None:
    start = load_tensors(run("max_steps=2", name="old").folder / "step_2" / "model.safetensors")
    frozen = ["lr=0", "puzzle_emb_lr=0", "max_steps=1"]
    for source in (tmp_path / "old", tmp_path / "old" / "step_2"):
        own = [*frozen, f"load_checkpoint={source}"]
        files = run(*own, name=source.name + "_next")
        found = load_tensors(files.folder / "step_1" / "model.safetensors")
        assert start.keys() == found.keys()
        assert all(torch.equal(start[name], found[name]) for name in start)
        assert files.state(1)["step"] == 1
    shutil.rmtree(tmp_path / "old")
    assert run(*own, "max_steps=null", name="step_2_next").steps[-1] == 16


@pytest.mark.parametrize(
    "settings",
    [
        ["arch=mixer", "arch.forward_dtype=float32"],
        ["arch=mixer", "arch.forward_dtype=float32", "arch.attention=fa2"],  # It has no attention.
        ["arch.puzzle_emb_ndim=40"],
        ["arch.puzzle_emb_ndim=0", "arch.pos_encodings=none"],
        ["arch.halt_max_steps=1"],
        ["optimizer=grouped", "optimizer.name=adam_atan2"],
    ],
)
def test_architectures_and_optimizers_train(run: Any, settings: list[str]) -> None:
    records = run("max_steps=4", *settings).train_records
    assert len(records) == 4
    assert records[-1]["train/lm_loss"] < records[0]["train/lm_loss"]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("arch.attention=fa2", "arch.attention=fa2 needs .*pip install flash-attn"),
        ("arch.forward_dtype=float16", "arch.forward_dtype=float16"),
    ],
)
def test_settings_that_this_machine_cannot_run_are_refused(
    run: Any, setting: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run(setting)


# Numbers that are not finite


def everything(trainer: Trainer) -> dict[str, bytes]:
    """Return every byte that an update may change."""
    learner = trainer.learner
    tensors = model_tensors(learner.model) | optimizer_tensors(learner.optimizer, learner.groups)
    return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}


def poison_loss(trainer: Trainer) -> None:
    forward = trainer.learner.forward

    def poisoned(*arguments: Any) -> Any:
        output = forward(*arguments)
        return output._replace(loss=output.loss * math.nan)

    trainer.learner.forward = poisoned


def poison_gradient(trainer: Trainer) -> None:
    parameter = next(iter(trainer.learner.groups[-1].params.values()))
    parameter.register_hook(lambda grad: grad / 0.0)


def poison_puzzle_gradient(trainer: Trainer) -> None:
    embedding = trainer.learner.model.puzzle_embedding
    assert embedding is not None
    last = torch.tensor([embedding.local_weights.shape[0] - 1])
    embedding.local_weights.register_hook(lambda grad: grad.index_fill(0, last, math.nan))


def poison_carry(trainer: Trainer) -> None:
    trainer.learner.carry.halted.zero_()
    trainer.learner.carry.inner["z_H"][3, 2, 1] = math.inf


POISONS = [poison_loss, poison_gradient, poison_puzzle_gradient, poison_carry]


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("optimizer", ["adam_atan2", "grouped"])
def test_nothing_is_updated_from_what_is_not_finite(
    run: Any,
    files: Any,
    tasks_data: Path,
    monkeypatch: pytest.MonkeyPatch,
    poison: Callable[[Trainer], None],
    optimizer: str,
) -> None:
    train_step, before = Trainer._train_step, []

    def poisoned(trainer: Trainer, batch: Any) -> None:
        if trainer.progress.step + 1 == 7:
            before.extend([trainer, everything(trainer)])
            poison(trainer)
        train_step(trainer, batch)

    monkeypatch.setattr(Trainer, "_train_step", poisoned)
    own = [f"data_path={tasks_data}", f"optimizer={optimizer}", "checkpoint_interval=3"]
    with pytest.raises(NonFiniteError, match="step 7: the loss .* or a gradient is not finite"):
        run(*own)
    trainer, values = before
    assert everything(trainer) == values
    assert files.steps == [5, 6]
    assert files.leftovers() == []
    # The records before the fault are written.
    assert [record["step"] for record in files.train_records] == list(range(1, 8))
    # A save that is asked for fails too.
    trainer.learner.outcomes.add(8, torch.tensor(1.0), torch.tensor(True), torch.tensor(False))
    with pytest.raises(NonFiniteError):
        trainer.save()

    monkeypatch.setattr(Trainer, "_train_step", train_step)
    assert run(*own).steps[-1] > 7


# Other loggers


def test_a_resumed_run_goes_on_in_the_same_wandb_run(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []

    class Recorded(WandbLog):
        def _open(self) -> None:
            given.append(self.run_id)
            self.run_id, self._is_open = self.run_id or "made-up", False

    monkeypatch.setattr("training.tracking.WandbLog", Recorded)
    assert run("logger.name=wandb", "max_steps=3").state(3)["wandb_id"] == "made-up"
    run("logger.name=wandb")
    assert given == [None, "made-up"]


@pytest.mark.slow
def test_an_offline_run_of_wandb_lies_in_the_folder(
    run_python: Callable[..., Any], tiny_settings: list[str], files_of: Any, tmp_path: Path
) -> None:
    pytest.importorskip("wandb")
    own = ["logger.name=wandb", "logger.mode=offline", "project_name=p"]
    finished = run_python("pretrain.py", *tiny_settings, *own)
    assert finished.code == 0, finished.err
    assert "warning" not in finished.err
    files = files_of(tmp_path / "run")
    assert len(files.train_records) == 16
    (synced_later,) = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    assert synced_later.stem == f"run-{files.state(16)['wandb_id']}"
    content = synced_later.read_bytes()
    assert b"train/lm_loss" in content
    assert b"eval/exact_accuracy" in content


# Use of the model


def test_the_model_trains_in_training_mode_and_is_measured_in_the_other(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    forward = ACTLossHead.forward

    def noting(model: ACTLossHead, *arguments: Any, **how: Any) -> Any:
        seen.append((model.training, torch.is_grad_enabled()))
        return forward(model, *arguments, **how)

    monkeypatch.setattr(ACTLossHead, "forward", noting)
    run("epochs=4")
    # 4 training steps, then 10 puzzles in 2 batches of 3 ACT steps.
    assert seen == [(True, True)] * 4 + [(False, False)] * 6
