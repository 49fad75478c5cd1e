"""Making puzzles: random choices, rules as clauses, and puzzles one after the other.

python-sat answers whether clauses can hold. A generator uses only this answer, not which solution
was found, so that it makes the same puzzles with every version of the library.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, count
from typing import TYPE_CHECKING, Any

import numpy as np

from dataset.sources import GeneratedPuzzle
from runtime.errors import ConfigError
from runtime.streams import Stream, random_words
from runtime.text import many

if TYPE_CHECKING:
    from dataset.kinds.base import Kind

Number = int | np.integer[Any]

_MAX_ATTEMPTS = 10_000  # without a new puzzle


class Draws:
    """Random choices that depend only on (seed, stream, attempt)."""

    def __init__(self, seed: int, stream: int, attempt: int) -> None:
        self._key, self._number = (seed, stream, attempt), count()

    def words(self, number: int) -> np.ndarray:
        """Return random words, uint64 [number]."""
        seed, stream, attempt = self._key
        return random_words(seed, stream, (0, attempt, next(self._number), 0), number)

    def order(self, number: int) -> np.ndarray:
        """Return 0 to number - 1 in random order, int64 [number]."""
        return np.argsort(self.words(number), kind="stable")

    def below(self, number: int) -> int:
        """Return one of 0 to number - 1."""
        return int(self.words(1)[0] % np.uint64(number))

    def shares(self, number: int) -> np.ndarray:
        """Return numbers in [0, 1), float64 [number]."""
        return (self.words(number) >> np.uint64(11)) * 2.0**-53

    def between(self, low: float, high: float) -> float:
        """Return a number from `low` up to `high`."""
        return low + (high - low) * float(self.shares(1)[0])


class Clauses:
    """The rules of one puzzle, as clauses over the literals "this cell holds this token".

    A literal is a number; -literal is its negation.

    Args:
        num_tokens: all tokens are smaller.
    """

    def __init__(self, num_tokens: int) -> None:
        self._num_tokens = num_tokens
        self._tokens: dict[int, Sequence[int]] = {}
        self._clauses: list[list[int]] = []
        self._solver: Any = None

    def copy(self) -> "Clauses":
        """Return the same rules, to add to."""
        new = Clauses(self._num_tokens)
        new._tokens, new._clauses = {**self._tokens}, [*self._clauses]
        return new

    def holds(self, cell: Number, token: Number) -> int:
        """Return the literal "this cell holds this token"."""
        return int(cell) * self._num_tokens + int(token) + 1

    def choose(self, cell: Number, tokens: Sequence[int]) -> None:
        """Require that the cell holds one of the tokens. Cells without choices have no literals."""
        self._tokens[int(cell)] = tokens
        self.exactly(1, [self.holds(cell, token) for token in tokens])

    def either(self, *literals: int) -> None:
        """Require that a literal is true."""
        self._clauses.append([*literals])

    def at_most(self, most: int, literals: Sequence[int]) -> None:
        """Require that no more than `most` literals are true; meant for few."""
        self._clauses += [[-one for one in some] for some in combinations(literals, most + 1)]

    def exactly(self, number: int, literals: Sequence[int]) -> None:
        """Require that `number` literals are true; meant for few."""
        self.at_most(number, literals)
        if number > len(literals):
            self._clauses += [[1], [-1]]  # This cannot be.
        else:
            self._clauses += map(list, combinations(literals, len(literals) - number + 1))

    def different(self, cells: Iterable[Number], tokens: Iterable[int]) -> None:
        """Require that none of the tokens is in two of the cells."""
        places = [*cells]
        for token in tokens:
            self.at_most(1, [self.holds(cell, token) for cell in places])

    def permuted(self, cells: Iterable[Number], tokens: Iterable[int]) -> None:
        """Require that each of the tokens is in exactly one of the cells."""
        places, needed = [*cells], [*tokens]
        self.different(places, needed)
        for token in needed:
            self.either(*(self.holds(cell, token) for cell in places))

    def given(self, board: np.ndarray, open: int) -> list[int]:
        """Return the literals for all cells with a choice where the board is not `open`."""
        flat = board.reshape(-1)
        return [self.holds(cell, flat[cell]) for cell in self._tokens if flat[cell] != open]

    def can_hold(self, literals: Iterable[int]) -> bool:
        """Return whether there is a solution in which all these literals are true."""
        return bool(self._solving().solve(assumptions=[*literals]))

    def solutions(self, literals: Iterable[int]) -> Iterator[dict[int, int]]:
        """Yield all solutions in which these literals are true: the token of each cell with a
        choice.
        """
        solver = new_solver([*self._clauses, *([one] for one in literals)])
        while solver.solve():
            true = set(solver.get_model())
            found = {
                cell: next(token for token in tokens if self.holds(cell, token) in true)
                for cell, tokens in self._tokens.items()
            }
            yield found
            solver.add_clause([-self.holds(cell, token) for cell, token in found.items()])

    def drawn(self, draws: Draws) -> dict[int, int]:
        """Return a random solution: cells in random order get a random token that still can hold.

        There must be one.
        """
        cells, found = [*self._tokens], list[int]()
        chosen = dict[int, int]()
        for cell in (cells[number] for number in draws.order(len(cells))):
            tokens = self._tokens[cell]
            for token in (tokens[number] for number in draws.order(len(tokens))):
                if self.can_hold([*found, self.holds(cell, token)]):
                    found.append(self.holds(cell, token))
                    chosen[cell] = token
                    break
        return chosen

    def puzzle(
        self, board: np.ndarray, answer: dict[int, int], most_open: int, draws: Draws
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return a question with this answer as its only solution, and the answer, both on `board`.

        Cells are opened in random order, `most_open` at most. The rules must not change after this.
        """
        another = self._num_tokens * (1 + max(self._tokens)) + 1  # a literal of its own
        self._solving().add_clause(
            [-another, *(-self.holds(cell, token) for cell, token in answer.items())]
        )
        cells, kept = [*answer], {cell: self.holds(cell, answer[cell]) for cell in answer}
        for cell in (cells[number] for number in draws.order(len(cells))):
            if len(cells) - len(kept) >= most_open:
                break
            literal = kept.pop(cell)
            if self.can_hold([another, *kept.values()]):
                kept[cell] = literal
        return filled(board, {cell: answer[cell] for cell in kept}), filled(board, answer)

    def open_cells(self, literals: Iterable[int]) -> int:
        """Return the number of cells that stay open if these literals are true and each clause with
        one literal left is used, again and again.
        """
        # `propagate` leaves out the literals that clauses of one literal fix.
        fixed = [clause[0] for clause in self._clauses if len(clause) == 1]
        longer = [clause for clause in self._clauses if len(clause) != 1]
        _, true = new_solver(longer).propagate(assumptions=[*literals, *fixed])
        known = {(literal - 1) // self._num_tokens for literal in true if literal > 0}
        return len(self._tokens.keys() - known)

    def _solving(self) -> Any:
        if self._solver is None:
            self._solver = new_solver(self._clauses)
        return self._solver


def filled(board: np.ndarray, tokens: dict[int, int]) -> np.ndarray:
    """Return a copy of a board with these tokens by cell."""
    new = board.copy()
    new.flat[[*tokens]] = [*tokens.values()]
    return new


def new_solver(clauses: list[list[int]]) -> Any:
    """Return a solver of python-sat, which is loaded only when it is needed."""
    from pysat.solvers import Solver

    return Solver(name="glucose4", bootstrap_with=clauses)


def make_puzzles(
    kind: "Kind", size: int, *, seed: int, stream: Stream, taken: set[bytes], min_rating: int = 0
) -> Iterator[GeneratedPuzzle]:
    """Yield puzzles of a size of the kind without end.

    Args:
        taken: keys of puzzles that must not be made again; keys of the new ones are added.
        min_rating: puzzles with a lower rating are left out.
    Raises:
        ConfigError: no new puzzle was found for a long time.
    """
    last, best = -1, -1
    for attempt in count():
        if attempt - last > _MAX_ATTEMPTS:
            break
        made = kind.draw(size, Draws(seed, stream, attempt))
        if made is None:
            continue
        question, answer = (np.ascontiguousarray(board, np.uint8).reshape(-1) for board in made)
        rating = kind.rating_of(kind.to_grid(question))
        best = max(best, rating)
        if rating < min_rating or (key := kind.key_of(question)) in taken:
            continue
        taken.add(key)
        last = attempt
        yield GeneratedPuzzle(question, answer, rating, attempt + 1)
    found = f"; the highest rating was {best}" if best < min_rating else ""
    raise ConfigError(
        f"no new {kind.name} of size {size} with a rating of {min_rating} or more in"
        f" {many(_MAX_ATTEMPTS, 'attempt')}{found}; ask for fewer or easier ones"
    )
