"""The views in which the chains of a puzzle see it: images under its symmetries, whose answers are
turned back exactly. Imports no torch.
"""

from typing import NamedTuple

import numpy as np

from dataset.dihedral import NUM_VIEWS
from dataset.kinds.base import Kind, Views
from evaluation.config import ThinkingSettings
from runtime.errors import ConfigError
from runtime.streams import Stream, random_words


def views_for(settings: ThinkingSettings, kind: Kind | None, size: int) -> Views | None:
    """Return the views that chains see of puzzles of `size` rows, where they see several.

    Raises:
        ConfigError: the puzzles have none, or fewer than chains are asked for.
    """
    if not settings.perturbs_views:
        return None
    views, breadth = kind and kind.views(size), max(settings.breadth)
    if views is None:
        unknown = f"no symmetry of {kind.name if kind else 'such'} puzzles is known"
        raise ConfigError(f"perturb=symmetry: {unknown}; perturb=noise does without")
    if breadth > views.number:
        few = f"such puzzles have {views.number} views"
        raise ConfigError(f"breadth={breadth}: {few}; a lower breadth, or perturb=noise")
    return views


def draw_views(views: Views, seed: int, rows: np.ndarray, breadth: int) -> np.ndarray:
    """Choose the views of each puzzle's chains, the first of which sees the puzzle itself.

    Args:
        seed: 0 to 2**64 - 1; the views of a row follow from seed and row alone.
        rows: int64 [N], numbers of puzzles.
    Returns:
        int64 [breadth, N]; of at most 8 views each comes once.
    """
    chosen = np.zeros((breadth, len(rows)), np.int64)
    for column, row in enumerate(rows.tolist()):
        words = random_words(seed, Stream.VIEWS, (0, 0, row, 0), max(breadth, NUM_VIEWS))
        if views.number > NUM_VIEWS:
            chosen[1:, column] = words[1:breadth] % np.uint64(views.number)
        else:
            chosen[1:, column] = 1 + words[1 : views.number].argsort(kind="stable")[: breadth - 1]
    return chosen


def seen_by_chains(views: Views | None, seed: int, rows: np.ndarray, breadth: int) -> "list[Seen]":
    """Return how each chain sees puzzles, whose numbers `draw_views` takes; without views as they
    are.
    """
    if views is None or breadth == 1:
        return [Seen(None, np.zeros(len(rows), np.int64))] * breadth
    return [Seen(views, own) for own in draw_views(views, seed, rows, breadth)]


class Seen(NamedTuple):
    """How N puzzles are seen: in views with these numbers, or (None) as they are."""

    symmetries: Views | None
    views: np.ndarray

    def boards(self, inputs: np.ndarray) -> np.ndarray:
        """Return the puzzles [N, S] as they are seen."""
        if self.symmetries is None:
            return inputs
        (seen,) = self.symmetries.apply(self.views, inputs.astype(np.uint8))
        return seen.astype(inputs.dtype)

    def tokens(self, seen: np.ndarray) -> np.ndarray:
        """Return tokens [N, S] that were answered as those of the puzzles; uint8 from views."""
        if self.symmetries is None:
            return seen
        return self.symmetries.undo(self.views, seen.astype(np.uint8))

    def values(self, seen: np.ndarray) -> np.ndarray:
        """Return values of the cells [N, S] in the order of the puzzles' own."""
        if self.symmetries is None:
            return seen
        own = np.empty_like(seen)
        np.put_along_axis(own, self.symmetries.moves(self.views)[0], seen, 1)
        return own
