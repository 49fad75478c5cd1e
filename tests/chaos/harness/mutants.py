"""The project with one of its protections taken out; the first line says which. Called in a child
before its entry point.
"""

import contextlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY, patch


def params(*mutants: Callable[[], None]) -> list[Any]:
    """Return parameters of a test that must fail on each of these mutants."""
    import pytest

    marks = {each: pytest.mark.mutant(fault=each) for each in mutants}
    return [pytest.param(each, marks=mark, id=each.__name__) for each, mark in marks.items()]


def omit_carry() -> None:
    """the carry left out of checkpoints"""
    patch("training.checkpoint.tensors.gather_carry", lambda carry, ranks: {}).start()


def omit_optimizer() -> None:
    """the optimizer's state left out of checkpoints"""
    patch("training.checkpoint.tensors.optimizer_tensors", lambda optimizer, groups: {}).start()


def omit_random_state() -> None:
    """torch's random state left out of checkpoints"""
    patch("training.checkpoint.tensors.restore_rng", lambda tensors, ranks: None).start()


def add_by_rank() -> None:
    """gradients added up on each rank before they are added over the ranks"""
    from runtime.process import env_world_size
    from training.optim.groups import sum_in_order as add

    def add_ranks(shards: Any) -> Any:
        by_rank = shards.unflatten(0, (env_world_size(), -1))
        return add(add(by_rank.transpose(0, 1)))

    patch("training.optim.groups.sum_in_order", add_ranks).start()


def draw_by_rank() -> None:
    """dropout drawn by rank instead of by shard"""
    from runtime.process import env_rank
    from runtime.streams import torch_seed

    def keyed(seed: Any, step: Any, part: Any) -> Any:
        return torch_seed(seed, step, env_rank())

    for module in ("step", "parts"):
        patch(f"training.{module}.torch_seed", keyed).start()


def save_in_place() -> None:
    """a checkpoint written straight to its place"""
    from training.checkpoint import store

    def save(run_dir: Path, state: Any, files: Any) -> Path:
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

    patch("training.checkpoint.store.save_checkpoint", save).start()


def delete_before_replacing() -> None:
    """the old checkpoint deleted before the new one takes its place"""

    def replace(built: Path, output: Path) -> None:
        if output.exists():
            shutil.rmtree(output)
        built.rename(output)

    patch("training.checkpoint.store.swap_into_place", replace).start()


def no_fsync() -> None:
    """nothing flushed to the disk"""
    patch("os.fsync", lambda descriptor: None).start()


