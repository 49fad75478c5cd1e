"""Compiled maze kernels: the solver, the check of drawn paths, and the generator.

All kernels and their tokens are in this file because of numba's cache: see `dataset.compiled`.

A maze is uint8 [cells] of tokens, row by row. The generator works on bit boards: uint64 words in
which bit row * (size + 1) + column is a cell. The extra column keeps rows apart. Random numbers are
SplitMix64 (see `dataset.sudoku.kernels`); `state` is uint64 [1].
"""

import numpy as np

from dataset.compiled import compiled, mix

TOKENS = WALL, FREE, START, GOAL, PATH = 1, 2, 3, 4, 5
"""`dataset.maze.rules` checks that they equal its own."""

_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_ONE = np.uint64(1)
_LAST = np.uint64(63)


@compiled
def _neighbour(cell, direction, size):
    """Return the cell down, left, right or up of a cell (directions 0 to 3); -1 off the board."""
    if direction == 0:
        return cell + size if cell + size < size * size else -1
    if direction == 1:
        return cell - 1 if cell % size > 0 else -1
    if direction == 2:
        return cell + 1 if cell % size < size - 1 else -1
    return cell - size


@compiled
def _find(tokens, token):
    for cell in range(len(tokens)):
        if tokens[cell] == token:
            return cell
    return -1


@compiled
def _search(tokens, size):
    """Search breadth first from S.

    Returns:
        (moves to G, or -1 if it is unreachable; for each cell the cell before it, int64 [cells]).
    """
    parents = np.full(size * size, -1)
    queue = np.empty(size * size, dtype=np.int64)
    start = _find(tokens, START)
    parents[start] = start
    queue[0] = start
    end = 1  # number of cells reached
    done = 0  # number of cells with visited neighbours
    moves = 0
    while done < end:
        moves += 1
        ring = end
        while done < ring:
            cell = queue[done]
            done += 1
            for direction in range(4):
                other = _neighbour(cell, direction, size)
                if other >= 0 and tokens[other] != WALL and parents[other] < 0:
                    parents[other] = cell
                    if tokens[other] == GOAL:
                        return moves, parents
                    queue[end] = other
                    end += 1
    return -1, parents


@compiled
def solve_mazes(inputs, size):
    """Solve mazes, uint8 [N, cells]; see `dataset.maze.rules.solve`."""
    labels, moves = inputs.copy(), np.empty(len(inputs), dtype=np.int64)
    for row in range(len(inputs)):
        tokens = inputs[row]
        moves[row], parents = _search(tokens, size)
        if moves[row] > 0:
            cell = parents[_find(tokens, GOAL)]
            while tokens[cell] != START:
                labels[row, cell] = PATH
                cell = parents[cell]
    return labels, moves


@compiled
def _walk(tokens, size, actions):
    """Follow the path drawn from S to G; return its moves, or -1 if it is not one valid path.

    The move from each cell to the next, 1 to 4, is written to `actions`, uint8 [cells].
    """
    num_drawn = 0
    for cell in range(size * size):
        num_drawn += tokens[cell] >= START  # S, G or o
    previous = -1
    cell = _find(tokens, START)
    moves = 0
    while True:
        following = -1
        action = 0
        for direction in range(4):
            other = _neighbour(cell, direction, size)
            if other >= 0 and other != previous and tokens[other] >= START:
                if following >= 0:
                    return -1  # The path forks or touches itself.
                following, action = other, direction + 1
        if tokens[cell] == GOAL:
            return moves if following < 0 and moves + 1 == num_drawn else -1
        if following < 0:
            return -1
        # The loop ends: a cell visited twice would have been a fork the first time.
        actions[cell] = action
        previous, cell = cell, following
        moves += 1


@compiled
def check_mazes(inputs, preds, size):
    """Compare the drawn path and a shortest path of each maze, uint8 [N, cells].

    Returns:
        (drawn moves, fewest moves, actions): int64 [N], int64 [N], both -1 if the drawn path is
        invalid, and uint8 [N, cells], see `dataset.maze.rules.path_actions`.
    """
    drawn_moves, least_moves = np.full(len(inputs), -1), np.full(len(inputs), -1)
    actions = np.zeros_like(inputs)
    for row in range(len(inputs)):
        kept = True
        for cell in range(size * size):
            given, pred = inputs[row, cell], preds[row, cell]
            kept = kept and (pred == given or (pred == PATH and given == FREE))
        if kept:
            drawn_moves[row] = _walk(preds[row], size, actions[row])
            if drawn_moves[row] > 0:
                least_moves[row] = _search(inputs[row], size)[0]
    return drawn_moves, least_moves, actions


@compiled
def _random(state):
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    return mix(state[0])


