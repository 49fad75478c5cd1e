"""Checkpoint folders. A kill, a full disk or a power loss leaves either the old or the new one.

A checkpoint is a folder `step_N` of safetensors and JSON files, with their sizes and sha256 in
`MANIFEST.json`. (Models of the zoo record their state as YAML instead, in `config.yaml`.) Saving
writes a hidden folder beside it, fsyncs each file (the manifest last) and the folder, and renames
it. Removing renames the folder before deleting it. Loading verifies every hash and names a bad
file. Imports no torch, so that a checkpoint is checked before torch is loaded.
"""

import contextlib
import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from models.config import DataFacts
from runtime.errors import CheckpointError, disk_errors
from runtime.files import fsync, put_back, read_bounded, sha256, swap_into_place
from runtime.schema import CountOrZero, NonNegativeFloat, Schema, StrictBool
from runtime.text import quoted, shown
from training.checkpoint.published import read_yaml

MANIFEST = "MANIFEST.json"
STATE = "state.json"
SHARED_STATE = "config.yaml"  # The same in YAML: models of the zoo have it instead.
MODEL = "model.safetensors"
EMA = "ema.safetensors"  # Only if the run keeps a moving average.
OPTIMIZER = "optimizer.safetensors"
CARRY = "carry.safetensors"
RNG = "rng.safetensors"

_REPLACED = ".step_*.replaced-*"
_STEP_FOLDER = re.compile(r"step_(0|[1-9][0-9]*)")
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_MAX_JSON_BYTES = 16 * 2**20

USUAL_MEASURE = "eval/exact_accuracy"

_Score = Annotated[float, Field(strict=True)]
_Text = Annotated[str, Field(strict=True)]
FileWriter = Callable[[Path], object]


