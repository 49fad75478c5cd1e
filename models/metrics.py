"""Turn sums over rows into reported metrics, for training and evaluation. Imports no torch."""

from collections.abc import Mapping

from models.config import AUXILIARY_HEADS


def is_loss(name: str) -> bool:
    """Return whether a metric is a loss, averaged over all rows. All other metrics are averaged
    over the `count` rows that have labels and, in training, halted at this step.

    A row without labels has lm_loss 0 and counts as right for q_halt_loss.
    """
    return name.endswith("_loss")


def mean_metrics(sums: Mapping[str, float], num_rows: int) -> dict[str, float]:
    """Divide a step's losses by `num_rows`, other metrics by `sums["count"]`; at count 0 omit the
    others. Also omit what heads would combine: a step has too few rows for a calibration error.
    """
    count = sums["count"]
    means = {"count": count}
    for name, value in sums.items():
        if is_loss(name):
            means[name] = value / num_rows
        elif name != "count" and count > 0:
            means[name] = value / count
    reported = as_reported(means)
    return {name: value for name, value in means.items() if name in reported}


def as_reported(figures: Mapping[str, float]) -> dict[str, float]:
    """Let each auxiliary head replace its internal metrics by reported ones: the confidence head
    turns its gaps into the calibration error. Pass means over all rows, never of one batch.
    """
    folded = dict(figures)
    for name in AUXILIARY_HEADS:
        folded = AUXILIARY_HEADS[name].schema.reported(folded)
    return folded
