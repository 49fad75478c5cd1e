"""DEC: the recurrence that treats all digits alike."""

import math
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from apps.dec.config import DECConfig
from apps.dec.model import DigitBlock, UnitMeans
from models.config import DataFacts
from models.draws import ROW_KEYS
from models.heads.base import Examples
from models.registry import build_model
from models.techniques.anchors import Anchors
from runtime.errors import ConfigError
from tests.unit.models.tiny import inner_of, shaken, sudoku_examples, sudoku_facts

SMALL: Any = {"hidden_size": 8, "num_heads": 2, "expansion": 2.0, "H_cycles": 2, "L_cycles": 2}
SMALL |= {"L_layers": 2, "halt_max_steps": 3, "forward_dtype": "float64"}
VARIANTS: dict[str, Any] = {
    "mlp": {},
    "units": {"units": True},
    "learned positions": {"units": True, "pos_encodings": "learned"},
}
SIZES = [4, 6, 9]


def model_of(size: int = 4, **settings: Any) -> Any:
    return shaken(DECConfig(**SMALL | settings), sudoku_facts(size))


def after_two_steps(model: Any, examples: Examples) -> dict[str, Tensor]:
    carry = model.initial_carry(examples)
    for _ in range(2):
        output = model(carry, examples)
        carry = output.carry
    return output.outputs | carry.inner


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_permuted_digits_permute_the_answer(size: int, variant: str) -> None:
    model = model_of(size, **VARIANTS[variant]).eval()
    order = torch.randperm(size, generator=torch.Generator().manual_seed(1))
    tokens = torch.cat((torch.arange(2), order + 2)).int()
    examples = sudoku_examples(size)
    renamed = {name: examples[name] for name in ("puzzle_identifiers",)}
    renamed |= {name: tokens[examples[name].long()] for name in ("inputs", "labels")}

    plain, permuted = after_two_steps(model, examples), after_two_steps(model, renamed)
    moved = permuted["logits"][..., tokens.long()]
    torch.testing.assert_close(moved, plain["logits"], rtol=0, atol=1e-10)
    torch.testing.assert_close(
        permuted["q_halt_logits"], plain["q_halt_logits"], rtol=0, atol=1e-10
    )
    assert (plain["logits"].argmax(-1) >= 2).all()
    spread = plain["logits"][..., 2:]
    assert (spread.amax(-1) - spread.amin(-1)).min() > 1e-4


@pytest.mark.parametrize("move", ["rows of a band", "bands", "rows and columns"])
def test_units_have_the_symmetries_of_the_grid(move: str) -> None:
    cells = torch.arange(81).view(9, 9)
    order = {
        "rows of a band": cells[[1, 0, *range(2, 9)]],
        "bands": cells[[*range(3, 9), 0, 1, 2]],
        "rows and columns": cells.T,
    }[move].flatten()
    examples = sudoku_examples(9)
    moved = {name: examples[name][:, order] for name in ("inputs", "labels")}
    moved["puzzle_identifiers"] = examples["puzzle_identifiers"]
    model = model_of(9, units=True).eval()
    plain, found = after_two_steps(model, examples), after_two_steps(model, moved)
    assert not plain["logits"].equal(plain["logits"][:, order])
    torch.testing.assert_close(found["logits"], plain["logits"][:, order], rtol=0, atol=1e-10)


