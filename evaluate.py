"""Measure a trained model on puzzles: python evaluate.py checkpoint=PATH [KEY=VALUE ...].

PATH is a run's folder (its newest good checkpoint), a checkpoint in it, or a published `step_N`
file. With several processes: torchrun --nproc-per-node N evaluate.py checkpoint=PATH.

Needs neither the training data nor an optimizer. What can be checked is checked before torch is
loaded, so that a mistake answers at once.
"""

import contextlib
import faulthandler
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluation.config import EvalConfig
from evaluation.evaluators import Evaluator, Findings, build_evaluators, finish
from evaluation.metrics import SetResult
from evaluation.report import as_json, findings_as_json, findings_table, pooled, table
from models.config import EvaluatorName
from puzzle_dataset import PuzzleDataset
from runtime.errors import CheckpointError, ConfigError, DatasetError
from runtime.files import sha256, write_atomically
from runtime.process import env_world_size
from training.checkpoint.store import MANIFEST
from training.checkpoint.trained_model import TrainedModel, find_trained_model
from training.config.composition import load_config
from training.config.entry_point import run_entry_point
from training.data import data_facts, require_folder, require_same_data, untold_heads
from training.tracking import warn

if TYPE_CHECKING:
    from runtime.ranks import Ranks


def main(overrides: list[str]) -> None:
    """Compose, validate, check everything that needs no torch, then evaluate."""
    config = load_config(EvalConfig, "cfg_evaluate", overrides)
    trained = find_trained_model(Path(config.checkpoint), warn)
    world_size = env_world_size()
    batch_size = global_batch_size(config, trained, world_size)
    dataset = open_dataset(config, trained)
    if config.global_batch_size is None:
        # The recorded one, which may be of any size; rows beyond the data would be padding.
        most = max((arrays.num_examples for arrays in dataset.sets.values()), default=1)
        batch_size = min(batch_size, -(-max(1, most) // world_size) * world_size)
    source = str(dataset.split_dirs[0])
    trained.require_fit(data_facts(dataset.metadata, dataset.fields), source)
    asked = config.evaluators
    evaluators = build_evaluators(
        trained.run.active_evaluators if asked is None else asked, dataset
    )
    output = output_path(config, trained)
    require_writable(output)
    run(config, trained, dataset, evaluators, batch_size, output)


def run(
    config: EvalConfig,
    trained: TrainedModel,
    dataset: PuzzleDataset,
    evaluators: Mapping[EvaluatorName, Evaluator],
    batch_size: int,
    output: Path,
) -> None:
    """Load torch, wire the parts together, measure and report."""
    import torch

    from evaluation.outputs import OutputError, OutputFiles, PublishedOutputFiles, write_json_files
    from evaluation.runner import evaluate
    from puzzle_dataset import EvalBatches
    from runtime.device import prepare_host, resolve_device, resolve_dtype
    from runtime.ranks import Ranks
    from training.checkpoint.run_state import environment

    device_type = resolve_device(config.device)
    fingerprint = dataset.fingerprint()
    arch = trained.run.arch.model_copy(update=config.arch_overrides.model_dump(exclude_none=True))
    forward_dtype = resolve_dtype(arch.forward_dtype, device_type)
    arch = arch.model_copy(update={"forward_dtype": forward_dtype})
    prepare_host(config.num_threads)
    with Ranks(device_type, timeout=config.rank_timeout) as ranks:
        require_same_data(fingerprint, ranks)
        require_same_weights(trained, ranks)
        source = str(dataset.split_dirs[0])
        averaged = config.weights == "averaged"
        model = trained.load(
            arch,
            data_facts(dataset.metadata, dataset.fields),
            source,
            ranks.device,
            averaged=averaged,
        )
        fields = arch.heads.fields
        model.leave_unmeasured(head for head in fields if fields[head] not in dataset.fields)
        compiles = device_type == "cuda" if config.compile == "auto" else config.compile
        batches = EvalBatches(
            dataset,
            global_batch_size=batch_size,
            rank=ranks.rank,
            world_size=ranks.world_size,
            max_examples=config.max_examples,
        )
        forward = torch.compile(model, dynamic=False) if compiles else model
        try:
            if not config.save_outputs:
                saving = contextlib.nullcontext()
            elif trained.is_published:
                prefix = output.with_name(f"{trained.weights.name}_all_preds")
                saving = PublishedOutputFiles(prefix, config.save_outputs, batches, ranks)
            else:
                folder = output.with_name(f"{output.stem}_outputs")
                saving = OutputFiles(folder, config.save_outputs, batches, ranks)
            with saving as save:
                results = evaluate(
                    forward,
                    model,
                    batches,
                    ranks,
                    save=save,
                    evaluators=evaluators.values(),
                    show_progress=ranks.is_main,
                )
        except OutputError as error:
            raise ConfigError(f"save_outputs: {error}") from None
        findings = finish(evaluators, ranks.gather_objects)
        try:
            written: dict[EvaluatorName, list[Path]] = {
                name: write_json_files(output.parent, found.files, ranks)
                for name, found in findings.items()
            }
        except OutputError as error:
            raise ConfigError(f"output={output}: cannot write beside it: {error}") from None
        if ranks.is_main:
            facts = {
                "checkpoint": str(trained.weights),
                "weights": config.weights if trained.has_average else None,
                "step": trained.step,
                "arch": arch.model_dump(mode="json"),
                "data": [str(folder) for folder in dataset.split_dirs],
                "data_fingerprint": fingerprint,
                "max_examples": config.max_examples,
                "global_batch_size": batch_size,
                "environment": environment(ranks, arch.forward_dtype, compiled=compiles),
            }
            report(results, findings, written, facts, output)


def global_batch_size(config: EvalConfig, trained: TrainedModel, world_size: int) -> int:
    """Return the batch size asked for, or the run's, rounded up to a multiple of the ranks.

    Raises:
        ConfigError: the one asked for is no multiple of the ranks.
    """
    if config.global_batch_size is None:
        return -(-trained.run.global_batch_size // world_size) * world_size
    if config.global_batch_size % world_size:
        near = max(world_size, round(config.global_batch_size / world_size) * world_size)
        raise ConfigError(
            f"global_batch_size={config.global_batch_size} must be a multiple of the number of "
            f"ranks, {world_size}: try {near}"
        )
    return config.global_batch_size


def open_dataset(config: EvalConfig, trained: TrainedModel) -> PuzzleDataset:
    """Open the data asked for, or the run's, with the fields of the heads that these have; warns
    of the others.

    Raises:
        ConfigError: neither names a folder.
        DatasetError: names the folder or file at fault.
    """
    folders = config.data_folders or trained.run.data_folders(config.split)
    if not folders:
        raise ConfigError(
            f"{trained.weights} does not say what it was trained on: set data_path=FOLDER"
        )
    try:
        for folder in folders:
            require_folder(folder, trained.run.data)
        heads = trained.run.arch.heads
        untold = untold_heads(heads, folders, config.split)
        for head, reason in untold.items():
            warn(f"{reason}: nothing is reported of {head}")
        return PuzzleDataset(
            folders,
            config.split,
            fields=[field for head, field in heads.fields.items() if head not in untold],
            numbered_as=trained.run.data_folders("train"),
        )
    except DatasetError as error:
        hint = "" if config.data_folders else " (the run's own; data_path=FOLDER names another)"
        raise DatasetError(f"{error}{hint}") from None


def require_same_weights(trained: TrainedModel, ranks: "Ranks") -> None:
    """Raise CheckpointError, on all ranks, unless all of them have found the same checkpoint: of a
    run at work one may see a newer one.
    """
    if ranks.world_size == 1:
        return  # A published file is large, and there is nobody to differ.
    weights = trained.weights
    manifest = weights if trained.is_published else weights / MANIFEST
    others = ", ".join(map(str, ranks.that_differ(sha256(manifest))))
    if others:
        raise CheckpointError(
            f"{weights}: rank {others} has found another checkpoint than rank 0: name one, "
            "checkpoint=RUN_FOLDER/step_N"
        )


def output_path(config: EvalConfig, trained: TrainedModel) -> Path:
    """Return where the result goes: by default eval_step_N.json in the run's folder, for another
    split or other data than the run's own with their names added.
    """
    if config.output is not None:
        return Path(config.output)
    parts = ["eval", trained.weights.name]
    own = {Path(folder).resolve() for folder in trained.run.data_folders(config.split)}
    if own and not {Path(folder).resolve() for folder in config.data_folders} <= own:
        parts += [Path(folder).resolve().name for folder in config.data_folders]
    if config.split != "test":
        parts.append(config.split)
    return trained.weights.parent / f"{'_'.join(parts)}.json"


def require_writable(output: Path) -> None:
    """Raise ConfigError when a file cannot be written at `output`; creates its folder."""
    try:
        if output.is_dir():
            raise ConfigError(f"output={output}: is a folder, expected a file's name")
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=output.parent):
            pass
    except OSError as error:
        raise ConfigError(f"output={output}: cannot be written: {error.strerror}") from None


def report(
    results: Mapping[str, SetResult],
    findings: Mapping[EvaluatorName, Findings],
    written: Mapping[EvaluatorName, list[Path]],
    facts: dict[str, Any],
    output: Path,
) -> None:
    """Write the result as JSON and print it as tables; `written` are the files of evaluators."""
    measured = as_json(results) | {"evaluators": findings_as_json(findings, written)}
    content = json.dumps(facts | measured, indent=1, allow_nan=False)
    try:
        write_atomically(output, content + "\n")
    except OSError as error:
        raise ConfigError(f"output={output}: cannot be written: {error.strerror}") from None
    exact = pooled(results).get("exact_accuracy")
    shown = "no puzzle has labels" if exact is None else f"{exact:.4f}"
    which = f" ({facts['weights']} weights)" if facts["weights"] else ""
    found = f"{findings_table(findings)}\n\n" if findings else ""
    paths = [output, *(path for files in written.values() for path in files)]
    sys.stdout.write(
        f"checkpoint: {facts['checkpoint']}{which}\n"
        f"data: {', '.join(facts['data'])}\n\n"
        f"{table(results)}\n"
        "in brackets: 95 % confidence intervals\n\n"
        f"{found}"
        f"written: {', '.join(str(path) for path in paths)}\n"
        f"exact_accuracy: {shown}\n"
    )


if __name__ == "__main__":
    faulthandler.enable()
    run_entry_point(EvalConfig, "cfg_evaluate", main, str(__doc__))
