"""Views of puzzles: each chain can see a puzzle turned by one of its symmetries, and its answer is
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
    """Return the views of puzzles with `size` rows; None if all chains see the puzzle as it is.

    Raises:
        ConfigError: the puzzles have no views, or fewer views than `settings` asks for chains.
    """
    chains = max(settings.chains)
    if settings.perturb != "symmetry" or chains == 1:
        return None
    views, name = kind and kind.views(size), kind and kind.name
    if views is None:
        unknown = f"{name or 'these'} puzzles have no known symmetry"
        raise ConfigError(f"perturb=symmetry: {unknown}; use perturb=noise")
    if chains > views.number:
        few = f"{name} puzzles have only {views.number} views"
        raise ConfigError(f"chains={chains}: {few}; use fewer chains, or perturb=noise")
    return views


def draw_views(views: Views, seed: int, rows: np.ndarray, chains: int) -> np.ndarray:
    """Draw a view for each chain of each puzzle; the first chain sees the puzzle itself.

    Args:
        seed: 0 to 2**64 - 1; the views of a row depend only on seed and row.
        rows: int64 [N], numbers of puzzles.
    Returns:
        int64 [chains, N]; if there are only 8 views, no view comes twice.
    """
    chosen = np.zeros((chains, len(rows)), np.int64)
    for column, row in enumerate(rows.tolist()):
        words = random_words(seed, Stream.VIEWS, (0, 0, row, 0), max(chains, NUM_VIEWS))
        if views.number > NUM_VIEWS:
            chosen[1:, column] = words[1:chains] % np.uint64(views.number)
        else:
            chosen[1:, column] = 1 + words[1 : views.number].argsort(kind="stable")[: chains - 1]
    return chosen


def seen_by_chains(views: Views | None, seed: int, rows: np.ndarray, chains: int) -> "list[Seen]":
    """Return the puzzles `rows` as each chain sees them; views None: as they are."""
    if views is None or chains == 1:
        return [Seen(None, np.zeros(len(rows), np.int64))] * chains
    return [Seen(views, own) for own in draw_views(views, seed, rows, chains)]


class Seen(NamedTuple):
    """N puzzles as one chain sees them: in the views with these numbers; symmetries None: as they
    are.
    """

    symmetries: Views | None
    views: np.ndarray

    def boards(self, inputs: np.ndarray) -> np.ndarray:
        """Turn puzzles [N, S] into the views that are seen."""
        if self.symmetries is None:
            return inputs
        (seen,) = self.symmetries.apply(self.views, inputs.astype(np.uint8))
        return seen.astype(inputs.dtype)

    def tokens(self, seen: np.ndarray) -> np.ndarray:
        """Turn answers [N, S] back to the puzzles themselves; uint8 if seen in views."""
        if self.symmetries is None:
            return seen
        return self.symmetries.undo(self.views, seen.astype(np.uint8))

    def values(self, seen: np.ndarray) -> np.ndarray:
        """Turn values of cells [N, S] back into the order of the puzzles' cells."""
        if self.symmetries is None:
            return seen
        own = np.empty_like(seen)
        np.put_along_axis(own, self.symmetries.moves(self.views)[0], seen, 1)
        return own
