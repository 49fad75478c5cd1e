"""Damage data sets at random, and open each one as a run does before it loads torch.

    python -m harness.data_damage '{"seed": [0], "cases": 500, "folder": FOLDER, "mutant": null}'

prints the results as JSON. A case is
- `noticed`: a DatasetError names a file of the set (`named`: the damaged file itself);
- `untouched`: the damage changed nothing that is read;
- `valid`: the set has no manifest, and its data can still be read to the end;
- `silent` (list): the set has a manifest, and the damage was not noticed;
- `wrong` (list): anything else happened.

`torch` says whether torch was loaded. The address space is limited, so that the reader cannot
allocate more than the files justify. Row 15 covers false claims in headers.
"""

import contextlib
import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import pretrain
from dataset.format.schema import MANIFEST_NAME, METADATA_NAME
from harness import builds, mutants
from harness.damage import ANYWHERE, Rng
from harness.mounts import limit_memory
from puzzle_dataset import EvalBatches, TrainBatches
from runtime.errors import DatasetError
from training.config.composition import load_config
from training.config.schema import TrainConfig

_PIXELS = ["heads=pixel", "evaluators=[arc]"]
# Kind, flags of its builder, settings of a run that reads all its data.
SETS = {
    "sudoku": ("sudoku", [], []),
    "maze with actions": ("maze", [], ["heads=action"]),
    "lazy ARC": ("arc", ["--num-aug=3"], _PIXELS),
    "materialized ARC": ("arc", ["--num-aug=3", "--materialize"], ["evaluators=[arc]"]),
}
_SPARE_BYTES = 256 * 2**20


def other_dtype(path: Path, rng: Rng) -> None:
    """Store it with a type that is not an integer."""
    array = _load(path)
    np.save(path, array.astype(("f4", "?", "S3", "c8")[rng.integers(4)]))


def other_shape(path: Path, rng: Rng) -> None:
    """Add an axis, or leave a row or a column out."""
    array = _load(path)
    changes = [lambda a: a[None], lambda a: a[..., None], lambda a: a[:-1], lambda a: a[..., 1:]]
    np.save(path, changes[rng.integers(len(changes))](array))


def wrong_value(path: Path, rng: Rng) -> None:
    """Put an impossible number into one place."""
    array = _load(path).astype(np.int64)
    place = tuple(int(rng.integers(length)) for length in array.shape)
    array[place] = rng.choice([-1, 10**6, 2**40, -(2**62)])
    np.save(path, array)


def wrong_offset(path: Path, rng: Rng) -> None:
    """Break the first offset (0), the order, or the last offset (the number of rows)."""
    offsets = _load(path)
    place = (0, int(rng.integers(1, len(offsets))), len(offsets) - 1)[rng.integers(3)]
    offsets[place] = offsets[place - 1] if place else 1
    np.save(path, offsets)


def wrong_fact(path: Path, rng: Rng) -> None:
    """Replace or delete the value of a key of dataset.json."""
    content = json.loads(path.read_bytes())
    place = content
    if content.get("fields") and rng.random() < 0.4:
        place = next(iter(content["fields"].values()))
    key = list(place)[rng.integers(len(place))]
    values: list[Any] = [-1, 2**40, 10**400, 1e300, float("nan"), "x", "a\nb", None, [], {}, True]
    values += [["all", "all"], ["../all"], ["other"], {"a\nb": 1}, [[[[]]]]]
    if rng.random() < 0.15:
        del place[key]
    else:
        place[key] = values[rng.integers(len(values))]
    path.write_text(json.dumps(content))


IN_ARRAYS = (other_dtype, other_shape, wrong_value)


def damage(root: Path, rng: Rng) -> tuple[str, Path]:
    """Damage one file in one way; return the kind of damage and the file."""
    files = sorted(path for path in root.rglob("*") if path.is_file())
    path = files[rng.integers(len(files))]
    kinds: list[Callable[[Path, Rng], None]] = [*ANYWHERE]
    if path.suffix == ".npy":
        kinds += IN_ARRAYS
    if path.name.endswith("_indices.npy"):
        kinds += [wrong_offset] * 3
    if path.name == METADATA_NAME:
        kinds += [wrong_fact] * 10
    kind = kinds[rng.integers(len(kinds))]
    kind(path, rng)
    return kind.__name__, path


