"""Run a model over test sets: every puzzle gets its ACT steps, the last answer is measured."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from evaluation.config import Halting
from evaluation.evaluators import AnsweredRows, Evaluator
from evaluation.metrics import SetResult, summarize
from evaluation.outputs import Outputs
from evaluation.records import Answers
from evaluation.report import Evaluation
from evaluation.thinking import Forward, Thought, thoughts
from models.act import ACTLossHead, LossOutput
from puzzle_dataset import Batch, EvalBatches
from runtime.device import own_random_numbers
from runtime.progress import bar
from runtime.ranks import Ranks


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
    # An evaluation has no target for q_continue.
    names = tuple(name for name in model.metric_names if name != "q_continue_loss")
    rows: dict[str, list[Tensor]] = {name: [] for name in batches.num_examples}
    rows_at_halt: dict[str, list[Tensor]] = {name: [] for name in batches.num_examples}
    seen = dict.fromkeys(batches.num_examples, 0)
    num_noted = model.model.eval_max_steps if answers is not None and halting != "q" else 0
    first_row = ranks.rank * batches.local_batch_size

    def begin(number: int) -> None:
        ranks.mark(f"batch {number + 1} of the evaluation", long=True)
        before_batch()

    for evaluator in evaluators.values():
        evaluator.begin()
    answered = thoughts(
        forward, model, batches, ranks, halting, begin, seed, notes_right=num_noted > 0
    )
    shown = bar(answered, "evaluating", "batches", total=len(batches), show=show_progress)
    was_training = model.training
    model.eval()
    try:
        # Of models of your own that ask torch for numbers.
        with torch.no_grad(), own_random_numbers(first_row, ranks.device):
            for thought in shown:
                step = model.measure(thought.carry)
                columns = [*_columns(step, names, model), _clues(step)]
                if thought.right is not None:
                    columns += thought.right.unbind(-1)
                rows[thought.set_name].append(torch.stack(columns, dim=-1))
                if thought.at_halt is not None:
                    columns = _columns(model.measure(thought.at_halt), names, model)
                    rows_at_halt[thought.set_name].append(torch.stack(columns, dim=-1))
                if save is not None:
                    save.write(thought.set_name, step, thought.count)
                if evaluators or answers is not None:
                    own = _answered_rows(thought.batch, step, max(0, thought.count - first_row))
                    for evaluator in evaluators.values():
                        evaluator.add(own)
                    if answers is not None:
                        first = seen[thought.set_name] + first_row
                        _add(answers, thought, first, own, step, model)
                seen[thought.set_name] += thought.count
    finally:
        model.train(was_training)
    recorded = (*names, "q_halt")
    records, records_at_halt = {}, {}
    for set_name, num_examples in batches.num_examples.items():
        right_after = (f"right_after_{step}" for step in range(1, num_noted + 1))
        of_last = (*recorded, "clues", *right_after)
        records[set_name] = _gather(rows[set_name], of_last, num_examples, ranks)
        if halting == "both":
            of_set = rows_at_halt[set_name]
            records_at_halt[set_name] = _gather(of_set, recorded, num_examples, ranks)
    findings = {name: one.finish(ranks.gather_objects) for name, one in evaluators.items()}
    sets, at_halt = (_summaries(each, names) for each in (records, records_at_halt))
    shown_by = {} if answers is None else answers.finish(ranks.gather_objects)
    return Evaluation(sets, findings, records, at_halt, records_at_halt, shown_by)


def _summaries(
    records: Mapping[str, Mapping[str, np.ndarray]], names: tuple[str, ...]
) -> dict[str, SetResult]:
    return {
        set_name: summarize({name: values[name] for name in names})
        for set_name, values in records.items()
    }


def _columns(step: LossOutput, names: tuple[str, ...], model: ACTLossHead) -> list[Tensor]:
    """Return values of each row, [b] each: `names`, then q_halt, NaN where no head gives it."""
    q_halt = step.outputs["q_halt_logits"].float().sigmoid()
    if model.halting_head is None:
        q_halt = torch.full_like(q_halt, torch.nan)
    return [*(step.rows[name] for name in names), q_halt]


def _clues(step: LossOutput) -> Tensor:
    examples = step.carry.examples
    return (examples["inputs"] == examples["labels"]).sum(-1).float()


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
    if (logits := step.outputs.get("confidence_logits")) is not None:
        confidence = logits[:count].float().sigmoid().cpu().numpy()
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
