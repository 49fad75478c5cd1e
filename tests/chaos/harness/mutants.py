"""Mutants: the project with one protection taken out. A child patches it before its entry point."""

import contextlib
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from functools import partial, partialmethod
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY, patch

import numpy as np
import yaml

_fsync, _token_hex = os.fsync, secrets.token_hex


def _fsync_files_only(descriptor: int) -> None:
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        _fsync(descriptor)


def _save_in_place(run_dir: Path, state: Any, files: Any) -> Path:
    from training.checkpoint import store

    folder = store.checkpoint_path(run_dir, state.step)
    folder.mkdir(exist_ok=True)
    entries = {}
    text = json.dumps(state.to_json())
    for name, write in {**files, store.STATE: lambda path: path.write_text(text)}.items():
        write(folder / name)
        size, digest = (folder / name).stat().st_size, store.sha256(folder / name)
        entries[name] = {"size": size, "sha256": digest}
    (folder / store.MANIFEST).write_text(json.dumps({"files": entries}))
    return folder


def _delete_and_rename(built: Path, output: Path) -> None:
    shutil.rmtree(output, ignore_errors=True)
    built.rename(output)


def _write_in_place(files: Any) -> None:
    for path, content in files.items():
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


@contextlib.contextmanager
def _build_in_place(output: Path) -> Iterator[Path]:
    output.mkdir(parents=True, exist_ok=True)
    yield output


def _torch_load(path: Path, weights_only: bool) -> Any:
    import torch

    return torch.load(path, weights_only=weights_only)


def _always_finite(optimizer: Any) -> Any:
    import torch

    return torch.tensor(True)


def _seed_by_rank(seed: Any, step: Any, part: Any) -> Any:
    from runtime.process import env_rank
    from runtime.streams import torch_seed

    return torch_seed(seed, step, env_rank())


def _add_by_rank(shards: Any) -> Any:
    from runtime.process import env_world_size
    from runtime.ranks import sum_in_order

    return sum_in_order(sum_in_order(shards.unflatten(0, (env_world_size(), -1)).transpose(0, 1)))


def _token_unless(here: Callable[[str], bool], size: int) -> str:
    return "the same" if here(os.environ["RANK"]) else _token_hex(size)


def _mark_as_short(ranks: Any, place: str, *, long: bool = False) -> None:
    ranks._watch.mark(place, long=False)


def _counting_padding() -> dict[str, Any]:
    from evaluation.measure import _Values

    finish = _Values.finish

    def with_padding(values: Any, num_examples: Any, ranks: Any) -> Any:
        rows = {n: ranks.world_size * sum(map(len, values._rows[n])) for n in num_examples}
        return finish(values, rows, ranks)

    return {"evaluation.measure._Values.finish": with_padding}


def _waiting_for_no_write() -> dict[str, Any]:
    from training.checkpoint.background import BackgroundWrite

    finish = partialmethod(BackgroundWrite.finish, wait=False)
    return {"training.checkpoint.background.BackgroundWrite.finish": finish}


def _forget_errors(writing: Any, write: Callable[[], None]) -> None:
    with contextlib.suppress(Exception):
        write()


def _python_hash(name: bytes) -> SimpleNamespace:
    return SimpleNamespace(digest=lambda: hash(name).to_bytes(8, "little", signed=True))