class RunState(Schema, extra="ignore"):
    """The state of a run apart from its tensors. All but `step` may be missing: shared weights and
    older versions record less.
    """

    step: CountOrZero
    """optimizer steps done"""
    iteration: CountOrZero | None = None
    """iterations done (epochs between two evaluations)"""
    position: CountOrZero | None = None
    """batches done in the current iteration"""
    total_steps: CountOrZero | None = None
    """steps of the learning rate's schedule"""
    seconds: NonNegativeFloat | None = None
    """run time so far, over all starts"""
    nonfinite: CountOrZero | None = None
    """the last steps in a row without an update, with on_nonfinite=skip"""
    measure: _Text = USUAL_MEASURE
    """name of the figure by which checkpoints are compared, the headline of the evaluations"""
    best_score: _Score | None = None
    best_step: CountOrZero | None = None
    score: _Score | None = None
    """`measure` of the evaluation at this step, if there was one"""
    permanent: StrictBool = False
    """True: pruning keeps this checkpoint"""
    config: dict[str, Any] | None = None
    """settings as the run's version of the code wrote them"""
    facts: dict[str, Any] | None = None
    data_fingerprint: _Text | None = None
    """sha256 of the training data"""
    environment: dict[str, Any] = {}
    diagnostics: dict[str, Any] | None = None
    callbacks: dict[str, dict[str, Any]] | None = None
    wandb_id: _Text | None = None
    mlflow_id: _Text | None = None
    weights_only: StrictBool = False
    """True: without optimizer and position, as on the Hub; no run can resume from it"""

    @property
    def scored_on(self) -> str:
        """What `score` measures, and on which puzzles; they may change when a run is resumed."""
        config = self.config or {}
        named = ("data_paths_test", "eval_max_examples", "limit_eval_batches")
        puzzles = [config.get("eval_split", "test"), *map(config.get, named)]
        return f"{self.measure} {puzzles}"

    def to_json(self) -> dict[str, Any]:
        """Return the given fields for `state.json`."""
        return self.model_dump(exclude_unset=True)


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint: its folder `step_N` and the content of its `state.json`."""

    path: Path
    state: RunState

    @property
    def step(self) -> int:
        return self.state.step


def checkpoint_path(run_dir: Path, step: int) -> Path:
    """Return the folder of the checkpoint at `step`."""
    return run_dir / f"step_{step}"


def save_checkpoint(run_dir: Path, state: RunState, files: Mapping[str, FileWriter]) -> Path:
    """Write the checkpoint of `state.step` atomically, and return its folder.

    Args:
        run_dir: the run's existing folder.
        files: for each file except `state.json`, its name and a function that writes it to a path.
    Raises:
        CheckpointError: writing failed; nothing is left behind, older checkpoints are untouched.
    """
    final = checkpoint_path(run_dir, state.step)
    temporary = run_dir / f".{final.name}.tmp"
    try:
        _remove(temporary)
        temporary.mkdir()
        for name, write in {**files, STATE: _json_writer(state.to_json())}.items():
            write(temporary / name)
            fsync(temporary / name)
        write_manifest(temporary)
        fsync(temporary / MANIFEST)
        fsync(temporary)
        swap_into_place(temporary, final)
    except OSError as error:
        message = f"{final}: could not be saved: {error}; older checkpoints are untouched"
        raise CheckpointError(message) from error
    finally:
        # Half a checkpoint, or the replaced one. `remove_leftovers` tries again.
        shutil.rmtree(temporary, ignore_errors=True)
    return final


def write_manifest(folder: Path) -> None:
    """Write the sizes and hashes of all files of a checkpoint into its manifest."""
    files = [path for path in sorted(folder.iterdir()) if path.name != MANIFEST]
    entries = {path.name: {"size": path.stat().st_size, "sha256": sha256(path)} for path in files}
    _json_writer({"files": entries})(folder / MANIFEST)


def remove_checkpoint(path: Path) -> None:
    """Rename a checkpoint, then delete it: a kill leaves no half checkpoint under a good name.
    Raise CheckpointError if that fails; other checkpoints are untouched.
    """
    renamed = path.with_name(f".{path.name}.old")
    try:
        _remove(renamed)
        path.rename(renamed)
        fsync(path.parent)
        _remove(renamed)
    except OSError as error:
        raise CheckpointError(f"{path}: could not be removed: {error}") from error


def put_back_replaced(run_dir: Path) -> None:
    """Rename back checkpoints that a killed save moved away, or raise CheckpointError."""
    for step in _moved_away(run_dir):
        final = checkpoint_path(run_dir, step)
        with disk_errors(final, CheckpointError):
            put_back(final)


def remove_leftovers(run_dir: Path) -> None:
    """Delete the leftovers of killed saves and removals in a run's folder, as far as possible."""
    for pattern in (".step_*.tmp", ".step_*.old", _REPLACED):
        for path in run_dir.glob(pattern):
            with contextlib.suppress(OSError):
                _remove(path)


def list_steps(run_dir: Path) -> list[int]:
    """Return the steps of all checkpoints in a run's folder, damaged ones too, ascending."""
    if not run_dir.is_dir():
        return []
    matches = (_STEP_FOLDER.fullmatch(path.name) for path in run_dir.iterdir() if path.is_dir())
    return sorted(int(match[1]) for match in matches if match)


def load_checkpoint(path: Path) -> Checkpoint:
    """Verify every file of a checkpoint and read its state.

    Raises:
        CheckpointError: names the file that is missing, cut, changed, unreadable or unlisted.
    """
    with disk_errors(path, CheckpointError):
        if not path.is_dir():
            raise CheckpointError(f"{path}: no such checkpoint")
        present = sorted(path.iterdir())
    entries = read_json(path / MANIFEST).get("files")
    if not isinstance(entries, dict) or not entries.keys() & {STATE, SHARED_STATE}:
        raise CheckpointError(f"{path / MANIFEST}: does not list the checkpoint's files")
    for name, entry in entries.items():
        with disk_errors(path / name, CheckpointError):
            _verify(path, name, entry)
    for file in present:
        # Hidden files (.DS_Store, .nfs...) are not ours and are never read.
        if file.name not in (*entries, MANIFEST) and not file.name.startswith("."):
            raise CheckpointError(f"{file}: is not in {MANIFEST}")
    state = _read_state(path)
    match = _STEP_FOLDER.fullmatch(path.name)
    if match and int(match[1]) != state.step:
        raise CheckpointError(f"{path / STATE}: step {state.step} in the folder {path.name}")
    return Checkpoint(path, state)


