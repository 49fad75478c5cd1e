"""Measure a model on test sets: what is asked of its answers, and the ways to do so.

A way runs on all ranks; it returns a function that reports what it found, on rank 0.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
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
from puzzle_dataset import EvalBatches
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
    config, output, weights = job.config, job.output, job.trained.weights
    suffix = "_at_halt" if config.halting == "q" else ""
    if config.output is None:
        suffix = output.stem.removeprefix(f"eval_{weights.name}")
    published = None
    if job.trained.is_published:
        published = output.with_name(f"{weights.name}_all_preds{suffix}")
    folder = beside(output, "_outputs")
    try:
        with open_outputs(config.save_outputs, folder, batches, ranks, published) as save:
            evaluation = evaluate(
                prepared(model),
                model,
                batches,
                ranks,
                halting=config.halting,
                save=save,
                answers=Answers(job.facts.vocab_size) if config.save_records else None,
                evaluators=job.evaluators,
                show_progress=ranks.is_main,
                seed=config.seed,
            )
    except OutputError as error:
        raise ConfigError(f"the evaluation's files cannot be written: {error}") from None
    return partial(report, evaluation, job, suffix)


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
    """Measure a model on all sets of `batches`; every rank returns the same, of any number of them.

    Args:
        forward, halting, seed: as `thoughts` takes them.
        save: receives the outputs of each row's last step; completed by its own context.
        answers, evaluators: receive this rank's rows with their answers.
        before_batch: called before each batch, on all ranks; may raise to break off.
    """
    first_row = ranks.rank * batches.local_batch_size
    notes_right = answers is not None and halting != "q"
    values = _Values(model, batches, halting, notes_right=notes_right)
    for evaluator in evaluators.values():
        evaluator.begin()

    def begin(number: int) -> None:
        ranks.mark(f"batch {number + 1} of the evaluation", long=True)
        before_batch()

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
                _hand_on(thought, step, first_row, evaluators, answers, model)
    return values.finish(ranks, evaluators, answers)


class _Values:
    """The values of this rank's rows, by set, batch after batch: see `Evaluation.records`."""

    def __init__(
        self, model: ACTLossHead, batches: EvalBatches, halting: Halting, *, notes_right: bool
    ) -> None:
        self._model, self._num_examples = model, batches.num_examples
        # An evaluation has no target for q_continue.
        self._metrics = [name for name in model.metric_names if name != "q_continue_loss"]
        self._columns = [*self._metrics, "q_halt", "clues"]
        if notes_right:
            steps = range(1, model.model.eval_max_steps + 1)
            self._columns += [f"right_after_{step}" for step in steps]
        if halting == "both":
            self._columns += [f"at_halt_{name}" for name in (*self._metrics, "q_halt")]
        self._rows: dict[str, list[Tensor]] = defaultdict(list)

    def add(self, thought: Thought, step: LossOutput) -> None:
        """Take in a batch, measured after its last step."""
        examples = step.carry.examples
        clues = (examples["inputs"] == examples["labels"]).sum(-1).float()
        columns = [*self._of(step), clues]
        if thought.right is not None:
            columns += thought.right.unbind(-1)
        if thought.at_halt is not None:
            columns += self._of(self._model.measure(thought.at_halt))
        self._rows[thought.set_name].append(torch.stack(columns, dim=-1))

    def _of(self, step: LossOutput) -> list[Tensor]:
        """Return the metrics of each row, [b] each, then q_halt, NaN where no head gives it."""
        q_halt = step.outputs["q_halt_logits"].float().sigmoid()
        if self._model.halting_head is None:
            q_halt = torch.full_like(q_halt, torch.nan)
        return [*(step.rows[name] for name in self._metrics), q_halt]

    def finish(
        self, ranks: Ranks, evaluators: Mapping[str, Evaluator], answers: Answers | None
    ) -> Evaluation:
        """Bring all ranks together."""
        records = {
            name: _gather(self._rows[name], self._columns, number, ranks)
            for name, number in self._num_examples.items()
        }
        sets, at_halt = (
            {
                of: summarize({name: rows[prefix + name] for name in self._metrics})
                for of, rows in records.items()
                if f"{prefix}count" in self._columns
            }
            for prefix in ("", "at_halt_")
        )
        findings = {name: one.finish(ranks.gather_objects) for name, one in evaluators.items()}
        shown = {} if answers is None else answers.finish(ranks.gather_objects)
        return Evaluation(sets, findings, records, at_halt, shown)


def _hand_on(
    thought: Thought,
    step: LossOutput,
    first_row: int,
    evaluators: Mapping[str, Evaluator],
    answers: Answers | None,
    model: ACTLossHead,
) -> None:
    """Give this rank's rows of a batch, those that are no padding, to who asks for answers."""
    batch, name, count = thought.batch, thought.set_name, max(0, thought.count - first_row)
    own = AnsweredRows(
        inputs=batch.inputs[:count],
        labels=batch.labels[:count],
        puzzle_identifiers=batch.puzzle_identifiers[:count],
        preds=step.outputs["logits"][:count].argmax(-1).int().cpu().numpy(),
        q_halt_logits=step.outputs["q_halt_logits"][:count].float().cpu().numpy(),
    )
    for evaluator in evaluators.values():
        evaluator.add(own)
    if answers is None:
        return
    confidence = q_halt = None
    if (output := model.confidence_output) is not None:
        confidence = step.outputs[output][:count].float().sigmoid().cpu().numpy()
    if model.halting_head is not None:
        q_halt = torch.from_numpy(own.q_halt_logits).sigmoid().numpy()
    rows = thought.start + first_row + np.arange(len(own.inputs))
    answers.add(name, rows, own.inputs, own.labels, own.preds, q_halt, confidence)
    if thought.right is not None and thought.answers is not None:
        right, after = (each[:count].cpu().numpy() for each in (thought.right, thought.answers))
        answers.follow(name, rows, own.inputs, own.labels, right, after)


def _gather(
    local: list[Tensor], names: Sequence[str], num_examples: int, ranks: Ranks
) -> Mapping[str, np.ndarray]:
    """Bring the row values [b, M] of all batches and ranks together: [num_examples] by name."""
    if not local:
        return {name: np.zeros(0, np.float32) for name in names}
    by_rank = ranks.concat(torch.stack(local).unsqueeze(0))  # [rank, batch, b, M]
    values = by_rank.transpose(0, 1).reshape(-1, len(names))[:num_examples].float()
    return dict(zip(names, ranks.to_host(values).numpy().T, strict=True))
