"""Choose a chain by energy: a Hopfield memory of the states that right answers are made of.

After the Energy-guided Recursive Model (arXiv:2607.10128): a memory of valid local structures gives
each candidate an energy, and the one with the lowest answers. The energy is that of modern Hopfield
networks (arXiv:2008.02217, equation 2). Its patterns are learned from a checkpoint's chains on
puzzles with known answers; the model's weights stay as they are.

Shape letters: n answers, T positions, D width, M patterns.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NUM_PATTERNS = 64
_PASSES, _BATCH_SIZE, _LR = 10, 32, 0.02


class HopfieldEnergy(nn.Module):
    """The energy of answers, and the odds of being right that it gives them.

    An answer's energy is the mean over its positions of `-log(mean(exp(beta * cos))) / beta`, where
    `cos` are the cosines of the position's state and the patterns. The other terms of equation 2
    are the same for all states of length 1.

    Args:
        patterns: [M, D], where learning starts.
    """

    def __init__(self, patterns: Tensor) -> None:
        super().__init__()
        self.patterns = nn.Parameter(patterns.clone())
        self.log_beta = nn.Parameter(torch.tensor(8.0).log())
        self.log_slope = nn.Parameter(torch.tensor(8.0).log())
        self.threshold = nn.Parameter(torch.tensor(0.0))

    def forward(self, states: Tensor) -> Tensor:
        """Return the energies of states [n, T, D], float32 [n]."""
        beta = self.log_beta.exp()
        cosines = F.normalize(states.float(), dim=-1) @ F.normalize(self.patterns, dim=-1).T
        nearest = (beta * cosines).exp().mean(-1).log() / beta
        return -nearest.mean(-1)

    def log_odds(self, states: Tensor) -> Tensor:
        """Return the logits of the probability that answers are right, float32 [n]."""
        return self.log_slope.exp() * (self.threshold - self(states))


def learned_energy(states: Tensor, right: Tensor) -> HopfieldEnergy:
    """Learn an energy that is lower for right answers. The same input gives the same energy.

    Args:
        states: [n, T, D], on the CPU.
        right: bool [n].
    Raises:
        ValueError: all answers are right, or none is.
    """
    number = int(right.sum())
    if number in (0, len(right)):
        raise ValueError(f"{number} of {len(right)} answers are right; it needs both kinds")
    generator = torch.Generator().manual_seed(0)
    valid = states[right].flatten(0, 1)
    stored = torch.randint(len(valid), (NUM_PATTERNS,), generator=generator)
    energy = HopfieldEnergy(valid[stored].float())
    optimizer = torch.optim.Adam(energy.parameters(), lr=_LR)
    rarity = torch.where(right, len(right) / number, len(right) / (len(right) - number)) / 2
    with torch.enable_grad():
        for _ in range(_PASSES):
            for rows in torch.randperm(len(right), generator=generator).split(_BATCH_SIZE):
                loss = F.binary_cross_entropy_with_logits(
                    energy.log_odds(states[rows]), right[rows].float(), rarity[rows]
                )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return energy.requires_grad_(requires_grad=False)
