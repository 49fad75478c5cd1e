"""Augmentations of any grid can be inverted, and their names can be read back."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dataset.arc.augmentation import augment_grid, format_identifier, parse_identifier, undo_grid

grids = hnp.arrays(np.uint8, hnp.array_shapes(min_dims=2, max_dims=2, max_side=30))
orders = st.permutations(range(1, 10)).map(lambda order: np.array([0, *order], np.uint8))
views = st.integers(0, 7)


@given(grids, views, orders)
def test_augmentations_invert(grid: np.ndarray, view: int, colours: np.ndarray) -> None:
    grid %= 10
    augmented = augment_grid(grid, view, colours)
    assert augmented.dtype == np.uint8
    np.testing.assert_array_equal(undo_grid(augmented, view, colours), grid)


@given(st.text(min_size=1).filter(lambda name: "|" not in name), views, orders)
def test_names_are_read_back(task: str, view: int, colours: np.ndarray) -> None:
    found = parse_identifier(format_identifier(task, view, colours))
    assert found[:2] == (task, view)
    np.testing.assert_array_equal(found[2], colours)


@given(st.text(max_size=40))
def test_any_text_is_a_name_or_refused(name: str) -> None:
    try:
        task, view, colours = parse_identifier(name)
    except ValueError:
        return
    assert name in (task, f"{task}_t{view}_{''.join(map(str, colours))}")