def no_folder_fsync() -> None:
    """folders not flushed to the disk"""
    fsync = os.fsync

    def files_only(descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            fsync(descriptor)

    patch("os.fsync", files_only).start()


def no_hash() -> None:
    """the hashes of a checkpoint not compared"""
    patch("training.checkpoint.store.sha256", lambda path: ANY).start()


def explain_nothing() -> None:
    """values of a checkpoint that do not fit not told as an error of its file"""
    patch("training.checkpoint.run._explained", lambda *told: contextlib.nullcontext()).start()


def forget_finished_jobs() -> None:
    """a sweep that does not record which jobs have finished"""
    patch("apps.sweeps.folder.write_record", lambda *told: None).start()


def open_storage_once() -> None:
    """a search that does not open its storage again when another was creating it"""
    patch("apps.sweeps.search._MOST_OPENINGS", 1).start()


def give_up_at_once() -> None:
    """a search that counts a trial as failed the first time"""
    patch("apps.sweeps.search._MOST_FAILURES", 1).start()


def omit_sparse_check() -> None:
    """the gradient of the puzzle embedding not looked at before its sign is taken"""
    import torch

    finite = "training.optim.sparse_sign_sgd.SparseSignSGD.finite"
    patch(finite, lambda self: torch.tensor(True)).start()


def omit_lock() -> None:
    """the lock on the run's folder left out"""
    patch("pretrain.run_lock", lambda run_dir: contextlib.nullcontext()).start()


def omit_owner() -> None:
    """the owner of a held lock taken for alive, whatever became of it"""
    patch("training.checkpoint.lock.Owner.is_gone", False).start()


def share_temporary_files() -> None:
    """one temporary file for all writers of a file"""
    patch("secrets.token_hex", lambda size: "01234567").start()


def delete_of_the_living() -> None:
    """temporary files of other writers deleted, whether these are at work or not"""
    patch("runtime.files._locked", lambda path: contextlib.nullcontext()).start()


def omit_guard() -> None:
    """errors of W&B let into the run"""
    patch("training.logs.SideLog._guard", lambda self, call: call()).start()


def count_padding() -> None:
    """padded rows counted in evaluations"""
    from evaluation.measure import _gather

    def gather_all(local: Any, names: Any, num_examples: int, ranks: Any) -> Any:
        padded = ranks.world_size * sum(len(rows) for rows in local)
        return _gather(local, names, padded, ranks)

    patch("evaluation.measure._gather", gather_all).start()


def share_a_prefix() -> None:
    """one prefix in torchrun's store for the keys of all attempts"""
    _draw_nothing_if(os.environ["RANK"] == "0")


def share_a_question() -> None:
    """ranks that ask for that prefix under a name that the dead had too"""
    _draw_nothing_if(os.environ["RANK"] != "0")


def _draw_nothing_if(here: bool) -> None:
    if here:
        patch("secrets.token_hex", lambda size: "the same").start()


def say_nothing_is_long() -> None:
    """ranks that do not say what takes long"""
    from runtime.ranks import Ranks

    mark = Ranks.mark
    patch.object(Ranks, "mark", lambda self, place, *, long=False: mark(self, place)).start()


def forget_hosts() -> None:
    """ranks that do not say on which host they are"""
    patch("runtime.ranks.socket.gethostname", lambda: "").start()


def hash_not_compared() -> None:
    """hashes of data files not compared"""
    patch("dataset.format.reading._check_manifest", lambda *arguments: None).start()


def unpickle(*, weights_only: bool = True) -> None:
    """published files read by torch.load"""
    import torch

    def load(path: Path) -> Any:
        return torch.load(path, weights_only=weights_only)

    patch("training.checkpoint.start_weights.read_state_dict", load).start()


def trust_pickles() -> None:
    """published files read by torch.load with weights_only=False"""
    unpickle(weights_only=False)


def allow_pickled_arrays() -> None:
    """arrays read with allow_pickle=True"""
    import numpy as np

    read = "dataset.format.reading.map_array"
    patch(read, lambda path: np.load(path, allow_pickle=True)).start()


def pass_commands_on() -> None:
    """the command of a checkpoint's settings that builds its data shown as advice"""
    patch("training.checkpoint.trained_model._without_commands", lambda data: data).start()


def load_any_yaml() -> None:
    """all_config.yaml read as by yaml.unsafe_load"""
    import yaml

    patch("training.checkpoint.published.PlainLoader", yaml.UnsafeLoader).start()


def take_any_folder_name() -> None:
    """the name of a run's folder not looked at"""
    patch(
        "training.checkpoint.run_folder.prepare_run_dir",
        lambda run_dir: run_dir.mkdir(exist_ok=True),
    ).start()


def convert_in_place() -> None:
    """converted checkpoints written straight to their places"""

    def write(files: Any) -> None:
        for path, content in files.items():
            path.write_bytes(content if isinstance(content, bytes) else content.encode())

    patch("training.checkpoint.conversion.write_together", write).start()


def take_any_set_name() -> None:
    """the names of sets are not checked"""
    patch("dataset.format.schema._PLAIN_NAME", re.compile(".*", re.DOTALL)).start()


def in_place() -> None:
    """data sets built in place"""

    @contextlib.contextmanager
    def build_there(output: Path) -> Iterator[Path]:
        output.mkdir(parents=True, exist_ok=True)
        yield output

    patch("dataset.puzzle_build.atomic_build", build_there).start()


def in_directory_order() -> None:
    """ARC tasks taken in the order of the folder"""
    listed = "dataset.arc.tasks.sorted"
    patch(listed, lambda values, **options: list(values), create=True).start()


def by_hash() -> None:
    """augmentations drawn by Python's hash of the name"""

    def hashed(name: bytes) -> SimpleNamespace:
        digest = hash(name).to_bytes(8, "little", signed=True)
        return SimpleNamespace(digest=lambda: digest)

    patch("dataset.arc.augmentation.hashlib", SimpleNamespace(sha256=hashed)).start()
