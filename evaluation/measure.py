"""Measure a model on test sets: what is asked of its answers, and the ways to do so.

A way runs on all ranks; it returns a function that reports what it found, on rank 0.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evaluation import chains
from evaluation.config import Halting
from evaluation.evaluators.base import AnsweredRows, Evaluator
from evaluation.job import Job, beside, global_batch_size
from evaluation.metrics import summarize
from evaluation.outputs import OutputError, Outputs, open_outputs
from evaluation.records import Answers
from evaluation.report import Evaluation, report, report_chains
from evaluation.think import Forward, Thought, evaluating, thoughts
from models.act import ACTLossHead, LossOutput
from puzzle_dataset import Batch, EvalBatches
from runtime.errors import ConfigError
from runtime.progress import bar
from runtime.ranks import Ranks

Prepared = Callable[[ACTLossHead], Forward]
"""Gives what runs a model."""
Report = Callable[[dict[str, Any], float], None]
"""Writes and prints a result, given the facts that stand first in it, and the seconds it took."""


def batches_for(job: Job, model: ACTLossHead, ranks: Ranks) -> tuple[EvalBatches, Job]:
    """Return the batches of this rank, and the job with their size: a CUDA device may get more."""
    config = job.config
    if ranks.device.type == "cuda":
        fits = min(ranks.gather_objects(rows_that_fit(model, ranks.device)))
        size = global_batch_size(config, job.trained, job.dataset, ranks.world_size, fits)
        job = replace(job, batch_size=size)
    return EvalBatches(
        job.dataset,
        global_batch_size=job.batch_size,
        rank=ranks.rank,
        world_size=ranks.world_size,
        max_examples=config.max_examples,
    ), job


def rows_that_fit(model: ACTLossHead, device: torch.device) -> int:
    """Return how many rows a CUDA device evaluates at a time.

    A row is taken to need 256 bytes x positions x hidden_size; as many rows as fit into half of the
    memory, at most 4,096.
    """
    inner = model.model.inner
    row = 256 * inner.num_positions * inner.hidden_size
    return min(4096, torch.cuda.get_device_properties(device).total_memory // 2 // row)


def in_one_pass(
    job: Job, prepared: Prepared, model: ACTLossHead, batches: EvalBatches, ranks: Ranks
) -> Report:
    """Evaluate on all ranks and write the outputs asked for. Names of outputs and of evaluators'
    files repeat the settings that the default name of the result has; beside an `output` of the
    user's choice they only say `_at_halt`, if rows halt early.

    Raises:
        ConfigError: a file cannot be written; names it.
    """
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
                prepared(model),
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
    return partial(report, evaluation.with_files_named(suffix), job)


def with_chains(
    job: Job, prepared: Prepared, model: ACTLossHead, batches: EvalBatches, ranks: Ranks
) -> Report:
    """Think longer about each puzzle, on all ranks."""
    found = chains.think_longer(
        prepared(model), model, batches, ranks, job.config, job.views, show_progress=ranks.is_main
    )
    return partial(report_chains, found, job)


def evaluate(
    forward: Forward,
    model: ACTLossHead,
    batches: EvalBatches,
    ranks: Ranks,
    *,
    halting: Halting = "steps",
    save: Outputs | None = None,
    answers: Answers | None = None,
    evaluators: Mapping[str, Evaluator] = MappingProxyType({}),
    before_batch: Callable[[], None] = lambda: None,
    show_progress: bool = False,
    seed: int = 0,
) -> Evaluation:
    """Measure a model on all sets of `batches`; every rank returns the same.

    As the published models are, it is measured after `halt_max_steps` ACT steps, unless `halting`
    says otherwise. The rows' values are brought together in test order and reduced on the host,
    padded rows left out: counts and reductions do not depend on the number of ranks or the batch
    size. (A value itself may differ in its last bits where a kernel adds up another batch shape in
    another order.)

    Args:
        forward: `model` or its compiled form.
        model: on the device of `ranks`; put into evaluation mode while this runs.
        halting: q: a row is measured at the step at which it halts; both: there, too.
        save: receives the outputs of each row's last step; completed by its own context.
        answers: receives this rank's rows with the answers of their last steps; with it is noted,
            too, which rows are right after each step (not with `halting` q).
        evaluators: by name; they begin anew, and receive this rank's rows.
        seed: of the numbers that a model draws whose latents start anywhere, or move with noise:
            what a row draws depends on the seed and its number in the set alone.
        before_batch: called before each batch, on all ranks; may raise to break off.
    """
    first_row = ranks.rank * batches.local_batch_size
    notes_right = answers is not None and halting != "q"
    values = _Values(model, batches, model.model.eval_max_steps if notes_right else 0)

    def begin(number: int) -> None:
        ranks.mark(f"batch {number + 1} of the evaluation", long=True)
        before_batch()

    for evaluator in evaluators.values():
        evaluator.begin()
    answered = thoughts(
        forward, model, batches, ranks, halting, begin, seed, notes_right=notes_right
    )
    shown = bar(answered, "evaluating", "batches", total=len(batches), show=show_progress)
    with evaluating(model, ranks, first_row):
        for thought in shown:
            step = model.measure(thought.carry)
            values.add(thought, step)
            if save is not None:
                save.write(thought.set_name, step, thought.count)
            if evaluators or answers is not None:
                own = _answered_rows(thought.batch, step, max(0, thought.count - first_row))
                for evaluator in evaluators.values():
                    evaluator.add(own)
                if answers is not None:
                    _add(answers, thought, thought.start + first_row, own, step, model)
    records, records_at_halt = values.gather(ranks, at_halt=halting == "both")
    findings = {name: one.finish(ranks.gather_objects) for name, one in evaluators.items()}
    sets, at_halt = (
        {of: summarize({name: rows[name] for name in values.names}) for of, rows in each.items()}
        for each in (records, records_at_halt)
    )
    shown_by = {} if answers is None else answers.finish(ranks.gather_objects)
    return Evaluation(sets, findings, records, at_halt, records_at_halt, shown_by)


class _Values:
    """The values of this rank's rows, by set, batch after batch.

    Args:
        num_noted: steps after which it is noted which rows are right.
    Attributes:
        names: of the metrics.
    """

    def __init__(self, model: ACTLossHead, batches: EvalBatches, num_noted: int) -> None:
        # An evaluation has no target for q_continue.
        self.names = tuple(name for name in model.metric_names if name != "q_continue_loss")
        self._model, self._num_examples = model, batches.num_examples
        right_after = (f"right_after_{step}" for step in range(1, num_noted + 1))
        self._recorded = (*self.names, "q_halt")
        self._of_last = (*self._recorded, "clues", *right_after)
        self._rows: dict[str, list[Tensor]] = defaultdict(list)
        self._rows_at_halt: dict[str, list[Tensor]] = defaultdict(list)

    def add(self, thought: Thought, step: LossOutput) -> None:
        """Take in a batch, measured after its last step."""
        name, examples = thought.set_name, step.carry.examples
        clues = (examples["inputs"] == examples["labels"]).sum(-1).float()
        columns = [*self._columns(step), clues]
        if thought.right is not None:
            columns += thought.right.unbind(-1)
        self._rows[name].append(torch.stack(columns, dim=-1))
        if thought.at_halt is not None:
            columns = self._columns(self._model.measure(thought.at_halt))
            self._rows_at_halt[name].append(torch.stack(columns, dim=-1))

    def _columns(self, step: LossOutput) -> list[Tensor]:
        """Return values of each row, [b] each: `names`, then q_halt, NaN where no head gives it."""
        q_halt = step.outputs["q_halt_logits"].float().sigmoid()
        if self._model.halting_head is None:
            q_halt = torch.full_like(q_halt, torch.nan)
        return [*(step.rows[name] for name in self.names), q_halt]

    def gather(
        self, ranks: Ranks, *, at_halt: bool
    ) -> tuple[dict[str, Mapping[str, np.ndarray]], dict[str, Mapping[str, np.ndarray]]]:
        """Bring all ranks together: what `Evaluation.records` is, and `at_halt_records`."""
        records, records_at_halt = {}, {}
        for name, number in self._num_examples.items():
            records[name] = _gather(self._rows[name], self._of_last, number, ranks)
            if at_halt:
                rows = self._rows_at_halt[name]
                records_at_halt[name] = _gather(rows, self._recorded, number, ranks)
        return records, records_at_halt


def _answered_rows(batch: Batch, step: LossOutput, count: int) -> AnsweredRows:
    """Return the first `count` rows, those that are no padding, on the host."""
    return AnsweredRows(
        inputs=batch.inputs[:count],
        labels=batch.labels[:count],
        puzzle_identifiers=batch.puzzle_identifiers[:count],
        preds=step.outputs["logits"][:count].argmax(-1).int().cpu().numpy(),
        q_halt_logits=step.outputs["q_halt_logits"][:count].float().cpu().numpy(),
    )


def _add(
    answers: Answers,
    thought: Thought,
    first_row: int,
    own: AnsweredRows,
    step: LossOutput,
    model: ACTLossHead,
) -> None:
    """Hand on this rank's rows of a set, from `first_row` on."""
    count, set_name = len(own.inputs), thought.set_name
    confidence = q_halt = None
    if (name := model.confidence_output) is not None:
        confidence = step.outputs[name][:count].float().sigmoid().cpu().numpy()
    if model.halting_head is not None:
        q_halt = torch.from_numpy(own.q_halt_logits).sigmoid().numpy()
    rows = np.arange(first_row, first_row + count)
    answers.add(set_name, rows, own.inputs, own.labels, own.preds, q_halt, confidence)
    if thought.right is not None and thought.answers is not None:
        right, after = (each[:count].cpu().numpy() for each in (thought.right, thought.answers))
        answers.follow(set_name, rows, own.inputs, own.labels, right, after)


def _gather(
    local: list[Tensor], names: tuple[str, ...], num_examples: int, ranks: Ranks
) -> Mapping[str, np.ndarray]:
    """Bring the row values [b, M] of all batches and ranks together: [num_examples] by name."""
    if not local:
        return {name: np.zeros(0, np.float32) for name in names}
    by_rank = ranks.concat(torch.stack(local).unsqueeze(0))  # [rank, batch, b, M]
    values = by_rank.transpose(0, 1).reshape(-1, len(names))[:num_examples].float()
    return dict(zip(names, ranks.to_host(values).numpy().T, strict=True))
