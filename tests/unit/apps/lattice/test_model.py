"""Deduction on candidate sets: striking, guessing and the losses."""

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from apps.lattice.config import LatticeConfig
from apps.lattice.model import CONTRADICTION, DECIDED
from models.act import Drawn
from models.config import DataFacts
from models.heads.base import Examples
from models.hrm.config import HRMConfig
from models.registry import build_model
from runtime.errors import ConfigError
from tests.unit.models.tiny import shaken, sudoku_examples, sudoku_facts

SMALL: Any = {"hidden_size": 8, "num_heads": 2, "expansion": 2.0, "L_layers": 2, "loops": 3}
SMALL |= {"halt_max_steps": 5, "forward_dtype": "float64", "dropout": 0.0}
UNITS: Any = {"symmetry": "digits", "units": True, "pos_encodings": "none"}
FORMS: dict[str, Any] = {
    "plain": {},
    "plain with a bias": {"attention_bias": "sudoku", "pos_encodings": "none"},
    "units": UNITS,
}
HEADS: Any = {"q": None, "candidates": {}, "contradiction": {}}
YES, NO = 9.0, -9.0
SAID = ("keep", "contradiction_logits", "logits")


def model_of(facts: DataFacts | None = None, **settings: Any) -> Any:
    return shaken(LatticeConfig(**SMALL | settings), facts or sudoku_facts(4))


def exploring(rows: int = 3, seed: int = 0, **views: Tensor) -> Drawn:
    guesses = torch.rand(rows, 2, generator=torch.Generator().manual_seed(seed))
    return {"min_steps": torch.zeros(rows, dtype=torch.int32), "guesses": guesses, **views}


def one_row(candidates: list[set[int]], *, vocab: int = 6) -> Tensor:
    """Build candidates [1, S, V] from the tokens of each cell."""
    state = torch.zeros(1, len(candidates), vocab, dtype=torch.bool)
    for cell, tokens in enumerate(candidates):
        state[0, cell, list(tokens)] = True
    return state


def said(state: Tensor, keep: Tensor | None = None, **others: Any) -> dict[str, Tensor]:
    """Build outputs of the heads; by default all candidates stay, without contradiction."""
    kept = torch.full(state.shape, YES) if keep is None else keep
    return {
        "candidates_logits": kept,
        "contradiction_logits": torch.full(state.shape[:1], NO),
        "logits": torch.zeros(state.shape),
    } | others


def deduce(model: Any, state: Tensor, guesses: Tensor | None = None, **others: Any) -> Any:
    """Deduce from a grid of open cells."""
    inputs = torch.ones(len(state), state.shape[1], dtype=torch.int32)
    outputs = said(state, **{n: others.pop(n) for n in list(others) if n in SAID})
    return model.model.inner.deduce(outputs, state, inputs, guesses, **others)


@pytest.mark.parametrize("size", [4, 6, 9])
def test_all_digits_are_possible_in_an_open_cell_and_one_in_a_given_one(size: int) -> None:
    inputs = sudoku_examples(size)["inputs"]
    candidates = model_of(sudoku_facts(size)).model.inner.all_candidates(inputs)
    for row, cells in zip(candidates.tolist(), inputs.tolist(), strict=True):
        for possible, token in zip(row, cells, strict=True):
            tokens = {t for t, holds in enumerate(possible) if holds}
            assert tokens == (set(range(2, size + 2)) if token == 1 else {token})


def test_unlikely_candidates_are_struck_but_never_givens() -> None:
    inner = model_of().model.inner
    inputs = torch.ones(1, 16, dtype=torch.int32)
    inputs[0, 0] = 3
    state = inner.all_candidates(inputs)
    keep = torch.full(state.shape, YES)
    below, above = torch.tensor([0.099, 0.101]).logit()
    keep[0, 0] = NO
    keep[0, 1, 2], keep[0, 1, 3] = below, above
    deduced = inner.deduce(said(state, keep), state, inputs, None)
    expected = state.clone()
    expected[0, 1, 2] = False
    assert torch.equal(deduced.candidates, expected)
    assert not deduced.decided.any()
    assert not deduced.contradiction.any()


def test_each_row_can_have_its_own_bound() -> None:
    state = one_row([{2, 3}] * 16).expand(3, -1, -1)
    keep = torch.full(state.shape, YES)
    keep[:, 0, 3] = torch.tensor(0.04).logit()
    deduced = deduce(model_of(), state, keep=keep, strike_below=torch.tensor([0.05, 0.03, 0.0]))
    assert deduced.candidates[:, 0, 3].tolist() == [False, True, True]
    assert deduced.candidates.sum() == 3 * 32 - 1


