"""Measure a trained model on puzzles: python evaluate.py checkpoint=PATH [KEY=VALUE ...].

PATH is a run's folder (its newest good checkpoint), a checkpoint in it, or a published `step_N`
file. With several processes: torchrun --nproc-per-node N evaluate.py checkpoint=PATH.

Needs neither the training data nor an optimizer. What can be checked is checked before torch is
loaded, so that mistakes are reported within a few seconds.
"""

import faulthandler
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from apps.lattice.config import LatticeConfig
from dataset.kinds.base import Views
from evaluation.config import EvalConfig, EvalSearchSettings, ThinkingSettings
from evaluation.evaluators import Evaluator, build_evaluators, build_fitting
from evaluation.headline import score_of
from evaluation.records import Answers, size_of_answers
from evaluation.report import Evaluation, as_csv, as_json, as_text, pooled
from evaluation.views import views_of
from models.config import DataFacts
from puzzle_dataset import Batch, EvalBatches, PuzzleDataset
from runtime.errors import CheckpointError, ConfigError, DatasetError, disk_errors
from runtime.files import sha256, write_together
from runtime.process import env_world_size
from runtime.schema import Schema
from training.checkpoint.addresses import parse_address
from training.checkpoint.store import MANIFEST
from training.checkpoint.trained_model import TrainedModel, find_trained_model
from training.config.composition import load_config
from training.config.entry_point import run_entry_point
from training.data import data_facts, require_folder, require_same_data, untold_heads
from training.tracking import warn

if TYPE_CHECKING:
    import torch

    from apps.lattice import search_report
    from apps.lattice.search import Found, Ledger, Round
    from evaluation import chains
    from evaluation.thinking import Forward
    from models.act import ACTLossHead
    from models.architectures import ArchConfig
    from runtime.ranks import Ranks

_MAX_LOOKS = 20  # For the newest checkpoint of a run that saves all the time.


@dataclass(frozen=True)
class Job:
    """An evaluation that has been checked as far as needs no torch."""

    config: EvalConfig
    trained: TrainedModel
    dataset: PuzzleDataset
    facts: DataFacts
    evaluators: Mapping[str, Evaluator]
    batch_size: int  # Puzzles at a time, over all ranks; a CUDA device may get more.
    differs: list[str]  # What is measured otherwise than the run would, as names of files say it.
    output: Path  # The JSON file to write.
    views: Views | None  # Where chains see the puzzles in several.


def main(overrides: list[str]) -> None:
    """Compose, validate, check everything that needs no torch, then evaluate."""
    run(prepare(load_config(EvalConfig, "cfg_evaluate", overrides)))


def prepare(config: EvalConfig) -> Job:
    """Find the model, open the data, and check that they fit and that the result can be written.

    Raises:
        CheckpointError, ConfigError, DatasetError: names what is wrong.
    """
    trained = find_trained_model(Path(config.checkpoint), warn)
    arch = trained.run.arch
    if config.search.chains and arch.name != "lattice":
        raise ConfigError(
            f"search.chains: {trained.weights} is of arch={arch.name}, which neither strikes "
            "candidates nor guesses; breadth=8 gives it several chains"
        )
    asked = config.arch_overrides.model_dump(exclude_none=True).keys()
    if unknown := asked - type(arch).model_fields:
        raise ConfigError(f"arch_overrides.{min(unknown)}: arch={arch.name} has no such setting")
    require_thinking(config, trained, trained.may_halt)
    dataset = open_dataset(config, trained)
    views = views_for(config, dataset)
    facts = data_facts(dataset.metadata, dataset.fields, dataset.kind)
    trained.require_fit(facts, str(dataset.split_dirs[0]))
    evaluators = {}
    if not (config.thinks_longer or config.search.chains):
        asked, run = config.evaluators, trained.run
        evaluators = build_evaluators(run.active_evaluators if asked is None else asked, dataset)
        if asked is None:
            evaluators |= build_fitting(run.inherited_evaluators, dataset, warn)
    batch_size = global_batch_size(config, trained, dataset, env_world_size())
    differs = what_differs(config, trained, dataset)
    output = output_path(config, trained, differs)
    require_writable(output)
    return Job(config, trained, dataset, facts, evaluators, batch_size, differs, output, views)


