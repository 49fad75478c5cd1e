"""Mazes on square grids: text, tokens, shortest paths, and the check of drawn paths.

A maze is written as one character per cell, row by row: `#` a wall, ` ` a free cell, `S` and `G`
the two ends, and in an answer `o` for the cells of the path between them. Tokens are 1 to 5 in this
order; 0 is padding. The length of a path is the number of its moves, one more than its `o` cells.
"""

from math import isqrt
from types import ModuleType

import numpy as np

CHARACTERS = "# SGo"
"""The character of token 1, 2, ... 5."""

WALL, FREE, START, GOAL, PATH = range(1, len(CHARACTERS) + 1)
VOCAB_SIZE = len(CHARACTERS) + 1

PALETTE = ("#000000", "#FFFFFF", "#2ECC40", "#FF4136", "#0074D9")
"""How `# SGo` are drawn: black walls, white cells, from green to red a blue path."""
NUM_ACTIONS = 5  # none, down, left, right and up

_TOKEN_OF_BYTE = np.zeros(256, dtype=np.uint8)
_TOKEN_OF_BYTE[list(CHARACTERS.encode())] = range(1, VOCAB_SIZE)
_PIXELS = np.zeros((VOCAB_SIZE, 3), dtype=np.uint8)
_PIXELS[WALL:] = [list(bytes.fromhex(colour[1:])) for colour in PALETTE]


def text_to_tokens(texts: list[str]) -> np.ndarray:
    """Turn texts of equal length into uint8 [N, characters]; 0 stands for any other character."""
    characters = np.frombuffer("".join(texts).encode("ascii", "replace"), dtype=np.uint8)
    return _TOKEN_OF_BYTE[characters].reshape(len(texts), -1)


def are_mazes(inputs: np.ndarray) -> np.ndarray:
    """Tell, bool [N], which rows of integers [N, cells] are walls, free cells, one S and one G."""
    known = np.asarray(((inputs >= WALL) & (inputs <= GOAL)).all(axis=1))
    starts, goals = (inputs == START).sum(axis=1), (inputs == GOAL).sum(axis=1)
    return known & (starts == 1) & (goals == 1)


def solve(inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find a shortest path in each maze: of several, the one in the published answers.

    That is the path found by a breadth-first search from S that looks at neighbours in the order
    down, left, right, up, and comes to each cell from where it was first reached.

    Returns:
        (labels, moves): uint8 [N, cells], the inputs [N, cells] with the path's cells as `PATH`;
        int64 [N], its length, -1 where G cannot be reached and no path is drawn.
    Raises:
        ValueError: a row is no maze; it names the first.
    """
    return _kernels().solve_mazes(*_checked(inputs))


def check_paths(inputs: np.ndarray, preds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Tell which predictions draw a path from S to G, and which of those a shortest one.

    A prediction is valid when

    - walls, S and G are where they are in the input, no other cell is one of them, and every other
      cell is free or `o`;
    - among S, G and the `o` cells, S and G each have exactly one neighbour, every `o` cell exactly
      two, and one can walk from S to G past all of them.

    No shortest path is lost: one with two cells that touch out of turn could be cut short.

    Args:
        inputs: integer [N, cells] tokens of mazes.
        preds: integer [N, cells], any values.
    Returns:
        (valid, shortest), bool [N] each; `shortest` means valid and as few moves as possible.
    """
    moves, least_moves = path_lengths(inputs, preds)
    return moves >= 0, (moves >= 0) & (moves == least_moves)


def path_lengths(inputs: np.ndarray, preds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Count the moves of valid predictions (see `check_paths`) and of a shortest path: int64 [N]
    each, -1 if invalid.
    """
    moves, least_moves, _ = _measured(inputs, preds)
    return moves, least_moves


def path_actions(labels: np.ndarray) -> np.ndarray:
    """Tell for each cell of a drawn path, in [N, cells] tokens, how it goes on towards G.

    Returns:
        uint8 [N, cells]: on S and the `o` cells the move to the next cell, 1 down, 2 left, 3 right,
        4 up; 0 elsewhere.
    Raises:
        ValueError: a row has no valid path; it names the first.
    """
    moves, _, actions = _measured(np.where(labels == PATH, FREE, labels), labels)
    if (moves < 0).any():
        raise ValueError(f"label {int(moves.argmin())} draws no path from S to G")
    return actions


def _measured(inputs: np.ndarray, preds: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    mazes, size = _checked(inputs)
    drawn = np.where((preds >= WALL) & (preds <= PATH), preds, 0).astype(np.uint8)
    return _kernels().check_mazes(mazes, drawn, size)


def maze_pixels(labels: np.ndarray) -> np.ndarray:
    """Return red, green, blue of each cell in `PALETTE`, uint8 [N, cells, 3], for [N, cells]."""
    return _PIXELS[labels]


def _kernels() -> ModuleType:
    # Imported here because it loads the compiler, which takes half a second.
    from dataset.maze import kernels

    assert kernels.TOKENS == (WALL, FREE, START, GOAL, PATH)
    return kernels


def _checked(inputs: np.ndarray) -> tuple[np.ndarray, int]:
    """Return inputs as contiguous uint8, and the size of their grid."""
    size = isqrt(cells := inputs.shape[1])
    if size * size != cells:
        raise ValueError(f"{cells} cells are no square grid")
    if not (good := are_mazes(inputs)).all():
        accepted = f"{WALL} and {FREE}, and {START} and {GOAL} once each"
        raise ValueError(f"input {int(good.argmin())} is no maze; accepted tokens: {accepted}")
    return np.ascontiguousarray(inputs, dtype=np.uint8), size
