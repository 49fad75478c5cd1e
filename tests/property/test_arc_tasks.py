"""Any task file is read, or refused with its name."""

import json
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataset.arc.tasks import parse_task, read_folder
from runtime.errors import DatasetError

anything = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 11) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=12,
)
widths = st.integers(1, 4)
grids = widths.flatmap(
    lambda width: st.lists(
        st.lists(st.integers(0, 9), min_size=width, max_size=width), min_size=1, max_size=4
    )
)
pairs = st.fixed_dictionaries({"input": grids, "output": grids})
tasks = st.fixed_dictionaries(
    {"train": st.lists(pairs, min_size=1, max_size=3), "test": st.lists(pairs, min_size=1)}
)


@given(tasks)
def test_tasks_are_written_back_as_they_were(content: dict) -> None:
    assert parse_task("a", content, "a.json", is_evaluation=True).to_json() == content


@given(tasks, anything, st.data())
def test_another_value_is_read_or_refused(
    content: dict, value: object, data: st.DataObject
) -> None:
    place: object = content
    for _ in range(data.draw(st.integers(0, 5))):
        inside = place[data.draw(st.sampled_from(list(keys_of(place))))]
        if not isinstance(inside, list | dict) or not inside:
            break
        place = inside
    key = data.draw(st.sampled_from(list(keys_of(place))))
    place[key] = value
    told, found = "a.json: task a: ", content
    try:
        found = parse_task("a", content, "a.json", is_evaluation=False).to_json()
    except DatasetError as error:
        told = str(error)
    assert re.fullmatch(r"a\.json: task a: [^\n]*", told)
    # Compared as text, because 1 == True == 1.0; keys may have another order.
    assert json.dumps(found, sort_keys=True) == json.dumps(content, sort_keys=True)


def keys_of(place: object) -> list:
    assert isinstance(place, list | dict)
    return list(place) if isinstance(place, dict) else list(range(len(place)))


@given(st.binary(max_size=60) | anything.map(lambda value: json.dumps(value).encode()))
def test_any_file_is_read_or_named(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.json"
        path.write_bytes(content)
        with pytest.raises(DatasetError, match=f"^{path}: "):
            read_folder(folder)


@given(st.floats())
def test_no_float_is_a_colour(value: float) -> None:
    grid = {"input": [[value]], "output": [[0]]}
    with pytest.raises(DatasetError, match="row 1, column 1: "):
        parse_task("a", {"train": [grid], "test": [grid]}, "a.json", is_evaluation=False)
