"""A run that was stopped, killed or moved back ends in the bits of one that was not."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from evaluation import in_training
from models.registry import build_model
from runtime import device
from runtime.errors import CheckpointError
from training.trainer import Trainer

Train = Callable[[Sequence[str]], None]

EXPLORES = "arch.halt_exploration_prob=0.5"
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
    "mixer": ["arch.mlp_t=true", "arch.gradient=last_cycle", "arch.puzzle_emb_ndim=0"],
}


def build_eager_model(config: Any, facts: Any) -> Any:
    """Build a model that wants to halt from the first step on, so that exploration decides."""
    model = build_model(config, facts)
    with torch.no_grad():
        model.model.inner.q_head.bias.copy_(torch.tensor([2.0, -2.0]))
    return model


@pytest.fixture(params=VARIANTS)
def settings(
    request: pytest.FixtureRequest,
    tiny_settings: list[str],
    tasks_data: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> list[str]:
    """Overrides of a short run of each variant."""
    # Slow without the hardware for it, but the same.
    monkeypatch.setattr(device, "cpu_has_bfloat16", lambda: True)
    monkeypatch.setattr("training.step.build_model", build_eager_model)
    own = VARIANTS[request.param]
    if "arch=transformer" in own:
        tiny_settings.remove("arch.L_layers=1")
    return [*tiny_settings, *(s.replace("=tasks", f"={tasks_data}") for s in own)]


@pytest.fixture
def runs(tiny_settings: list[str], train: Train, files_of: Any, tmp_path: Path) -> Any:
    """Train in a folder of its own; returns what is there afterwards."""

    def run(name: str, settings: Sequence[str] = (), *more: str) -> Any:
        train([*(settings or tiny_settings), f"checkpoint_path={tmp_path / name}", *more])
        return files_of(tmp_path / name)

    return run


class Killed(BaseException):
    """Stands for kill -9: nothing is saved on the way out."""


@pytest.fixture
def kill_before(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the trainer die before it takes a step."""
    train_step = Trainer._train_step

    def arm(step: int | None) -> None:
        def or_die(trainer: Trainer, batch: Any) -> None:
            if trainer.progress.step + 1 == step:
                raise Killed
            train_step(trainer, batch)

        monkeypatch.setattr(Trainer, "_train_step", or_die)

    return arm


# Stopping


def test_stops_anywhere_change_no_bit(runs: Any, settings: list[str]) -> None:
    whole = runs("whole", settings)
    last = whole.steps[-1]
    if EXPLORES in settings:
        assert len({record["train/count"] for record in whole.train_records}) > 3
    border = whole.eval_records[0]["step"]
    # The first step, before and behind an evaluation, in the middle, before the last evaluation.
    for stop in (1, 2, border, border + 1, last - 2, last):
        part = runs("parts", settings, f"max_steps={stop}")
        assert part.steps[-1] == stop
        assert [record["step"] for record in part.train_records] == [*range(1, stop + 1)]
    part = runs("parts", settings)
    assert part.digest() == whole.digest()
    assert part.leftovers() == []


@pytest.mark.slow
def test_a_stop_at_every_step_changes_no_bit(runs: Any, settings: list[str]) -> None:
    whole = runs("whole", settings)
    for stop in range(1, whole.steps[-1] + 1):
        runs("parts", settings, f"max_steps={stop}")
    assert runs("parts", settings).digest() == whole.digest()