def run(job: Job) -> None:
    """Load torch and the model, measure it, and report on rank 0."""
    from evaluation.chains import think_longer
    from models.compiled import compiled_forward
    from models.operations import act_step_flop
    from runtime.compiler import choose_compiling
    from runtime.device import prepare_host, resolve_device
    from runtime.ranks import Ranks
    from training.checkpoint.environment import environment

    config, dataset = job.config, job.dataset
    device_type = resolve_device(config.device)
    fingerprint, data = dataset.fingerprint(), [str(folder) for folder in dataset.split_dirs]
    prepare_host(config.num_threads)
    with Ranks(device_type, timeout=config.rank_timeout) as ranks:
        require_same_data(fingerprint, ranks)
        job, arch, model, has_average = load(job, device_type, ranks)
        trained = job.trained
        require_thinking(config, trained, model.halting_head is not None)
        fields = arch.heads.fields
        model.leave_unmeasured(head for head in fields if fields[head] not in dataset.fields)
        if device_type == "cuda":
            fits = min(ranks.gather_objects(rows_that_fit(model, ranks.device)))
            size = global_batch_size(config, trained, dataset, ranks.world_size, fits)
            job = replace(job, batch_size=size)
        batches = EvalBatches(
            dataset,
            global_batch_size=job.batch_size,
            rank=ranks.rank,
            world_size=ranks.world_size,
            max_examples=config.max_examples,
        )

        def operations() -> float:
            rows = len(batches) * batches.local_batch_size
            act_step = act_step_flop(arch, trained.facts or job.facts)
            if config.search.chains:  # A puzzle is seldom done before it took so many rounds.
                return 10 * config.search.chains * rows * act_step
            return max(config.breadth) * rows * model.model.eval_max_steps * act_step

        compiling = choose_compiling(config.compile, device_type, operations=operations)
        compiling = ranks.broadcast_object(compiling)
        if ranks.is_main and (compiling.form or config.compile not in ("auto", False)):
            sys.stderr.write(f"{compiling}\n")
        prepared = partial(compiled_forward, form=compiling.form)
        start = time.perf_counter()
        found: Any
        if isinstance(arch, LatticeConfig) and config.search.chains:
            found = search(job, arch, prepared, model, ranks)
        elif config.thinks_longer:
            found = think_longer(
                prepared(model),
                model,
                batches,
                ranks,
                config,
                job.views,
                show_progress=ranks.is_main,
            )
        else:
            found = measure(job, prepared(model), model, batches, ranks)
        seconds = time.perf_counter() - start
        if ranks.is_main:
            facts = {
                "checkpoint": trained.origin or str(trained.weights),
                "weights": config.weights if has_average else None,
                "step": trained.step,
                "arch": arch.model_dump(mode="json"),
                "num_parameters": sum(p.numel() for p in model.parameters()),
                "data": data,
                "data_fingerprint": fingerprint,
                "max_examples": config.max_examples,
                "halting": config.halting,
                "seed": config.seed,
                "differs": job.differs,
                "global_batch_size": job.batch_size,
                "environment": environment(ranks, arch.forward_dtype, compiled=compiling.form),
            }
            if isinstance(found, Evaluation):
                report(found, facts, job, seconds)
            elif config.search.chains:
                figures, by_model = found
                report_search(figures, by_model, facts, job, seconds)
                for path in job.output.parent.glob(f"{ledger_prefix(job).name}.*.jsonl"):
                    path.unlink(missing_ok=True)  # The result is written.
            else:
                report_chains(found, facts, job, seconds)


def load(job: Job, device_type: str, ranks: "Ranks") -> "tuple[Job, ArchConfig, ACTLossHead, bool]":
    """Load the model on all ranks; returns it with its architecture, and whether the run kept an
    average. A run at work may remove the checkpoint that was found, or show a newer one to another
    rank: then its newest one is looked for again. One that was asked for by name is not left.

    Raises:
        CheckpointError: on all ranks.
    """
    from models.registry import arch_on_device

    config, source = job.config, str(job.dataset.split_dirs[0])
    overrides, averaged = config.arch_overrides, config.weights == "averaged"
    if config.depth is not None:
        overrides = overrides.model_copy(update={"halt_max_steps": max(config.depth)})
    for looks_left in reversed(range(_MAX_LOOKS)):
        trained, failure, loaded = job.trained, None, None
        try:
            require_same_weights(trained, ranks)
            has_average = trained.has_average
            arch = arch_on_device(trained.run.arch, device_type, overrides)
            model = trained.load(arch, job.facts, source, ranks.device, averaged=averaged)
            loaded = job, arch, model, has_average
        except CheckpointError as error:
            failure = error
        if not ranks.any(loaded is None) and loaded is not None:
            return loaded
        job = looked_for_again(job)
        if not ranks.any(job.trained.weights != trained.weights) or not looks_left:
            raise failure or CheckpointError(f"{trained.weights}: another rank cannot read it")
    raise AssertionError("the last look returns or raises")


