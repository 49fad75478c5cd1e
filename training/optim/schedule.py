"""Learning rate schedule: linear warm-up, then cosine."""

import math


def lr_factor(step: int, *, warmup_steps: int, total_steps: int, min_ratio: float) -> float:
    """Return the share of the peak rate at `step`.

    Args:
        step: optimizer steps done, this one included: the first update is made at step 1.
        warmup_steps: steps of the linear rise; at `step == warmup_steps` the factor is 1.
        total_steps: steps at which the cosine reaches `min_ratio`. It turns up again after that, as
            published.
        min_ratio: factor at the end.
    """
    if step < warmup_steps:
        return step / max(1, warmup_steps)
    progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    return min_ratio + max(0.0, (1 - min_ratio) * 0.5 * (1 + math.cos(math.pi * progress)))


def published_total_steps(
    epochs: int, total_groups: int, mean_puzzle_examples: float, global_batch_size: int
) -> int:
    """Return the published number of steps, which the schedule uses; batches dropped at the end of
    an iteration count.
    """
    return int(epochs * total_groups * mean_puzzle_examples / global_batch_size)