# Name: title, and the replacements by dotted name (or a function that returns them).
MUTANTS: dict[str, tuple[str, Mapping[str, Any] | Callable[[], Mapping[str, Any]]]] = {
    "omit_carry": (
        "the carry left out of checkpoints",
        {"training.checkpoint.tensors.gather_carry": lambda carry, ranks: {}},
    ),
    "omit_optimizer": (
        "the optimizer's state left out of checkpoints",
        {"training.checkpoint.tensors.optimizer_tensors": lambda optimizer, groups: {}},
    ),
    "omit_random_state": (
        "torch's random state left out of checkpoints",
        {"training.checkpoint.tensors.restore_rng": lambda tensors, ranks: None},
    ),
    "save_in_place": (
        "a checkpoint written straight to its place",
        {"training.checkpoint.store.save_checkpoint": _save_in_place},
    ),
    "delete_before_replacing": (
        "the old checkpoint deleted before the new one takes its place",
        {"training.checkpoint.store.swap_into_place": _delete_and_rename},
    ),
    "no_fsync": ("nothing flushed to the disk", {"os.fsync": lambda descriptor: None}),
    "no_folder_fsync": ("folders not flushed to the disk", {"os.fsync": _fsync_files_only}),
    "add_by_rank": (
        "gradients summed on each rank before they are summed over the ranks",
        {"training.optim.groups.sum_in_order": _add_by_rank},
    ),
    "draw_by_rank": (
        "dropout drawn by rank instead of by shard",
        {"training.step.torch_seed": _seed_by_rank},
    ),
    "share_a_prefix": (
        "the same prefix in torchrun's store for all attempts",
        {"secrets.token_hex": partial(_token_unless, "0".__eq__)},
    ),
    "share_a_question": (
        "ranks that ask for the store's prefix by a name that dead ranks had used",
        {"secrets.token_hex": partial(_token_unless, "0".__ne__)},
    ),
    "say_nothing_is_long": (
        "ranks that do not announce long operations",
        {"runtime.ranks.Ranks.mark": _mark_as_short},
    ),
    "no_hash": (
        "the hashes of a checkpoint not compared",
        {"training.checkpoint.store.sha256": lambda path: ANY},
    ),
    "explain_nothing": (
        "a wrong value in a checkpoint not reported as an error of its file",
        {"training.checkpoint.run._checkpoint_errors": lambda *told: contextlib.nullcontext()},
    ),
    "hash_not_compared": (
        "hashes of data files not compared",
        {"dataset.format.reading._check_manifest": lambda *arguments: None},
    ),
    "convert_in_place": (
        "converted checkpoints written straight to their places",
        {"apps.export.published.write_together": _write_in_place},
    ),
    "omit_sparse_check": (
        "the gradient of the puzzle embedding not checked before its sign is taken",
        {"training.optim.sparse_sign_sgd.SparseSignSGD.finite": _always_finite},
    ),
    "omit_guard": (
        "errors of W&B passed on to the run",
        {"training.logs.SideLog._guard": lambda self, call: call()},
    ),
    "take_any_folder_name": (
        "the name of a run's folder not checked",
        {"training.checkpoint.run_folder.prepare_run_dir": lambda run_dir: run_dir.mkdir()},
    ),
    "unpickle": (
        "published files read by torch.load",
        {"training.checkpoint.tensors.read_state_dict": partial(_torch_load, weights_only=True)},
    ),
    "trust_pickles": (
        "published files read by torch.load with weights_only=False",
        {"training.checkpoint.tensors.read_state_dict": partial(_torch_load, weights_only=False)},
    ),
    "allow_pickled_arrays": (
        "arrays read with allow_pickle=True",
        {"dataset.format.reading.map_array": partial(np.load, allow_pickle=True)},
    ),
    "load_any_yaml": (
        "all_config.yaml read with yaml.UnsafeLoader",
        {"training.checkpoint.published.PlainLoader": yaml.UnsafeLoader},
    ),
    "pass_commands_on": (
        "a checkpoint's command for building its data shown as advice",
        {"training.checkpoint.trained_model._with_our_command": lambda data: data},
    ),
    "take_any_set_name": (
        "the names of sets not checked",
        {"dataset.format.schema._PLAIN_NAME": re.compile(".*", re.DOTALL)},
    ),
    "omit_lock": (
        "the lock on the run's folder left out",
        {"pretrain.run_lock": lambda run_dir: contextlib.nullcontext()},
    ),
    "omit_owner": (
        "the owner of a held lock always taken for alive",
        {"training.checkpoint.lock.Owner.is_gone": False},
    ),
    "share_temporary_files": (
        "one temporary file for all writers of a file",
        {"secrets.token_hex": lambda size: "01234567"},
    ),
    "delete_of_the_living": (
        "temporary files deleted while their writers are at work",
        {"runtime.files._locked": lambda path: contextlib.nullcontext()},
    ),
    "in_place": (
        "data sets built in place",
        {"dataset.puzzle_build.atomic_build": _build_in_place},
    ),
    "in_directory_order": (
        "ARC tasks taken in the order of the folder",
        {"dataset.arc.tasks.sorted": lambda values, **options: list(values)},
    ),
    "by_hash": (
        "augmentations drawn by Python's hash of the name",
        {"dataset.arc.augmentation.hashlib": SimpleNamespace(sha256=_python_hash)},
    ),
    "count_padding": ("padded rows counted in evaluations", _counting_padding),
    "forget_finished_jobs": (
        "a sweep that does not record which jobs have finished",
        {"apps.sweeps.folder.write_record": lambda *args: None},
    ),
    "give_up_at_once": (
        "a study that counts a trial as failed after one failure",
        {"apps.sweeps.study._MOST_FAILURES": 1},
    ),
    "write_the_living": (
        "tensors that are written beside training not copied first",
        {"training.checkpoint.background.BackgroundWrite.copied": lambda writing, files: files},
    ),
    "forget_failed_writes": (
        "errors of a write beside training dropped",
        {"training.checkpoint.background.BackgroundWrite._call": _forget_errors},
    ),
    "wait_for_no_write": ("a save that does not wait for the one before", _waiting_for_no_write),
    "copy_without_memory": (
        "tensors copied without asking for the memory that is left",
        {"training.checkpoint.background.BackgroundWrite.has_room": lambda writing, size: True},
    ),
    "forget_hosts": (
        "ranks that do not name their host",
        {"runtime.ranks.socket.gethostname": lambda: ""},
    ),
}


def take_out(name: str) -> None:
    """Let this process be a mutant."""
    _, replaced = MUTANTS[name]
    for target, replacement in (replaced() if callable(replaced) else replaced).items():
        patch(target, replacement).start()


def params(*names: str, **more: tuple[Any, ...]) -> list[Any]:
    """Return the parameters of a test that must fail on each of these mutants.

    Each one is the fault to call in a child; `more` gives further arguments by mutant.
    """
    import pytest

    given = dict.fromkeys(names, ()) | more
    return [
        pytest.param(partial(take_out, name), *others, marks=pytest.mark.mutant(name), id=name)
        for name, others in given.items()
    ]
