"""Training on a GPU keeps its promises: equal bits, exact resume, NCCL, stops and refusals."""

import signal
from pathlib import Path
from typing import Any

import pytest

from runtime import device
from runtime.errors import NonFiniteError, Preempted

pytestmark = pytest.mark.gpu

VARIANTS = {
    "hrm bfloat16": ["data_path=tasks", "arch.forward_dtype=bfloat16"],
    "trm float32": [
        *("arch=trm", "arch.H_cycles=2", "arch.L_cycles=2", "arch.mlp_t=true"),
        *("arch.pos_encodings=none", "ema=true"),
    ],
    "reduction=exact": ["data_path=tasks", "reduction=exact", "arch.forward_dtype=bfloat16"],
    "compiled": ["compile=true"],
}


@pytest.fixture(autouse=True)
def _bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without the hardware for it the CPU is slow, but gives the same bits.
    monkeypatch.setattr(device, "cpu_has_bfloat16", lambda: True)


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS)
def settings(request: Any, tasks_data: Path) -> list[str]:
    return [setting.replace("=tasks", f"={tasks_data}") for setting in request.param]


def test_twice_and_in_two_parts_give_the_same_bits(run: Any, settings: list[str]) -> None:
    first = run(*settings, "max_steps=20", name="first")
    assert first.steps == [20]
    again = run(*settings, "max_steps=20", name="again")
    run(*settings, "max_steps=10", name="parts")
    parts = run(*settings, "max_steps=20", name="parts")
    assert again.digest() == first.digest()
    assert parts.digest(20) == first.digest()


@pytest.mark.parametrize("reduction", ["fast", "exact"])
def test_a_group_of_one_rank_gives_the_bits_of_a_single_process(
    run: Any,
    tiny_settings: list[str],
    start_ranks: Any,
    files_of: Any,
    tmp_path: Path,
    reduction: str,
) -> None:
    own = [f"reduction={reduction}", "max_steps=8"]
    alone = run(*own, name="alone")
    command = ["pretrain.py", *tiny_settings, *own, f"checkpoint_path={tmp_path / 'group'}"]
    (process,) = start_ranks(command)
    _, err = process.communicate(timeout=50)
    assert process.returncode == 0, err
    assert files_of(tmp_path / "group").digest() == alone.digest()


def test_compiled_and_eager_train_alike(run: Any) -> None:
    told = []
    for form in ("true", "false"):
        records = run(f"compile={form}", "max_steps=4", name=form).train_records
        norms = [value for key, value in records[0].items() if "grad_norm" in key]
        assert norms
        told.append([record["train/lm_loss"] for record in records] + norms)
    assert told[0] == pytest.approx(told[1], rel=1e-3)


def test_a_number_that_is_not_finite_stops_before_it_is_saved(
    run: Any, files_of: Any, tmp_path: Path
) -> None:
    with pytest.raises(NonFiniteError, match="not finite"):
        run("lr=1e38", name="broken")
    assert files_of(tmp_path / "broken").steps == []


def test_a_signal_saves_and_the_run_goes_on_to_the_same_bits(
    run: Any, files_of: Any, tmp_path: Path, signal_at: Any
) -> None:
    whole = run(name="whole")
    signal_at(6, signal.SIGTERM)
    with pytest.raises(Preempted, match="the same command resumes the run"):
        run(name="stopped")
    # The host notices at most two steps later, when the device has made them.
    assert files_of(tmp_path / "stopped").steps[-1] in (6, 7, 8)
    signal_at(0)
    assert run(name="stopped").digest() == whole.digest()
