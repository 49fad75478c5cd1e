"""ARC augmentations: colours, names and random draws."""

import numpy as np
import pytest

from dataset.arc.augmentation import (
    augment_grid,
    draw_augmentations,
    format_identifier,
    parse_identifier,
)

GRID = np.array([[1, 2, 3], [4, 5, 6]], dtype=np.uint8)
LEANING = GRID // 3 % 2
COLOURS = np.array([0, 1, 9, 2, 8, 3, 7, 4, 6, 5], dtype=np.uint8)


def test_colours_are_changed_before_the_view() -> None:
    assert augment_grid(GRID, 3, COLOURS).tolist() == [[8, 1], [3, 9], [7, 2]]


@pytest.mark.parametrize(
    ("name", "task", "view", "colours"),
    [
        ("00d62c1b|||t3|||0192837465", "00d62c1b", 3, "0192837465"),
        ("00d62c1b_t7_0192837465", "00d62c1b", 7, "0192837465"),
        ("00d62c1b", "00d62c1b", 0, "0123456789"),
        ("Copy_1_t3", "Copy_1_t3", 0, "0123456789"),
        ("a_t1_0123456789|||t2|||0192837465", "a_t1_0123456789", 2, "0192837465"),
    ],
)
def test_names_are_read(name: str, task: str, view: int, colours: str) -> None:
    found_task, found_view, found_colours = parse_identifier(name)
    assert (found_task, found_view) == (task, view)
    assert found_colours.dtype == np.uint8
    assert found_colours.tolist() == [int(digit) for digit in colours]
    plain = f"{task}|||t{view}|||{colours}" if colours != "0123456789" else task
    assert format_identifier(task, view, found_colours) == plain


@pytest.mark.parametrize(
    "name",
    [
        *("", "a|||", "|||t3|||0192837465", "a|||t8|||0192837465", "a_t9_0192837465"),
        *("a|||t3|||1092837465", "a|||t3|||0192837464", "a|||t3|||019283746"),
        *("a|||t3|||019283746\u0665", "a|||t3|||0192837465|||t3|||0192837465"),
    ],
)
def test_wrong_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a puzzle; accepted: TASK, or"):
        parse_identifier(name)


def all_colours() -> list[tuple[np.ndarray, np.ndarray | None]]:
    rng = np.random.default_rng(0)
    return [(rng.permutation(100).reshape(10, 10).astype(np.uint8) % 10, None) for _ in range(2)]


def images(pairs: list, augmentation: np.ndarray) -> tuple[bytes, ...]:
    """Return the augmented pairs in an order that does not depend on theirs."""
    colours = augmentation.copy()
    view, colours[0] = int(augmentation[0]), 0
    made = []
    for pair in pairs:
        grids = [augment_grid(grid, view, colours) for grid in pair if grid is not None]
        made.append(b"|".join(bytes(grid.shape) + grid.tobytes() for grid in grids))
    return tuple(sorted(made))


def test_the_first_is_the_original_and_all_differ() -> None:
    drawn = draw_augmentations("a", all_colours(), 500, seed=1)
    assert drawn.dtype == np.uint8
    assert drawn.shape == (501, 10)
    assert drawn[0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert (np.sort(drawn[:, 1:], axis=1) == np.arange(1, 10)).all()
    assert len({images(all_colours(), row) for row in drawn}) == 501
    counts = np.bincount(drawn[:, 0], minlength=8)
    assert counts.min() > 30
    assert len(np.unique(drawn[:, 1:], axis=0)) > 490


# Pairs, and the largest number of different puzzles that they can make.
SYMMETRIC = {
    "one cell": ([(np.array([[3]], np.uint8), np.array([[3]], np.uint8))], 9),
    "black": ([(np.zeros((3, 4), np.uint8), None)], 2),
    "mirror images of each other": ([(LEANING[:, ::-1], None), (LEANING, None)], 4 * 9),
    "two colours": ([(np.eye(4, dtype=np.uint8) * 7, np.ones((2, 2), np.uint8) * 4)], 2 * 9 * 8),
}


@pytest.mark.parametrize("name", SYMMETRIC)
def test_draws_that_make_the_same_pairs_are_dropped(name: str) -> None:
    (pairs, most), num_aug = SYMMETRIC[name], 60
    raw = draw_augmentations("a", all_colours(), 5 * num_aug, seed=3)
    expected, seen = [], set()
    for row in raw:
        if images(pairs, row) not in seen and len(expected) <= num_aug:
            seen.add(images(pairs, row))
            expected.append(row)
    assert len(expected) == min(most, 1 + num_aug)
    np.testing.assert_array_equal(draw_augmentations("a", pairs, num_aug, seed=3), expected)


def test_draws_depend_on_seed_and_task() -> None:
    first = draw_augmentations("a", all_colours(), 20, seed=1)
    for task, seed in (("a", 2), ("b", 1)):
        assert (draw_augmentations(task, all_colours(), 20, seed=seed)[1:] != first[1:]).any()
    np.testing.assert_array_equal(draw_augmentations("a", all_colours(), 9, seed=1), first[:10])
    # With num_aug 0, only the original is left.
    assert draw_augmentations("a", all_colours(), 0, seed=1).tolist() == [list(range(10))]
