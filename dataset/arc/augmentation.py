"""Augmentations of ARC tasks: how they change a grid, how they are named, how they are drawn.

An augmentation permutes the colours 1 to 9 and then turns or mirrors the grid. Its name is
TASK|||t3|||0192837465: the task, the view (0 to 7), and the new colour of each old colour.
"""

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from itertools import chain, permutations
from math import factorial

import numpy as np

from dataset.dihedral import INVERSE_VIEWS, NUM_VIEWS, dihedral_view
from dataset.format.schema import ARC_NUM_COLOURS
from runtime.streams import Stream, random_words

IDENTITY = np.arange(ARC_NUM_COLOURS, dtype=np.uint8)
IDENTITY.flags.writeable = False

_SEPARATOR = "|||"
_NAME = re.compile(r"(.+)\|\|\|t(.)\|\|\|(.+)", re.DOTALL)
_OLDER_NAME = re.compile(r"(.+)_t([0-9])_([0-9]{10})", re.DOTALL)
_TRIES_PER_AUGMENTATION = 5


def augment_grid(grid: np.ndarray, view: int, colours: np.ndarray) -> np.ndarray:
    """Recolour a grid, uint8 [h, w] of 0 to 9, by new = colours[old]; then turn or mirror it."""
    return dihedral_view(colours[grid], view)


def undo_grid(grid: np.ndarray, view: int, colours: np.ndarray) -> np.ndarray:
    """Invert `augment_grid`; colours is a permutation of 0 to 9."""
    inverse = np.empty(ARC_NUM_COLOURS, dtype=np.uint8)
    inverse[colours] = IDENTITY
    return inverse[dihedral_view(grid, INVERSE_VIEWS[view])]


def format_identifier(task: str, view: int, colours: np.ndarray) -> str:
    """Return the name of an augmentation: TASK|||t3|||0192837465, or TASK if it changes nothing.
    `colours` must keep 0.
    """
    if view == 0 and np.array_equal(colours, IDENTITY):
        return task
    digits = (np.asarray(colours, np.uint8) + ord("0")).tobytes().decode("ascii")
    return f"{task}{_SEPARATOR}t{view}{_SEPARATOR}{digits}"


def parse_identifier(name: str) -> tuple[str, int, np.ndarray]:
    """Parse the name of an augmentation; return (task, view, colours uint8 [10]).

    The older form TASK_t3_0192837465 is accepted too. TASK alone has view 0 and unchanged colours.

    Raises:
        ValueError: the view or the colours are invalid.
    """
    match = _NAME.fullmatch(name) or _OLDER_NAME.fullmatch(name)
    task, view, digits = match.groups() if match else (name, "0", "0123456789")
    is_known = view in "01234567" and digits[0] == "0" and sorted(digits) == sorted("0123456789")
    if not task or _SEPARATOR in task or not is_known:
        accepted = "TASK, or TASK|||t3|||DIGITS: t0 to t7, and 0 followed by 1 to 9 in any order"
        raise ValueError(f"{name!r} is not the name of a puzzle; accepted: {accepted}")
    return task, int(view), np.frombuffer(digits.encode(), np.uint8) - ord("0")


Pair = tuple[np.ndarray, np.ndarray | None]
"""Input and output grid, uint8 [h, w] of 0 to 9; an unknown output is None."""


def pair_key(pair: Pair, view: int = 0) -> bytes:
    """Return a key of a pair in a view: for each grid its sides, plus 100, and its colours."""
    unknown = np.empty((0, 0), np.uint8)
    grids = [unknown if grid is None else dihedral_view(grid, view) for grid in pair]
    return b"".join(bytes(100 + side for side in grid.shape) + grid.tobytes() for grid in grids)


def draw_augmentations(
    task: str, pairs: Sequence[Pair], num_aug: int, seed: int, *, recolour: bool = True
) -> np.ndarray:
    """Draw `num_aug` different augmentations of a task, uniformly; the original comes first.

    A draw that repeats the pairs of an earlier one, in any order, is dropped. After 5 * num_aug
    draws the list ends, even if it is short. It depends only on the seed, the name and the pairs:
    a task has the same augmentations in every data set. Without `recolour` they are the views that
    differ, in order.

    Returns:
        uint8 [1 + found, 10]: the view, then the new colours of 1 to 9.
    """
    turned = [[pair_key(pair, view) for pair in pairs] for view in range(NUM_VIEWS)]
    drawn = _drawn(task, num_aug, seed) if recolour else _all_views()
    no_colours = bytes(range(ARC_NUM_COLOURS, 256))
    kept, seen = list[int](), set[object]()
    for row, one in enumerate(map(bytes, drawn)):
        table = b"\0" + one[1:] + no_colours
        if (key := tuple(sorted(pair.translate(table) for pair in turned[one[0]]))) not in seen:
            seen.add(key)
            kept.append(row)
            if len(kept) > num_aug:
                break
    return drawn[kept]


def _drawn(task: str, num_aug: int, seed: int) -> np.ndarray:
    """Return the original and 5 * num_aug draws, uint8 [1 + draws, 10]."""
    tries = 1 + _TRIES_PER_AUGMENTATION * num_aug
    number = int.from_bytes(hashlib.sha256(task.encode()).digest()[:8], "little")
    words = random_words(seed, Stream.ARC_AUGMENTATION, (0, 0, number, 0), tries - 1)
    choices = (words % np.uint64(NUM_VIEWS * factorial(9))).astype(np.int64)
    drawn = np.empty((tries, ARC_NUM_COLOURS), dtype=np.uint8)
    drawn[0] = IDENTITY  # View 0, and colours 1 to 9 unchanged.
    drawn[1:, 0], orders = np.divmod(choices, factorial(9))
    drawn[1:, 1:] = _colour_orders()[orders]
    return drawn


def _all_views() -> np.ndarray:
    """Return the eight views with unchanged colours, uint8 [8, 10]."""
    views = np.tile(IDENTITY, (NUM_VIEWS, 1))
    views[:, 0] = range(NUM_VIEWS)
    return views


@cache
def _colour_orders() -> np.ndarray:
    orders = chain.from_iterable(permutations(range(1, ARC_NUM_COLOURS)))
    return np.fromiter(orders, np.uint8).reshape(-1, ARC_NUM_COLOURS - 1)
