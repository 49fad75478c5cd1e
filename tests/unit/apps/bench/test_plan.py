"""scripts/plan.py: what a run takes, beside what a run really takes."""

import copy
import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from apps.bench import plan
from apps.bench.plan import Plan, PlanSettings
from apps.bench.plan_tracing import Trace, trace
from dataset.format.schema import PuzzleDatasetMetadata
from dataset.kinds.base import kind_named
from models.operations import act_step_flop, train_step_flop
from runtime.accelerators import ACCELERATORS, Accelerator
from runtime.errors import ConfigError, DatasetError
from scripts import plan as plan_script
from training.config.composition import load_config
from training.config.schema import TrainConfig
from training.config.source import CONFIG_DIR
from training.data import data_facts

DATA = PuzzleDatasetMetadata(0, 0, 0, 11, 81, 7, 100, 1.0, ("all",))
TINY = (
    *("arch.hidden_size=32", "arch.num_heads=2", "arch.H_cycles=2", "arch.L_cycles=2"),
    *("global_batch_size=8", "epochs=80", "eval_interval=40", "lr_warmup_steps=2"),
)
TRM = ("arch=trm", "arch.mlp_t=true", "arch.pos_encodings=none", "arch.L_layers=1", *TINY)
HRM = ("arch=hrm_v1", "arch.H_layers=1", "arch.L_layers=1", *TINY)
MUON = ("optimizer=muon", "ema=true", "heads=[standard,halt]")
FACTS = ("data_path=nowhere", "seq_len=81", "vocab_size=11", "total_groups=100")


def config_of(*settings: str) -> TrainConfig:
    return load_config(TrainConfig, "cfg_pretrain", settings)


@functools.cache
def traced(*settings: str, rows: int = 8) -> Trace:
    return trace(config_of(*settings), DATA, "sudoku", rows, "cuda")


@functools.cache
def planned(*settings: str, **own: Any) -> Plan:
    names = ("seq_len", "vocab_size", "total_groups", "num_puzzle_identifiers")
    facts = {name: getattr(DATA, name) for name in names} | {"test_examples": 50}
    chosen = PlanSettings(**(facts | {"gpu": "h100"} | own))
    config = config_of("data_path=nowhere", *settings)
    return Plan(config, chosen, plan.accelerator(chosen))


# Memory


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        (TRM, 4),
        pytest.param(HRM, 16, marks=pytest.mark.slow),
        pytest.param((*TRM, *MUON), 16, marks=pytest.mark.slow),
    ],
)
def test_bytes_are_those_of_a_real_step(
    settings: tuple[str, ...], rows: int, step_on_cpu: Callable[..., Any]
) -> None:
    config = config_of(*settings)
    real, costs = step_on_cpu(config, DATA, rows), trace(config, DATA, "sudoku", rows, "cpu")
    assert sum(costs.parts.values()) == pytest.approx(real.kept, rel=0.01)
    more = max(costs.passes[2].max(), costs.update[2].max())
    assert more == pytest.approx(real.more, rel=0.15)


def test_bytes_are_known_by_their_part() -> None:
    costs = traced(*TRM, "ema=true")
    numbers, parts = costs.parameters, costs.parts
    assert parts["weights"] == pytest.approx(4 * numbers, rel=0.02)
    assert parts["EMA"] == 4 * numbers
    assert parts["optimizer"] == pytest.approx(8 * numbers, rel=0.01)
    assert parts["gradients"] == pytest.approx(4 * numbers, rel=0.01)
    assert parts["puzzle table"] == 4 * 32 * (DATA.num_puzzle_identifiers + 8)
    # Two latents [B, T, D] in bfloat16 and two boards of int32; T is 81 cells and 16 of the puzzle.
    assert parts["carry"] == pytest.approx(8 * (2 * 97 * 32 * 2 + 2 * 81 * 4), rel=0.01)


