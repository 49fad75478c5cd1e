"""What is drawn for a step without regard to the past: noise of ACT's halting rule, the rows that
look ahead, corrupted solutions to start from, what a lattice guesses and in which view it goes on,
seeds of torch.
"""

import numpy as np

from dataset.turns import turns
from models.config import ArchConfig, DataFacts, LatticeConfig, is_sudoku
from runtime.streams import Stream, random_words


def min_halt_steps(
    seed: int, step: int, num_rows: int, *, probability: float, halt_max_steps: int
) -> np.ndarray:
    """Draw the number of ACT steps before which each row of the global batch must not halt early.

    With `probability` a row gets a uniform number in [2, halt_max_steps], otherwise 0
    (arXiv:2506.21734, 2.2). Optimizer steps count from 0.

    Returns:
        int32 [num_rows], the same in all versions of numpy (raw Philox words).
    """
    if halt_max_steps < 2:
        return np.zeros(num_rows, np.int32)
    explores, where = _uniform(seed, Stream.HALT, step, num_rows)
    steps = 2 + np.floor(where * (halt_max_steps - 1))
    return np.where(explores < probability, steps, 0).astype(np.int32)


def _uniform(seed: int, stream: Stream, step: int, num_rows: int) -> np.ndarray:
    """Return two numbers in [0, 1) for each row, float64 [2, num_rows]."""
    words = random_words(seed, stream, (0, step, 0, 0), 2 * num_rows)
    return (words >> np.uint64(11)).astype(np.float64).reshape(2, num_rows) * 2.0**-53


def rows_ahead(seed: int, step: int, num_rows: int, arch: ArchConfig) -> np.ndarray | None:
    """Choose the rows of the global batch that look ahead for the target of q_continue.

    With `q_target=rows` one of each `q_target_every` neighbours, at random: so a rank, a shard or a
    micro-batch has a fixed number of them, and the same ones however the batch is cut. With
    `q_target=steps` all rows, at each `q_target_every`-th step. Optimizer steps count from 0.

    Returns:
        int64 [n], ascending; None: the model takes all rows.
    """
    every = arch.q_target_every
    if arch.q_target == "rows":
        starts = np.arange(0, num_rows, every)
        words = random_words(seed, Stream.LOOK_AHEAD, (0, step, 0, 0), len(starts))
        # Of 64 bits: choices differ in probability by less than every / 2**64.
        return starts + (words % np.uint64(every)).astype(np.int64)
    if arch.q_target == "steps":
        return np.arange(0 if step % every else num_rows)
    return None


def anchor_sources(
    seed: int,
    step: int,
    num_rows: int,
    own: range,
    seq_len: int,
    *,
    probability: float,
    corruption: float,
) -> np.ndarray | None:
    """Draw which rows of the global batch start at their solution if they take a new example, and
    how it is corrupted; returned are the rows `own`.

    With `probability` a row is anchored. Then a share of its cells, uniform in [0, corruption] for
    the row, takes the token of a random cell of the solution: of a Sudoku each digit is as likely.
    Optimizer steps count from 0.

    Returns:
        int32 [len(own), seq_len], for each cell the cell whose token it takes, mostly its own; -1
        in rows that are not anchored. None: no row can be.
    """
    if not probability:
        return None
    anchored, share = _uniform(seed, Stream.ANCHORS, step, num_rows)
    sources = np.full((len(own), seq_len), -1, np.int32)
    for place, row in enumerate(own):
        if anchored[row] < probability:
            words = random_words(seed, Stream.ANCHORS, (0, step, 1 + row, 0), seq_len)
            # The upper half of a word says whether a cell is corrupted, the lower half by which.
            corrupted = (words >> np.uint64(32)) * 2.0**-32 < corruption * share[row]
            others = (words & np.uint64(2**32 - 1)) % np.uint64(seq_len)
            sources[place] = np.where(corrupted, others, np.arange(seq_len, dtype=np.uint64))
    return sources


def noise_of_lattice(
    seed: int, step: int, num_rows: int, arch: LatticeConfig, facts: DataFacts
) -> dict[str, np.ndarray]:
    """Draw what the rows of the global batch guess at a step, from 0, and in which view each goes
    on, if it does in another one: `guesses`, `guided`, `cells` and `tokens` of
    `models.carry.Exploration`.
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
