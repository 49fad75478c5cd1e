"""Recursive reasoning models from Python: solve puzzles, watch a model think, evaluate, train.

    import recursive_reasoning as rr

    rr.load("zoo:sudoku-search").solve("53..7....6..195....98....6.8...6...34..8.3..17...2...")

Importing this package loads no torch. Errors are those of the command line, as exceptions.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from runtime.errors import (
    CheckpointError,
    ConfigError,
    DatasetError,
    LockedError,
    NonFiniteError,
    Preempted,
)

if TYPE_CHECKING:
    from apps.reports.answers import Answer, Step
    from recursive_reasoning.model import Model, build, load, train

__all__ = ["Answer", "CheckpointError", "ConfigError", "DatasetError", "LockedError", "Model"]
__all__ += ["NonFiniteError", "Preempted", "Step", "build", "load", "train"]

_PLACES = {"Answer": "apps.reports.answers", "Step": "apps.reports.answers"}
_PLACES |= dict.fromkeys(("Model", "build", "load", "train"), "recursive_reasoning.model")


def __getattr__(name: str) -> Any:
    """Import a name of this package at its first use."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return __all__
