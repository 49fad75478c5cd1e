"""Tables of figures as text, JSON and CSV. Imports no torch."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

import numpy as np

from evaluation.metrics import Estimate
from runtime.text import in_columns

Cell = Estimate | float | str | None


def as_text(names: Sequence[str], lines: Iterable[Sequence[Cell]], explained: str) -> str:
    """Return a table with these column names, and a line that explains it. Estimates have their
    95 % intervals; None is a dash.
    """
    rows = [names, *([_shown(cell) for cell in line] for line in lines)]
    return f"{in_columns(rows)}\n{explained}"


def _shown(cell: Cell) -> str:
    if isinstance(cell, Estimate):
        return cell.with_interval()
    if isinstance(cell, float):
        return f"{cell:.4f}"
    return "-" if cell is None else str(cell)


def plain(value: Any) -> Any:
    """Turn a figure, or lists, dicts and objects of figures, into a JSON-ready value. NaN and
    infinity become text ("nan"), since JSON cannot express them.
    """
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if is_dataclass(value):
        value = vars(value)
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def rows_as_csv(names: Iterable[str], sets: Mapping[str, Mapping[str, np.ndarray | None]]) -> str:
    """Return CSV with a line for each row of all sets: the set, the row's number, and its values.

    Args:
        names: of the values, in order.
        sets: the values [rows] of each set, by name; NaN and None become empty fields.
    """
    names = list(names)
    lines = [",".join(["set", "index", *names])]
    for set_name, values in sets.items():
        given = (column for name in names if (column := values[name]) is not None)
        number = min(map(len, given), default=0)
        texts = [_texts(values[name], number) for name in names]
        for index, row in enumerate(zip(*texts, strict=True)):
            lines.append(",".join([set_name, str(index), *row]))
    return "\n".join(lines) + "\n"


def _texts(values: np.ndarray | None, number: int) -> list[str]:
    if values is None:
        return [""] * number
    if not np.issubdtype(values.dtype, np.floating):
        return [str(value) for value in values[:number].tolist()]
    return ["" if math.isnan(value) else f"{value:.6g}" for value in values[:number].tolist()]