def looked_for_again(job: Job) -> Job:
    """Return the job with the newest checkpoint, where a run's folder was named."""
    config, weights = job.config, job.trained.weights
    if job.trained.origin is not None or Path(config.checkpoint).resolve() == weights.resolve():
        return job
    trained = find_trained_model(Path(config.checkpoint), warn)
    return replace(job, trained=trained, output=output_path(config, trained, job.differs))


def measure(
    job: Job, forward: "Forward", model: "ACTLossHead", batches: EvalBatches, ranks: "Ranks"
) -> Evaluation:
    """Evaluate on all ranks and write the outputs asked for. What the default name of the result
    says of the settings, the names of outputs and of the evaluators' files say, too; beside an
    `output` of the user's choice only where rows halt early.

    Raises:
        ConfigError: a file cannot be written; names it.
    """
    from evaluation.outputs import OutputError, open_outputs
    from evaluation.runner import evaluate

    output, weights = job.output, job.trained.weights
    folder = beside(output, "_outputs")
    suffix = "_at_halt" if job.config.halting == "q" else ""
    if job.config.output is None:
        suffix = output.stem.removeprefix(f"eval_{weights.name}")
    prefix = output.with_name(f"{weights.name}_all_preds{suffix}")
    try:
        published = prefix if job.trained.is_published else None
        with open_outputs(job.config.save_outputs, folder, batches, ranks, published) as save:
            evaluation = evaluate(
                forward,
                model,
                batches,
                ranks,
                halting=job.config.halting,
                save=save,
                answers=Answers(job.facts.vocab_size) if job.config.save_records else None,
                evaluators=job.evaluators,
                show_progress=ranks.is_main,
                seed=job.config.seed,
            )
    except OutputError as error:
        raise ConfigError(f"the evaluation's files cannot be written: {error}") from None
    return evaluation.with_files_named(suffix)


def search(
    job: Job,
    arch: LatticeConfig,
    prepared: "Callable[[ACTLossHead], Forward]",
    model: "ACTLossHead",
    ranks: "Ranks",
) -> "tuple[list[search_report.Figures], dict[str, list[Found]]]":
    """Search on all ranks; returns figures of what the model found, and beside it of what its first
    chain alone does, of what the same search finds with weights that were never trained, and of a
    plain solver; and of each set what the model found. `prepared` gives what runs a model.
    """
    import torch

    from apps.lattice.search import Ledger, Search, search_sets
    from apps.lattice.search_report import figures_of, solver_figures
    from models.registry import build_model

    config, settings = job.config, job.config.search
    forward = prepared(model)
    searchers = {who: (forward, model, config.max_examples) for who in ("model", "first chain")}
    if settings.control:
        torch.manual_seed(config.seed)
        untrained = build_model(arch, job.facts).to(ranks.device)
        searchers["untrained"] = (prepared(untrained), untrained, settings.control)
    ledger = Ledger(ledger_prefix(job), search_key(job, arch), ranks)
    if ranks.is_main:
        for path in traces_of(job):
            keep_done(path, ledger)
    ranks.barrier()
    figures, by_model = [], {}
    for who, (step, searched, number) in searchers.items():
        puzzles = {name: rows_of(job.dataset, name, number) for name in job.dataset.sets}
        first_try = who == "first chain"
        one = Search(step, searched.eval(), arch, ranks, settings, config.seed, first_try=first_try)
        watch = traces(job, ranks, who)
        found = search_sets(one, puzzles, ledger, who, watch=watch, show_progress=ranks.is_main)
        if who == "model":
            by_model = found
        for name, rows in found.items():
            figures += figures_of(name, who, rows, puzzles[name].labels)
    for name in job.dataset.sets if ranks.is_main and job.dataset.kind == "sudoku" else ():
        inputs = rows_of(job.dataset, name, config.max_examples).inputs
        figures += solver_figures(name, inputs)
    return figures, by_model


