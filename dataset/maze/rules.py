"""Mazes on square grids: text, tokens, shortest paths, and the check of drawn paths.

As text, a maze has one character per cell, row by row: `#` for a wall, ` ` for a free cell, `S` and
`G` for the two ends, and in answers `o` for the path. These are tokens 1 to 5; 0 is padding. The
length of a path is its number of moves, one more than its number of `o` cells.
"""

from math import isqrt
from types import ModuleType

import numpy as np

CHARACTERS = "# SGo"
"""The characters of tokens 1 to 5."""

WALL, FREE, START, GOAL, PATH = range(1, len(CHARACTERS) + 1)
VOCAB_SIZE = len(CHARACTERS) + 1

PALETTE = ("#000000", "#FFFFFF", "#2ECC40", "#FF4136", "#0074D9")
"""The colours of `# SGo`: black, white, green, red and blue."""
NUM_ACTIONS = 5  # none, down, left, right and up
NUM_CLOSER = 16  # sets of neighbours
_FAR = 2**30  # More moves than any maze has.

_TOKEN_OF_BYTE = np.zeros(256, dtype=np.uint8)
_TOKEN_OF_BYTE[list(CHARACTERS.encode())] = range(1, VOCAB_SIZE)
_PIXELS = np.zeros((VOCAB_SIZE, 3), dtype=np.uint8)
_PIXELS[WALL:] = [list(bytes.fromhex(colour[1:])) for colour in PALETTE]


def text_to_tokens(texts: list[str]) -> np.ndarray:
    """Turn texts of equal length into tokens, uint8 [N, characters]; 0 for unknown characters."""
    characters = np.frombuffer("".join(texts).encode("ascii", "replace"), dtype=np.uint8)
    return _TOKEN_OF_BYTE[characters].reshape(len(texts), -1)


def are_mazes(inputs: np.ndarray) -> np.ndarray:
    """Return bool [N]: whether each row of [N, cells] is walls, free cells, one S and one G."""
    known = np.asarray(((inputs >= WALL) & (inputs <= GOAL)).all(axis=1))
    starts, goals = (inputs == START).sum(axis=1), (inputs == GOAL).sum(axis=1)
    return known & (starts == 1) & (goals == 1)