def test_a_guess_takes_an_open_cell_and_a_token_by_its_probability() -> None:
    inner = model_of(guess_temperature=2.0).model.inner
    state = one_row([{2}, {2, 3, 5}, {4}, {3, 4}, *[{2}] * 12])
    inputs = torch.where(state.sum(-1) > 1, 1, state.int().argmax(-1))
    logits = torch.zeros(1, 16, 6)
    logits[0, 1] = torch.tensor([9.0, 9.0, 1.0, -1.0, 9.0, 0.5])
    number = 4000
    first, second = torch.meshgrid(
        torch.tensor([0.0, 0.49, 0.5, 0.999]), torch.arange(number) / number, indexing="ij"
    )
    guesses = torch.stack((first.flatten(), second.flatten()), 1)
    many = {n: v.expand(len(guesses), *v.shape[1:]) for n, v in said(state, logits=logits).items()}
    deduced = inner.deduce(
        many, state.expand(len(guesses), -1, -1), inputs.expand(len(guesses), -1), guesses
    )
    after = deduced.candidates.view(4, number, 16, 6)
    for part, cell in ((0, 1), (1, 1), (2, 3), (3, 3)):
        changed = (after[part] != state).any(-1).any(0)
        assert changed.nonzero().flatten().tolist() == [cell]
        assert (after[part][:, cell].sum(-1) == 1).all()
        shares = after[part][:, cell].double().mean(0)
        allowed = state[0, cell]
        scores = (logits[0, cell] / 2.0).masked_fill(~allowed, -torch.inf).double()
        torch.testing.assert_close(shares, scores.softmax(-1), rtol=0, atol=1 / number)


def test_a_guided_guess_takes_the_solution_if_it_is_still_a_candidate() -> None:
    model, state = model_of(), one_row([{2, 3}, *[{2}] * 15])
    logits = torch.zeros(1, 16, 6)
    logits[0, 0, 2] = YES
    for told, token in ((3, 3), (2, 2), (4, 2), (-1, 2), (-100, 2)):
        solution = torch.full((1, 16), told, dtype=torch.int32)
        guesses = torch.full((1, 2), 0.5)
        deduced = deduce(model, state, guesses, logits=logits, solution=solution)
        assert deduced.guessed.item() == 0
        assert torch.equal(deduced.candidates, one_row([{token}, *[{2}] * 15]))


def test_only_guided_rows_follow_the_solution() -> None:
    model = model_of(views="none", strike_below=0.0).train()
    examples = sudoku_examples(rows=64)
    guided = torch.arange(64).view(-1, 1) < 32
    plain = exploring(rows=64)
    carries = [
        model(model.initial_carry(examples), examples, plain | told).carry.inner
        for told in ({}, {"guided": guided})
    ]
    cell = carries[0]["z_guess"]
    assert torch.equal(carries[1]["z_guess"], cell)
    right = torch.nn.functional.one_hot(examples["labels"][torch.arange(64), cell].long(), 6) > 0
    alone, told = (carry["z_next"][torch.arange(64), cell] for carry in carries)
    assert torch.equal(told[:32], right[:32])
    assert torch.equal(told[32:], alone[32:])
    assert not torch.equal(alone[:32], right[:32])


def test_a_slot_is_guided_by_its_own_puzzle() -> None:
    model = model_of(views="none", strike_below=0.0, halt_max_steps=9).train()
    examples, rows = sudoku_examples(rows=64), torch.arange(64)
    told = exploring(rows=64) | {"guided": torch.ones(64, 1, dtype=torch.bool)}
    carry = model(model.initial_carry(examples), examples, told).carry
    carry.halted[:] = False
    offered = {name: value.flip(0) for name, value in examples.items()}
    found = model(carry, offered, told).carry.inner
    cell = found["z_guess"].long()
    guessed = cell >= 0
    assert guessed.any()
    token = found["z_next"][rows, cell].int().argmax(-1)
    solution = examples["labels"][rows, cell].long()
    assert torch.equal(token[guessed], solution[guessed])


