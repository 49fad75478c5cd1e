"""Paths in mazes against their definition, and under the eight views."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dataset.dihedral import all_views, view_keys
from dataset.maze import rules
from dataset.maze.rules import FREE, GOAL, PATH, START, WALL, check_paths, solve


@st.composite
def mazes(draw: st.DrawFn) -> np.ndarray:
    """Draw a maze of 2 x 2 to 6 x 6, uint8 [1, cells]."""
    cells = draw(st.integers(2, 6)) ** 2
    maze = np.array(draw(st.lists(st.sampled_from([WALL, FREE]), min_size=cells, max_size=cells)))
    ends = draw(st.lists(st.integers(0, cells - 1), min_size=2, max_size=2, unique=True))
    maze[ends] = START, GOAL
    return maze[None].astype(np.uint8)


def is_path(maze: np.ndarray, drawing: np.ndarray) -> bool:
    """Check the definition: walls and ends kept, and a chain of cells without other contacts."""
    size = int(len(maze) ** 0.5)
    if any(b != a and (a, b) != (FREE, PATH) for a, b in zip(maze, drawing, strict=True)):
        return False
    places = {divmod(cell, size) for cell, token in enumerate(drawing) if token >= START}
    near = {
        (row, column): {
            (row + down, column + right)
            for down, right in ((1, 0), (-1, 0), (0, 1), (0, -1))
            if (row + down, column + right) in places
        }
        for row, column in places
    }
    (start,), (goal,) = (
        [divmod(int(cell), size) for cell in np.flatnonzero(drawing == token)]
        for token in (START, GOAL)
    )
    if any(len(near[at]) != (1 if at in (start, goal) else 2) for at in places):
        return False
    reached, waiting = {start}, [start]
    while waiting:
        new = near[waiting.pop()] - reached
        reached |= new
        waiting += new
    return reached == places


@settings(deadline=None)
@given(mazes(), st.data())
def test_valid_drawings_are_paths_by_definition(maze: np.ndarray, data: st.DataObject):
    labels, _ = solve(maze)
    drawing = labels.copy() if data.draw(st.booleans()) else maze.copy()
    free = np.flatnonzero(maze[0] == FREE).tolist()
    for cell in data.draw(st.sets(st.sampled_from(free)) if free else st.just(set())):
        drawing[0, cell] = FREE + PATH - drawing[0, cell]
    moves, least, _ = rules.measure_paths(maze, drawing)
    assert (moves[0] >= 0) == is_path(maze[0], drawing[0])
    if moves[0] >= 0:
        assert moves[0] == (drawing == PATH).sum() + 1 >= least[0]


@settings(deadline=None)
@given(mazes())
def test_the_solvers_answer_is_a_shortest_path(maze: np.ndarray):
    labels, moves = solve(maze)
    valid, shortest = check_paths(maze, labels)
    assert valid[0] == shortest[0] == (moves[0] > 0)
    assert (labels == PATH).sum() == max(moves[0] - 1, 0)


@settings(deadline=None)
@given(mazes())
def test_actions_walk_the_answer_in_every_view(maze: np.ndarray):
    labels, moves = solve(maze)
    if moves[0] < 0:
        return
    size = int(labels.shape[1] ** 0.5)
    steps = {1: size, 2: -1, 3: 1, 4: -size}
    views = all_views(labels)
    for drawing, actions in zip(views, rules.path_actions(views), strict=True):
        cell, walked = int(np.flatnonzero(drawing == START)[0]), []
        while drawing[cell] != GOAL:
            walked.append(cell)
            cell += steps[int(actions[cell])]
        assert len(walked) == moves[0]
        assert set(walked) == set(np.flatnonzero((drawing == PATH) | (drawing == START)).tolist())
        assert sorted(walked) == np.flatnonzero(actions).tolist()


@settings(deadline=None)
@given(mazes())
def test_views_keep_lengths_and_keys(maze: np.ndarray):
    labels, moves = solve(maze)
    inputs = all_views(maze)
    assert inputs[0].tolist() == maze[0].tolist()
    assert set(solve(inputs)[1].tolist()) == {moves[0]}
    assert set(check_paths(inputs, all_views(labels))[1].tolist()) == {bool(moves[0] > 0)}
    assert len(set(view_keys(inputs))) == 1
