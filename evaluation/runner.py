"""Run a model over test sets: every puzzle takes all ACT steps, the last answer is measured."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from evaluation.evaluators import AnsweredRows, Evaluator
from evaluation.metrics import summarize
from evaluation.outputs import Outputs
from evaluation.report import Evaluation
from models.act import ACTLossHead, LossOutput
from models.carry import ACTCarry, Examples
from puzzle_dataset import Batch, EvalBatches
from runtime.ranks import Ranks


class Forward(Protocol):
    """A model with its loss, plain or compiled: one ACT step."""

    def __call__(self, carry: ACTCarry, offered: Examples) -> LossOutput: ...


def evaluate(
    forward: Forward,
    model: ACTLossHead,
    batches: EvalBatches,
    ranks: Ranks,
    *,
    save: Outputs | None = None,
    evaluators: Mapping[str, Evaluator] = MappingProxyType({}),
    before_batch: Callable[[], None] = lambda: None,
    show_progress: bool = False,
) -> Evaluation:
    """Measure a model on all sets of `batches`; every rank returns the same.

    As the published models are, it is measured after `halt_max_steps` ACT steps, whatever Q says.
    The rows' values are brought together in test order and reduced on the host, padded rows left
    out: counts and reductions do not depend on the number of ranks or the batch size. (A value
    itself may differ in its last bits where a kernel adds up another batch shape in another order.)

    Args:
        forward: `model` or its compiled form.
        model: on the device of `ranks`; put into evaluation mode while this runs.
        save: receives the outputs of the last step; completed by its own context.
        evaluators: by name; they begin anew, and receive this rank's rows.
        before_batch: called before each batch, on all ranks; may raise to break off.
    """
    # An evaluation has no target for q_continue.
    names = tuple(name for name in model.metric_names if name != "q_continue_loss")
    rows: dict[str, list[Tensor]] = {name: [] for name in batches.num_examples}
    first_row = ranks.rank * batches.local_batch_size
    for evaluator in evaluators.values():
        evaluator.begin()
    hidden = not show_progress
    bar = tqdm(batches, "evaluating", disable=hidden, unit="batch", dynamic_ncols=True)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            for number, (name, batch, count, _) in enumerate(bar, 1):
                ranks.mark(f"batch {number} of the evaluation", long=True)
                before_batch()
                step = think(forward, model, ranks.on_device(batch.arrays()))
                rows[name].append(torch.stack([step.rows[key] for key in names], dim=-1))
                if save is not None:
                    save.write(name, step, count)
                if evaluators:
                    answered = _answered_rows(batch, step, max(0, count - first_row))
                    for evaluator in evaluators.values():
                        evaluator.add(answered)
    finally:
        model.train(was_training)
    sets = {
        name: summarize(_gather(rows[name], names, num_examples, ranks))
        for name, num_examples in batches.num_examples.items()
    }
    gather = ranks.gather_objects
    return Evaluation(sets, {name: one.finish(gather) for name, one in evaluators.items()})


def think(forward: Forward, model: ACTLossHead, examples: Examples) -> LossOutput:
    """Run all ACT steps on fresh examples, in evaluation mode; returns the last step."""
    carry = model.initial_carry(examples)
    for _ in range(model.model.halt_max_steps - 1):
        carry = forward(carry, examples).carry
    return forward(carry, examples)


def _answered_rows(batch: Batch, step: LossOutput, count: int) -> AnsweredRows:
    """Return the first `count` rows, those that are no padding, on the host."""
    return AnsweredRows(
        inputs=batch.inputs[:count],
        labels=batch.labels[:count],
        puzzle_identifiers=batch.puzzle_identifiers[:count],
        preds=step.outputs["logits"][:count].argmax(-1).int().cpu().numpy(),
        q_halt_logits=step.outputs["q_halt_logits"][:count].float().cpu().numpy(),
    )


def _gather(
    local: list[Tensor], names: tuple[str, ...], num_examples: int, ranks: Ranks
) -> Mapping[str, np.ndarray]:
    """Bring the row values [b, M] of all batches and ranks together: [num_examples] by name."""
    if not local:
        return {name: np.zeros(0, np.float32) for name in names}
    by_rank = ranks.concat(torch.stack(local).unsqueeze(0))  # [rank, batch, b, M]
    values = by_rank.transpose(0, 1).reshape(-1, len(names))[:num_examples].float()
    return dict(zip(names, ranks.to_host(values).numpy().T, strict=True))