@pytest.mark.parametrize("more", [{}, {"confidence": {}, "attention": {}}])
def test_where_the_solution_is_gone_only_the_contradiction_is_learned(more: Any) -> None:
    heads = HEADS | more
    model = model_of(learn_after_mistakes=False, views="none", heads=heads).train()
    examples = sudoku_examples()
    carry = model.initial_carry(examples)
    carry.halted[:] = False
    carry.examples.update(examples)
    state = model.model.inner.all_candidates(examples["inputs"])
    first_open = int((examples["inputs"][1] == 1).nonzero()[0])
    state[1, first_open, examples["labels"][1, first_open]] = False
    carry.inner["z_next"] = state
    output = model(carry, examples, exploring())
    for name in ("lm_loss", "candidates_loss", *(f"{name}_loss" for name in more)):
        assert (output.rows[name] > 0).tolist() == [True, False, True]
    assert (output.rows["contradiction_loss"] > 0).all()
    evaluated = model.eval()(carry, examples)
    assert (evaluated.rows["lm_loss"] > 0).all()


def test_an_answer_is_decided_one_step_after_the_last_strike() -> None:
    model, guesses = model_of(), torch.zeros(1, 2)
    state = one_row([{2, 3}, *[{2}] * 15])
    keep = torch.full(state.shape, YES)
    keep[0, 0, 3] = NO
    first = deduce(model, state, guesses, keep=keep)
    assert torch.equal(first.candidates, one_row([{2}] * 16))
    assert (first.decided.item(), first.guessed.item()) == (False, -1)
    rejected = {"contradiction_logits": torch.tensor([YES])}
    for said_of_it, verdict in (
        ({"keep": keep}, (True, False)),
        ({"keep": -keep}, (False, True)),
        (rejected, (False, True)),
    ):
        second = deduce(model, first.candidates, guesses, **said_of_it)
        assert (second.decided.item(), second.contradiction.item()) == verdict


def test_there_is_no_guess_after_a_decision_or_a_contradiction() -> None:
    decided = one_row([{2}] * 16)
    stuck = one_row([{2, 3}, *[{2}] * 15])
    empty = one_row([set(), {2, 3}, *[{2}] * 14])
    states = torch.cat((decided, stuck, empty, stuck))
    noticed = torch.tensor([NO, torch.tensor(0.61).logit(), NO, torch.tensor(0.59).logit()])
    deduced = deduce(model_of(), states, torch.zeros(4, 2), contradiction_logits=noticed)
    assert deduced.decided.tolist() == [True, False, False, False]
    assert deduced.contradiction.tolist() == [False, True, True, False]
    assert torch.equal(deduced.candidates[:3], states[:3])
    assert not torch.equal(deduced.candidates[3], states[3])


def test_a_guess_can_wait_until_nothing_is_struck() -> None:
    states = one_row([{2, 3, 4}, *[{2, 3}] * 15]).expand(2, -1, -1)
    keep = torch.full(states.shape, YES)
    keep[0, 0, 4] = NO
    for guess, guessed in (("always", [14, 14]), ("stuck", [-1, 14])):
        deduced = deduce(model_of(guess=guess), states, torch.full((2, 2), 0.9), keep=keep)
        assert deduced.guessed.tolist() == guessed
        open_cells = (deduced.candidates.sum(-1) > 1).sum(-1).tolist()
        assert open_cells == [16 - (cell >= 0) for cell in guessed]


@pytest.mark.parametrize("size", [4, 6, 9])
def test_states_of_digits_follow_their_permutation(size: int) -> None:
    inner = model_of(sudoku_facts(size), **UNITS).eval().model.inner
    order = torch.randperm(size, generator=torch.Generator().manual_seed(1))
    tokens = torch.cat((torch.arange(2), order + 2))
    state = inner.all_candidates(sudoku_examples(size)["inputs"])
    state[:, :, 2:] &= torch.rand(state[:, :, 2:].shape) < 0.8
    renamed = torch.zeros_like(state)
    renamed[..., tokens] = state

    plain, permuted = (heads_of(inner, candidates) for candidates in (state, renamed))
    for name in ("logits", "candidates_logits"):
        torch.testing.assert_close(permuted[name][..., tokens], plain[name], rtol=0, atol=1e-10)
    gap = permuted["contradiction_logits"] - plain["contradiction_logits"]
    assert gap.abs().max() < 1e-10
    assert plain["candidates_logits"][..., 2:].std() > 0.01


def heads_of(inner: Any, candidates: Tensor) -> dict[str, Tensor]:
    latents = inner.empty_carry(len(candidates)) | {"z_candidates": candidates}
    with torch.no_grad():
        latents, answer = inner(latents, {})
    assert torch.equal(answer, latents["z_H"])
    return inner.read(answer, {})