@compiled
def _random_bits(state, probability):
    """Draw 64 independent bits that are 1 with `probability` / 2**32.

    Each bit has its own random number. All 64 are compared with the probability in parallel, from
    the highest binary digit down, until every comparison is decided.
    """
    bits = np.uint64(0)
    undecided = _ALL
    for place in range(31, -1, -1):
        word = _random(state)
        digit = np.uint64(0) - ((probability >> np.uint64(place)) & _ONE)  # The digit in all bits.
        bits |= undecided & digit & ~word
        undecided &= ~(digit ^ word)
        if undecided == 0:
            break
    return bits


@compiled
def _draw_free(state, lowest, span, inside, free, pad):
    """Draw the wall probability and the walls; return whether there are two free cells."""
    probability = lowest + ((span * (_random(state) >> np.uint64(32))) >> np.uint64(32))
    found = 0
    for at in range(pad, len(inside) - pad):
        if inside[at] != 0:
            free[at] = ~_random_bits(state, probability) & inside[at]
            found += (free[at] != 0) + (free[at] & (free[at] - _ONE) != 0)
    return found >= 2


@compiled
def _draw_end(state, free, size, pad, other, ball):
    """Draw a free cell other than `other`, and set `ball` to this cell."""
    while True:
        # Uniform, with a bias of at most cells / 2**32.
        cell = np.int64(_random(state) >> np.uint64(32)) % (size * size)
        bit = cell // size * (size + 1) + cell % size
        if cell != other and _has_bit(free, pad, bit):
            ball.fill(0)
            ball[pad + bit // 64] = _ONE << np.uint64(bit % 64)
            return cell


@compiled
def _has_bit(board, pad, bit):
    return (board[pad + bit // 64] >> np.uint64(bit % 64)) & _ONE


@compiled
def _grow(ball, other, free, grown, width, pad):
    """Grow a ball by one move over free cells; return whether it is stuck or has met `other`.

    All four boards are bit boards with rows of `width` bits and `pad` words of zeros at both ends.
    The larger ball is written to `grown`.
    """
    # Unsigned positions need no check for negative values, which would prevent vectorization.
    words, last = np.uint64(width // 64), np.uint64(len(ball) - pad)
    left = np.uint64(width % 64)
    right = _LAST - left  # A shift by 64 is undefined: shift by 1, then by at most 63.
    changed = np.uint64(0)
    met = np.uint64(0)
    for at in range(np.uint64(pad), last):
        new = ball[at] | (ball[at] << _ONE) | (ball[at - _ONE] >> _LAST)
        new |= (ball[at] >> _ONE) | (ball[at + _ONE] << _LAST)
        new |= (ball[at - words] << left) | ((ball[at - words - _ONE] >> _ONE) >> right)
        new |= (ball[at + words] >> left) | ((ball[at + words + _ONE] << _ONE) << right)
        new &= free[at]
        changed |= new ^ ball[at]
        met |= new & other[at]
        grown[at] = new
    return changed == 0 or met != 0


@compiled
def _all_cells(size, pad, length):
    board = np.zeros(length, dtype=np.uint64)
    for cell in range(size * size):
        bit = cell // size * (size + 1) + cell % size
        board[pad + bit // 64] |= _ONE << np.uint64(bit % 64)
    return board


@compiled
def find_maze(states, first, size, min_length, lowest, span, question):
    """Attempt mazes, from states[first] on, until one is kept.

    An attempt draws the wall probability, the walls, and S and G among the free cells. The maze is
    kept if a shortest path from S to G has at least `min_length` moves. To reject most mazes
    cheaply, balls around S and G are grown in turn: if they meet, or one is stuck, before
    `min_length` - 1 steps, the attempt fails. Only the others, one in thousands, are searched.

    Args:
        states: uint64 [attempts], the initial random state of each attempt.
        lowest: uint64; the wall probability is uniform in [lowest, lowest + span) / 2**32.
        question: uint8 [cells]; the maze is written to it.
    Returns:
        The number of the kept attempt, or len(states).
    """
    width = size + 1
    pad = width // 64 + 1
    length = ((size * width + 63) // 64 + 7) // 8 * 8 + 2 * pad  # Multiples of 8 words are faster.
    inside = _all_cells(size, pad, length)
    free = np.zeros(length, dtype=np.uint64)
    balls = np.zeros((3, length), dtype=np.uint64)
    state = np.empty(1, dtype=np.uint64)
    for attempt in range(first, len(states)):
        state[0] = states[attempt]
        if not _draw_free(state, lowest, span, inside, free, pad):
            continue
        start = _draw_end(state, free, size, pad, np.int64(-1), balls[0])
        goal = _draw_end(state, free, size, pad, start, balls[1])
        ball, other, grown = balls[0], balls[1], balls[2]
        steps = 1
        while steps < min_length and not _grow(ball, other, free, grown, width, pad):
            ball, other, grown = other, grown, ball
            steps += 1
        if steps < min_length:
            continue
        for cell in range(size * size):
            bit = cell // size * width + cell % size
            question[cell] = FREE if _has_bit(free, pad, bit) else WALL
        question[start] = START
        question[goal] = GOAL
        if _search(question, size)[0] >= min_length:
            return attempt
    return len(states)