def test_random_numbers_of_a_module_go_on_where_they_were(
    runs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_step = Trainer._train_step

    def with_noise(trainer: Trainer, batch: Any) -> None:
        with torch.no_grad():
            z_H = trainer.learner.carry.inner["z_H"]
            z_H.add_(torch.randn(z_H.shape))
        train_step(trainer, batch)

    monkeypatch.setattr(Trainer, "_train_step", with_noise)
    whole = runs("whole").digest()
    runs("parts", (), "max_steps=5")
    assert runs("parts").digest() == whole


def test_the_best_evaluation_so_far_is_remembered(
    runs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = iter([0.2, 0.9, 0.5, 0.7, 0.2, 0.9, 0.5, 0.7])
    monkeypatch.setattr(
        "evaluation.in_training.flatten", lambda results: {"eval/exact_accuracy": next(scores)}
    )
    whole = runs("whole", (), "keep_best=1")
    runs("parts", (), "keep_best=1", "max_steps=10")
    parts = runs("parts", (), "keep_best=1")
    assert parts.digest() == whole.digest()
    assert whole.state(16)["best_score"] == 0.9
    assert 8 in whole.steps
    assert 8 in parts.steps


def test_other_seeds_end_elsewhere(runs: Any) -> None:
    first, second = runs("a", (), "seed=1").digest(), runs("b", (), "seed=2").digest()
    assert {name for name in first if first[name] == second[name]} <= {
        "step",
        "iteration",
        "position",
        "best_score",
        "score",
        "diagnostics",
        "data_fingerprint",
    }


def test_a_stop_that_was_reached_is_not_passed_by_a_second_start(
    runs: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    first = runs("run", (), "max_steps=6").digest()
    capsys.readouterr()
    for stop in (6, 5):
        assert runs("run", (), f"max_steps={stop}").digest() == first
        assert "nothing to do: step 6 has reached max_steps" in capsys.readouterr().out


def test_a_finished_run_stays_as_it_is(runs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    first = runs("run")
    before = first.digest()
    capsys.readouterr()
    again = runs("run")
    assert again.digest() == before
    assert again.steps == [16]
    assert "training ended at step 16" in capsys.readouterr().out


def test_saves_between_change_no_bit(runs: Any) -> None:
    whole = runs("whole").digest()
    often = runs(
        "often", (), "checkpoint_interval=1", "log_interval=7", "checkpoint_every_eval=true"
    )
    assert often.digest() == whole


# Kills


def test_a_kill_after_an_evaluation_does_not_repeat_its_record(runs: Any, kill_before: Any) -> None:
    # The save of step 4 comes before the evaluation at step 4, which is not saved by itself.
    kill_before(6)
    with pytest.raises(Killed):
        runs("killed", (), "checkpoint_interval=4")
    kill_before(None)
    records = runs("killed", (), "checkpoint_interval=4").eval_records
    assert [record["step"] for record in records] == [4, 8, 12, 16]


def test_a_kill_in_an_evaluation_loses_nothing(runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = runs("whole", (), "checkpoint_interval=1000")
    with monkeypatch.context() as patch:

        def die(*arguments: Any, **options: Any) -> None:
            raise Killed

        patch.setattr(in_training, "evaluate", die)
        with pytest.raises(Killed):
            runs("killed", (), "checkpoint_interval=1000")
    assert runs("killed", (), "checkpoint_interval=1000", "max_steps=5").steps == [4, 5]
    assert runs("killed", (), "checkpoint_interval=1000").digest() == whole.digest()


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(
    runs: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = runs("whole", (), "checkpoint_interval=3").digest()
    part = runs("part", (), "checkpoint_interval=3", "max_steps=7")
    assert part.steps == [6, 7]
    carry = part.folder / "step_7" / "carry.safetensors"
    content = bytearray(carry.read_bytes())
    content[-1] ^= 1
    carry.write_bytes(content)
    capsys.readouterr()
    resumed = runs("part", (), "checkpoint_interval=3")
    out, err = capsys.readouterr()
    assert f"warning: skipping a damaged checkpoint: {carry}" in err
    assert "at step 6" in out
    assert (part.folder / "abandoned_step_7").is_dir()
    assert resumed.digest() == whole


# Going back, and refusals


def test_a_run_goes_back_to_a_step_asked_for(runs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    keep = ["checkpoint_interval=4", "keep_last=10"]
    whole = runs("run", (), *keep)
    before = whole.digest()
    again = runs("run", (), *keep, "resume=8")
    assert again.digest() == before
    assert again.steps == [4, 8, 12, 16]
    assert sorted(path.name for path in again.folder.glob("abandoned_*")) == [
        "abandoned_step_12",
        "abandoned_step_16",
    ]
    assert "resumed exactly from" in capsys.readouterr().out


def test_a_changed_setting_is_refused_before_anything_is_written(runs: Any, tmp_path: Path) -> None:
    part = runs("run", (), "max_steps=3")
    before = part.digest()
    config = (tmp_path / "run" / "config.yaml").read_bytes()
    with pytest.raises(CheckpointError, match=r"beta2: 0\.95 -> 0\.9; lr: 0\.01 -> 0\.02"):
        runs("run", (), "lr=0.02", "beta2=0.9")
    assert part.digest() == before
    assert (tmp_path / "run" / "config.yaml").read_bytes() == config


def test_a_change_that_is_wanted_is_trained_on(
    runs: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    runs("run", (), "max_steps=3")
    changed = runs("run", (), "lr=0.02", "resume_changed=true")
    assert (
        "warning: resuming a run with other settings: lr: 0.01 -> 0.02" in capsys.readouterr().err
    )
    rates = {record["step"]: record["train/lr"] for record in changed.train_records}
    assert (rates[3], rates[4]) == (pytest.approx(0.01), pytest.approx(0.02, rel=0.05))


def test_a_change_that_does_not_fit_leaves_the_folder_alone(runs: Any) -> None:
    part = runs("run", (), "checkpoint_interval=1", "keep_last=3", "max_steps=3")
    files = {path: path.read_bytes() for path in part.folder.rglob("*") if path.is_file()}
    with pytest.raises(CheckpointError, match="optimizer state of unknown parameters"):
        runs("run", (), "resume=1", "freeze_weights=true", "resume_changed=true")
    assert part.steps == [1, 2, 3]
    assert {path: path.read_bytes() for path in part.folder.rglob("*") if path.is_file()} == files


def test_another_batch_size_starts_new_puzzles(
    runs: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    runs("run", (), "max_steps=3")
    changed = runs("run", (), "global_batch_size=4", "resume_changed=true")
    assert "the saved carry belongs to another batch size" in capsys.readouterr().out
    assert changed.steps[-1] > 16


def test_settings_that_change_no_result_may_change(runs: Any) -> None:
    whole = runs("whole").digest()
    runs("run", (), "max_steps=5")
    neutral = ["log_interval=1", "checkpoint_interval=2", "keep_last=4", "keep_best=1"]
    neutral.append("diagnose_interval=50")
    resumed = runs("run", (), *neutral)
    assert resumed.digest() == whole


def test_another_number_of_threads_is_said(runs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    runs("run", (), "max_steps=3")
    capsys.readouterr()
    runs("run", (), "max_steps=4", "num_threads=2")
    assert "resumed not bit for bit (num_threads: 1 -> 2)" in capsys.readouterr().out
