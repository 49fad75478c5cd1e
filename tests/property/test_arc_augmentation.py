"""Augmentations invert, on any grid and on the real tasks; names are read back."""

import json
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dataset.arc.augmentation import (
    augment_grid,
    draw_augmentations,
    format_identifier,
    parse_identifier,
    undo_grid,
)
from dataset.arc.tasks import parse_task

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


@pytest.mark.skipif("PUZZLE_DATA_DIR" not in os.environ, reason="PUZZLE_DATA_DIR is not set")
@pytest.mark.parametrize("archive", ["ARC-AGI", "ARC-AGI-2", "ConceptARC"])
def test_augmentations_of_real_tasks_invert(archive: str) -> None:
    path = Path(os.environ["PUZZLE_DATA_DIR"]) / "arc" / f"{archive}.tar.gz"
    num_tasks = 0
    with tarfile.open(path) as tar:
        for member in tar:
            if not member.name.endswith(".json"):
                continue
            file = tar.extractfile(member)
            assert file is not None
            name, content = Path(member.name).stem, json.load(file)
            task = parse_task(name, content, member.name, is_evaluation=False)
            num_tasks += 1
            for row in draw_augmentations(name, task.pairs, 3, seed=42):
                identifier = format_identifier(name, int(row[0]), np.array([0, *row[1:]]))
                _, view, colours = parse_identifier(identifier)
                for grid in (grid for pair in task.pairs for grid in pair):
                    assert grid is not None
                    augmented = augment_grid(grid, view, colours)
                    np.testing.assert_array_equal(undo_grid(augmented, view, colours), grid)
    assert num_tasks == {"ARC-AGI": 800, "ARC-AGI-2": 1120, "ConceptARC": 160}[archive]