def test_a_gpu_computes_attention_in_one_kernel() -> None:
    fused, products = traced(*HRM), traced(*HRM, "arch.attention=math")
    scores = 8 * 2 * (81 + 1) ** 2 * 4  # [B, N, T, T] in float32.
    assert products.passes[2].max() > fused.passes[2].max() + scores
    # torch counts two and a half forwards for the fused backward: scores are computed again.
    more = fused.passes[0].sum() / products.passes[0].sum()
    assert 1 < more < 1.1


def test_a_bias_of_attention_is_traced() -> None:
    assert traced(*HRM, "arch.attention_bias=sudoku").passes[0].sum() > 0


@pytest.mark.parametrize("batch", [4, 1])
def test_costs_are_linear_in_the_rows(batch: int) -> None:
    own, sixteen = planned(*HRM, f"global_batch_size={batch}"), traced(*HRM, rows=16)
    foreseen = own.costs(16)
    assert foreseen.passes[2].max() == pytest.approx(sixteen.passes[2].max(), rel=0.01)
    assert foreseen.parts["carry"] == sixteen.parts["carry"]
    np.testing.assert_allclose(foreseen.passes[:2].sum(1), sixteen.passes[:2].sum(1), 0.01)


@pytest.mark.slow
def test_micro_batches_take_what_a_real_step_takes(step_on_cpu: Callable[..., Any]) -> None:
    config = config_of(*TRM, "micro_batch_size=2")
    real = step_on_cpu(config, DATA, 8)
    own = planned(*TRM, "micro_batch_size=2", f"arch.forward_dtype={real.dtype}")
    parts = own.memory(8, 2)
    assert parts["in all"] - parts["allocator's margin"] == pytest.approx(
        real.kept + real.more, rel=0.15
    )


def test_the_largest_batch_fits_and_one_more_row_does_not() -> None:
    own = planned(*TRM, gpu="l4")
    text = "\n".join(own.memory_lines())
    (most,) = re.findall(r"largest batch that fits: ([\d,]+) rows", text)
    most = int(most.replace(",", ""))
    takes, more = (own.memory(rows, rows)["in all"] for rows in (most, most + 1))
    assert takes <= own.gpu.memory < more
    assert "micro_batch_size is not needed" in text


# Operations and time


@pytest.mark.parametrize("settings", [TRM, HRM])
def test_operations_are_those_of_the_linear_layers_and_attention(settings: Any) -> None:
    config, costs = config_of(*settings), traced(*settings)
    facts = data_facts(DATA)
    for work, count in ((costs.passes, train_step_flop), (costs.evaluation, act_step_flop)):
        linear = count(config.arch, facts) * 8
        assert linear <= work[0].sum() <= 1.4 * linear
    assert costs.update[0].sum() == 0
    assert traced(*settings, "optimizer=muon").update[0].sum() > 0


def test_gradients_and_the_rows_of_the_puzzles_are_sent_between_gpus() -> None:
    own = planned(*TRM, link=1e-3)
    numbers = own.costs(8).parameters
    sent = (2 * 4 * numbers + 8 * (8 + 4 * 32)) * 3 / 4
    assert own.step(4)["all-reduce"][0] == pytest.approx(sent / 1e6 / 0.85, rel=0.01)
    assert own.step(1)["all-reduce"][0] == 0


def test_each_kernel_meets_one_limit() -> None:
    gpu = Accelerator("", "", 1e6, 0, 1e5, 1)
    kernels = np.array([[7e5, 0, 0], [6, 6e4, 1e-9], [0, 0, 0]])
    times = plan.seconds(kernels, gpu, False)
    assert times["products"] == pytest.approx([1, 1.75])
    assert times["memory"] == pytest.approx([6e4 / 85e3, 1])
    assert times["host"] == pytest.approx([0, 0])
    # Compiled: beside the product one kernel, which moves its 6 bytes.
    compiled = plan.seconds(kernels, gpu, True)
    assert compiled["memory"] == pytest.approx([6 / 85e3, 1])


