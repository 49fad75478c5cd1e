import numpy as np
import pytest

from dataset.arc_augmentation import (
    INVERSE_VIEWS,
    NUM_VIEWS,
    augment_grid,
    format_identifier,
    parse_identifier,
    undo_grid,
    view_grid,
)

GRID = np.array([[1, 2, 3], [4, 5, 6]], np.uint8)
VIEWS = [
    [[1, 2, 3], [4, 5, 6]],
    [[3, 6], [2, 5], [1, 4]],
    [[6, 5, 4], [3, 2, 1]],
    [[4, 1], [5, 2], [6, 3]],
    [[3, 2, 1], [6, 5, 4]],
    [[4, 5, 6], [1, 2, 3]],
    [[1, 4], [2, 5], [3, 6]],
    [[6, 3], [5, 2], [4, 1]],
]


@pytest.mark.parametrize("view", range(NUM_VIEWS))
def test_views_and_their_inverses(view: int) -> None:
    assert view_grid(GRID, view).tolist() == VIEWS[view]
    assert np.array_equal(view_grid(view_grid(GRID, view), INVERSE_VIEWS[view]), GRID)


@pytest.mark.parametrize("view", range(NUM_VIEWS))
def test_augmentations_are_undone(view: int) -> None:
    colours = np.array([0, 9, 2, 8, 1, 7, 6, 3, 5, 4], np.uint8)
    augmented = augment_grid(GRID, view, colours)
    assert np.array_equal(augmented, view_grid(colours[GRID], view))
    assert np.array_equal(undo_grid(augmented, view, colours), GRID)
    assert undo_grid(np.zeros((0, 0), np.uint8), view, colours).shape == (0, 0)


def test_names_are_read_as_written() -> None:
    colours = np.array([0, 1, 9, 2, 8, 3, 7, 4, 6, 5], np.uint8)
    name = format_identifier("12eac192", 3, colours)
    assert name == "12eac192|||t3|||0192837465"
    for written in (name, "12eac192_t3_0192837465"):
        task, view, found = parse_identifier(written)
        assert (task, view, found.tolist()) == ("12eac192", 3, colours.tolist())
    task, view, found = parse_identifier("Above_Below1")
    assert (task, view, found.tolist()) == ("Above_Below1", 0, list(range(10)))


@pytest.mark.parametrize(
    "name", ["a|||t8|||0123456789", "a|||t1|||0123456788", "a|||t1|||1023456789", "a|||t1", "a|||b"]
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="t"):
        parse_identifier(name)