@pytest.mark.parametrize("variant", ["mlp", "units"])
def test_a_block_is_what_it_says(variant: str) -> None:
    """Compute a block with loops over rows, digits and cells."""
    N, D = 4, 8
    config = DECConfig(**SMALL | VARIANTS[variant] | {"pos_encodings": "none"})
    torch.manual_seed(0)
    block: Any = DigitBlock(config, N * N).double()
    x = torch.randn(2 * N, N * N, D, dtype=torch.float64)

    def norm(value: Tensor, dim: int = -1) -> Tensor:
        return value / (value.square().mean(dim, keepdim=True) + config.rms_norm_eps).sqrt()

    y = x.view(2, N, N * N, D).clone()
    if variant == "mlp":
        for b in range(2):
            for n in range(N):
                y[b, n] = norm(y[b, n] + block.mlp_t(y[b, n]), 0)
    else:
        change = torch.zeros_like(y)
        for cell in range(N * N):
            row, column = divmod(cell, N)
            seen = [divmod(other, N) for other in range(N * N)]
            in_row, in_column = [r == row for r, _ in seen], [c == column for _, c in seen]
            in_box = [(r // 2, c // 2) == (row // 2, column // 2) for r, c in seen]
            units = [("line", in_row), ("line", in_column), ("box", in_box)]
            for line in (in_row, in_column):
                units.append(("part", [a and b for a, b in zip(line, in_box, strict=True)]))
            change[:, :, cell] = block.units.cell(y[:, :, cell])
            for name, inside in units:
                mean = y[:, :, torch.tensor(inside)].mean(2)
                change[:, :, cell] += getattr(block.units, name)(mean)
        y = norm(y + change)
    others = torch.stack([y[:, [m for m in range(N) if m != n]].mean(1) for n in range(N)], 1)
    y = norm(y + block.digits.proj(others))
    y = norm(y + block.mlp(y))
    torch.testing.assert_close(block(x, None), y.flatten(0, 1), rtol=1e-10, atol=1e-10)


def test_boxes_of_six_by_six_have_two_rows_and_three_columns() -> None:
    units = UnitMeans(1, 36).double()
    with torch.no_grad():
        for name, linear in units.named_children():
            linear.weight.fill_(1.0 if name == "box" else 0.0)
    x = torch.zeros(36, 1, 1, dtype=torch.float64)
    x[2 * 6 + 3] = 6.0
    reached = units(x).view(6, 6).nonzero().tolist()
    assert reached == [[row, column] for row in (2, 3) for column in (3, 4, 5)]


def test_inner_widths_are_not_rounded_up_to_256() -> None:
    block: Any = DigitBlock(DECConfig(hidden_size=32, cell_expansion=1.0), 81)
    assert block.mlp.down_proj.weight.shape == (32, 88)
    assert block.mlp_t.down_proj.weight.shape == (81, 56)


def test_the_default_has_the_size_of_its_source() -> None:
    model = build_model(DECConfig(), sudoku_facts(9))
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == pytest.approx(0.79e6, rel=0.05)


@pytest.mark.parametrize("units", [False, True])
def test_every_parameter_learns(units: bool) -> None:
    model, examples = model_of(units=units).train(), sudoku_examples(4)
    output = model(model.initial_carry(examples), examples)
    output.loss.backward()
    # Q's second row has no loss.
    assert all(parameter.grad.any() for parameter in model.parameters())
    assert math.isfinite(output.loss.item())


def test_in_an_evaluation_the_draws_of_a_puzzle_ignore_its_batch() -> None:
    model, examples = (
        model_of(techniques={"random_starts": {}, "damped_noise": {"noise": 0.1}}).eval(),
        sudoku_examples(4),
    )
    examples |= {ROW_KEYS: torch.tensor([7, 8, 9])}
    alone = {name: value[1:2] for name, value in examples.items()}
    together, single = after_two_steps(model, examples), after_two_steps(model, alone)
    torch.testing.assert_close(together["logits"][1:2], single["logits"])


def test_an_anchored_puzzle_starts_at_its_solution() -> None:
    inner, examples = inner_of(model_of()), sudoku_examples(4)
    cells = torch.arange(16, dtype=torch.int32).expand(3, -1)
    new = torch.tensor([True, True, False])
    drawn = {"anchors": cells}
    start = Anchors().begun(inner, new, new.int(), inner.empty_carry(3), examples, drawn)["z_H"]
    solved = inner.embed_puzzle(examples["labels"], examples["puzzle_identifiers"]).view_as(start)
    assert torch.equal(start[:2], solved[:2])
    assert not start[2].any()


def test_only_digits_are_predicted_in_any_dtype() -> None:
    for dtype in ("bfloat16", "float16", "float32"):
        model = build_model(DECConfig(**SMALL | {"forward_dtype": dtype}), sudoku_facts(4)).eval()
        examples = sudoku_examples(4)
        output = model(model.initial_carry(examples), examples)
        probabilities = model.log_probs(output.outputs["logits"]).exp()
        assert probabilities[..., :2].max() < 1e-6
        torch.testing.assert_close(probabilities.sum(-1), torch.ones(3, 16))
        assert output.loss.isfinite()


@pytest.mark.parametrize(
    "facts",
    [
        DataFacts(6, 900, 1),
        DataFacts(12, 81, 1),
        DataFacts(5, 9, 1),
        DataFacts(6, 16, 1, kind="maze"),
    ],
)
def test_other_data_are_refused(facts: DataFacts) -> None:
    with pytest.raises(ConfigError, match="arch.name=dec is for Sudoku") as caught:
        build_model(DECConfig(**SMALL), facts)
    assert f"{facts.seq_len} cells and {facts.vocab_size} tokens" in str(caught.value)


def test_the_kind_of_data_that_have_no_boxes_is_named() -> None:
    for kind in ("latin_square", "sudoku_x"):
        told = rf"81 cells and 11 tokens \(kind {kind}\); arch.boxes=false arch.units=true reads"
        with pytest.raises(ConfigError, match=told):
            DECConfig(**SMALL).require_data(DataFacts(11, 81, 1, kind=kind))
    with pytest.raises(ConfigError, match=r"81 cells and 11 tokens \(kind kenken\)$"):
        DECConfig(**SMALL).require_data(DataFacts(11, 81, 1, kind="kenken"))


def test_without_boxes_the_data_must_be_latin_squares(monkeypatch: pytest.MonkeyPatch) -> None:
    config = DECConfig(**SMALL, units=True, boxes=False)
    for kind in (None, "latin_square", "sudoku_x"):
        config.require_data(DataFacts(9, 49, 1, kind=kind))
    for kind in ("light_up", "futoshiki", "colouring", "of_a_plugin"):
        with pytest.raises(ConfigError, match=rf"49 cells and 9 tokens \(kind {kind}\)"):
            config.require_data(DataFacts(9, 49, 1, kind=kind))
    monkeypatch.setattr("apps.dec.config.LATIN_KINDS", {"of_a_plugin"})
    config.require_data(DataFacts(9, 49, 1, kind="of_a_plugin"))


@pytest.mark.parametrize("units", [False, True])
def test_the_settings_of_attention_may_have_any_value(units: bool) -> None:
    assert not DECConfig(**SMALL | {"num_heads": 3}, units=units).has_attention


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"heads": {"lm": {"name": "tied"}}}, "heads.lm.name=linear"),
        ({"loss": {"label_smoothing": 0.1}}, "predicts digits only"),
        ({"puzzle_emb_ndim": 16}, "puzzle_emb_ndim=16 has no meaning with name=dec; use 0"),
        ({"puzzle_emb_len": 5}, "puzzle_emb_len=5 has no meaning with name=dec; use 0"),
        ({"mlp_t": False}, "no attention; use mlp_t=true or units=true"),
        (
            {"units": True, "mlp_t": False, "attention_bias": "sudoku"},
            "attention_bias=sudoku has no meaning with name=dec; use none",
        ),
    ],
)
def test_settings_that_tell_digits_apart_are_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        DECConfig(**SMALL | settings)