def test_the_host_must_start_all_kernels() -> None:
    gpu, kernels = Accelerator("", "", 1e12, 0, 1e12, 1), np.array([[7e5, 0], [6, 6e4], [0, 0]])
    for compiled, fast in ((False, 2 * plan.EAGER), (True, plan.COMPILED)):
        times = plan.seconds(kernels, gpu, compiled)
        assert sum(times.values()) == pytest.approx([fast, 2 * plan.EAGER])
        assert times["host"].all()


def test_more_gpus_do_not_pay_when_kernels_are_too_small() -> None:
    table, last = planned(*TRM).growth_lines()[1:]
    assert re.search(r"  64 +0.125 ", table)
    assert last == "2 GPUs do not pay: efficiency is below a half, most of it is host"


def test_more_gpus_take_over_rows_but_not_the_update() -> None:
    slow = planned(*TRM, gpu="mine", peak=1.0, memory=80.0, bandwidth=0.01)
    one, eight = (slow.step(gpus) for gpus in (1, 8))
    assert one["memory"][0] > 3 * eight["memory"][0]
    assert one["update"] == pytest.approx(eight["update"], rel=0.02)


def test_an_uncompiled_run_has_a_kernel_for_each_operation() -> None:
    auto, never = (planned(*TRM, f"compile={each}").step(1) for each in ("auto", "false"))
    assert never["host"][0] > 2 * auto["host"][0]
    assert never["host"][1] == auto["host"][1]


def test_a_network_that_is_slower_than_the_link_is_used_between_machines() -> None:
    own = planned(*TRM, network=1.0)
    near, far = (own.step(gpus)["all-reduce"][0] for gpus in (8, 64))
    assert far > 1.5 * near


def test_evaluations_take_the_steps_that_the_architecture_takes_in_them() -> None:
    usual = planned(*TRM)
    struck = copy.copy(usual)
    struck.config = config_of("arch=lattice", "heads=lattice", "global_batch_size=8")
    once, often = (each.run(1)["evaluations"] for each in (struck, usual))
    assert often == pytest.approx(once * usual.config.arch.halt_max_steps)


@pytest.mark.parametrize(
    ("settings", "number"),
    [
        (["max_steps=500"], 0),
        (["max_steps=501"], 1),
        (["max_steps=1001"], 2),
        (["max_steps=500", "min_eval_interval=1"], 0),
    ],
)
def test_a_run_ends_before_the_evaluation_that_is_due_at_max_steps(
    settings: list[str], number: int
) -> None:
    assert planned(*TRM, *settings).evaluations == number


# Data


