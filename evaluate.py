"""Measure a trained model on puzzles: python evaluate.py checkpoint=PATH [KEY=VALUE ...].

PATH is a run's folder (its newest good checkpoint), a checkpoint in it, a published `step_N` file,
or zoo:NAME. With several processes: torchrun --nproc-per-node N evaluate.py checkpoint=PATH.

It needs neither the training data nor an optimizer. Settings and data are checked before torch is
loaded, so that mistakes are reported within a few seconds.
"""

import faulthandler
import sys
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from evaluation.config import EvalConfig
from evaluation.job import Job, prepare, require_thinking
from runtime.errors import CheckpointError
from runtime.registry import imported
from training.config.composition import load_config
from training.config.entry_point import run_entry_point
from training.data import require_same_data

if TYPE_CHECKING:
    from models.act import ACTLossHead
    from models.architectures import ArchConfig
    from runtime.ranks import Ranks


def main(overrides: list[str]) -> None:
    """Compose and check the settings and the data, then evaluate."""
    run(prepare(load_config(EvalConfig, "cfg_evaluate", overrides)))


def run(job: Job) -> None:
    """Load torch and the model, measure it, and report the result on rank 0."""
    from evaluation import measure
    from models.operations import act_step_flop
    from models.registry import compiled_forward
    from runtime.compiler import choose_compiling
    from runtime.device import prepare_host, resolve_device
    from runtime.ranks import Ranks
    from training.checkpoint.environment import environment

    config, dataset = job.config, job.dataset
    device_type = resolve_device(config.device)
    fingerprint = dataset.fingerprint()
    prepare_host(config.num_threads)
    with Ranks(device_type, timeout=config.rank_timeout) as ranks:
        require_same_data(fingerprint, ranks)
        arch, model, has_average = load(job, device_type, ranks)
        require_thinking(config, job.trained, model.halting_head is not None)
        fields = arch.heads.fields
        model.leave_unmeasured(head for head in fields if fields[head] not in dataset.fields)
        batches, job = measure.batches_for(job, model, ranks)

        def operations() -> float:
            rows = len(batches) * batches.local_batch_size
            act_step = act_step_flop(arch, job.trained.facts or job.facts)
            if config.search.chains:  # Hard Sudokus take about 30 rounds.
                return 30 * config.search.chains * rows * act_step
            return max(config.chains) * rows * model.model.eval_max_steps * act_step

        asked = False if config.probes else config.compile
        compiling = choose_compiling(asked, device_type, operations=operations)
        compiling = ranks.broadcast_object(compiling)
        if ranks.is_main and (compiling.form or config.compile not in ("auto", False)):
            sys.stderr.write(f"{compiling}\n")
        start = time.perf_counter()
        prepared = partial(compiled_forward, form=compiling.form)
        way = measure.with_chains if config.thinks_longer else measure.in_one_pass
        way = arch.search if config.search.chains else way
        way = PROBING() if config.probes else way
        report = way(job, prepared, model, batches, ranks)
        seconds = time.perf_counter() - start
        if ranks.is_main:
            weights = config.weights if has_average else None
            facts = facts_of(job, arch, model, weights, fingerprint)
            place = environment(ranks, arch.forward_dtype, compiled=compiling.form)
            report(facts | {"environment": place}, seconds)


def facts_of(
    job: Job, arch: "ArchConfig", model: "ACTLossHead", weights: str | None, fingerprint: str
) -> dict[str, Any]:
    """Return the first part of a result: the checkpoint, the model, the data and the settings."""
    trained, config = job.trained, job.config
    return {
        "checkpoint": trained.origin or str(trained.weights),
        "weights": weights,
        "step": trained.step,
        "arch": arch.model_dump(mode="json"),
        "num_parameters": sum(p.numel() for p in model.parameters()),
        "data": [str(folder) for folder in job.dataset.split_dirs],
        "data_fingerprint": fingerprint,
        "max_examples": config.max_examples,
        "halting": config.halting,
        "seed": config.seed,
        "differs": job.differs,
        "global_batch_size": job.batch_size,
    }


def load(job: Job, device_type: str, ranks: "Ranks") -> "tuple[ArchConfig, ACTLossHead, bool]":
    """Load the model on all ranks. Return its architecture, the model, and whether the run kept an
    average.

    Raises:
        CheckpointError: a rank cannot load it, or found another checkpoint; raised on all ranks.
    """
    from models.registry import arch_on_device

    config, trained, source = job.config, job.trained, str(job.dataset.split_dirs[0])
    overrides, averaged = config.arch_overrides, config.weights == "averaged"
    if config.steps is not None:
        overrides = overrides.model_copy(update={"halt_max_steps": max(config.steps)})
    failure, loaded, found = None, None, ""
    try:
        arch = arch_on_device(trained.run.arch, device_type, overrides)
        model = trained.load(arch, job.facts, source, ranks.device, averaged=averaged)
        loaded = arch, model, trained.has_average
    except CheckpointError as error:
        failure = error
    if ranks.any(loaded is None) or loaded is None:
        raise failure or CheckpointError(f"{trained.weights}: another rank cannot read it")
    # While a run goes on, a rank may find a newer checkpoint. The digest of a large one takes time.
    with suppress(OSError):
        found = trained.digest() if ranks.world_size > 1 else ""
    if others := ", ".join(map(str, ranks.differing(found))):
        said = f"{trained.weights}: rank {others} has found another checkpoint than rank 0"
        raise CheckpointError(f"{said}: name one, checkpoint=RUN_FOLDER/step_N")
    return loaded


PROBING = imported("apps.inside.probing", "with_probes")
SWEEP = imported("apps.sweeps.run", "sweep_evaluations")

if __name__ == "__main__":
    faulthandler.enable(2)  # Standard error, even if it is closed.
    run_entry_point(EvalConfig, "cfg_evaluate", main, str(__doc__), SWEEP)
