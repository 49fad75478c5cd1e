"""The project with one of its protections taken out; the first line says which. Called in a child
before its entry point.
"""

import contextlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def params(row: int, *mutants: Callable[[], None]) -> list[Any]:
    """Return parameters of a test that must fail on each of these mutants of a row."""
    import pytest

    return [
        pytest.param(
            mutant, marks=pytest.mark.row(row, mutant=f"{mutant.__doc__}"), id=mutant.__name__
        )
        for mutant in mutants
    ]


def omit_carry() -> None:
    """the carry left out of checkpoints"""
    from training.checkpoint import tensors

    tensors.gather_carry = lambda carry, ranks: {}


def omit_optimizer() -> None:
    """the optimizer's state left out of checkpoints"""
    from training.checkpoint import tensors

    tensors.optimizer_tensors = lambda optimizer, groups: {}


def omit_random_state() -> None:
    """torch's random state left out of checkpoints"""
    from training.checkpoint import tensors

    tensors.restore_rng = lambda tensors, ranks: None


def add_by_rank() -> None:
    """gradients added up on each rank before they are added over the ranks"""
    from runtime.process import env_world_size
    from training.optim import groups as optim

    add = optim.sum_in_order

    def add_ranks(shards: Any) -> Any:
        by_rank = shards.unflatten(0, (env_world_size(), -1))
        return add(add(by_rank.transpose(0, 1)))

    optim.sum_in_order = add_ranks


def draw_by_rank() -> None:
    """dropout drawn by rank instead of by shard"""
    from runtime.process import env_rank
    from training import step as steps

    keyed = steps.torch_seed
    steps.torch_seed = lambda seed, step, part: keyed(seed, step, env_rank())


def save_in_place() -> None:
    """a checkpoint written straight to its place"""
    from training.checkpoint import store as checkpoint

    def save(run_dir: Path, state: Any, files: Any) -> Path:
        folder = checkpoint.checkpoint_path(run_dir, state.step)
        folder.mkdir(exist_ok=True)
        entries = {}
        for name, write in {
            **files,
            checkpoint.STATE: lambda path: path.write_text(json.dumps(state.to_json())),
        }.items():
            write(folder / name)
            size, digest = (folder / name).stat().st_size, checkpoint.sha256(folder / name)
            entries[name] = {"size": size, "sha256": digest}
        (folder / checkpoint.MANIFEST).write_text(json.dumps({"files": entries}))
        return folder

    checkpoint.save_checkpoint = save


def delete_before_replacing() -> None:
    """the old checkpoint deleted before the new one takes its place"""
    from training.checkpoint import store as checkpoint

    def replace(built: Path, output: Path) -> None:
        if output.exists():
            shutil.rmtree(output)
        built.rename(output)

    checkpoint.swap_into_place = replace


def no_fsync() -> None:
    """nothing flushed to the disk"""
    os.fsync = lambda descriptor: None


def no_folder_fsync() -> None:
    """folders not flushed to the disk"""
    fsync = os.fsync

    def files_only(descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            fsync(descriptor)

    os.fsync = files_only


def no_hash() -> None:
    """the hashes of a checkpoint not compared"""
    from training.checkpoint import store as checkpoint

    checkpoint.sha256 = any_hash


def any_hash(path: Path) -> str:
    """Return a hash that equals all others."""
    return _Anything()


class _Anything(str):
    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = str.__hash__


def omit_sparse_check() -> None:
    """the gradient of the puzzle embedding not looked at before its sign is taken"""
    import torch

    from training.optim.sparse_sign_sgd import SparseSignSGD

    SparseSignSGD.finite = lambda self: torch.tensor(True)


def omit_lock() -> None:
    """the lock on the run's folder left out"""
    import pretrain

    pretrain.run_lock = lambda run_dir: contextlib.nullcontext()


def omit_owner() -> None:
    """the owner of a held lock taken for alive, whatever became of it"""
    from training.checkpoint.lock import Owner

    Owner.is_gone = property(lambda self: False)  # type: ignore[assignment]


def omit_guard() -> None:
    """errors of W&B let into the run"""
    from training.tracking import WandbLog

    WandbLog._guard = lambda self, call: call()  # type: ignore[method-assign]


def count_padding() -> None:
    """padded rows counted in evaluations"""
    from evaluation import runner

    gather = runner._gather

    def gather_all(local: Any, names: Any, num_examples: int, ranks: Any) -> Any:
        padded = ranks.world_size * sum(len(rows) for rows in local)
        return gather(local, names, padded, ranks)

    runner._gather = gather_all


def share_a_prefix() -> None:
    """one prefix in torchrun's store for the keys of all attempts"""
    from runtime.process import env_rank

    if env_rank() == 0:
        _draw_nothing()


def share_a_question() -> None:
    """ranks that ask for that prefix under a name that the dead had too"""
    from runtime.process import env_rank

    if env_rank() != 0:
        _draw_nothing()


def _draw_nothing() -> None:
    from runtime import ranks as distributed

    distributed.secrets.token_hex = lambda size: "the same"


def say_nothing_is_long() -> None:
    """ranks that do not say what takes long"""
    from runtime.ranks import Ranks

    mark = Ranks.mark
    Ranks.mark = lambda ranks, place, *, long=False: mark(ranks, place)


def hash_not_compared() -> None:
    """hashes of data files not compared"""
    from dataset.format import reading

    reading._check_manifest = lambda *arguments: None


def skip_the_look() -> None:
    """published pickles are not looked through before they are read"""
    from training.checkpoint import start_weights as weights

    weights.require_state_dict = lambda path: None


def trust_pickles() -> None:
    """published files read with weights_only=False"""
    import torch

    from training.checkpoint import start_weights as weights

    skip_the_look()
    load = torch.load
    weights.torch.load = lambda path, **how: load(path, **how | {"weights_only": False})


def allow_pickled_arrays() -> None:
    """arrays read with allow_pickle=True"""
    import numpy as np

    from dataset.format import reading

    reading.map_array = lambda path: np.load(path, allow_pickle=True)


def load_any_yaml() -> None:
    """all_config.yaml read as by yaml.unsafe_load"""
    from training.checkpoint import published

    published._PlainLoader = published.yaml.UnsafeLoader


def take_any_set_name() -> None:
    """the names of sets are not checked"""
    from dataset.format import reading, schema

    schema.require_plain_name = reading.require_plain_name = lambda name: None


def in_place() -> None:
    """data sets built in place"""
    from dataset import puzzle_build

    @contextlib.contextmanager
    def build_there(output: Path) -> Iterator[Path]:
        output.mkdir(parents=True, exist_ok=True)
        yield output

    puzzle_build.atomic_build = build_there


def in_directory_order() -> None:
    """ARC tasks taken in the order of the folder"""
    from dataset.arc import tasks as arc

    vars(arc)["sorted"] = lambda values, **options: list(values)


def by_hash() -> None:
    """augmentations drawn by Python's hash of the name"""
    from dataset.arc import augmentation as arc_augmentation

    def hashed(name: bytes) -> SimpleNamespace:
        digest = hash(name).to_bytes(8, "little", signed=True)
        return SimpleNamespace(digest=lambda: digest)

    vars(arc_augmentation)["hashlib"] = SimpleNamespace(sha256=hashed)
