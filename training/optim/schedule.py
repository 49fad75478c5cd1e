"""Learning rate schedule: linear warm-up, then cosine."""

import math


def lr_factor(step: int, *, warmup_steps: int, total_steps: int, min_ratio: float) -> float:
    """Return the learning rate at `step`, as a share of the peak rate.

    Args:
        step: from 1.
        warmup_steps: length of the linear rise; at `step == warmup_steps` the factor is 1.
        total_steps: step with the factor `min_ratio`. After it that rises again, as published.
    """
    if step < warmup_steps:
        return step / max(1, warmup_steps)
    progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    return min_ratio + max(0.0, (1 - min_ratio) * 0.5 * (1 + math.cos(math.pi * progress)))


def published_total_steps(
    epochs: int, total_groups: int, mean_puzzle_examples: float, global_batch_size: int
) -> int:
    """Return the number of steps in the published schedule, which also counts the batches that are
    dropped at the end of an iteration.

    Args:
        epochs: passes over the groups.
        mean_puzzle_examples: examples of a puzzle.
        global_batch_size: sequences of a step, over all ranks.
    """
    return int(epochs * total_groups * mean_puzzle_examples / global_batch_size)
