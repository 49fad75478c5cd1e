"""Symmetries of ARC tasks, their names, and the random draws of them.

An augmentation permutes the colours 1 to 9 and then turns or mirrors the grid. It is named
TASK|||t3|||0192837465: the task, the view (0 to 7), and the new colour of each old one.
"""

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from itertools import chain, permutations
from math import factorial

import numpy as np

from dataset.dihedral import INVERSE_VIEWS, NUM_VIEWS, dihedral_view
from dataset.format.schema import ARC_NUM_COLOURS, ARC_SIDE
from runtime.streams import Stream, random_words

IDENTITY = np.arange(ARC_NUM_COLOURS, dtype=np.uint8)
IDENTITY.flags.writeable = False

_SEPARATOR = "|||"
_NAME = re.compile(r"(?P<task>.+)(?:\|\|\|t(.)\|\|\|(.*)|_t([0-9])_([0-9]{10}))", re.DOTALL)
_TRIES_PER_AUGMENTATION = 5


def augment_grid(grid: np.ndarray, view: int, colours: np.ndarray) -> np.ndarray:
    """Recolour a grid, uint8 [h, w] of 0 to 9, as new = colours[old]; then turn or mirror it."""
    return dihedral_view(colours[grid], view)


def undo_grid(grid: np.ndarray, view: int, colours: np.ndarray) -> np.ndarray:
    """Invert `augment_grid`; colours is a permutation of 0 to 9."""
    inverse = np.empty(ARC_NUM_COLOURS, dtype=np.uint8)
    inverse[colours] = IDENTITY
    return inverse[dihedral_view(grid, INVERSE_VIEWS[view])]


def format_identifier(task: str, view: int, colours: np.ndarray) -> str:
    """Name an augmentation, as TASK|||t3|||0192837465; colours is a permutation that keeps 0."""
    digits = (np.asarray(colours, np.uint8) + ord("0")).tobytes().decode("ascii")
    return f"{task}{_SEPARATOR}t{view}{_SEPARATOR}{digits}"


