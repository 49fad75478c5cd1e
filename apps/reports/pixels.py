"""Read mazes from pictures."""

from math import isqrt
from pathlib import Path
from warnings import catch_warnings

import numpy as np

from dataset.kinds.base import Puzzle
from dataset.kinds.maze import MAZE
from dataset.maze import rules as maze
from runtime.errors import ConfigError, DatasetError

_MOST_PIXELS = 2048  # A side.
_CLOSE = 100**2  # Of two colours, the squares of their differences in red, green and blue added.


def read_maze(path: Path, num_cells: int | None = None) -> Puzzle:
    """Read a picture of a maze: black walls, white free cells, a green start and a red goal, each
    cell a square of as many pixels. A blue path that is drawn counts as free.

    Args:
        num_cells: of the maze; None: a cell is as large as the green square.
    Raises:
        ConfigError: Pillow is not installed.
        DatasetError: no such picture; names the file, and what was expected.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise ConfigError("pillow is not installed (pip install '.[pictures]')") from None
    try:
        # One that claims to be huge is refused below, before it is unpacked.
        with catch_warnings(action="ignore"), Image.open(path, formats=["PNG"]) as image:
            width, height = image.size
            fits = width == height and width <= _MOST_PIXELS
            pixels = np.asarray(image.convert("RGB"), np.int64) if fits else np.zeros((0, 0, 3))
    except Image.DecompressionBombError:
        raise DatasetError(f"{path}: too many pixels") from None
    except (OSError, ValueError, SyntaxError, UnidentifiedImageError) as error:
        reason = getattr(error, "strerror", None) or "not a picture in PNG"
        raise DatasetError(f"{path}: {reason}") from None
    if not fits:
        accepted = f"a square of at most {_MOST_PIXELS} x {_MOST_PIXELS}"
        raise DatasetError(f"{path}: {width} x {height} pixels; accepted: {accepted}")
    palette = np.array([list(bytes.fromhex(colour[1:])) for colour in maze.PALETTE])
    distances = [((pixels - colour) ** 2).sum(-1) for colour in palette]
    tokens = np.argmin(distances, axis=0) + maze.WALL
    # A frame in some other colour may be nearer to green than to the others.
    is_green = distances[maze.START - maze.WALL] < _CLOSE
    starts = int(((tokens == maze.START) & is_green).sum())
    size = isqrt(num_cells) if num_cells else round(width / max(1, isqrt(starts)))
    if width % size:
        raise DatasetError(f"{path}: {width} pixels a side are not whole cells of {size} x {size}")
    middle = slice(width // size // 2, None, width // size)
    grid = tokens[middle, middle]
    grid = np.where(grid == maze.PATH, maze.FREE, grid)
    if not maze.are_mazes(grid.reshape(1, -1))[0]:
        found = f"{(grid == maze.START).sum()} green and {(grid == maze.GOAL).sum()} red cells"
        raise DatasetError(f"{path}: {found} in {size} x {size}; accepted: one of each")
    return Puzzle(MAZE, grid.astype(np.int8))
