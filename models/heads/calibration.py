"""How the calibration of confidences is reported. Imports no torch: evaluation's reports use it."""

from collections.abc import Mapping

NUM_BINS = 10
GAPS = tuple(f"confidence_bin{i}_gap" for i in range(NUM_BINS))
CALIBRATION_ERROR = "confidence_calibration_error"


def with_calibration_error(figures: Mapping[str, float]) -> dict[str, float]:
    """Fold the mean gaps of the bins into the expected calibration error (arXiv:1706.04599), the
    sum over the bins of |mean gap|, where there are any.

    Only means over all that is reported may be folded: in one row the gaps are mere noise.
    """
    gaps = [figures[name] for name in GAPS if name in figures]
    folded = {name: value for name, value in figures.items() if name not in GAPS}
    return folded | ({CALIBRATION_ERROR: sum(map(abs, gaps))} if gaps else {})
