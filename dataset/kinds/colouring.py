"""The kind `colouring`: colour the nodes of a planar graph with three colours.

A graph of N nodes is an N x N board: the diagonal has the nodes' colours, and the other cells say
whether two nodes are joined.
"""

from itertools import islice
from typing import Any

import numpy as np

from dataset.kinds.base import BoardLook, DrawnViews, Kind, Puzzle, TokenLook, Views
from dataset.kinds.making import Clauses, Draws, filled

OPEN, COLOURS, APART, JOINED = 1, (2, 3, 4), 5, 6
_MOST_ANSWERS = 1000


class ColouringKind(Kind):
    """Graphs with some coloured nodes; each proper colouring is right."""

    name = "Colouring"
    sizes = range(5, 31)
    goal = "a colouring without joined nodes of one colour, with the given ones"
    rating = "solutions"
    many_answers = True

    def board(self, size: int) -> BoardLook:
        fills = ("#FF4136", "#0074D9", "#2ECC40")
        colours = (
            TokenLook(token, f"colour {text}", text, fill, text, keys=(text,))
            for token, text, fill in zip(COLOURS, "ABC", fills, strict=True)
        )
        tokens = (
            TokenLook(OPEN, "open", "?", "#FFFFFF", "?", "0", ("?",)),
            *colours,
            TokenLook(APART, "apart", ".", "#ECF0F1", style="0", keys=(".", " ")),
            TokenLook(JOINED, "joined", "#", "#2C3E50", style="48;5;244", keys=("#",)),
        )
        hint = "The diagonal has the nodes: ?, A, B or C; # joins two nodes; paste rows as text."
        empty = np.where(np.eye(size, dtype=bool), OPEN, APART).reshape(-1).tolist()
        return BoardLook(tokens, cells="filled", open=OPEN, empty=tuple(empty), hint=hint)

    def recognises(self, text: str) -> bool:
        """Return whether the text has joined nodes and an open one."""
        return "#" in text and "?" in text

    def parse(self, text: str) -> Puzzle:
        """Parse a graph; raise ValueError if a cell does not fit or the two halves differ."""
        puzzle = super().parse(text)
        board, nodes = puzzle.question, np.eye(len(puzzle.question), dtype=bool)
        fits = np.where(nodes, board <= COLOURS[-1], board >= APART) & (nodes | (board == board.T))
        if not fits.all():
            row, cell = np.argwhere(~fits)[0] + 1
            raise ValueError(
                f"row {row}, cell {cell} does not fit; accepted: nodes on the diagonal, elsewhere"
                " . or #, the same in row A, cell B as in row B, cell A"
            )
        return puzzle

    def rules(self, question: np.ndarray) -> Clauses:
        rules, nodes = Clauses(self.vocab_size(len(question))), len(question)
        diagonal = [*range(0, nodes**2, nodes + 1)]
        for cell in diagonal:
            rules.choose(cell, COLOURS)
        for one, other in np.argwhere(np.triu(question == JOINED, 1)):
            rules.different((diagonal[one], diagonal[other]), COLOURS)
        return rules

    def broken(self, answer: np.ndarray) -> np.ndarray:
        """Mark open nodes, and both ends and the cells of an edge between nodes of one colour."""
        colours = answer.diagonal()
        clash = (answer == JOINED) & (colours[:, None] == colours)
        np.fill_diagonal(clash, clash.any(axis=0) | ~np.isin(colours, COLOURS))
        return clash

    def draw(self, size: int, draws: Draws) -> tuple[np.ndarray, np.ndarray] | None:
        """Draw points of three colours in the plane; join those of two colours that lie near each
        other, if the line crosses no other; show as many colours as leave 1,000 answers or fewer.
        """
        x, y = draws.shares(2 * size).reshape(2, size)
        colours = np.array([draws.below(len(COLOURS)) for _ in range(size)])
        board = np.full((size, size), APART)
        pairs = np.argwhere(np.triu(colours[:, None] != colours))
        lengths = (x[pairs[:, 0]] - x[pairs[:, 1]]) ** 2 + (y[pairs[:, 0]] - y[pairs[:, 1]]) ** 2
        joined = np.empty((0, 2), int)
        for one, other in pairs[lengths.argsort(kind="stable")]:
            if not crosses(x, y, one, other, joined).any():
                joined = np.append(joined, [[one, other]], axis=0)
                board[one, other] = board[other, one] = JOINED
        np.fill_diagonal(board, OPEN)
        answer = board.copy()
        np.fill_diagonal(answer, colours + COLOURS[0])
        order = draws.order(size)
        for shown in range(size // 5, size):
            tokens = {int(n) * (size + 1): int(answer[n, n]) for n in order[:shown]}
            question = filled(board, tokens)
            found = islice(self.solutions(question), _MOST_ANSWERS + 1)
            if sum(1 for _ in found) <= _MOST_ANSWERS:
                return question, answer
        return None

    def views(self, size: int) -> Views:
        return ColouringViews(size)


def crosses(x: np.ndarray, y: np.ndarray, one: int, other: int, joined: np.ndarray) -> np.ndarray:
    """Return bool [n]: whether the line between two points crosses the lines `joined`, int [n, 2].
    Lines with a common end do not cross.
    """
    a, b = joined.T

    def side(p: Any, q: Any, r: Any) -> np.ndarray:
        return (x[q] - x[p]) * (y[r] - y[p]) > (y[q] - y[p]) * (x[r] - x[p])

    apart = (a != one) & (a != other) & (b != one) & (b != other)
    return (
        apart
        & (side(one, other, a) != side(one, other, b))
        & (side(a, b, np.full_like(a, one)) != side(a, b, np.full_like(a, other)))
    )


class ColouringViews(DrawnViews):
    """Permutations of nodes and colours."""

    stream = 0x636F6C6F7572

    def __init__(self, size: int) -> None:
        self._size = size

    def drawn(self, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
        nodes, tokens = draws.order(self._size), np.arange(JOINED + 1)
        tokens[[*COLOURS]] = COLOURS[0] + draws.order(len(COLOURS))
        cells = np.arange(self._size**2).reshape(self._size, self._size)
        return cells[nodes][:, nodes].reshape(-1), tokens


COLOURING = ColouringKind()
