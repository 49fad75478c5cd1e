"""Names of what an ACT step reads and gives, as an evaluation saves it. Imports no torch."""

from typing import Literal

OutputField = Literal[
    "inputs",
    "labels",
    "puzzle_identifiers",
    "preds",
    "logits",
    "q_halt_logits",
    "q_continue_logits",
]