def newest_good(run_dir: Path, warn: Callable[[str], None]) -> Checkpoint | None:
    """Return the newest good checkpoint, or None if the folder has none at all. Warn of each newer
    one that is damaged; raise CheckpointError if all are. Checkpoints that a killed save moved away
    count too.
    """
    failures = []
    found = _moved_away(run_dir) | {n: checkpoint_path(run_dir, n) for n in list_steps(run_dir)}
    for _, path in sorted(found.items(), reverse=True):
        try:
            return load_checkpoint(path)
        except CheckpointError as error:
            if path.is_dir():  # Otherwise the run has pruned it meanwhile.
                failures.append(str(error))
                warn(f"skipping a damaged checkpoint: {error}")
    if failures:
        raise CheckpointError(f"{run_dir}: all checkpoints are damaged: {failures[0]}")
    return None


def prune(run_dir: Path, *, keep_last: int, keep_best: int) -> None:
    """Delete all checkpoints but the last, the best and the permanent ones.

    The best have the highest `score`, compared only among equal `scored_on`. A checkpoint with an
    unreadable `state.json` stays, for people to look at.
    """
    states = {}
    for step in list_steps(run_dir):
        with contextlib.suppress(CheckpointError):
            states[step] = _read_state(checkpoint_path(run_dir, step))
    scored: dict[str, list[tuple[float, int]]] = {}
    for step, state in states.items():
        if state.score is not None:
            scored.setdefault(state.scored_on, []).append((state.score, step))
    kept = set(list(states)[-keep_last:])
    for scores in scored.values():
        kept.update(step for _, step in sorted(scores, reverse=True)[:keep_best])
    for step, state in states.items():
        if step not in kept and not state.permanent:
            remove_checkpoint(checkpoint_path(run_dir, step))


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object of bounded size; raise CheckpointError if the file holds none."""
    try:
        with disk_errors(path, CheckpointError):
            content = json.loads(read_bounded(path, _MAX_JSON_BYTES))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not JSON: {error}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: not a JSON object")
    return content


def parse_state(content: Mapping[str, Any], source: Path) -> RunState:
    """Check a state read from `source`; raise CheckpointError with the bad key and value."""
    try:
        return RunState.model_validate({"step": None} | dict(content))
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
    expected = fault["msg"].replace("Input should be", "expected")
    raise CheckpointError(f"{source}: {fault['loc'][0]} is {quoted(fault['input'])}, {expected}")


_Size = Annotated[int, Field(strict=True, ge=1, lt=2**31)]  # The limits of data sets.


class _Facts(Schema, extra="ignore"):
    vocab_size: _Size
    seq_len: _Size
    num_puzzle_identifiers: _Size
    fields: dict[str, tuple[_Size, Annotated[int, Field(strict=True, ge=0, lt=2**31)]]] = {}
    kind: str | None = None


def read_facts(recorded: object) -> DataFacts | None:
    """Return the recorded facts of a data set, or None if they are not valid."""
    try:
        return DataFacts(**dict(_Facts.model_validate(recorded)))
    except ValidationError:
        return None


def _read_state(folder: Path) -> RunState:
    shared = folder / SHARED_STATE
    if shared.exists():
        return parse_state(read_yaml(shared), shared)
    return parse_state(read_json(folder / STATE), folder / STATE)


def _moved_away(run_dir: Path) -> dict[int, Path]:
    """Return, by step, the checkpoints that a killed save had moved away."""
    found = {path: _STEP_FOLDER.match(path.name, 1) for path in run_dir.glob(_REPLACED)}
    return {int(match[1]): path for path, match in found.items() if match and not path.is_symlink()}


def _verify(folder: Path, name: str, entry: object) -> None:
    path = folder / name
    if not _FILE_NAME.fullmatch(name) or not isinstance(entry, dict):
        raise CheckpointError(f"{folder / MANIFEST}: has a bad entry {name[:100]!r}")
    if (size := path.stat().st_size) != entry.get("size"):
        raise CheckpointError(f"{path}: {size} bytes instead of {shown(entry.get('size'))}")
    if sha256(path) != entry.get("sha256"):
        raise CheckpointError(f"{path}: content changed since it was saved (sha256 differs)")


def _json_writer(content: Mapping[str, Any]) -> FileWriter:
    text = json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n"
    return lambda path: path.write_text(text)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
