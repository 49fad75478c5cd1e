"""on_nonfinite=skip: a run goes on after steps that are not finite, and resumes exactly."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from runtime.errors import NonFiniteError
from training.step import Learner

SKIP = ("on_nonfinite=skip", "max_nonfinite=3", "keep_last=9", "ema=true")
SKIP += ("arch.halt_exploration_prob=1.0",)


@pytest.fixture
def strike(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that puts a NaN into the carry of two rows before the given steps."""
    step = Learner.step

    def strike_at(*numbers: int) -> None:
        def struck(learner: Learner, number: int, *rest: Any) -> None:
            if number in numbers:
                learner.carry.halted[2:4] = False
                learner.carry.inner["z_L"][2:4, 1] = torch.nan
            step(learner, number, *rest)

        monkeypatch.setattr(Learner, "step", struck)

    return strike_at


def test_a_run_goes_on_and_resumes_between_the_steps(
    run: Any, files: Any, strike: Callable[..., None]
) -> None:
    strike(6, 7, 10, 16)
    whole = run(*SKIP, name="whole")
    counts = [record["train/nonfinite"] for record in whole.train_records]
    assert {n: count for n, count in enumerate(counts, 1) if count} == {6: 1, 7: 2, 10: 1, 16: 1}
    assert whole.train_records[5]["train/lm_loss"] == "nan"
    for step in (6, 7, 9):
        assert run(*SKIP, f"max_steps={step}").steps[-1] == step
    assert [files.state(step)["nonfinite"] for step in (6, 7, 9)] == [1, 2, 0]
    assert run(*SKIP).digest() == whole.digest()


def test_steps_before_and_after_a_stop_count_together(
    run: Any, files: Any, strike: Callable[..., None]
) -> None:
    strike(6, 7, 8)
    run(*SKIP, "max_steps=7")
    with pytest.raises(NonFiniteError, match=r"step 8: .* \(3 in a row\)"):
        run(*SKIP)
    assert files.steps == [7]
    assert files.state(7)["nonfinite"] == 2
    # More steps may be wanted after the stop: the setting changes no step that was made.
    assert run(*SKIP, "max_nonfinite=4").steps[-1] == 16


def test_stop_is_the_default(run: Any, files: Any, strike: Callable[..., None]) -> None:
    strike(6)
    with pytest.raises(NonFiniteError, match=r"step 6: the loss \(nan\) or a gradient is not fini"):
        run("checkpoint_interval=5")
    assert files.steps == [4, 5]
    assert "train/nonfinite" not in files.train_records[0]
    # A run that has stopped can go on.
    assert run("checkpoint_interval=5", "on_nonfinite=skip").steps[-1] == 16