def search_key(job: Job, arch: LatticeConfig) -> str:
    """Return what decides the answers of a search: where it has changed, nothing of one that was
    killed is of use.
    """
    trained, config = job.trained, job.config
    manifest = trained.weights if trained.is_published else trained.weights / MANIFEST
    key = {"model": sha256(manifest), "weights": config.weights, "seed": config.seed}
    key |= {"data": job.dataset.fingerprint(), "arch": arch.model_dump(mode="json")}
    return json.dumps(key | {"search": config.search.model_dump(exclude={"control", "at_once"})})


def ledger_prefix(job: Job) -> Path:
    """Return how the files begin that keep what an unfinished search has found."""
    return beside(job.output, "_search")


def traces(job: Job, ranks: "Ranks", who: str) -> "Callable[..., None] | None":
    """Return what adds the chains of the first puzzles, round by round, to this rank's file."""
    number = job.config.save_search if who == "model" else 0
    path = beside(job.output, f"_chains.{ranks.rank}.jsonl")

    def write_round(set_name: str, found: "Found", one: "Round") -> None:
        if found.row < number:
            place = {"set": set_name, "row": found.row, "round": found.rounds}
            with disk_errors(path, ConfigError), path.open("a") as file:
                file.write(json.dumps(place | one.to_json()) + "\n")

    return write_round if number else None


def keep_done(path: Path, ledger: "Ledger") -> None:
    """Leave in a file of traces the puzzles that are done; the others are searched once more."""
    kept = []
    with disk_errors(path, ConfigError), path.open(errors="replace") as file:
        for line in file:
            with suppress(ValueError, KeyError, TypeError):  # A kill may have cut it off.
                trace = json.loads(line)
                if ledger.has("model", trace["set"], trace["row"]):
                    kept.append(line)
        if not kept:
            return path.unlink()
    write({path: "".join(kept)})


def traces_of(job: Job) -> list[Path]:
    """Return the files that `traces` has written."""
    if not job.config.save_search:
        return []
    return sorted(job.output.parent.glob(f"{beside(job.output, '_chains').name}.*.jsonl"))


def rows_of(dataset: PuzzleDataset, set_name: str, number: int | None) -> Batch:
    """Return the first rows of a set, or all."""
    total = dataset.sets[set_name].num_examples
    count = total if number is None else min(number, total)
    return dataset.read(set_name, slice(0, count), np.zeros(count, np.int32))


def report(evaluation: Evaluation, facts: dict[str, Any], job: Job, seconds: float) -> None:
    """Write the result as JSON, `facts` first, the records asked for and the evaluators' files;
    print it as tables.
    """
    output = job.output
    content = facts | as_json(evaluation, output.parent)
    written = {output: as_file(content)}
    if job.config.save_records:
        ratings = {name: arrays.example_ratings() for name, arrays in job.dataset.sets.items()}
        sizes = {
            name: size_of_answers(job.dataset, name, result.num_examples)
            for name, result in evaluation.sets.items()
        }
        written |= records(job, as_csv(evaluation, ratings, sizes), evaluation.answers)
    for name, made in evaluation.files.items():
        written[output.parent / name] = json.dumps(made(), separators=(",", ":")) + "\n"
    write(written)
    number = sum(result.num_examples for result in evaluation.sets.values())
    exact = pooled(evaluation.sets).get("exact_accuracy")
    sys.stdout.write(
        f"{heading(facts)}{as_text(evaluation)}\n\n"
        f"{number:,} puzzles in {seconds:.1f} s: {number / seconds:,.1f} a second\n"
        f"written: {', '.join(map(str, written))}\n"
        f"exact_accuracy: {'no puzzle has labels' if exact is None else f'{exact:.4f}'}\n"
        f"{last_line(content, but='exact_accuracy')}"
    )


def as_file(content: Mapping[str, Any]) -> str:
    """Return a result as the text of its file."""
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def last_line(content: Mapping[str, Any], but: str = "") -> str:
    """Return the line with the headline of a result, "" where there is none, or it is `but`."""
    score = score_of(content)
    return f"{score}\n" if score is not None and score.name != but else ""