def test_a_step_goes_on_in_the_view_that_was_drawn() -> None:
    model = model_of(views="none", halt_max_steps=9).train()
    examples = sudoku_examples()
    carry = model.initial_carry(examples)
    generator = torch.Generator().manual_seed(3)
    orders = [torch.randperm(4, generator=generator) for _ in range(3)]
    tokens = torch.stack([torch.cat((torch.arange(2), order + 2)) for order in orders])
    cells = torch.stack([torch.randperm(16, generator=generator) for _ in range(3)])
    first = model(carry, examples, exploring()).carry
    plain = model(first, examples, exploring(seed=1)).carry
    turned = model(first, examples, exploring(seed=1, cells=cells, tokens=tokens)).carry
    for row in range(3):
        for name in ("inputs", "labels"):
            seen = tokens[row][first.examples[name][row][cells[row]].long()]
            assert torch.equal(turned.examples[name][row].long(), seen)
        expected = torch.zeros_like(first.inner["z_next"][row])
        expected[:, tokens[row]] = first.inner["z_next"][row][cells[row]]
        assert torch.equal(turned.inner["z_candidates"][row], expected)
    assert torch.equal(plain.inner["z_candidates"], first.inner["z_next"])


def test_means_over_units_take_any_number_of_heads() -> None:
    assert not LatticeConfig(**SMALL | UNITS | {"num_heads": 3}).has_attention
    with pytest.raises(ValidationError, match="num_heads=3 must divide hidden_size=8"):
        LatticeConfig(**SMALL | {"num_heads": 3})


def test_a_step_can_begin_with_the_states_of_the_last_one() -> None:
    model = model_of(views="none", keep_states=True, **UNITS).train()
    examples = sudoku_examples()
    first = model(model.initial_carry(examples), examples, exploring()).carry
    first.halted[:] = torch.tensor([False, True, False])
    second = model(first, examples, exploring()).carry
    inner = model.model.inner
    h = torch.where(first.halted.view(-1, 1, 1), 0.0, first.inner["z_H"]).view(12, 16, 8)
    with torch.no_grad():
        injected = inner.embed(second.inner["z_candidates"])
        for _ in range(3):
            h = inner.H_level(h + injected, None)
    assert torch.equal(second.inner["z_H"], h.reshape(3, 64, 8))


def test_slots_halt_when_decided_really_contradictory_or_too_old() -> None:
    model, examples = model_of(halt_max_steps=3).train(), sudoku_examples(rows=6)
    labels = examples["labels"]
    right = torch.nn.functional.one_hot(labels.long(), 6).bool()
    gone = torch.ones(16, 6, dtype=torch.bool)  # All open; below the first cell loses its label.
    states = right.clone()
    states[:3] = states[4] = gone
    for row in (2, 4, 5):
        states[row, 0] = right[row, 0].roll(1, -1)

    def read(answer: Tensor, _: Examples) -> dict[str, Tensor]:
        logits = torch.zeros(len(answer), 16, 6, dtype=torch.float64)
        verdict = torch.tensor([YES, NO, YES, NO, NO, NO])
        keep = torch.full_like(logits, YES)
        return {"candidates_logits": keep, "contradiction_logits": verdict, "logits": logits}

    model.model.inner.read = read
    carry = model.initial_carry(examples)
    carry.halted[:] = False
    carry.examples.update(examples | {"inputs": torch.ones_like(labels)})
    carry.inner["z_next"] = states
    carry.steps[:] = torch.tensor([0, 0, 0, 0, 2, 0])
    carry, _ = model.model.think(carry, examples)
    # Noticed but not real; open; real and noticed; decided; too old; wrong and not noticed.
    assert carry.halted.tolist() == [False, False, True, True, True, False]
    verdict = carry.inner["z_verdict"].tolist()
    assert verdict == [CONTRADICTION, 0, CONTRADICTION, DECIDED, 0, DECIDED]
    assert carry.steps.tolist() == [1, 1, 1, 1, 3, 1]


@pytest.mark.parametrize("form", FORMS)
def test_each_loop_has_a_loss(form: str) -> None:
    model = model_of(**FORMS[form]).train()
    examples = sudoku_examples()
    output = model(model.initial_carry(examples), examples, exploring())
    output.loss.backward()
    whole = {name: p.grad.clone() for name, p in model.named_parameters()}

    model.zero_grad()
    inner, weights = model.model.inner, model.config.weights
    state = inner.all_candidates(examples["inputs"])
    injected, losses = inner.embed(state), []
    h = injected
    for _ in range(3):
        h = inner.H_level(h + injected, None)
        outputs = inner.read(inner.as_carried(h), examples)
        losses.append(expected_loss(outputs, state, examples, weights))
    mean = sum(losses) / len(losses)
    torch.testing.assert_close(output.loss, mean, rtol=1e-12, atol=0)
    mean.backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(whole[name], p.grad, rtol=1e-9, atol=1e-12)


