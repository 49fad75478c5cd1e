"""Train a model: python pretrain.py [KEY=VALUE ...], or torchrun --nproc-per-node N pretrain.py
[KEY=VALUE ...].

The configuration, the data and the run's folder are checked before torch is loaded, so that a
mistake is reported within seconds.
"""

import faulthandler
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

from evaluation.evaluators.base import Evaluator, build_evaluators
from puzzle_dataset import PuzzleDataset
from runtime.errors import CheckpointError, Preempted
from runtime.process import (
    delay_sigterm,
    env_max_restarts,
    env_rank,
    env_world_size,
    preempt_on_sigterm,
)
from runtime.registry import imported
from training.checkpoint import run_folder
from training.checkpoint.lock import run_lock
from training.checkpoint.store import Checkpoint
from training.checkpoint.trained_model import find_start_weights
from training.config.composition import load_config
from training.config.entry_point import run_entry_point, say
from training.config.schema import TrainConfig
from training.data import (
    data_facts,
    eval_batches,
    open_data,
    order_of_sets,
    require_same_data,
    train_batches,
)
from training.tracking import open_tracker, warn

if TYPE_CHECKING:
    from models.architectures import ArchConfig
    from runtime.ranks import Ranks


class Start(NamedTuple):
    """The inputs of a run. Rank 0 finds the checkpoint and the start weights."""

    config: TrainConfig
    train_set: PuzzleDataset
    test_set: PuzzleDataset | None
    evaluators: Mapping[str, Evaluator]
    fingerprint: str
    checkpoint: Checkpoint | None = None
    weights: Path | None = None


def main(overrides: list[str]) -> Path:
    """Compose the settings, then run. Return the run's folder."""
    return run(load_config(TrainConfig, "cfg_pretrain", overrides))


@preempt_on_sigterm()
def run(config: TrainConfig) -> Path:
    """Check everything that needs no torch, then train. Return the run's folder."""
    config.check_world_size(env_world_size())
    config.check_restarts(env_max_restarts())
    train_set, test_set = open_data(config, check_values=env_rank() == 0, warn=warn)
    if order := order_of_sets(config, train_set):
        warn(order)
    evaluators = {}
    if test_set is not None:
        evaluators = build_evaluators(config.active_evaluators, test_set)
        evaluators |= build_evaluators(config.inherited_evaluators, test_set, warn)
    start = Start(config, train_set, test_set, evaluators, train_set.fingerprint())
    is_named = config.checkpoint_path is not None or config.run_name is not None
    with ExitStack() as opened:
        if env_rank() == 0:
            # Rank 0 finds the checkpoint for all: on a network file system the other ranks may see
            # another state.
            config = opened.enter_context(run_folder.placed(config, say))
            run_dir = Path(str(config.checkpoint_path))
            run_folder.prepare_run_dir(run_dir)
            opened.enter_context(run_lock(run_dir))
            facts = data_facts(train_set.metadata, train_set.fields)
            found = run_folder.find_checkpoint(config, run_dir, facts, start.fingerprint, warn)
            start = start._replace(config=config, checkpoint=found)
            if found is None and config.load_checkpoint is not None:
                weights = find_start_weights(Path(config.load_checkpoint), warn)
                start = start._replace(weights=weights)
        try:
            return train(start)
        except Preempted as error:
            if is_named or not str(error):
                raise
            path = quote(str(start.config.checkpoint_path))
            raise Preempted(f"{error}, with checkpoint_path={path}") from None


def train(start: Start) -> Path:
    """Load torch, send the findings of rank 0 to all ranks, and train. Return the run's folder."""
    with delay_sigterm():  # An exception amid this import would abort the process.
        import torch  # noqa: F401

    from models.layers import require_backend
    from models.registry import arch_on_device
    from runtime.device import prepare_host, require_deterministic_algorithms, resolve_device
    from runtime.ranks import Ranks

    config = start.config
    device_type = resolve_device(config.device)
    arch = arch_on_device(config.arch, device_type)
    prepare_host(config.num_threads)
    if config.reduction == "exact" and device_type == "cuda":
        require_deterministic_algorithms()
    with Ranks(device_type, timeout=config.rank_timeout) as ranks:
        require_backend(arch.kernel, ranks.device, arch.forward_dtype)
        config, weights = ranks.broadcast_object((config, start.weights))
        checkpoint = run_folder.agree_on_checkpoint(start.checkpoint, ranks)
        require_same_data(start.fingerprint, ranks)
        fit(start._replace(config=config, checkpoint=checkpoint, weights=weights), arch, ranks)
    return Path(str(config.checkpoint_path))


def fit(start: Start, arch: "ArchConfig", ranks: "Ranks") -> None:
    """Build the parts of the run, restore its checkpoint if there is one, and train."""
    from evaluation.measure import in_training
    from evaluation.outputs import OutputError
    from training.checkpoint.environment import environment, saved_compiling
    from training.checkpoint.run import Progress, RunKeeper
    from training.dry_run import DryRun
    from training.profiler import profiled
    from training.step import Learner
    from training.trainer import Trainer

    config, checkpoint, is_main = start.config, start.checkpoint, ranks.is_main
    tell = say if is_main else lambda line: None
    run_dir = Path(str(config.checkpoint_path))
    device = ranks.device.type
    before = saved_compiling(checkpoint.state.environment, device) if checkpoint else None
    learner = Learner(config, arch, start.train_set, ranks, start.weights, before)
    test_batches = start.test_set and eval_batches(config, start.test_set, ranks)
    given = (learner.forward, test_batches, ranks, start.evaluators, config.eval_save_outputs)
    evaluate = partial(in_training, *given, run_dir)
    num_parameters = sum(p.numel() for p in learner.model.parameters())
    mixer = " (MLP mixer)" if arch.mlp_t else ""
    tell(f"{arch.name}{mixer}: {num_parameters:,} parameters, {arch.forward_dtype}, {ranks}")
    tell(f"{learner.compiling}\nrun folder: {run_dir}")
    present = environment(ranks, arch.forward_dtype, compiled=learner.compiling.form)
    size = learner.local_batch_size // learner.num_parts
    present["micro_batch_size"] = size if learner.num_parts > learner.num_shards else None
    keeper = RunKeeper(run_dir, learner, start.fingerprint, present)
    # Before anything in the run's folder changes, because the checkpoint may not fit.
    progress = keeper.restore(checkpoint, tell) if checkpoint else Progress()
    newer = list[Path]()
    if is_main:
        run_folder.save_config(run_dir, config)
        newer = run_folder.rename_newer(run_dir, progress.step) if checkpoint else []
        for path in newer:
            tell(f"a later checkpoint was renamed to {path}")
    is_profiled = config.profile and is_main
    with (
        open_tracker(config, run_dir, checkpoint, newer) if is_main else nullcontext() as tracker,
        profiled(run_dir, device, tell) if is_profiled else nullcontext(bool) as after_step,
    ):
        batches = train_batches(config, start.train_set, ranks.rank, ranks.world_size)
        own = (keeper, progress, tracker, ranks, tell, after_step)
        try:
            (DryRun if config.dry_run else Trainer)(config, learner, batches, evaluate, *own).fit()
        except OutputError as error:
            raise CheckpointError(f"cannot write the files of an evaluation: {error}") from None


SWEEP = imported("apps.sweeps.run", "sweep_trainings")

if __name__ == "__main__":
    faulthandler.enable(2)  # 2 is standard error, which may be closed.
    run_entry_point(TrainConfig, "cfg_pretrain", main, str(__doc__), SWEEP)
