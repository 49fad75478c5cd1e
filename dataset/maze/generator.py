"""Random mazes with a long shortest path, no two of them dihedral views of each other.

A maze has its own wall probability, uniform in 0.3 to 0.5; each cell is a wall with it; S and G are
two different free cells, all equally likely; and it is kept when a shortest path from S to G is
long enough. With 109 moves in 30 x 30 cells these are the statistics of the published mazes; one
attempt in 54,000 is kept.

Attempt i of a stream is a pure function of (seed, stream, i). Attempts are made in order and kept
unless they fail or repeat an earlier maze, so that a longer list starts with a shorter one.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count

import numpy as np

from dataset.dihedral import view_keys
from dataset.maze.kernels import find_maze
from dataset.maze.rules import solve
from dataset.sources import GeneratedPuzzle
from runtime.errors import ConfigError
from runtime.process import num_processors
from runtime.streams import Stream, random_words

Found = tuple[int, np.ndarray, bytes]
"""The number of an attempt, its maze, and the maze's key."""

_WALL_PROBABILITIES = 0.3, 0.5  # the lowest and the highest

# The search ends after so many attempts without a new maze, or so many repeats of earlier mazes.
# Each earlier maze allows further repeats: among many mazes a rare one takes longer to find.
_MAX_ATTEMPTS = 100_000_000
_MAX_REPEATS, _MAX_REPEATS_PER_MAZE = 50_000, 500
_ATTEMPTS_PER_BLOCK = 8192  # of the numbering of attempts: another number gives other mazes


def generate_mazes(
    *,
    seed: int,
    stream: Stream,
    size: int,
    min_length: int,
    taken: set[bytes],
    workers: int | None = None,
) -> Iterator[GeneratedPuzzle]:
    """Yield mazes of tokens without end, each rated by the cells on its path.

    Args:
        seed: 0 to 2**64 - 1.
        min_length: moves of the shortest path, 1 or more.
        taken: `view_keys` of the mazes that must not be repeated; receives those of the new ones.
        workers: threads, on which the mazes do not depend; None: one for each usable processor.
    Raises:
        ConfigError: none was found for long; the message says what was asked for.
    """
    search = partial(_search, seed, stream, size, min_length)
    attempts = repeats = failures = 0
    for block, kept in enumerate(_in_order(search, workers or num_processors())):
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
        f"no other {size}x{size} maze whose shortest path has {min_length} moves or more came up in"
        f" {failures:,} attempts, {repeats:,} of which repeated one, turned or mirrored; ask for"
        " fewer mazes or shorter paths"
    )


def _search(seed: int, stream: Stream, size: int, min_length: int, block: int) -> list[Found]:
    """Return the mazes kept in a block of attempts."""
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


def _in_order(search: Callable[[int], list[Found]], workers: int) -> Iterator[list[Found]]:
    """Yield search(0), search(1), ... without end, made by threads a few ahead."""
    with ThreadPoolExecutor(workers) as pool:
        ahead = deque(pool.submit(search, block) for block in range(2 * workers))
        for block in count(2 * workers):
            yield ahead.popleft().result()
            ahead.append(pool.submit(search, block))