def test_auxiliary_heads_treat_digits_alike() -> None:
    heads = {"confidence": {}, "halt": {}}
    model, examples = model_of(heads=heads), sudoku_examples(4)
    names = {"confidence_logits", "halt_logits"}
    outputs = after_two_steps(model.eval(), examples)
    assert names <= outputs.keys()
    swap = torch.tensor([0, 1, 3, 2, 4, 5], dtype=torch.int32)
    renamed = examples | {name: swap[examples[name].long()] for name in ("inputs", "labels")}
    again = after_two_steps(model, renamed)
    for name in names:
        torch.testing.assert_close(again[name], outputs[name], rtol=0, atol=1e-10)


def test_q_continue_is_taught_by_what_q_reads() -> None:
    act = model_of(units=True, no_ACT_continue=False).eval().model
    examples = sudoku_examples(4)
    latents = act.initial_carry(examples).inner
    last_step = torch.zeros(len(examples["inputs"]), dtype=torch.bool)
    target = act.target_of_continue(latents, examples, last_step)
    states = act.inner(latents, examples)[1]
    outputs = act.inner.read(states, examples)
    best = torch.maximum(outputs["q_halt_logits"], outputs["q_continue_logits"])
    torch.testing.assert_close(target, best.sigmoid(), rtol=0, atol=1e-12)
