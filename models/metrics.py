"""How sums over rows become what is reported, in training and in evaluation. Imports no torch."""

from collections.abc import Mapping

from models.config import AUXILIARY_HEADS


def is_loss(name: str) -> bool:
    """Whether a metric is a loss: a mean over all rows. The others are means over the `count` rows
    that have labels (in training: and halted at this step).

    A row without labels has lm_loss 0 and counts as right for q_halt_loss.
    """
    return name.endswith("_loss")


def mean_metrics(sums: Mapping[str, float], num_rows: int) -> dict[str, float]:
    """Turn sums into means: losses over `num_rows`, the others over `sums["count"]`, left out where
    that is 0.
    """
    count = sums["count"]
    means = {"count": count}
    for name, value in sums.items():
        if is_loss(name):
            means[name] = value / num_rows
        elif name != "count" and count > 0:
            means[name] = value / count
    return as_reported(means)


def as_reported(figures: Mapping[str, float]) -> dict[str, float]:
    """Let each head fold its figures into those that are reported, such as the gaps of the
    confidence into its calibration error. Only means over all rows may be folded.
    """
    folded = dict(figures)
    for name in AUXILIARY_HEADS:
        folded = AUXILIARY_HEADS[name].schema.reported(folded)
    return folded
