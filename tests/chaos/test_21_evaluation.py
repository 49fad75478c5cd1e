"""Row 21: an evaluation on 1, 2 or 4 ranks gives each row's own predictions, and exact counts.

Sets that fill no batch and empty sets are among them; padding enters no figure.
"""

import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import mutants
from harness.lab import Lab
from harness.processes import Fault, evaluate, require_success

from dataset.format.reading import load_metadata
from dataset.format.schema import PuzzleDatasetMetadata, PuzzleSet
from dataset.format.writing import write_split

IGNORED = 0
NUM_ROWS = 60


@dataclass(frozen=True)
class Rows:
    """Rows of a test set, and the model's outputs for each row alone.

    inputs, labels (0 for unlabelled cells) and preds are [N, S], identifiers and q_halt_logits [N].
    """

    inputs: np.ndarray
    labels: np.ndarray
    identifiers: np.ndarray
    preds: np.ndarray
    q_halt_logits: np.ndarray

    def take(self, rows: np.ndarray) -> "Rows":
        """Return these rows, in this order."""
        return Rows(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


def evaluation(
    lab: Lab, sets: dict[str, Rows], world_size: int, batch_size: int, *faults: Fault
) -> tuple[dict[str, Any], dict[str, dict[str, np.ndarray]]]:
    """Evaluate the run on these sets; return the report and the outputs of each set."""
    place = Path(tempfile.mkdtemp(dir=lab.folder))
    total = sum(len(rows.inputs) for rows in sets.values())
    counts = {"total_groups": total, "total_puzzles": total, "mean_puzzle_examples": 1.0}
    arrays = {}
    for name, rows in sets.items():
        every = np.arange(len(rows.inputs) + 1)
        arrays[name] = PuzzleSet(rows.inputs, rows.labels, rows.identifiers, every, every)
    write_split(place / "test", replace(facts(lab), sets=tuple(sets), **counts), arrays)
    given = f"global_batch_size={batch_size} save_outputs=[preds,labels,q_halt_logits] device=cpu"
    paths = (f"checkpoint={lab.folder / 'run'}", f"data_path={place}", f"output={place / 'r.json'}")
    order = (evaluate, *paths, *given.split(), "num_threads=1")
    armed = dict.fromkeys(range(world_size), faults)
    require_success(*lab.server.start_ranks(world_size, *order, faults=armed))
    outputs: dict[str, dict[str, np.ndarray]] = {name: {} for name in sets}
    for path in (place / "r_outputs").glob("*.npy"):
        name, _, field = path.stem.partition("__")
        outputs[name][field] = np.load(path)
    return json.loads((place / "r.json").read_bytes()), outputs


def facts(lab: Lab) -> PuzzleDatasetMetadata:
    """Return the metadata of the run's test data."""
    data = [each for each in lab.overrides if each.startswith("data_path=")][-1]
    return load_metadata(Path(data.removeprefix("data_path=")) / "test")


@pytest.fixture
def pool(lab: Lab) -> Rows:
    """Train a few steps, and return rows with the model's outputs for each row alone.

    A third of the rows is labelled with these outputs, a third differs in a cell, a third has none.
    """
    lab.train("run", "max_steps=3")
    known, rng = facts(lab), lab.rng
    shape = NUM_ROWS, known.seq_len
    rows = Rows(
        rng.integers(2, known.vocab_size, shape),
        np.full(shape, 2),
        rng.integers(1, known.num_puzzle_identifiers, NUM_ROWS),
        np.zeros(shape, np.uint8),
        np.zeros(NUM_ROWS, np.float32),
    )
    _, outputs = evaluation(lab, {"all": rows}, 1, 1)
    said = outputs["all"]["preds"].astype(int)
    labels = np.where(rng.random(shape) < 0.2, IGNORED, said)
    labels[1::3, 0] = np.where(said[1::3, 0] == 2, 3, 2)
    labels[2::3] = IGNORED
    return replace(rows, labels=labels, preds=said, q_halt_logits=outputs["all"]["q_halt_logits"])


def check(lab: Lab, sets: dict[str, Rows], *place: Any) -> int:
    """Evaluate, check all outputs and figures, and return the number of rows."""
    result, outputs = evaluation(lab, sets, *place)
    for name, rows in sets.items():
        labelled = rows.labels != IGNORED
        right = ~labelled | (rows.preds == rows.labels)
        counts, whole = labelled.any(-1), right.all(-1)
        assert np.array_equal(outputs[name]["preds"], rows.preds)
        assert np.array_equal(outputs[name]["labels"], np.where(labelled, rows.labels, -100))
        assert outputs[name]["q_halt_logits"] == pytest.approx(rows.q_halt_logits, abs=1e-3)

        reported = result["sets"][name]
        assert reported["num_examples"] == len(rows.inputs)
        assert reported["count"] == counts.sum()
        values = {metric: figure["value"] for metric, figure in reported["metrics"].items()}
        if not len(rows.inputs):
            assert values == {}
            continue
        # Rows without labels enter the losses; padded rows enter nothing.
        signed = np.where(whole, -rows.q_halt_logits, rows.q_halt_logits).astype(np.float64)
        assert values["q_halt_loss"] == pytest.approx(np.logaddexp(0, signed).mean(), abs=1e-3)
        if counts.any():
            assert values["exact_accuracy"] == (counts & whole).sum() / counts.sum()
            cells = (labelled & right)[counts].sum(-1) / labelled[counts].sum(-1)
            assert values["accuracy"] == pytest.approx(cells.mean(), abs=1e-6)
            halts = rows.q_halt_logits[counts] >= 0
            assert values["q_halt_accuracy"] == (halts == whole[counts]).mean()
    assert result["metrics"]["count"] == sum(s["count"] for s in result["sets"].values())
    return sum(len(rows.inputs) for rows in sets.values())


def test_ranks_and_batches_change_no_prediction_and_no_count(lab: Lab, pool: Rows) -> None:
    num_rows, rng, wanted = 0, lab.rng, lab.cases(quick=12, long=150)
    for case in range(wanted):
        world_size = (1, 2, 4)[case % 3]
        sizes = {"some": int(rng.integers(1, 30)), "few": int(rng.integers(1, 4)), "none": 0}
        if case < 3:
            sizes = {"none": 0}
        sets = {name: pool.take(rng.integers(0, NUM_ROWS, size)) for name, size in sizes.items()}
        batch_size = world_size * int(rng.integers(1, 6))
        print(f"{world_size} ranks, batches of {batch_size}, {sizes}")  # noqa: T201
        num_rows += check(lab, sets, world_size, batch_size)
    said = f"{wanted} evaluations of {num_rows} rows, each with an empty set; no padded row counted"
    lab.tally(said, evaluations=wanted, other_predictions=0, wrong_counts=0)


@pytest.mark.parametrize("mutant", mutants.params("count_padding"))
def test_padding_that_counts_is_noticed(lab: Lab, pool: Rows, mutant: Fault) -> None:
    sets = {"some": pool.take(np.arange(6))}
    check(lab, sets, 2, 8)
    with pytest.raises(AssertionError, match="8 == 6"):
        check(lab, sets, 2, 8, mutant)
