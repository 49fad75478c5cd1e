"""Fields of any size and values are read back as written, with -100 for the ignored labels."""

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dataset.format.schema import LAZY_ARC_FIELDS, LabelField, PuzzleDatasetMetadata, PuzzleSet
from dataset.format.writing import write_split
from puzzle_dataset import EvalBatches, PuzzleDataset

VOCAB_SIZE = 5


NAMES = st.from_regex(r"[a-z][a-z0-9]*(_[a-z0-9]+){0,2}", fullmatch=True).filter(
    lambda name: len(name) <= 100 and name not in LAZY_ARC_FIELDS
)


@st.composite
def fields(draw: st.DrawFn) -> LabelField:
    return LabelField(
        num_classes=draw(st.integers(1, 256)),
        channels=draw(st.integers(0, 4)),
        unknown_label=draw(st.none() | st.integers(0, VOCAB_SIZE - 1)),
    )


@settings(deadline=None, max_examples=15)
@given(
    st.dictionaries(NAMES, fields(), max_size=3),
    st.integers(1, 7),
    st.none() | st.integers(0, VOCAB_SIZE - 1),
    st.integers(1, 5),
    st.integers(0, 2**32),
)
def test_fields_come_back(
    declared: dict[str, LabelField],
    num_examples: int,
    ignored: int | None,
    batch_size: int,
    seed: int,
):
    rng = np.random.default_rng(seed)
    shape = (num_examples, 3)
    labels = rng.integers(0, VOCAB_SIZE, shape)
    values = {}
    for name, one in declared.items():
        size = (*shape, one.channels) if one.channels else shape
        values[name] = rng.integers(0, one.num_classes, size).astype(np.uint8)
    ids = {"pad_id": 0, "ignore_label_id": ignored, "blank_identifier_id": 0}
    facts = {"vocab_size": VOCAB_SIZE, "seq_len": 3, "num_puzzle_identifiers": 1, "sets": ("all",)}
    facts |= {"total_groups": num_examples, "mean_puzzle_examples": 1.0}
    metadata = PuzzleDatasetMetadata(**ids, **facts, fields=declared)
    offsets = np.arange(num_examples + 1)
    arrays = PuzzleSet(labels, labels, offsets[:-1] * 0, offsets, offsets, fields=values)
    with tempfile.TemporaryDirectory() as folder:
        write_split(Path(folder) / "test", metadata, {"all": arrays})
        dataset = PuzzleDataset([folder], "test", fields=list(declared))
        assert dataset.metadata.fields == declared
        for _, batch, count, start in EvalBatches(dataset, global_batch_size=batch_size):
            here = labels[start : start + count]
            for name, one in declared.items():
                known = (here != ignored) & (here != one.unknown_label)
                read, written = batch.fields[name], values[name][start : start + count]
                assert (read[:count][known] == written[known]).all()
                assert (read[:count][~known] == -100).all()
                assert (read[count:] == -100).all()