def records(job: Job, table: str, answers: Mapping[str, Any]) -> dict[Path, str]:
    """Return the files of what is kept of single puzzles, with their content."""
    content = {"kind": job.dataset.kind, "sets": answers}
    text = json.dumps(content, separators=(",", ":"), allow_nan=False) + "\n"
    output = job.output
    return {beside(output, "_records.csv"): table, beside(output, "_records.json"): text}


def report_chains(
    found: "list[chains.Figures]", facts: dict[str, Any], job: Job, seconds: float
) -> None:
    """Write what thinking longer gave as JSON and CSV, and print it as a table."""
    from evaluation import chains

    settings = {name: getattr(job.config, name) for name in ThinkingSettings.model_fields}
    content = facts | {"thinking": settings, "chains": chains.as_json(found)}
    table = beside(job.output, ".csv")
    write({job.output: as_file(content), table: chains.as_csv(found)})
    sys.stdout.write(
        f"{heading(facts)}{chains.as_text(found)}\n\n"
        f"{seconds:.1f} s\nwritten: {job.output}, {table}\n{last_line(content)}"
    )


def report_search(
    figures: "list[search_report.Figures]",
    found: "Mapping[str, Sequence[Found]]",
    facts: dict[str, Any],
    job: Job,
    seconds: float,
) -> None:
    """Write what a search gave as JSON, and the records asked for; print it as a table."""
    from apps.lattice import search_report

    settings = job.config.search.model_dump()
    content = facts | {"search": settings, "searchers": search_report.as_json(figures)}
    written = {job.output: as_file(content)}
    if job.config.save_records:
        written |= records_of_search(found, job)
    write(written)
    sys.stdout.write(
        f"{heading(facts)}{search_report.as_text(figures)}\n\n"
        f"{seconds:.1f} s\nwritten: {', '.join(map(str, [*written, *traces_of(job)]))}\n"
        f"{last_line(content)}"
    )


def records_of_search(found: "Mapping[str, Sequence[Found]]", job: Job) -> dict[Path, str]:
    """Return `records` of a search; a puzzle without an answer has none that could be wrong."""
    from apps.lattice import search_report

    answers, labels, known = Answers(job.facts.vocab_size), {}, {}
    for name, puzzles in found.items():
        rows = rows_of(job.dataset, name, len(puzzles))
        labels[name] = rows.labels
        known[name] = {
            "rating": job.dataset.sets[name].example_ratings(),
            "clues": (rows.inputs == rows.labels).sum(axis=1),
            **size_of_answers(job.dataset, name, len(puzzles)),
        }
        answered = np.array([one.row for one in puzzles if one.answer is not None], np.int64)
        if len(answered):
            preds = np.stack([one.answer for one in puzzles if one.answer is not None])
            answers.add(name, answered, rows.inputs[answered], rows.labels[answered], preds)
    table = search_report.as_csv(found, labels, known)
    return records(job, table, answers.finish(lambda own: [own]))


def heading(facts: Mapping[str, Any]) -> str:
    """Return the lines that say what was measured."""
    weights = f" ({facts['weights']} weights)" if facts["weights"] else ""
    return f"checkpoint: {facts['checkpoint']}{weights}\ndata: {', '.join(facts['data'])}\n\n"


def beside(output: Path, ending: str) -> Path:
    """Return where a further file of the result `output` goes: x.json -> x and the ending. Names
    that end otherwise stay whole: files of a.v1 and a.v2 differ.
    """
    return output.with_name(output.name.removesuffix(".json") + ending)


def write(files: Mapping[Path, str]) -> None:
    """Write the files of the result, the result first; raises ConfigError where there is no room
    for all of them, and writes none.
    """
    try:
        write_together(files)
    except OSError as error:
        path = error.filename or next(iter(files))
        raise ConfigError(f"output={path}: cannot be written: {error.strerror}") from None


def views_for(config: EvalConfig, dataset: PuzzleDataset) -> Views | None:
    """Return the views that chains of the evaluation see, where they see several.

    Raises:
        ConfigError: the puzzles have none, or fewer than chains are asked for.
    """
    if not config.perturbs_views:
        return None
    try:
        views = views_of(dataset)
    except DatasetError as error:
        raise ConfigError(f"perturb=symmetry: {error}; perturb=noise does without") from None
    if max(config.breadth) > views.number:
        raise ConfigError(
            f"breadth={max(config.breadth)}: such puzzles have {views.number} views; a lower "
            "breadth, or perturb=noise"
        )
    return views