def expected_loss(
    outputs: dict[str, Tensor], state: Tensor, examples: Examples, weights: Any
) -> Tensor:
    """Compute the sum over rows, cell by cell."""
    total = torch.zeros((), dtype=torch.float64)
    for row, labels in enumerate(examples["labels"].tolist()):
        tokens = candidates = torch.zeros((), dtype=torch.float64)
        gone = False
        for cell, label in enumerate(labels):
            s = torch.where(
                (x := outputs["logits"][row, cell]) >= 0, x + 1, 1 / (1 - x.clamp_max(0))
            )
            tokens = tokens - (s[label] / s.sum()).log()
            for token in range(6):
                p = outputs["candidates_logits"][row, cell, token].sigmoid()
                stays = bool(state[row, cell, token]) and token == label
                candidates = candidates - (4.0 * p.log() if stays else 0.5 * (1 - p).log())
            gone |= not state[row, cell, label]
        p = outputs["contradiction_logits"][row].sigmoid()
        contradiction = -(p if gone else 1 - p).log()
        total = total + weights.lm * tokens / 16 + weights.candidates * candidates / 96
        total = total + weights.contradiction * contradiction
    return total


def test_an_evaluation_strikes_but_never_guesses() -> None:
    model = model_of(eval_steps=2, strike_below=0.5).eval()
    examples = sudoku_examples()
    carry = model.initial_carry(examples)
    before = model.model.inner.all_candidates(examples["inputs"])
    for _ in range(model.model.eval_max_steps):
        carry = model(carry, examples, measured=False).carry
    assert carry.halted.all()
    after = carry.inner["z_next"]
    assert not (after & ~before).any()
    struck = model.model.inner.read(carry.inner["z_H"], examples)["candidates_logits"] < 0
    is_open = (examples["inputs"] == 1).unsqueeze(-1)
    assert torch.equal(after, carry.inner["z_candidates"] & ~(struck & is_open))


def test_the_published_size() -> None:
    model = build_model(LatticeConfig(forward_dtype="float32"), sudoku_facts(9))
    assert 0.75e6 < sum(p.numel() for p in model.parameters()) < 0.85e6


def test_the_smallest_inner_width_is_one() -> None:
    weights = model_of(expansion=1e-4).named_parameters()
    assert {len(p) for name, p in weights if name.endswith(".up_proj.weight")} == {1}


@pytest.mark.parametrize(
    "facts", [DataFacts(12, 900, 5), DataFacts(6, 25, 1), DataFacts(6, 16, 1, kind="maze")]
)
def test_other_puzzles_are_refused(facts: DataFacts) -> None:
    with pytest.raises(ConfigError, match=r"arch\.name=lattice is for Sudoku"):
        build_model(LatticeConfig(**SMALL), facts)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"techniques": {"anchors": {}}}, r"techniques\.anchors has no meaning with name=lattice"),
        ({"heads": {}}, "use heads=lattice"),
        ({"units": True}, "units=true and symmetry=digits need each other"),
        (UNITS | {"pos_encodings": "learned"}, "pos_encodings=learned: use none"),
        ({"pos_encodings": "rope"}, "pos_encodings=rope: use learned or none"),
        ({"strike_below": 1.5}, "strike_below"),
        (UNITS | {"attention_bias": "sudoku"}, "attention_bias=sudoku with units=true"),
        ({"keep_states": True}, "keep_states=true with views=dihedral"),
        ({"mlp_t": True}, "mlp_t=True has no meaning with name=lattice; use False"),
        ({"heads": {"lm": {"name": "tied"}, **HEADS}}, "heads.lm.name=tied; use linear"),
        ({"heads": {"action": {"field": "a"}, **HEADS}}, "cannot turn fields"),
        ({"heads": {"halt": {}, **HEADS}}, "heads.halt has no meaning with name=lattice"),
        (UNITS | {"loss": {"loss_type": "softmax_cross_entropy", "label_smoothing": 0.1}}, "use 0"),
    ],
)
def test_settings_without_a_meaning_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        LatticeConfig(**SMALL | settings)


def test_its_heads_are_for_lattices_only() -> None:
    with pytest.raises(ValidationError, match=r"heads\.candidates is for name=lattice"):
        HRMConfig.model_validate({"heads": {"candidates": {}}})
