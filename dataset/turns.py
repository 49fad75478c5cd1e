"""Views in which a puzzle is seen for a step: its cells moved and its tokens renamed."""

from math import isqrt

import numpy as np

from dataset.dihedral import NUM_VIEWS, UPRIGHT_VIEWS, dihedral_view
from dataset.sudoku.symmetries import sudoku_symmetries


def turns(
    words: np.ndarray, seq_len: int, vocab_size: int, *, is_sudoku: bool, every_symmetry: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Choose a view for each puzzle: turned and mirrored, and the digits of a Sudoku permuted.

    Args:
        words: random uint64 [2, N].
        seq_len: S, of square grids.
        vocab_size: V.
        every_symmetry: move the rows and columns of a Sudoku, too.
    Returns:
        int32 [N, S], for each cell the one that it was, and [N, V], for each token the one that it
        becomes.
    """
    moves, digits = (words >> np.uint64(1)).astype(np.int64)
    side = isqrt(seq_len)
    symmetries = sudoku_symmetries(side) if is_sudoku else None
    if symmetries and every_symmetry:
        cells = symmetries.sources(moves % symmetries.num_moves)
    else:
        # Boxes of another width than height do not survive a quarter turn.
        views = range(NUM_VIEWS) if not symmetries or symmetries.halves == 2 else UPRIGHT_VIEWS
        grid = np.arange(seq_len).reshape(side, side)
        turned = np.stack([dihedral_view(grid, view).ravel() for view in views])
        cells = turned[moves % len(turned)]
    renamed = symmetries.tokens if symmetries else np.arange(vocab_size)[None]
    tokens = renamed[digits % len(renamed)]
    return cells.astype(np.int32), tokens.astype(np.int32)
