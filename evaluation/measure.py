"""Measure a model on test sets: in one pass, with several chains, or during training.

`in_one_pass` and `with_chains` (and an architecture's `search`) run on all ranks. They return a
function that writes and prints the result; rank 0 calls it.
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

from dataset.kinds.base import Kind
from evaluation import chains
from evaluation.config import Halting
from evaluation.evaluators.base import AnsweredRows, Evaluator
from evaluation.headline import headline_of
from evaluation.job import Job, beside, global_batch_size
from evaluation.metrics import SetResult, summarize
from evaluation.outputs import OutputError, Outputs, write_json_files
from evaluation.puzzles import kind_of_many_answers
from evaluation.records import Answers
from evaluation.report import Evaluation, flatten, report, report_chains
from evaluation.think import AnsweredBatch, Forward, answered_batches, evaluating, valid_rows
from models.act import ACTLossHead, LossOutput
from puzzle_dataset import EvalBatches
from runtime.errors import ConfigError
from runtime.progress import bar
from runtime.ranks import Ranks

Prepared = Callable[[ACTLossHead], Forward]
"""Compiles a model, or returns it as it is."""
Report = Callable[[dict[str, Any], float], None]
"""Writes and prints a result. Takes the facts that stand first in it, and the seconds it took."""


def batches_for(job: Job, model: ACTLossHead, ranks: Ranks) -> tuple[EvalBatches, Job]:
    """Return the batches of this rank, and the job with their size. A CUDA device can take more
    rows: as many as fit into half of its memory if each needs 256 bytes x positions x hidden_size,
    but at most 4,096.
    """
    config, inner = job.config, model.model.inner
    if ranks.device.type == "cuda":
        half = torch.cuda.get_device_properties(ranks.device).total_memory // 2
        rows = min(4096, half // (256 * inner.num_positions * inner.hidden_size))
        fits = min(ranks.gather_objects(rows))
        size = global_batch_size(config, job.trained, job.dataset, ranks.world_size, fits)
        job = replace(job, batch_size=size)
    return EvalBatches(
        job.dataset,
        global_batch_size=job.batch_size,
        rank=ranks.rank,
        world_size=ranks.world_size,
        max_examples=config.max_examples,
    ), job


def in_one_pass(
    job: Job, prepared: Prepared, model: ACTLossHead, batches: EvalBatches, ranks: Ranks
) -> Report:
    """Evaluate on all ranks, and save the outputs that `save_outputs` names.

    Raises:
        ConfigError: a file cannot be written.
    """
    config, kind = job.config, kind_of_many_answers(job.dataset)
    answers = Answers(job.facts.vocab_size, kind) if config.save_records else None
    try:
        with Outputs(beside(job.output, "_outputs"), config.save_outputs, batches, ranks) as save:
            evaluation = evaluate(
                prepared(model),
                model,
                batches,
                ranks,
                halting=config.halting,
                save=save,
                answers=answers,
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
    """Evaluate on all ranks with more steps or several chains for each puzzle.

    Raises:
        ConfigError: `select=energy` has nothing to learn from.
    """
    forward, energy = prepared(model), None
    if job.energy_set is not None:
        known = EvalBatches(
            job.energy_set,
            global_batch_size=batches.global_batch_size,
            rank=ranks.rank,
            world_size=ranks.world_size,
            max_examples=job.config.energy.puzzles,
            spread=True,
        )
        energy = chains.fit_energy(forward, model, known, ranks, job.config, job.views)
    scores = chains.think_longer(
        forward, model, batches, ranks, job.config, job.views, energy, show_progress=ranks.is_main
    )
    return partial(report_chains, scores, job)


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
) -> tuple[dict[str, float], str | None]:
    """Evaluate the model at a step of a run, on all ranks, and return the figures by name, none
    without batches, and the name of their headline. Files go to `eval_step_N/` in the run's folder.

    Raises:
        OutputError: a file cannot be written.
    """
    if batches is None:
        return {}, None
    folder = run_dir / f"eval_step_{step}"
    asked = {"evaluators": evaluators, "before_batch": before_batch}
    with Outputs(folder, save_outputs, batches, ranks) as save:
        evaluation = evaluate(forward, model, batches, ranks, save=save, **asked)
    write_json_files(folder, evaluation.files, ranks)
    figures = flatten(evaluation)
    return figures, headline_of(figures, "eval/")


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
    """Measure a model on all sets of `batches`; the number of ranks does not change the figures.

    Args:
        forward, halting, seed: see `answered_batches`.
        save, answers, evaluators: receive this rank's rows with their answers.
        before_batch: called before each batch, on all ranks; may raise to stop the evaluation.
    """
    first_row = ranks.rank * batches.local_batch_size
    notes_right = answers is not None and halting != "q"
    kind = answers.kind if answers is not None else None
    values = _Values(model, kind, notes_right=notes_right)
    for evaluator in evaluators.values():
        evaluator.begin()

    def begin(number: int) -> None:
        ranks.mark(f"batch {number + 1} of the evaluation", long=True)
        before_batch()

    done = answered_batches(forward, model, batches, ranks, halting, begin, seed, notes_right, kind)
    total = len(batches)
    with evaluating(model, ranks, first_row):
        for answered in bar(done, "evaluating", "batches", total=total, show=show_progress):
            step = model.measure(answered.carry)
            both = answered.carry.examples["inputs"], step.outputs["logits"].argmax(-1)
            valid = None if kind is None else valid_rows(kind, *both).float()
            values.add(answered, step, valid)
            if save is not None:
                save.write(answered.set_name, step, answered.count)
            if evaluators or answers is not None:
                _pass_on(answered, step, valid, first_row, evaluators, answers, model)
    sets, records = values.finish(batches.num_examples, ranks)
    findings = {name: one.finish(ranks.gather_objects) for name, one in evaluators.items()}
    recorded = answers.finish(ranks.gather_objects) if answers else {}
    return Evaluation(sets, findings, records, recorded)


class _Values:
    """Collects the values of this rank's rows, by set; for their names see `Evaluation.records`."""

    def __init__(self, model: ACTLossHead, kind: Kind | None, *, notes_right: bool) -> None:
        self._halts = model.halting_head is not None
        # Evaluations have no target for q_continue.
        self._metrics = [name for name in model.metric_names if name != "q_continue_loss"]
        steps = range(1, model.model.eval_max_steps + 1) if notes_right else ()
        right = (f"right_after_{step}" for step in steps)
        valid = ["valid"] if kind else []
        self._names = [*self._metrics, "q_halt", "clues", *right, *valid]
        self._rows: dict[str, list[Tensor]] = defaultdict(list)

    def add(self, answered: AnsweredBatch, step: LossOutput, valid: Tensor | None) -> None:
        """Add a batch, measured after its last step."""
        examples, q_halt = step.carry.examples, step.outputs["q_halt_logits"].float().sigmoid()
        columns = [
            *(step.rows[name] for name in self._metrics),
            q_halt if self._halts else torch.full_like(q_halt, torch.nan),
            (examples["inputs"] == examples["labels"]).sum(-1).float(),
            *(() if answered.right is None else answered.right.unbind(-1)),
            *(() if valid is None else [valid]),
        ]
        self._rows[answered.set_name].append(torch.stack(columns, dim=-1))

    def finish(
        self, num_examples: Mapping[str, int], ranks: Ranks
    ) -> tuple[dict[str, SetResult], dict[str, Mapping[str, np.ndarray]]]:
        """Gather the rows of all ranks; return the figures of each set, and the values of its rows
        [num_examples] by name.
        """
        records: dict[str, Mapping[str, np.ndarray]] = {}
        for set_name, number in num_examples.items():
            values = torch.zeros(0, len(self._names))
            if local := self._rows[set_name]:  # Of each batch [b, M].
                by_rank = ranks.concat(torch.stack(local).unsqueeze(0))  # [rank, batch, b, M]
                values = by_rank.transpose(0, 1).reshape(-1, len(self._names))[:number].float()
            columns = ranks.to_host(values).numpy().T
            records[set_name] = dict(zip(self._names, columns, strict=True))
        return {
            name: summarize({metric: rows[metric] for metric in self._metrics})
            for name, rows in records.items()
        }, records


def _pass_on(
    answered: AnsweredBatch,
    step: LossOutput,
    valid: Tensor | None,
    first_row: int,
    evaluators: Mapping[str, Evaluator],
    answers: Answers | None,
    model: ACTLossHead,
) -> None:
    """Give this rank's rows of a batch, without padding, to the evaluators and to `answers`."""
    batch, count = answered.batch, max(0, answered.count - first_row)
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
    wanted = {
        "q_halt": model.halting_head and torch.from_numpy(own.q_halt_logits).sigmoid(),
        "confidence": output and step.outputs[output].float().sigmoid(),
        "valid": valid,
        "right": answered.right,
        "after": answered.answers,
    }
    known = {name: v[:count].cpu().numpy() for name, v in wanted.items() if isinstance(v, Tensor)}
    rows = answered.start + first_row + np.arange(len(own.inputs))
    answers.add(answered.set_name, rows, vars(own) | known)
