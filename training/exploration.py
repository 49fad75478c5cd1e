"""What is drawn for a step without regard to the past: what a lattice guesses and in which view it
goes on, seeds of torch.
"""

import numpy as np

from dataset.turns import turns
from models.config import DataFacts, is_sudoku
from models.lattice.config import LatticeConfig
from runtime.streams import Stream, random_words


def noise_of_lattice(
    seed: int, step: int, num_rows: int, arch: LatticeConfig, facts: DataFacts
) -> dict[str, np.ndarray]:
    """Draw what the rows of the global batch guess at a step, from 0, and in which view each goes
    on, if it does in another one: `guesses`, `guided`, `cells` and `tokens` of
    `models.lattice.model.LatticeACT.think`.
    """
    words = random_words(seed, Stream.GUESSES, (0, step, 0, 0), 2 * num_rows)
    guesses = ((words >> np.uint64(40)) * 2.0**-24).astype(np.float32)
    noise: dict[str, np.ndarray] = {"guesses": guesses.reshape(num_rows, 2)}
    if arch.guided_guesses:
        words = random_words(seed, Stream.GUESSES, (0, step, 1, 0), num_rows)
        noise["guided"] = ((words >> np.uint64(11)) * 2.0**-53 < arch.guided_guesses)[:, None]
    if arch.views != "none":
        words = random_words(seed, Stream.TURNS, (0, step, 0, 0), 2 * num_rows)
        every = arch.views == "all"
        noise["cells"], noise["tokens"] = turns(
            words.reshape(2, -1),
            facts.seq_len,
            facts.vocab_size,
            is_sudoku=is_sudoku(facts),
            every_symmetry=every,
        )
    return noise


def torch_seed(seed: int, step: int, part: int) -> int:
    """Return the seed of what torch draws (dropout, a user's module), 0 to 2**64 - 1.

    Args:
        step: optimizer steps before this one.
        part: of the batch: number of a shard, or of a rank.
    """
    return int(random_words(seed, Stream.TORCH, (0, step, part, 0), 1)[0])
