"""Generated mazes: as requested, reproducible, without repetitions, and none skipped."""

from itertools import islice
from typing import Any

import numpy as np
import pytest

from dataset.dihedral import view_keys
from dataset.kinds.maze import MAZE
from dataset.maze import kernels as maze_kernels
from dataset.maze.generator import generate_mazes
from dataset.maze.kernels import find_maze
from dataset.maze.rules import are_mazes, solve
from runtime.streams import Stream

LOWEST, SPAN = np.uint64(round(0.3 * 2**32)), np.uint64(round(0.2 * 2**32))
FIRST_MAZE = " #G   # # #  # #  ###    S      # # "


def text_of(tokens: np.ndarray) -> str:
    return MAZE.board(0).text(tokens.reshape(1, -1))


def generate(num_mazes: int, **changes: Any) -> tuple[np.ndarray, int]:
    settings: dict[str, Any] = {
        "seed": 0,
        "stream": Stream.NEW_TRAIN,
        "size": 10,
        "min_length": 15,
        "workers": 1,
    }
    settings["taken"] = set()
    made = [*islice(generate_mazes(**(settings | changes)), num_mazes)]
    return np.array([each.question for each in made]), made[-1].attempts


@pytest.mark.parametrize(("size", "min_length"), [(2, 1), (3, 3), (7, 14), (8, 9), (63, 80)])
def test_paths_are_as_long_as_asked_for(size: int, min_length: int):
    number = 2 if size == 2 else 10
    mazes, attempts = generate(number, size=size, min_length=min_length)
    assert mazes.shape == (number, size * size)
    assert are_mazes(mazes).all()
    assert solve(mazes)[1].min() >= min_length
    assert attempts >= number


def test_mazes_depend_on_seed_and_stream_alone():
    mazes, attempts = generate(40)
    assert generate(15)[0].tolist() == mazes[:15].tolist()
    again, tried = generate(40, workers=3)
    assert (again.tolist(), tried) == (mazes.tolist(), attempts)
    texts = {text_of(maze) for maze in mazes}
    for other, _ in (generate(40, seed=1), generate(40, stream=Stream.NEW_TEST)):
        assert not texts & {text_of(maze) for maze in other}
    assert text_of(generate(1, size=6, min_length=9)[0][0]) == FIRST_MAZE


def test_no_maze_is_a_view_of_another():
    taken: set[bytes] = set()
    first, _ = generate(20, size=3, min_length=4, taken=taken)
    second, _ = generate(20, size=3, min_length=4, taken=taken, stream=Stream.NEW_TEST)
    assert len(set(view_keys(np.concatenate([first, second])))) == len(taken) == 40


def kept_mazes(states: np.ndarray, size: int, min_length: int) -> dict[int, np.ndarray]:
    """Return the kept mazes by the number of their attempt."""
    maze = np.zeros(size * size, dtype=np.uint8)
    kept, first = {}, 0
    while (first := find_maze(states, first, size, min_length, LOWEST, SPAN, maze)) < len(states):
        kept[first] = maze.copy()
        first += 1
    return kept


def slow_attempts(states: np.ndarray, size: int, min_length: int) -> list[int]:
    """Return the attempts that must be kept, by solving the maze of each attempt."""
    kept = []
    maze = np.zeros(size * size, dtype=np.uint8)
    for number in range(len(states)):
        # With a length of 1 every connected maze is kept, so the filter is not used.
        if find_maze(states[number : number + 1], 0, size, 1, LOWEST, SPAN, maze) == 0:
            _, moves = solve(maze[None])
            if moves[0] >= min_length:
                kept.append(number)
    return kept


@pytest.mark.parametrize(("size", "min_length"), [(5, 6), (7, 10), (9, 14), (16, 30), (64, 90)])
def test_the_filter_keeps_all_long_paths(size: int, min_length: int):
    states = np.random.Philox(key=size).random_raw(3000 if size < 64 else 300)
    kept = list(kept_mazes(states, size, min_length))
    assert kept == slow_attempts(states, size, min_length)
    assert len(kept) > 3


@pytest.mark.parametrize("share", [0.0, 0.3, 0.4217, 0.5, 0.999])
def test_walls_have_their_probability(share: float):
    """Each bit and each pair of adjacent bits is within five standard deviations."""
    state = np.array([11], dtype=np.uint64)
    probability = np.uint64(round(share * 2**32))
    drawn = [maze_kernels._random_bits(state, probability) for _ in range(20_000)]
    words = np.array(drawn, dtype=np.uint64)
    bits = (words[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    for found, expected in ((bits, share), (bits[:, 1:] * bits[:, :-1], share**2)):
        deviation = np.sqrt(expected * (1 - expected) / len(words))
        assert np.abs(found.mean(axis=0) - expected).max() <= 5 * deviation