def parse_identifier(name: str) -> tuple[str, int, np.ndarray]:
    """Read the name of an augmentation, also in the older form TASK_t3_0192837465; TASK alone has
    view 0 and the colours as they are.

    Returns:
        (task, view, colours uint8 [10]).
    Raises:
        ValueError: the view or the colours are none.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        if not name or _SEPARATOR in name:
            raise ValueError(f"{name!r} is no name of a puzzle; accepted: TASK, TASK|||t3|||DIGITS")
        return name, 0, IDENTITY.copy()
    task, *parts = match.groups()
    view, digits = parts[:2] if parts[0] is not None else parts[2:]
    if _SEPARATOR in task:
        raise ValueError(f"{name!r} is augmented twice; accepted: TASK, TASK|||t3|||DIGITS")
    if view not in "01234567":
        raise ValueError(f"{name!r} has view {view!r}; accepted: 0 to {NUM_VIEWS - 1}")
    if digits[:1] != "0" or sorted(digits) != list("0123456789"):
        accepted = "0, and then 1 to 9 in any order"
        raise ValueError(f"{name!r} has colours {digits!r}; accepted: {accepted}")
    return task, int(view), np.frombuffer(digits.encode(), np.uint8) - ord("0")


Pair = tuple[np.ndarray, np.ndarray | None]
"""Input and output grid, uint8 [h, w] of 0 to 9; None is an output that is not known."""


def draw_augmentations(task: str, pairs: Sequence[Pair], num_aug: int, seed: int) -> np.ndarray:
    """Draw views and colours that make different puzzles of a task, the original being the first.

    They are drawn uniformly and in turn; one that leads to pairs had before, in whatever order, is
    dropped. After 5 * num_aug draws there may be fewer than asked for. They depend on the seed, the
    name and the pairs, so that a task has the same ones in every data set.

    Returns:
        uint8 [1 + found, 10]: the view, then the new colours of 1 to 9.
    """
    original = IDENTITY[None]  # View 0, and 1 to 9 as they are.
    kept, found = [original], 1
    if num_aug:
        sums = _colour_sums(pairs)
        seen = np.array([_hashes(sums, original)[0]])
        number = int.from_bytes(hashlib.sha256(task.encode()).digest()[:8], "little")
        tries = _TRIES_PER_AUGMENTATION * num_aug
        words = random_words(seed, Stream.ARC_AUGMENTATION, (0, 0, number, 0), tries)
        choices = (words % np.uint64(NUM_VIEWS * factorial(9))).astype(np.int64)
        views, orders = np.divmod(choices, factorial(9))
        drawn = np.empty((tries, ARC_NUM_COLOURS), dtype=np.uint8)
        drawn[:, 0], drawn[:, 1:] = views, _colour_orders()[orders]
        for start in range(0, tries, num_aug):
            here = drawn[start : start + num_aug]
            hashes = np.concatenate([seen, _hashes(sums, here)])
            seen, first = np.unique(hashes, return_index=True)
            new = np.sort(first[first >= len(hashes) - len(here)]) - (len(hashes) - len(here))
            kept.append(here[new][: num_aug + 1 - found])
            found += len(kept[-1])
            if found == num_aug + 1:
                break
    return np.concatenate(kept)


@cache
def _colour_orders() -> np.ndarray:
    orders = chain.from_iterable(permutations(range(1, ARC_NUM_COLOURS)))
    return np.fromiter(orders, np.uint8).reshape(-1, ARC_NUM_COLOURS - 1)


# The hash of a grid is the sum over its cells of weight[row, column] * weight[colour], so that a
# recoloured grid costs ten products: the weights of the cells are summed by colour beforehand.


def _colour_sums(pairs: Sequence[Pair]) -> np.ndarray:
    """uint64 [pairs, 8, 20]: the cell weights summed by view and colour, of input and output."""
    sums = np.zeros((len(pairs), NUM_VIEWS, 2, ARC_NUM_COLOURS), dtype=np.uint64)
    for row, pair in enumerate(pairs):
        for side, grid in enumerate(pair):
            if grid is not None:
                has_colour = (grid.reshape(-1, 1) == IDENTITY).astype(np.uint64)
                sums[row, :, side] = _cell_weights(*grid.shape) @ has_colour
    return sums.reshape(len(pairs), NUM_VIEWS, 2 * ARC_NUM_COLOURS)


def _hashes(sums: np.ndarray, augmentations: np.ndarray) -> np.ndarray:
    """uint64 [N], equal for augmentations that make the same pairs."""
    colours = np.concatenate([np.zeros((len(augmentations), 1), np.uint8), augmentations[:, 1:]], 1)
    weights = _colour_weights()[:, colours].transpose(1, 0, 2).reshape(len(augmentations), -1)
    pairs = (sums[:, augmentations[:, 0]] * weights).sum(axis=2)
    # Mixed (the finalizer of splitmix64) before they are added up: a sum of sums would not tell
    # which grids belong together.
    pairs = (pairs ^ (pairs >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    pairs = (pairs ^ (pairs >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (pairs ^ (pairs >> np.uint64(31))).sum(axis=0)


@cache
def _cell_weights(height: int, width: int) -> np.ndarray:
    """uint64 [8, cells]: what each cell of a grid weighs where it lies after the view."""
    weights = random_words(0, Stream.ARC_HASH, (0, 0, 0, 0), ARC_SIDE**2)
    weights = weights.reshape(ARC_SIDE, ARC_SIDE)
    cells = []
    for view in range(NUM_VIEWS):
        h, w = dihedral_view(np.empty((height, width)), view).shape
        cells.append(dihedral_view(weights[:h, :w], INVERSE_VIEWS[view]).reshape(-1))
    return np.stack(cells)


@cache
def _colour_weights() -> np.ndarray:
    """uint64 [2, 10]: of input and output."""
    words = random_words(0, Stream.ARC_HASH, (0, 0, 1, 0), 2 * ARC_NUM_COLOURS)
    return words.reshape(2, ARC_NUM_COLOURS)
