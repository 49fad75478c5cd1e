"""Measure a model on test sets: what is asked of its answers, and the ways to do so.

A way runs on all ranks; it returns a function that reports what it found, on rank 0.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evaluation import chains
from evaluation.config import Halting
from evaluation.evaluators.base import AnsweredRows, Evaluator
from evaluation.job import Job, beside, global_batch_size
from evaluation.metrics import SetResult, summarize
from evaluation.outputs import OutputError, Outputs, write_json_files
from evaluation.records import Answers
from evaluation.report import Evaluation, flatten, report, report_chains
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
    """Evaluate on all ranks and write the outputs asked for.

    Raises:
        ConfigError: a file cannot be written; names it.
    """
    config = job.config
    try:
        with Outputs(beside(job.output, "_outputs"), config.save_outputs, batches, ranks) as save:
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
    return partial(report, evaluation, job)


def with_chains(
    job: Job, prepared: Prepared, model: ACTLossHead, batches: EvalBatches, ranks: Ranks
) -> Report:
    """Think longer about each puzzle, on all ranks."""
    found = chains.think_longer(
        prepared(model), model, batches, ranks, job.config, job.views, show_progress=ranks.is_main
    )
    return partial(report_chains, found, job)


def in_training(
    forward: Forward,
    batches: EvalBatches | None,
    ranks: Ranks,
    evaluators: Mapping[str, Evaluator],
    save_outputs: Sequence[str],
    run_dir: Path,
    model: ACTLossHead,
    step: int,
    before_batch: Callable[[], None],
) -> dict[str, float]:
    """Measure the model at a step of a run, on all ranks, without batches nothing; what is written
    goes to `eval_step_N/` in the run's folder. Return the figures by name.

    Raises:
        OutputError: a file cannot be written; names it.
    """
    if batches is None:
        return {}
    folder = run_dir / f"eval_step_{step}"
    asked = {"evaluators": evaluators, "before_batch": before_batch}
    with Outputs(folder, save_outputs, batches, ranks) as save:
        evaluation = evaluate(forward, model, batches, ranks, save=save, **asked)
    write_json_files(folder, evaluation.files, ranks)
    return flatten(evaluation)


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
        save, answers, evaluators: receive this rank's rows with their answers.
        before_batch: called before each batch, on all ranks; may raise to break off.
    """
    first_row = ranks.rank * batches.local_batch_size
    notes_right = answers is not None and halting != "q"
    values = _Values(model, notes_right=notes_right)
    for evaluator in evaluators.values():
        evaluator.begin()

    def begin(number: int) -> None:
        ranks.mark(f"batch {number + 1} of the evaluation", long=True)
        before_batch()

    answered = thoughts(forward, model, batches, ranks, halting, begin, seed, notes_right)
    total = len(batches)
    with evaluating(model, ranks, first_row):
        for thought in bar(answered, "evaluating", "batches", total=total, show=show_progress):
            step = model.measure(thought.carry)
            values.add(thought, step)
            if save is not None:
                save.write(thought.set_name, step, thought.count)
            if evaluators or answers is not None:
                _hand_on(thought, step, first_row, evaluators, answers, model)
    sets, records = values.finish(batches.num_examples, ranks)
    findings = {name: one.finish(ranks.gather_objects) for name, one in evaluators.items()}
    told = answers.finish(ranks.gather_objects) if answers else {}
    return Evaluation(sets, findings, records, told)


class _Values:
    """The values of this rank's rows, by set, batch after batch: see `Evaluation.records`."""

    def __init__(self, model: ACTLossHead, *, notes_right: bool) -> None:
        self._halts = model.halting_head is not None
        # An evaluation has no target for q_continue.
        self._metrics = [name for name in model.metric_names if name != "q_continue_loss"]
        steps = range(1, model.model.eval_max_steps + 1) if notes_right else ()
        self._names = [
            *self._metrics,
            "q_halt",
            "clues",
            *(f"right_after_{step}" for step in steps),
        ]
        self._rows: dict[str, list[Tensor]] = defaultdict(list)

    def add(self, thought: Thought, step: LossOutput) -> None:
        """Take in a batch, measured after its last step."""
        examples, q_halt = step.carry.examples, step.outputs["q_halt_logits"].float().sigmoid()
        columns = [
            *(step.rows[name] for name in self._metrics),
            q_halt if self._halts else torch.full_like(q_halt, torch.nan),
            (examples["inputs"] == examples["labels"]).sum(-1).float(),
            *(() if thought.right is None else thought.right.unbind(-1)),
        ]
        self._rows[thought.set_name].append(torch.stack(columns, dim=-1))

    def finish(
        self, num_examples: Mapping[str, int], ranks: Ranks
    ) -> tuple[dict[str, SetResult], dict[str, Mapping[str, np.ndarray]]]:
        """Bring all ranks together; returns the figures of each set, and the values of its rows."""
        records = {
            name: _gather(self._rows[name], self._names, number, ranks)
            for name, number in num_examples.items()
        }
        return {
            name: summarize({metric: rows[metric] for metric in self._metrics})
            for name, rows in records.items()
        }, records


def _hand_on(
    thought: Thought,
    step: LossOutput,
    first_row: int,
    evaluators: Mapping[str, Evaluator],
    answers: Answers | None,
    model: ACTLossHead,
) -> None:
    """Give this rank's rows of a batch, those that are no padding, to who asks for answers."""
    batch, count = thought.batch, max(0, thought.count - first_row)
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
    output = model.confidence_output
    told = {
        "q_halt": model.halting_head and torch.from_numpy(own.q_halt_logits).sigmoid(),
        "confidence": output and step.outputs[output].float().sigmoid(),
        "right": thought.right,
        "after": thought.answers,
    }
    known = {name: v[:count].cpu().numpy() for name, v in told.items() if isinstance(v, Tensor)}
    rows = thought.start + first_row + np.arange(len(own.inputs))
    answers.add(thought.set_name, rows, own.inputs, own.labels, own.preds, **known)


def _gather(
    local: list[Tensor], names: Sequence[str], num_examples: int, ranks: Ranks
) -> Mapping[str, np.ndarray]:
    """Bring the row values [b, M] of all batches and ranks together: [num_examples] by name."""
    if not local:
        return {name: np.zeros(0, np.float32) for name in names}
    by_rank = ranks.concat(torch.stack(local).unsqueeze(0))  # [rank, batch, b, M]
    values = by_rank.transpose(0, 1).reshape(-1, len(names))[:num_examples].float()
    return dict(zip(names, ranks.to_host(values).numpy().T, strict=True))
