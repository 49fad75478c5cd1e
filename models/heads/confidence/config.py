"""Settings of the confidence of each cell, and how its calibration is reported."""

from collections.abc import Mapping

from models.heads.config import AUXILIARY_HEADS, AuxiliaryHeadConfig
from runtime.registry import imported

NUM_BINS = 10
GAPS = tuple(f"confidence_bin{i}_gap" for i in range(NUM_BINS))
CALIBRATION_ERROR = "confidence_calibration_error"


class ConfidenceHeadConfig(AuxiliaryHeadConfig):
    """Is the token of each cell right? Its calibration is measured as in arXiv:1706.04599.

    When it helps: where some cells cannot be known, and the wrong ones are to be found. On Sudokus
    of which half have too few clues it was right about 86 % of the cells, with a calibration error
    of 0.026 (docs/heads.md). Early in the training it costs the tokens a little accuracy, unless it
    has `detach: true`.
    """

    @classmethod
    def reported(cls, figures: Mapping[str, float]) -> dict[str, float]:
        """Fold the mean gaps of the bins, where there are any, into the expected calibration error
        (arXiv:1706.04599), the sum of |mean gap|.
        """
        gaps = [figures[name] for name in GAPS if name in figures]
        folded = {name: value for name, value in figures.items() if name not in GAPS}
        return folded | ({CALIBRATION_ERROR: sum(map(abs, gaps))} if gaps else {})


AUXILIARY_HEADS.add(
    "confidence",
    ConfidenceHeadConfig,
    imported("models.heads.confidence.model", "ConfidenceHead"),
    "is the token of each cell right?",
    place=0,
)
