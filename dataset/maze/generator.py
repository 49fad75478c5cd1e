"""Random mazes with a long shortest path; no maze is a dihedral view of another.

Each attempt draws a wall probability, uniform in 0.3 to 0.5, makes each cell a wall with this
probability, and draws S and G uniformly from the free cells. The maze is kept if its shortest path
is long enough. With 109 moves in 30 x 30 cells, one attempt in 54,000 is kept, and the mazes have
the statistics of the published ones.

Attempt i of a stream is a pure function of (seed, stream, i). Attempts are made in order and kept
unless they fail or repeat an earlier maze. So a longer list begins with any shorter one.
"""

from collections.abc import Iterator
from functools import partial
from itertools import count

import numpy as np

from dataset.compiled import in_order
from dataset.dihedral import view_keys
from dataset.maze.kernels import find_maze
from dataset.maze.rules import solve
from dataset.sources import GeneratedPuzzle
from runtime.errors import ConfigError
from runtime.streams import Stream, random_words

Kept = tuple[int, np.ndarray, bytes]
"""The number of an attempt, its maze, and the maze's key."""

_WALL_PROBABILITIES = 0.3, 0.5  # The lowest and the highest.

# The most attempts, and the most repeats of earlier mazes, without a new maze. Each earlier maze
# allows more repeats, because new ones get rare.
_MAX_ATTEMPTS = 100_000_000
_MAX_REPEATS, _MAX_REPEATS_PER_MAZE = 50_000, 500
_ATTEMPTS_PER_BLOCK = 8192  # Another number would give other mazes.


def generate_mazes(
    *,
    seed: int,
    stream: Stream,
    size: int,
    min_length: int,
    taken: set[bytes],
    workers: int | None = None,
) -> Iterator[GeneratedPuzzle]:
    """Yield mazes of tokens without end, each rated by the number of cells on its path.

    Args:
        seed: 0 to 2**64 - 1.
        min_length: fewest moves of the shortest path, 1 or more.
        taken: `view_keys` of mazes that must not be repeated; keys of new mazes are added.
        workers: number of threads; the mazes do not depend on it. None: the usable processors.
    Raises:
        ConfigError: no new maze was found for a long time.
    """
    find_block = partial(_find_block, seed, stream, size, min_length)
    attempts = repeats = failures = 0
    for block, kept in enumerate(in_order(find_block, count(), workers)):
        for attempt, maze, key in kept:
            if key in taken:
                repeats += 1
                continue
            taken.add(key)
            repeats, attempts = 0, attempt + 1
            (answer,), (moves,) = solve(maze[None])
            yield GeneratedPuzzle(maze, answer, moves + 1, attempts)
        failures = (block + 1) * _ATTEMPTS_PER_BLOCK - attempts
        most_repeats = _MAX_REPEATS + _MAX_REPEATS_PER_MAZE * len(taken)
        if failures >= _MAX_ATTEMPTS or repeats >= most_repeats:
            break
    raise ConfigError(
        f"no new {size}x{size} maze with a shortest path of {min_length} moves or more was found in"
        f" {failures:,} attempts; {repeats:,} repeated earlier mazes, turned or mirrored; ask for"
        " fewer mazes or shorter paths"
    )


def _find_block(seed: int, stream: Stream, size: int, min_length: int, block: int) -> list[Kept]:
    """Make a block of attempts and return the mazes kept."""
    lowest, highest = (np.uint64(round(bound * 2**32)) for bound in _WALL_PROBABILITIES)
    states = random_words(seed, stream, (0, 0, block, 0), _ATTEMPTS_PER_BLOCK)
    maze, kept = np.zeros(size * size, dtype=np.uint8), dict[int, np.ndarray]()
    number = -1
    while True:
        number = find_maze(states, number + 1, size, min_length, lowest, highest - lowest, maze)
        if number == len(states):
            break
        kept[block * _ATTEMPTS_PER_BLOCK + number] = maze.copy()
    keys = view_keys(np.stack([*kept.values()])) if kept else []
    return list(zip(kept, kept.values(), keys, strict=True))