def solve(inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the same shortest path in each maze as the published answers.

    This is the path of a breadth-first search from S that visits neighbours in the order down,
    left, right, up, and enters each cell from the cell that reached it first.

    Returns:
        (labels, moves): uint8 [N, cells], the inputs with the path drawn as `PATH`; int64 [N], its
        length. If G cannot be reached, no path is drawn and the length is -1.
    Raises:
        ValueError: names the first row that is not a maze.
    """
    return _kernels().solve_mazes(*_checked(inputs))


def check_paths(inputs: np.ndarray, preds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return bool [N] twice: whether each prediction is a path from S to G, and a shortest one.

    A prediction is valid if

    - walls, S and G are exactly where the input has them, and every other cell is free or `o`;
    - among S, G and the `o` cells, S and G each have exactly one neighbour, every `o` cell has
      exactly two, and a walk from S to G visits all of them.

    Every shortest path is valid: if other cells of a path touched, it could be shortened.

    Args:
        inputs: tokens of mazes, integer [N, cells].
        preds: any integers [N, cells].
    """
    moves, least_moves, _ = measure_paths(inputs, preds)
    return moves >= 0, (moves >= 0) & (moves == least_moves)


def path_actions(labels: np.ndarray) -> np.ndarray:
    """Return the moves along the path drawn in tokens [N, cells], as uint8 [N, cells].

    On S and the `o` cells, the move to the next cell is 1 down, 2 left, 3 right or 4 up. Other
    cells have 0.

    Raises:
        ValueError: names the first row without a valid path.
    """
    moves, _, actions = measure_paths(np.where(labels == PATH, FREE, labels), labels)
    if (moves < 0).any():
        raise ValueError(f"label {int(moves.argmin())} draws no path from S to G")
    return actions


def moves_to_goal(inputs: np.ndarray) -> np.ndarray:
    """Return the fewest moves from each cell to G, int32 [N, size, size]; 2**30 at walls and cells
    that cannot reach G.
    """
    mazes, size = _checked(inputs)
    grids = mazes.reshape(-1, size, size)
    moves = np.where(grids == GOAL, 0, _FAR).astype(np.int32)
    while True:
        nearer = np.where(grids == WALL, _FAR, np.minimum(moves, _beside(moves).min(axis=0) + 1))
        if (nearer == moves).all():
            return moves
        moves = nearer


def _beside(moves: np.ndarray) -> np.ndarray:
    """Return the values [4, N, size, size] of the neighbours down, left, right and up; `_FAR` off
    the board.
    """
    around = np.pad(moves, ((0, 0), (1, 1), (1, 1)), constant_values=_FAR)
    rows, columns = around[:, :, 1:-1], around[:, 1:-1]
    return np.stack([rows[:, 2:], columns[:, :, :-2], columns[:, :, 2:], rows[:, :-2]])


def closer_neighbours(moves: np.ndarray) -> np.ndarray:
    """Return which neighbours of each cell are closer to G than it is, as uint8 [N, cells]: the sum
    of 1 for down, 2 left, 4 right and 8 up. Walls, G, and cells that cannot reach G have 0.

    On the cells of the published answers the first of them is the move of `path_actions`. `moves`
    are those of `moves_to_goal`.
    """
    closer = (_beside(moves) == moves - 1) & (moves < _FAR)
    weights = np.array([1, 2, 4, 8], np.uint8).reshape(4, 1, 1, 1)
    return (closer * weights).sum(0, np.uint8).reshape(len(moves), -1)


def arrivals(moves: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the pairs of updates before a cell's token and its closer neighbours can be known,
    uint8 [N, cells, 2]; 255 stands for all larger numbers.

    A wave from G passes one cell an update and shows the closer neighbours; when it has reached S,
    another walks along the path and marks it. Walls and cells that cannot reach G have 0. `moves`
    are those of `moves_to_goal`, `labels` the answers of the same mazes, [N, cells].
    """
    moves = moves.reshape(labels.shape)
    whole = moves[labels == START][:, None]
    known = np.where(moves < _FAR, moves, 0)
    updates = np.stack([np.where(labels == PATH, 2 * whole - moves, known), known], axis=-1)
    return np.minimum(-(-updates // 2), 255).astype(np.uint8)


def measure_paths(
    inputs: np.ndarray, preds: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (moves, fewest moves, actions) of predictions, int64 [N], int64 [N], uint8 [N, cells].

    Both counts are -1 for invalid predictions; see `check_paths` and `path_actions`.
    """
    mazes, size = _checked(inputs)
    drawn = np.where((preds >= WALL) & (preds <= PATH), preds, 0).astype(np.uint8)
    return _kernels().check_mazes(mazes, drawn, size)


def maze_pixels(labels: np.ndarray) -> np.ndarray:
    """Return the colours in `PALETTE` of tokens [N, cells], uint8 [N, cells, 3]."""
    return _PIXELS[labels]


def _kernels() -> ModuleType:
    # Imported here because it loads the compiler, which takes half a second.
    from dataset.maze import kernels

    assert kernels.TOKENS == (WALL, FREE, START, GOAL, PATH)
    return kernels


def _checked(inputs: np.ndarray) -> tuple[np.ndarray, int]:
    """Check mazes; return them as contiguous uint8, and the rows of their grid."""
    size = isqrt(cells := inputs.shape[1])
    if size * size != cells:
        raise ValueError(f"{cells} cells do not form a square grid")
    if not (good := are_mazes(inputs)).all():
        accepted = f"{WALL} and {FREE}, and {START} and {GOAL} once each"
        raise ValueError(f"input {int(good.argmin())} is not a maze; accepted tokens: {accepted}")
    return np.ascontiguousarray(inputs, dtype=np.uint8), size
