"""Compiled Sudoku kernels: the solver, the puzzle generator, and the key of symmetric solutions.

All kernels are in this file because of numba's cache: see `dataset.compiled`.

Integer arguments are wrapped in np.int64, because numba compiles a function again for each literal
argument. No slice is assigned to, because compiling its error message takes two seconds.

A board is int64 [cells]: digit d is the bit 1 << (d - 1), and an empty cell is 0. Random numbers
are SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA
2014); `state` is uint64 [1].
"""

import numpy as np

from dataset.compiled import compiled, mix

_BIT_COUNT = np.array([bin(mask).count("1") for mask in range(1 << 9)], dtype=np.int64)


@compiled
def _random_below(state, bound):
    """Advance `state`; return an int64 in [0, bound), uniform but for a bias of bound / 2**32."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    return np.int64(mix(state[0]) >> np.uint64(32)) % bound


@compiled
def _shuffle(state, items):
    for last in range(len(items) - 1, 0, -1):
        other = _random_below(state, last + 1)
        items[last], items[other] = items[other], items[last]


@compiled
def _place(board, used, cell, bit, layout, trail, filled):
    board[cell] = bit
    for kind in range(3):
        used[layout.cell_units[cell, kind]] |= bit
    trail[filled] = cell
    return filled + 1


@compiled
def _undo(board, used, layout, trail, filled, kept):
    while filled > kept:
        filled -= 1
        cell = trail[filled]
        for kind in range(3):
            used[layout.cell_units[cell, kind]] &= ~board[cell]
        board[cell] = 0
    return filled


@compiled
def _candidates(used, cell, layout):
    units = layout.cell_units
    return ~(used[units[cell, 0]] | used[units[cell, 1]] | used[units[cell, 2]])


@compiled
def _naked_singles(board, allowed, used, layout, trail, filled, candidates):
    """Fill in cells with one candidate until none is left.

    Returns:
        (number of filled cells, first empty cell with the fewest candidates). The second is -1 on a
        full board, and -2 if there is a contradiction.
    """
    placed = True
    fewest_cell = -1
    while placed:
        placed = False
        fewest, fewest_cell = 10, -1
        for cell in range(len(board)):
            if board[cell] != 0:
                candidates[cell] = 0
                continue
            options = allowed[cell] & _candidates(used, cell, layout)
            if options == 0:
                return filled, -2
            candidates[cell] = options
            count = _BIT_COUNT[options]
            if count == 1:
                filled = _place(board, used, cell, options, layout, trail, filled)
                placed = True
            elif count < fewest:
                fewest, fewest_cell = count, cell
    return filled, fewest_cell


@compiled
def _hidden_singles(board, used, layout, trail, filled, candidates):
    """Fill in digits with one cell left in a unit; return (number of filled cells, consistent)."""
    full = (1 << layout.size) - 1
    for unit in range(3 * layout.size):
        if used[unit] == full:
            continue
        once = twice = 0
        for position in range(layout.size):
            options = candidates[layout.unit_cells[unit, position]]
            twice |= once & options
            once |= options
        if (once | used[unit]) != full:
            return filled, False
        once &= ~twice & ~used[unit]
        if once == 0:
            continue
        for position in range(layout.size):
            cell = layout.unit_cells[unit, position]
            bit = candidates[cell] & once
            if bit != 0 and board[cell] == 0:
                if _BIT_COUNT[bit] != 1 or (bit & _candidates(used, cell, layout)) == 0:
                    return filled, False
                filled = _place(board, used, cell, bit, layout, trail, filled)
    return filled, True


@compiled
def _propagate(board, allowed, used, layout, trail, filled, candidates):
    """Fill in naked and hidden singles until none is left; return as `_naked_singles` does."""
    while True:
        filled, cell = _naked_singles(board, allowed, used, layout, trail, filled, candidates)
        if cell < 0:
            return filled, cell
        before = filled
        filled, consistent = _hidden_singles(board, used, layout, trail, filled, candidates)
        if not consistent:
            return filled, -2
        if filled == before:
            return filled, cell


@compiled
def _choose(options, randomize, state):
    """Return the lowest digit of `options`, or a random one if `randomize` is 1."""
    if randomize != 0:
        for _ in range(_random_below(state, _BIT_COUNT[options])):
            options &= options - 1
    return options & -options


@compiled
def _search(clues, allowed, layout, limit, randomize, state):
    """Look for up to `limit` solutions, guessing in the cell with the fewest candidates.

    Args:
        allowed: int64 [cells], the digits that each empty cell may have.
    Returns:
        (solutions found, guesses taken back before the first solution or the end, first solution).
    """
    cells, board = len(clues), clues.copy()
    answer = board
    used = np.zeros(3 * layout.size, dtype=np.int64)
    candidates = np.zeros(cells, dtype=np.int64)
    trail = np.empty(cells, dtype=np.int64)
    filled = np.int64(0)
    for cell in range(cells):
        if clues[cell] != 0:
            filled = _place(board, used, cell, clues[cell], layout, trail, filled)
    guess_cell = np.empty(cells + 1, dtype=np.int64)
    guess_options = np.empty(cells + 1, dtype=np.int64)  # untried digits
    guess_filled = np.empty(cells + 1, dtype=np.int64)
    depth = guesses = solutions = backtracks = 0
    while True:
        filled, cell = _propagate(board, allowed, used, layout, trail, filled, candidates)
        if cell >= 0:
            guess_cell[depth] = cell
            guess_options[depth] = candidates[cell]
            guess_filled[depth] = filled
            depth += 1
        elif cell == -1:
            if solutions == 0:
                backtracks = guesses - depth
                answer = board.copy()
            solutions += 1
            if solutions == limit:
                return solutions, backtracks, answer
        while depth > 0 and guess_options[depth - 1] == 0:
            depth -= 1
        if depth == 0:
            return solutions, backtracks if solutions > 0 else guesses, answer
        level = depth - 1
        filled = _undo(board, used, layout, trail, filled, guess_filled[level])
        bit = _choose(guess_options[level], randomize, state)
        guess_options[level] &= ~bit
        filled = _place(board, used, guess_cell[level], bit, layout, trail, filled)
        guesses += 1


@compiled
def _any_digit(layout):
    return np.full(layout.size * layout.size, (1 << layout.size) - 1, dtype=np.int64)


@compiled
def solve_board(clues, layout, limit):
    """Solve a board without conflicts between its digits.

    Returns:
        (solutions up to `limit`, backtracks before the first, the first solution).
    """
    state = np.zeros(1, dtype=np.uint64)
    return _search(clues, _any_digit(layout), layout, limit, np.int64(0), state)


@compiled
def draw_puzzle(layout, state, min_clues, max_clues, min_rating, max_steps):
    """Make one attempt at a random puzzle with exactly one solution.

    With `min_rating` 0, clues are removed in random order. Otherwise a vicinity search among
    minimal puzzles, of up to `max_steps`, looks for this rating.

    Returns:
        (success, rating, steps of the vicinity search, puzzle, solution).
    """
    steps = np.int64(0)
    solution = _random_solution(layout, state)
    puzzle = solution.copy()
    if min_rating > 0:
        puzzle, rating, steps = _climb(puzzle, solution, min_rating, max_steps, layout, state)
        return rating >= min_rating, rating, steps, puzzle, solution
    target = min_clues + _random_below(state, max_clues - min_clues + 1)
    if _dig(puzzle, target, layout, state) != target:
        return False, 0, steps, puzzle, solution
    solutions, rating = _count_and_rate(puzzle, layout, state)
    return solutions == 1, rating, steps, puzzle, solution


@compiled
def _random_solution(layout, state):
    """Fill a board at random: a shuffled first row, then random guesses. Not exactly uniform."""
    cells = layout.size * layout.size
    clues = np.zeros(cells, dtype=np.int64)
    for digit in range(layout.size):
        clues[digit] = 1 << digit
    _shuffle(state, clues[: layout.size])
    return _search(clues, _any_digit(layout), layout, np.int64(1), np.int64(1), state)[2]


@compiled
def _count_and_rate(puzzle, layout, state):
    return _search(puzzle, _any_digit(layout), layout, np.int64(2), np.int64(0), state)[:2]


@compiled
def _dig(puzzle, target, layout, state):
    """Remove clues in random order, down to `target`, while the solution stays the only one.

    Returns the number of clues left. If it is above `target`, no further clue can be removed.
    """
    allowed = _any_digit(layout)
    order = np.flatnonzero(puzzle)
    _shuffle(state, order)
    left = len(order)
    for cell in order:
        if left <= target:
            break
        digit = puzzle[cell]
        puzzle[cell] = 0
        allowed[cell] &= ~digit  # Another solution would need another digit here.
        others = _search(puzzle, allowed, layout, np.int64(1), np.int64(0), state)[0]
        allowed[cell] |= digit
        if others == 0:
            left -= 1
        else:
            puzzle[cell] = digit
    return left


@compiled
def _without_a_clue(puzzle, state):
    new = puzzle.copy()
    clues = np.flatnonzero(new)
    new[clues[_random_below(state, len(clues))]] = 0
    return new


@compiled
def _complete(puzzle, solution, at_a_time, layout, state):
    """Add clues, some at a time, until the solution is the only one, make the puzzle minimal, and
    return its rating.
    """
    while _count_and_rate(puzzle, layout, state)[0] != 1:
        for _ in range(at_a_time):
            empty = np.flatnonzero(puzzle == 0)
            cell = empty[_random_below(state, len(empty))]
            puzzle[cell] = solution[cell]
    _dig(puzzle, np.int64(0), layout, state)
    return _count_and_rate(puzzle, layout, state)[1]


@compiled
def _climb(puzzle, solution, min_rating, max_steps, layout, state):
    """Make the puzzle minimal, then harder, by a vicinity search; return (puzzle, rating, steps).

    A step removes one clue, adds two clues at a time until the solution is the only one again, and
    makes the puzzle minimal. Its result is kept unless the rating is lower.
    """
    _dig(puzzle, np.int64(0), layout, state)
    _, best = _count_and_rate(puzzle, layout, state)
    steps = 0
    while best < min_rating and steps < max_steps:
        steps += 1
        neighbour = _without_a_clue(puzzle, state)
        rating = _complete(neighbour, solution, np.int64(2), layout, state)
        if rating >= best:
            best, puzzle = rating, neighbour
    return puzzle, best, steps


@compiled
def vary_puzzle(puzzle, min_rating, max_steps, layout, state):
    """Make a minimal puzzle with another solution than this one's.

    Clues are removed until a solution drawn at random is another one. Clues of it are added until
    it is the only one. Then `_climb` makes the puzzle harder.

    Returns:
        (success, puzzle, solution); success: the rating is at least `min_rating`.
    """
    free, one, drawn = _any_digit(layout), np.int64(1), np.int64(1)
    old = _search(puzzle, free, layout, one, drawn, state)[2]
    new, solution = puzzle, old
    while new.any() and (solution == old).all():
        new = _without_a_clue(new, state)
        solution = _search(new, free, layout, one, drawn, state)[2]
    _complete(new, solution, one, layout, state)
    new, rating, _ = _climb(new, solution, min_rating, max_steps, layout, state)
    return rating >= min_rating, new, solution


@compiled
def solution_key(digits):
    """Return a key of a 9x9 solution, uint64: equal for symmetric images, hardly ever for others.

    Two rows define a permutation: each digit of one row maps to the digit of the other row in the
    same column. Its cycle lengths do not change when digits are renamed or columns swapped. They
    are hashed for each pair of rows. The hashes are summed by row, band and board, so the order
    does not matter. The same is done for columns.
    """
    rows = _lines_key(digits.reshape(9, 9))
    columns = _lines_key(digits.reshape(9, 9).T.copy())  # In C order, so it is compiled once.
    return mix(rows + columns) + mix(rows ^ columns)


@compiled
def _lines_key(grid):
    position = np.empty(10, dtype=np.int64)
    board = np.uint64(0)
    for band in range(3):
        band_sum = np.uint64(0)
        for line in range(3 * band, 3 * band + 3):
            for column in range(9):
                position[grid[line, column]] = column
            line_sum = np.uint64(0)
            for other in range(9):
                if other != line:
                    salt = np.uint64(1 if other // 3 == band else 2)
                    line_sum += mix(_cycles(grid, position, line, other) + salt)
            band_sum += mix(line_sum)
        board += mix(band_sum)
    return mix(board)


@compiled
def _cycles(grid, position, line, other):
    """Hash the cycle lengths of the permutation from `line` to `other`."""
    key = np.uint64(0)
    seen = 0
    for start in range(9):
        length, column = 0, start
        while seen & (1 << column) == 0:
            seen |= 1 << column
            length += 1
            column = position[grid[other, column]]
        if length > 0:
            key += mix(np.uint64(length))
    return key