@pytest.mark.parametrize("file", sorted(CONFIG_DIR.glob("data/*.yaml")), ids=lambda f: f.stem)
def test_the_facts_of_known_data_are_those_of_its_comment(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # The data may be in the checkout.
    text = file.read_text()
    found, tests, source = plan.describe_data(config_of(f"data={file.stem}"), PlanSettings())
    assert f"data={file.stem}" in source
    builder = yaml.safe_load(text)["builder"]
    named = re.search(r"--kind (\w+)", builder.get("flags", ""))
    kind = kind_named(named[1] if named else builder["name"])
    assert kind.fits(found.seq_len, found.vocab_size)
    (counts,) = re.findall(r"#   counts +(.*)", text)
    told = [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]+", counts)]
    assert tests in told or round(tests, -3) in told
    if "about" not in counts:
        puzzles = found.num_puzzle_identifiers - 1
        examples = puzzles * found.mean_puzzle_examples if puzzles else found.total_groups
        assert any(abs(examples - number) < number * 1e-4 for number in told)


def test_a_folder_tells_its_own_facts() -> None:
    config = config_of("data_path=tests/parity/published_format/data")
    found, tests, _ = plan.describe_data(config, PlanSettings(mean_puzzle_examples=2.5))
    assert (found.seq_len, found.mean_puzzle_examples) == (16, 2.5)
    assert (found.num_puzzle_identifiers, tests) == (5, 10)


@pytest.mark.parametrize(
    ("limits", "of_two_sets", "of_one"),
    [
        (["eval_max_examples=3"], 6, 3),
        (["limit_eval_batches=2"], 20, 16),
        (["limit_eval_batches=1", "eval_max_examples=9"], 16, 8),
        (["limit_eval_batches=2", "eval_max_examples=9"], 18, 9),
    ],
)
def test_the_limits_of_an_evaluation_hold_for_each_set(
    limits: list[str], of_two_sets: int, of_one: int
) -> None:
    folder, size = "tests/parity/published_format/data", "eval_batch_size=8"
    config = config_of(f"data_paths=[{folder},{folder}]", size, *limits)
    assert plan.describe_data(config, PlanSettings())[1] == of_two_sets
    given = PlanSettings(seq_len=81, vocab_size=11, total_groups=100, test_examples=50)
    config = config_of("data_path=nowhere", size, *limits)
    assert plan.describe_data(config, given)[1] == of_one


def test_facts_that_nobody_tells_are_asked_for() -> None:
    settings = PlanSettings(seq_len=81)
    asked = r"nowhere: no such data folder; or describe it: vocab_size= total_groups=$"
    with pytest.raises(DatasetError, match=asked):
        plan.describe_data(config_of("data_path=nowhere"), settings)


@pytest.mark.parametrize("name", ["queens", "graph_colouring"])
def test_fields_of_data_that_are_not_here(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config, settings = config_of(f"experiment={name}"), PlanSettings(gpu="h100")
    assert Plan(config, settings, plan.accelerator(settings)).costs(8).passes[0].sum() > 0
    others = config_of(f"experiment={name}", "arch.techniques.nearest_answer.field=mine")
    with pytest.raises(DatasetError, match="it alone can tell the shape of mine"):
        plan.describe_data(others, settings)


# The command


def test_the_command_prints_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    plan.main([*TRM, *FACTS, "gpu=H100", "gpus=2", "test_examples=64"])
    out = capsys.readouterr().out
    for told in ("4 rows", "activations", "all-reduce", "GPU-hours", "not here", "990"):
        assert told in out
    assert "1,000 steps and 2 evaluations of 64 examples" in out


def test_the_help_names_every_gpu() -> None:
    assert ACCELERATORS.keys() <= set(re.findall(r"[\w-]+", str(plan_script.__doc__)))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["gpu=h10"], "gpu=h10: not in the table; did you mean gpu=h100?"),
        (["gpu=x", "peak=10"], "for another GPU add peak=TFLOP/s (dense bfloat16) and memory=GB"),
        (["gpu=h100", "gpus=0"], "gpus=0"),
        (["gpu=h100", "gpus=3"], "global_batch_size=8 must be a multiple of the number of ranks"),
        (["gpu=h100", "arch.L_cylces=3"], "did you mean arch.L_cycles?"),
        (["gpu=h100", "memory=1.01"], "with 1.01 GB; it fits with micro_batch_size=4"),
        (["gpu=h100", "memory=1.003"], "; micro_batch_size=1 still takes 1.01 GB"),
    ],
)
def test_a_wrong_setting_is_named(settings: list[str], told: str) -> None:
    with pytest.raises(ConfigError) as error:
        plan.main([*TRM, *FACTS, "global_batch_size=8", *settings])
    assert told in str(error.value)


def test_another_gpu_is_described_by_its_figures() -> None:
    settings = PlanSettings(gpu="mine", peak=100.0, memory=16.0, link=10.0)
    gpu = plan.accelerator(settings)
    assert gpu[:6] == ("mine", "", 1e14, 16e9, 5e11, 1e10)
    known = plan.accelerator(PlanSettings(gpu="RTX 4090", memory=48.0))
    assert known == ACCELERATORS["rtx4090"]._replace(memory=48e9)