def global_batch_size(
    config: EvalConfig,
    trained: TrainedModel,
    dataset: PuzzleDataset,
    world_size: int,
    fits: int = 0,
) -> int:
    """Return the batch size asked for; or the run's, or `fits` rows on each rank if that is more,
    rounded up to a multiple of the ranks.

    Without one asked for it is no more than the largest set needs, because further rows would be
    padding. With halting=q it is at most a sixteenth of the set, but 32 rows are always allowed: at
    the end of the set slots stand empty until the last row has halted.

    Raises:
        ConfigError: the one asked for is no multiple of the ranks.
    """
    size = config.global_batch_size
    if size is None:
        largest = max((arrays.num_examples for arrays in dataset.sets.values()), default=1)
        if config.halting == "q":
            largest = min(largest, max(32, largest // 16))
        size = min(max(trained.run.global_batch_size, fits * world_size), max(1, largest))
        return -(-size // world_size) * world_size
    if size % world_size:
        near = max(world_size, round(size / world_size) * world_size)
        raise ConfigError(
            f"global_batch_size={size} must be a multiple of the number of ranks, {world_size}: "
            f"try {near}"
        )
    return size


def rows_that_fit(model: "ACTLossHead", device: "torch.device") -> int:
    """Return how many rows a CUDA device evaluates at a time.

    A row is taken to need 256 bytes x positions x hidden_size; as many rows as fit into half of the
    memory, at most 4,096.
    """
    import torch

    inner = model.model.inner
    row = 256 * inner.num_positions * inner.hidden_size
    return min(4096, torch.cuda.get_device_properties(device).total_memory // 2 // row)


def require_thinking(config: EvalConfig, trained: TrainedModel, halts: bool) -> None:
    """Raise ConfigError where the model cannot think as it is asked to; `halts`: whether a head
    says when a puzzle is done.
    """
    if config.halting != "steps" and not halts:
        raise ConfigError(
            f"halting: no head of {trained.weights} says when a puzzle is done; use halting=steps"
        )
    config.require_model(trained.run.arch, halts=halts, name=trained.weights)


def open_dataset(config: EvalConfig, trained: TrainedModel) -> PuzzleDataset:
    """Open the data asked for, or the run's, with the label fields that the heads read; warns of
    heads whose field the data do not have.

    Raises:
        ConfigError: neither names a folder.
        DatasetError: names the folder or file at fault.
    """
    folders = config.data_folders or trained.run.data_folders(config.split)
    if not folders:
        unsaid = f"{trained.weights} does not say what it was trained on"
        raise ConfigError(f"{unsaid}: set data_path=FOLDER")
    try:
        for folder in folders:
            require_folder(folder, trained.run.data)
        heads = trained.run.arch.heads
        untold = untold_heads(heads, folders, config.split)
        for head, reason in untold.items():
            warn(f"{reason}: nothing is reported of {head}")
        fields = [field for head, field in heads.fields.items() if head not in untold]
        numbered_as = trained.run.data_folders("train")
        return PuzzleDataset(folders, config.split, fields=fields, numbered_as=numbered_as)
    except DatasetError as error:
        hint = "" if config.data_folders else " (the run's own; data_path=FOLDER names another)"
        raise DatasetError(f"{error}{hint}") from None


def require_same_weights(trained: TrainedModel, ranks: "Ranks") -> None:
    """Raise CheckpointError, on all ranks, unless all of them have found the same checkpoint: while
    the run goes on, one may see a newer one than another.
    """
    if ranks.world_size == 1:
        return  # A published file is large, and there is no other rank.
    weights = trained.weights
    manifest, found = weights if trained.is_published else weights / MANIFEST, ""
    with suppress(OSError):  # It may be gone by now.
        found = sha256(manifest)
    others = ", ".join(map(str, ranks.that_differ(found)))
    if others:
        found = f"{weights}: rank {others} has found another checkpoint than rank 0"
        raise CheckpointError(f"{found}: name one, checkpoint=RUN_FOLDER/step_N")


def what_differs(config: EvalConfig, trained: TrainedModel, dataset: PuzzleDataset) -> list[str]:
    """Return what is measured otherwise than the run would by itself, as names of files say it:
    other data or another split, a sample, the halt, thinking longer, and what changes the model or
    a search. A setting that changes nothing is left out.
    """
    parts = []
    own = {Path(folder).resolve() for folder in trained.run.data_folders(config.split)}
    asked = {Path(folder).resolve(): None for folder in config.data_folders}
    if own and asked and own != asked.keys():
        parts += [folder.name for folder in asked]
    if config.split != "test":
        parts.append(config.split)
    if config.halting == "q":
        parts.append("at_halt")
    if config.thinks_longer:
        parts += thinking_parts(config)
    if config.weights == "last" and trained.has_average:
        parts.append("last_weights")
    largest = max((arrays.num_examples for arrays in dataset.sets.values()), default=0)
    if config.max_examples is not None and config.max_examples < largest:
        parts.append(f"first{config.max_examples}")
    parts += values_that_differ(config.arch_overrides, trained.run.arch)
    if config.search.chains:
        settings = {"backtrack", "caution", "control"}
        parts += values_that_differ(config.search, EvalSearchSettings(), settings)
    return parts


def values_that_differ(asked: Schema, usual: object, names: set[str] | None = None) -> list[str]:
    """Return NAME-VALUE of the settings, or of those named, that are set to another value."""
    values = asked.model_dump(include=names, exclude_none=True)
    return [
        f"{name}-{str(value).lower()}"
        for name, value in values.items()
        if value != getattr(usual, name)
    ]


def output_path(config: EvalConfig, trained: TrainedModel, differs: Sequence[str]) -> Path:
    """Return where the result goes: by default eval_step_N.json in the run's folder (of a model on
    the Hub in outputs/OWNER--NAME), where anything differs with that in its name, and with a
    search, evaluators of its own and a seed.
    """
    if config.output is not None:
        return Path(config.output)
    parts = ["eval", trained.weights.name, *differs]
    if config.search.chains:
        parts.append(f"search{config.search.chains}x{config.search.rounds}")
    usual = trained.run.active_evaluators or trained.run.inherited_evaluators
    if config.evaluators is not None and config.evaluators != usual:
        names = [evaluator.name for evaluator in config.evaluators]
        parts.append("-".join(["evaluators", *(names or ["none"])]))
    if config.seed:
        parts.append(f"seed{config.seed}")
    folder = trained.weights.parent
    if (address := parse_address(config.checkpoint)) is not None:
        folder = Path("outputs", address.folder_name)  # The Hub's cache is not ours to write into.
    return folder / f"{'_'.join(parts)}.json"


def thinking_parts(settings: ThinkingSettings) -> list[str]:
    """Return what a file's name says of thinking longer: thinking, depth4-16, breadth8, noise0.3,
    and the choices where they are not q alone.
    """
    parts = ["thinking"]
    if settings.depth is not None:
        parts.append("depth" + "-".join(map(str, sorted(set(settings.depth)))))
    if max(settings.breadth) > 1:
        parts.append("breadth" + "-".join(map(str, sorted(set(settings.breadth)))))
        noise = settings.noise if settings.perturb == "noise" else ""
        parts.append(f"{settings.perturb}{noise}")
    if settings.select != ["q"]:
        parts.append("-".join(dict.fromkeys(settings.select)))
    return parts


def require_writable(output: Path) -> None:
    """Raise ConfigError when a file cannot be written at `output`; creates its folder."""
    try:
        if output.is_dir():
            raise ConfigError(f"output={output}: is a folder, expected a file's name")
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=output.parent, prefix=output.name):
            pass
    except OSError as error:
        raise ConfigError(f"output={output}: cannot be written: {error.strerror}") from None


def sweep(arguments: list[str], say: Callable[[str], None]) -> int:
    """Run a command line with `-m`; returns the exit code."""
    from apps.sweeps.programs import sweep_evaluations  # A single run needs nothing of it.

    return sweep_evaluations(arguments, say)


if __name__ == "__main__":
    faulthandler.enable(2)  # Standard error, even if it is closed.
    run_entry_point(EvalConfig, "cfg_evaluate", main, str(__doc__), sweep)
