"""Opening data sets, batches by position, slices by rank, padding."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from dataset.format.schema import PuzzleDatasetMetadata, PuzzleSet
from dataset.format.writing import write_puzzles, write_split
from puzzle_dataset import Batch, EvalBatches, PuzzleDataset, TrainBatches
from runtime.errors import DatasetError

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "tests/parity/published_format/data"
SEQ_LEN = 3
FACTS = {"pad_id": 0, "ignore_label_id": 0, "blank_identifier_id": 0, "vocab_size": 11}
FACTS |= {"seq_len": SEQ_LEN, "num_puzzle_identifiers": 50}


def make_set(groups: Sequence[Sequence[int]], num_identifiers: int = 50) -> PuzzleSet:
    """Return a set in which groups[g][p] is the number of examples of puzzle p of group g.

    The inputs are the digits of the row number, and the identifiers are the puzzle numbers, so a
    batch shows which rows it has. The last label of each row is 0.
    """
    sizes = [size for group in groups for size in group]
    rows = np.arange(sum(sizes))
    inputs = np.stack([rows // 100 % 10, rows // 10 % 10, rows % 10], axis=1).reshape(-1, SEQ_LEN)
    labels = (inputs + 1) * np.array([1, 1, 0])
    identifiers = np.arange(len(sizes)) % num_identifiers
    starts = (np.cumsum([0, *counts]) for counts in (sizes, map(len, groups)))
    return PuzzleSet(inputs, labels, identifiers, *starts)


def write(
    directory: Path, *, split: str = "train", metadata: dict | None = None, **sets: PuzzleSet
) -> Path:
    puzzles = sum(arrays.num_puzzles for arrays in sets.values())
    examples = sum(arrays.num_examples for arrays in sets.values())
    totals = {"total_groups": sum(arrays.num_groups for arrays in sets.values())}
    totals |= {"total_puzzles": puzzles, "mean_puzzle_examples": examples / max(1, puzzles)}
    values = PuzzleDatasetMetadata(**FACTS, **totals, sets=tuple(sets))
    write_split(directory / split, dataclasses.replace(values, **(metadata or {})), sets)
    return directory


def row_numbers(batch: Batch) -> np.ndarray:
    return batch.inputs @ np.array([100, 10, 1])


def joined(batches: Sequence[Batch]) -> Batch:
    """Return the batch made of the slices of all ranks."""
    slices = [batch.arrays() for batch in batches]
    whole = {name: np.concatenate([arrays[name] for arrays in slices]) for name in slices[0]}
    named = {name: whole.pop(name) for name in ("inputs", "labels", "puzzle_identifiers")}
    return Batch(**named, fields=whole)


def assert_same(first: Batch, second: Batch) -> None:
    assert first.arrays().keys() == second.arrays().keys()
    for name, one in first.arrays().items():
        other = second.arrays()[name]
        assert one.dtype == other.dtype == np.int32
        np.testing.assert_array_equal(one, other)


SINGLE = [[1] * 4 for _ in range(10)]  # Sudoku: ten groups of four puzzles with one example.
TWIN = [[2] * 3 for _ in range(7)]
MIXED = [[3, 1], [5], [2, 2, 4], [1], [7, 6]]  # ARC: puzzles with several examples.


@pytest.fixture(params=[SINGLE, TWIN, MIXED], ids=["single", "twin", "mixed"])
def dataset(request: pytest.FixtureRequest, tmp_path: Path) -> PuzzleDataset:
    return PuzzleDataset([write(tmp_path, all=make_set(request.param))], "train")


def batches_of(dataset: PuzzleDataset, **options) -> TrainBatches:
    settings = {"seed": 3, "global_batch_size": 8, "epochs_per_iter": 6} | options
    return TrainBatches(dataset, **settings)


def test_batches_contain_the_rows(dataset: PuzzleDataset):
    arrays = dataset.sets["all"]
    steps = 0
    for position, batch in batches_of(dataset).iterate(0):
        assert position == steps
        steps += 1
        assert batch.inputs.shape == batch.labels.shape == (8, SEQ_LEN)
        rows = row_numbers(batch)
        puzzles = np.searchsorted(arrays.puzzle_indices, rows, side="right") - 1
        labels = arrays.labels[rows].astype(np.int32)
        labels = np.where(labels == 0, np.int32(-100), labels)
        inputs = arrays.inputs[rows].astype(np.int32)
        expected = Batch(inputs, labels, arrays.puzzle_identifiers[puzzles])
        assert_same(batch, expected)
        assert (batch.labels[:, -1] == -100).all()
    assert steps == batches_of(dataset).steps_per_iteration(0) > 2


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_slices_of_the_ranks_make_the_global_batch(dataset: PuzzleDataset, world_size: int):
    ranks = [batches_of(dataset, rank=r, world_size=world_size) for r in range(world_size)]
    streams = zip(*(rank.iterate(1) for rank in ranks), strict=True)
    for (position, whole), slices in zip(batches_of(dataset).iterate(1), streams, strict=True):
        assert {p for p, _ in slices} == {position}
        assert {len(batch.inputs) for _, batch in slices} == {8 // world_size}
        assert_same(joined([batch for _, batch in slices]), whole)


@pytest.mark.parametrize(("size", "ranks"), [(7, 2), (0, 1)])
def test_a_batch_has_as_many_rows_for_each_rank(dataset: PuzzleDataset, size: int, ranks: int):
    with pytest.raises(ValueError, match=f"global_batch_size is {size}, .* {ranks} ranks"):
        batches_of(dataset, global_batch_size=size, world_size=ranks)
    with pytest.raises(ValueError, match=f"global_batch_size is {size}"):
        EvalBatches(dataset, global_batch_size=size, world_size=ranks)


def test_stream_is_the_one_of_earlier_versions(tmp_path: Path):
    """A run resumed with a later version must continue with these batches."""
    dataset = PuzzleDataset([write(tmp_path, one=make_set(SINGLE), two=make_set(MIXED))], "train")
    batches = batches_of(dataset, seed=2**63 + 5, global_batch_size=10)
    single, mixed = (next(batches.iterate_rows(3, n))[1].rows.tolist() for n in (1, 7))
    assert single == [10, 33, 38, 22, 29, 25, 6, 16, 2, 15]
    assert mixed == [4, 6, 7, 8, 5, 17, 8, 4, 5, 6]


def test_an_iteration_ends_at_its_limit(dataset: PuzzleDataset):
    whole = [drawn.rows.tolist() for _, drawn in batches_of(dataset).iterate_rows(1)]
    limited = batches_of(dataset, max_batches=2)
    assert [drawn.rows.tolist() for _, drawn in limited.iterate_rows(1)] == whole[:2]
    assert [position for position, _ in limited.iterate_rows(1, 1)] == [1]
    assert list(limited.iterate_rows(1, 2)) == []
    assert limited.steps_per_iteration(1) == 2
    assert batches_of(dataset, max_batches=99).steps_per_iteration(1) == len(whole)


def test_repeated_batches_come_in_turns(dataset: PuzzleDataset):
    first = [drawn.rows.tolist() for _, drawn in batches_of(dataset).iterate_rows(0)][:2]
    repeated = batches_of(dataset, repeated=2)
    orders = set()
    for iteration in range(12):
        expected = batches_of(dataset).steps_per_iteration(iteration)
        places = [first.index(d.rows.tolist()) for _, d in repeated.iterate_rows(iteration)]
        assert len(places) == repeated.steps_per_iteration(iteration) == expected
        turns = [tuple(places[n : n + 2]) for n in range(0, len(places) - 1, 2)]
        assert all(set(turn) == {0, 1} for turn in turns)
        orders |= set(turns)
        # A resumed run continues with the same batches.
        resumed = batches_of(dataset, repeated=2).iterate_rows(iteration, 1)
        assert [first.index(drawn.rows.tolist()) for _, drawn in resumed] == places[1:]
    assert orders == {(0, 1), (1, 0)}


def test_published_test_set_is_read_in_order():
    dataset = PuzzleDataset([PUBLISHED], "test")
    batches = EvalBatches(dataset, global_batch_size=4)
    seen = list(batches)
    assert len(seen) == len(batches) == 3
    places = [(name, count, start) for name, _, count, start in seen]
    assert places == [("all", 4, 0), ("all", 4, 4), ("all", 2, 8)]
    whole = joined([batch for _, batch, _, _ in seen])
    labels = np.load(PUBLISHED / "test/all__labels.npy").astype(np.int32)
    labels[labels == 0] = -100
    np.testing.assert_array_equal(whole.labels[:10], labels)
    for name in ("inputs", "puzzle_identifiers"):
        stored = np.load(PUBLISHED / f"test/all__{name}.npy")
        np.testing.assert_array_equal(getattr(whole, name)[:10], stored)


@pytest.mark.parametrize("world_size", [1, 2, 3, 6])
@pytest.mark.parametrize("max_examples", [None, 0, 5, 12, 1000])
@pytest.mark.parametrize("spread", [False, True])
def test_evaluation_slices_make_the_padded_rows(
    tmp_path: Path, world_size: int, max_examples: int | None, spread: bool
):
    metadata = {"pad_id": 10, "blank_identifier_id": 7}
    sets = {"first": make_set(MIXED), "empty": make_set([]), "last": make_set(SINGLE)}
    path = write(tmp_path, metadata=metadata, split="train", **sets)
    dataset = PuzzleDataset([path], "train")
    options = {"global_batch_size": 6, "world_size": world_size, "max_examples": max_examples}
    ranks = [EvalBatches(dataset, rank=r, spread=spread, **options) for r in range(world_size)]
    found: dict[str, list[Batch]] = {name: [] for name in sets}
    counts = dict.fromkeys(sets, 0)
    for slices in zip(*ranks, strict=True):
        assert len({(name, count, start) for name, _, count, start in slices}) == 1
        name, _, count, start = slices[0]
        assert start == 6 * len(found[name])
        found[name].append(joined([batch for _, batch, _, _ in slices]))
        counts[name] += count
    assert sum(map(len, found.values())) == len(ranks[0])

    for name, arrays in sets.items():
        expected = min(arrays.num_examples, 1000 if max_examples is None else max_examples)
        assert counts[name] == expected
        assert len(found[name]) == -(-expected // 6)
        if expected == 0:
            continue
        whole = joined(found[name])
        last = arrays.num_examples - 1
        step = arrays.num_examples / expected if spread else 1
        rows = np.minimum((np.arange(expected) * step).astype(int), last)
        np.testing.assert_array_equal(row_numbers(whole)[:expected], rows)
        puzzles = np.searchsorted(arrays.puzzle_indices, rows, side="right") - 1
        identifiers = arrays.puzzle_identifiers[puzzles]
        np.testing.assert_array_equal(whole.puzzle_identifiers[:expected], identifiers)
        assert (whole.labels[:expected, :-1] > 0).all()
        assert (whole.labels[expected:] == -100).all()
        assert (whole.inputs[expected:] == 10).all()
        assert (whole.puzzle_identifiers[expected:] == 7).all()
        assert len(whole.inputs) % 6 == 0


def test_without_an_ignored_label_all_labels_stay(tmp_path: Path):
    path = write(tmp_path, metadata={"ignore_label_id": None}, all=make_set(SINGLE))
    _, batch, _, _ = next(iter(EvalBatches(PuzzleDataset([path], "train"), global_batch_size=4)))
    assert (batch.labels[:, -1] == 0).all()


def test_several_folders_become_one(tmp_path: Path):
    one = write(tmp_path / "one", all=make_set(SINGLE), extra=make_set(TWIN))
    two = write(tmp_path / "two", metadata={"num_puzzle_identifiers": 30}, all=make_set(MIXED, 30))
    dataset = PuzzleDataset([one, two], "train")
    assert list(dataset.sets) == ["all", "all1", "extra"]
    assert dataset.metadata.mean_puzzle_examples == pytest.approx((40 + 42 + 31) / (40 + 21 + 9))
    facts = FACTS | {"num_puzzle_identifiers": 80, "total_groups": 10 + 7 + 5}
    mean, sets = dataset.metadata.mean_puzzle_examples, ("all", "all1", "extra")
    facts |= {"mean_puzzle_examples": mean, "sets": sets, "total_puzzles": 40 + 21 + 9}
    assert dataset.metadata == PuzzleDatasetMetadata(**facts)
    np.testing.assert_array_equal(dataset.sets["all1"].puzzle_identifiers, np.arange(50, 59))
    identifiers: dict[str, set[int]] = {name: set() for name in dataset.sets}
    for _, rows in batches_of(dataset, epochs_per_iter=40).iterate_rows(0):
        identifiers[rows.set_name] |= set(rows.puzzle_identifiers.tolist())
    drawn = {"all": set(range(40)), "all1": set(range(50, 59)), "extra": set(range(21))}
    assert identifiers == drawn


def test_metadata_of_one_folder_stays_as_it_is():
    dataset = PuzzleDataset([PUBLISHED], "train")
    stored = json.loads((PUBLISHED / "train/dataset.json").read_text())
    merged = json.loads(dataset.metadata.to_json())
    assert merged == stored | {"total_puzzles": 1}


@pytest.mark.parametrize(
    ("name", "value"),
    [("vocab_size", 12), ("pad_id", 1), ("ignore_label_id", None), ("blank_identifier_id", 1)],
)
def test_folders_that_disagree_are_refused(tmp_path: Path, name: str, value: int | None):
    one = write(tmp_path / "one", all=make_set(SINGLE))
    two = write(tmp_path / "two", metadata={name: value}, all=make_set(SINGLE))
    with pytest.raises(DatasetError, match=rf"two/train/dataset\.json: {name} is {value}, but"):
        PuzzleDataset([one, two], "train")


def test_set_names_that_would_collide_are_refused(tmp_path: Path):
    one = write(tmp_path / "one", all=make_set(SINGLE), all1=make_set(SINGLE))
    two = write(tmp_path / "two", all=make_set(SINGLE))
    for paths, message in (([one, two], "two sets are called 'all1'"), ([], "no data path given")):
        with pytest.raises(DatasetError, match=message):
            PuzzleDataset(paths, "train")


def test_fingerprint_covers_every_folder_in_order(tmp_path: Path):
    one = write(tmp_path / "one", all=make_set(SINGLE))
    two = write(tmp_path / "two", all=make_set(MIXED))
    paths = [[one], [two], [one, two], [two, one], [one, one]]
    found = [PuzzleDataset(some, "train").fingerprint() for some in paths]
    assert len(set(found)) == len(paths)
    assert found[0] == PuzzleDataset([str(one)], "train").fingerprint()


def test_folders_keep_the_identifiers_of_training(tmp_path: Path):
    folders = [tmp_path / name for name in ("a", "b", "c")]
    for folder in folders:
        write(folder, all=make_set([[1], [2]]))
        write(folder, split="test", all=make_set([[1], [2]]))
    a, b, c = folders
    trained = PuzzleDataset(folders, "train")
    assert trained.identifier_offsets == [0, 50, 100]
    for paths, offsets in (([b], [50]), ([c, a], [100, 0]), (folders, [0, 50, 100])):
        tested = PuzzleDataset(paths, "test", numbered_as=folders)
        assert tested.identifier_offsets == offsets
        assert tested.metadata.num_puzzle_identifiers == 150
        first = next(iter(tested.sets.values()))
        assert first.puzzle_identifiers.tolist() == [offsets[0], offsets[0] + 1]
    # A model trained on one folder does not shift the identifiers of others.
    assert PuzzleDataset([b], "test", numbered_as=[a]).identifier_offsets == [0]
    with pytest.raises(DatasetError, match="the model has no puzzle embeddings for this folder"):
        PuzzleDataset([c], "test", numbered_as=[a, b])


def test_another_folder_without_puzzle_identifiers_is_fine(tmp_path: Path):
    for name in ("a", "b", "c"):
        arrays = make_set([[1], [1]], num_identifiers=1)
        write(tmp_path / name, metadata={"num_puzzle_identifiers": 1}, all=arrays)
    paths = [tmp_path / "a", tmp_path / "b"]
    assert PuzzleDataset([tmp_path / "c"], "train", numbered_as=paths).identifier_offsets == [0]
    # Folders that the model was trained on keep their rows.
    for names, offsets in (("b", [1]), ("ba", [1, 0]), ("cb", [0, 1]), ("cc", [0, 0])):
        asked = [tmp_path / name for name in names]
        assert PuzzleDataset(asked, "train", numbered_as=paths).identifier_offsets == offsets
    both = PuzzleDataset(paths, "train", numbered_as=[tmp_path / "a"])
    assert (both.identifier_offsets, both.metadata.num_puzzle_identifiers) == ([0, 0], 1)


def test_identifiers_must_have_the_names_of_training(tmp_path: Path):
    orders = {"a": "<xy", "same": "<xy", "fewer": "<x", "other": "<yx", "unnamed": ""}
    for folder, names in orders.items():
        write(tmp_path / folder, metadata={"num_puzzle_identifiers": 3}, all=make_set([[1], [1]]))
        if names:
            (tmp_path / folder / "identifiers.json").write_text(json.dumps([*names]))
    for folder in ("a", "same", "fewer", "unnamed"):
        PuzzleDataset([tmp_path / folder], "train").require_names_of([tmp_path / "a"])
    other = PuzzleDataset([tmp_path / "other"], "train")
    other.require_names_of([tmp_path / "unnamed"])
    told = r"other/identifiers\.json: identifier 1 is 'y', but 'x' in .*a/identifiers\.json"
    with pytest.raises(DatasetError, match=told):
        other.require_names_of([tmp_path / "a"])
    # A file of names replaces those of the folders.
    files = {name: tmp_path / name / "identifiers.json" for name in ("a", "other")}
    other.require_names_of([tmp_path / "a"], files["other"])
    for trained in ("other", "nowhere"):
        with pytest.raises(DatasetError, match=told):
            other.require_names_of([tmp_path / trained], files["a"])
    (tmp_path / "other" / "identifiers.json").write_text("1")
    with pytest.raises(DatasetError, match="expected a list of names"):
        other.require_names_of([tmp_path / "a"])


def test_folders_of_different_kinds_are_refused(tmp_path: Path):
    grid = np.full((1, 81), 2, np.uint8)
    paths = {name: tmp_path / str(name) for name in (None, "sudoku", "sudoku_x", "latin_square")}
    for name, path in paths.items():
        write_puzzles(path / "train", grid, grid, vocab_size=11, kind=name)
    joined = PuzzleDataset([paths[None], paths["sudoku"]], "train")
    assert joined.kind == "sudoku"
    with pytest.raises(DatasetError, match="kind is sudoku_x, but latin_square in the first data"):
        PuzzleDataset([paths["latin_square"], paths["sudoku_x"]], "train")
    # A set without a kind is a Sudoku, because it has the size of one.
    for names in ((None, "latin_square"), ("latin_square", None)):
        with pytest.raises(DatasetError, match="in the first data path"):
            PuzzleDataset([paths[name] for name in names], "train")


def test_naming_the_kind_keeps_the_fingerprint(tmp_path: Path):
    maze = np.full((3, 16), 2, np.uint8)
    maze[:, :2] = 3, 4
    sudoku = np.array([[2, 3, 4, 5, 4, 5, 2, 3, 3, 2, 5, 4, 5, 4, 3, 2]], np.uint8)
    for cells, kind in ((maze, "maze"), (sudoku, "sudoku")):
        plain, told, wrong = (tmp_path / kind / name for name in ("plain", "told", "wrong"))
        write_puzzles(plain / "train", cells, cells, vocab_size=6)
        write_puzzles(told / "train", cells, cells, vocab_size=6, kind=kind)
        write_puzzles(wrong / "train", cells, cells, vocab_size=7, kind=kind)
        sets = [PuzzleDataset([path], "train") for path in (plain, told, wrong)]
        assert [each.kind for each in sets[:2]] == [None, kind]
        assert sets[0].fingerprint() == sets[1].fingerprint()
        message = f"dataset.json: kind '{kind}' cannot have 16 cells and 7 tokens"
        with pytest.raises(DatasetError, match=message):
            _ = sets[2].kind
    empty = np.ones((1, 16), np.uint8)
    write_puzzles(tmp_path / "other" / "train", empty, empty, vocab_size=6, kind="jigsaw")
    assert PuzzleDataset([tmp_path / "other"], "train").kind == "jigsaw"
