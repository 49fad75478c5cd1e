"""The project with one of its protections taken out; the first line says which. Called in a child
before its entry point.
"""

import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any


def omit_carry() -> None:
    """the carry left out of checkpoints"""
    from training import trainer

    trainer.gather_carry = lambda carry, ranks: {}


def omit_optimizer() -> None:
    """the optimizer's state left out of checkpoints"""
    from training import trainer

    trainer.optimizer_tensors = lambda optimizer, groups: {}


def omit_random_state() -> None:
    """torch's random state left out of checkpoints"""
    from training import trainer

    def leave(tensors: Any, ranks: Any) -> None:
        return None

    trainer.restore_rng = leave


def add_by_rank() -> None:
    """gradients added up on each rank before they are added over the ranks"""
    from training import optim
    from training.launch import env_world_size

    add = optim.sum_in_order

    def add_ranks(shards: Any) -> Any:
        by_rank = shards.unflatten(0, (env_world_size(), -1))
        return add(add(by_rank.transpose(0, 1)))

    optim.sum_in_order = add_ranks


def draw_by_rank() -> None:
    """dropout drawn by rank instead of by shard"""
    from training import trainer
    from training.launch import env_rank

    keyed = trainer.torch_seed
    trainer.torch_seed = lambda seed, step, part: keyed(seed, step, env_rank())


def save_in_place() -> None:
    """a checkpoint written straight to its place"""
    from training import checkpoint, trainer

    def save(run_dir: Path, step: int, state: Any, files: Any) -> Path:
        folder = checkpoint.checkpoint_path(run_dir, step)
        folder.mkdir(exist_ok=True)
        entries = {}
        for name, write in {
            **files,
            checkpoint.STATE: lambda path: path.write_text(json.dumps(state)),
        }.items():
            write(folder / name)
            size, digest = (folder / name).stat().st_size, checkpoint.sha256(folder / name)
            entries[name] = {"size": size, "sha256": digest}
        (folder / checkpoint.MANIFEST).write_text(json.dumps({"files": entries}))
        return folder

    trainer.save_checkpoint = save


def delete_before_replacing() -> None:
    """the old checkpoint deleted before the new one takes its place"""
    from training import checkpoint

    def replace(old: Path, new: Path) -> None:
        shutil.rmtree(old)
        new.rename(old)

    checkpoint._replace = replace


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
    from training import checkpoint

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

    from training.sparse_sign_sgd import SparseSignSGD

    SparseSignSGD.finite = lambda self: torch.tensor(True)


def omit_lock() -> None:
    """the lock on the run's folder left out"""
    import contextlib

    import pretrain

    pretrain.run_lock = lambda run_dir: contextlib.nullcontext()


def omit_owner() -> None:
    """the owner of a held lock taken for alive, whatever became of it"""
    from training.run_lock import Owner

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
