"""The energy of answers, beside its equation written out, and what it learns."""

from math import exp, log, sqrt

import pytest
import torch
from torch import Tensor

from evaluation.energy import HopfieldEnergy, learned_energy


def test_energies_are_those_of_the_equation() -> None:
    generator = torch.Generator().manual_seed(1)
    energy = HopfieldEnergy(torch.randn(5, 3, generator=generator))
    states = torch.randn(2, 4, 3, generator=generator)

    def length(x: list[float]) -> float:
        return sqrt(sum(value * value for value in x))

    beta, expected = exp(energy.log_beta.item()), list[float]()
    for answer in states.tolist():
        terms = list[float]()
        for state in answer:
            total = 0.0
            for pattern in energy.patterns.tolist():
                product = sum(a * b for a, b in zip(state, pattern, strict=True))
                total += exp(beta * product / (length(state) * length(pattern)))
            terms.append(-log(total / 5) / beta)
        expected.append(sum(terms) / 4)
    assert energy(states).tolist() == pytest.approx(expected, rel=1e-5)
    # A state's length does not matter.
    assert energy(7 * states).tolist() == pytest.approx(expected, rel=1e-5)


def answers(number: int, seed: int) -> tuple[Tensor, Tensor]:
    """Answers with 20 states of width 8. All states of right ones are near one of four directions;
    of wrong ones a quarter is not.
    """
    generator = torch.Generator().manual_seed(seed)
    near = torch.eye(8)[torch.randint(4, (number, 20), generator=generator)]
    states = near + 0.1 * torch.randn(number, 20, 8, generator=generator)
    right = torch.rand(number, generator=generator) < 0.8
    astray = torch.randn(number, 5, 8, generator=generator)
    states[:, :5] = torch.where(right[:, None, None], states[:, :5], astray)
    return states, right


def test_right_answers_that_are_not_known_have_lower_energies() -> None:
    energy = learned_energy(*answers(300, seed=0))
    states, right = answers(300, seed=1)
    found = energy(states)
    assert (found[right][:, None] < found[~right]).float().mean() > 0.99  # Of all pairs.
    assert ((energy.log_odds(states) > 0) == right).float().mean() > 0.9
    assert not found.requires_grad
    again = learned_energy(*answers(300, seed=0))
    assert torch.equal(again.patterns, energy.patterns)


@pytest.mark.parametrize(("right", "number"), [(True, 4), (False, 0)])
def test_it_needs_right_and_wrong_answers(right: bool, number: int) -> None:
    with pytest.raises(ValueError, match=f"{number} of 4 answers are right; it needs both"):
        learned_energy(torch.randn(4, 2, 3), torch.full((4,), right))
