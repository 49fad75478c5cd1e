"""How the calibration of confidences is reported. Imports no torch: evaluation's reports use it."""

from collections.abc import Mapping

NUM_BINS = 10
GAPS = tuple(f"confidence_bin{i}_gap" for i in range(NUM_BINS))
CALIBRATION_ERROR = "confidence_calibration_error"


def with_calibration_error(figures: Mapping[str, float]) -> dict[str, float]:
    """Fold the mean gaps of the bins, where there are any, into the expected calibration error
    (arXiv:1706.04599), the sum of |mean gap|. Only means over all rows may be folded.
    """
    gaps = [figures[name] for name in GAPS if name in figures]
    folded = {name: value for name, value in figures.items() if name not in GAPS}
    return folded | ({CALIBRATION_ERROR: sum(map(abs, gaps))} if gaps else {})