def _load(path: Path) -> np.ndarray:
    return np.load(path, allow_pickle=False)


class Target:
    """A data set that is damaged and mended for each case."""

    def __init__(self, folder: Path, name: str, *, has_manifest: bool) -> None:
        kind, flags, settings = SETS[name]
        self.name = name if has_manifest else f"{name}, no manifest"
        self.root, kept = folder / self.name / "set", folder / f"{self.name}, kept"
        sources = builds.write_sources(folder / self.name / "sources")
        assert builds.build_here(kind, *builds.flags(kind, sources, kept, *flags)) == 0
        if not has_manifest:
            (kept / MANIFEST_NAME).unlink()
            if kind == "sudoku":  # Some published sets are stored with int64.
                for path in kept.glob("*/all__[il]*.npy"):
                    np.save(path, _load(path).astype(np.int64))
        given = [f"data_path='{self.root}'", "global_batch_size=2", "logger.name=jsonl", *settings]
        self.config = load_config(TrainConfig, "cfg_pretrain", given)
        shutil.copytree(kept, self.root)
        self.whole = builds.contents(self.root)
        self.read(*self.open())

    def open(self) -> tuple[Any, ...]:
        """Open it as a run does, and return the training and the test set."""
        with (
            patch("pretrain.load_config", return_value=self.config),
            patch("pretrain.train") as train,
        ):
            pretrain.main([])
        (start,) = train.call_args.args
        return start.train_set, start.test_set

    def read(self, train_set: Any, test_set: Any) -> None:
        """Read an iteration of training batches, and all test batches."""
        list(TrainBatches(train_set, seed=0, global_batch_size=2, epochs_per_iter=1).iterate(0))
        if test_set is not None:
            list(EvalBatches(test_set, global_batch_size=2))

    def mend(self) -> None:
        """Undo the damage."""
        for name, content in self.whole.items():
            path = self.root / name
            if not path.is_file() or path.read_bytes() != content:
                path.write_bytes(content)

    def is_as_good(self) -> bool:
        """Return whether all listed files are unchanged, and the manifest unchanged or missing."""
        now, whole = builds.contents(self.root), dict(self.whole)
        text, before = now.pop(MANIFEST_NAME, None), whole.pop(MANIFEST_NAME, None)
        try:
            is_same = text is None or (before and json.loads(text) == json.loads(before))
        except ValueError:
            return False
        return bool(is_same) and now == whole

    def try_once(self, rng: Rng, account: dict[str, Any]) -> None:
        """Try one case, and add its result to `account`."""
        what, path = damage(self.root, rng)
        case, doing = f"{self.name}: {what} {path.relative_to(self.root)}", "opened"
        try:
            opened = self.open()
            doing = "read"
            self.read(*opened)
        except BaseException as error:
            line = str(error)
            is_plain = str(self.root) in line and "\n" not in line
            if doing == "opened" and isinstance(error, DatasetError) and is_plain:
                account["noticed"] += 1
                account["named"] += str(path) in line
            else:
                account["wrong"].append(f"{case}: {doing}: {type(error).__name__}: {line}"[:300])
        else:
            if self.is_as_good():
                account["untouched"] += 1
            elif MANIFEST_NAME in self.whole:
                account["silent"].append(case)
            else:
                account["valid"] += 1
        self.mend()


def main(order: dict[str, Any]) -> dict[str, Any]:
    """Damage the sets in turn, `cases` times; see above."""
    if order["mutant"] is not None:
        mutants.take_out(order["mutant"])
    folder, rng = Path(order["folder"]), np.random.default_rng(order["seed"])
    with contextlib.redirect_stdout(io.StringIO()):
        kinds = [(name, has_manifest) for name in SETS for has_manifest in (True, False)]
        targets = [Target(folder, name, has_manifest=known) for name, known in kinds]
    limit_memory(_SPARE_BYTES)
    account: dict[str, Any] = dict.fromkeys(("noticed", "named", "untouched", "valid"), 0)
    account |= {"silent": [], "wrong": []}
    for number in range(order["cases"]):
        targets[number % len(targets)].try_once(rng, account)
    return account | {"torch": "torch" in sys.modules}


def no_model() -> None:
    """Refuse to build models."""
    patch("models.registry.build_model", side_effect=AssertionError("a model is built")).start()


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))  # noqa: T201
