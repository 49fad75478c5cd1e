"""Checkpoints of the zoo: zoo:NAME. The folder zoo/NAME holds the weights, the state of their run
(config.yaml), a card, a score, and a manifest with the hash of each file. Imports no torch.
"""

from pathlib import Path
from typing import NamedTuple

from dataset.kinds.base import Kind
from runtime.errors import CheckpointError, ConfigError
from runtime.text import shown
from training.checkpoint.store import MANIFEST
from training.config.explain import did_you_mean

ZOO = Path(__file__).resolve().parents[2] / "zoo"
SCHEME = "zoo:"
_CHOSEN = {
    ("sudoku", 4): "sudoku-4x4",
    ("sudoku", 6): "sudoku-6x6",
    ("sudoku", 9): "sudoku-search",
    ("arc", 30): "arc-demo",
    ("maze", None): "maze",
    ("latin_square", 8): "latin-square",
    ("queens", 8): "queens",
    ("colouring", None): "colouring",
    ("light_up", None): "light-up",
}
"""The model for puzzles of a kind and size, None for all sizes, if the user names none."""


class Address(NamedTuple):
    """A model of the zoo by name."""

    name: str

    @property
    def folder_name(self) -> str:
        """The name of its folder of results."""
        return f"zoo--{self.name}"

    def fetch(self) -> tuple[Path, str]:
        """Return its folder and its address."""
        return ZOO / self.name, f"{SCHEME}{self.name}"


def names() -> list[str]:
    """Return the names of all models."""
    return sorted(path.parent.name for path in ZOO.glob(f"*/{MANIFEST}"))


def parse_address(text: str) -> Address:
    """Return the parsed address; raise CheckpointError if the zoo has no such model."""
    name, known = text.removeprefix(SCHEME), names()
    if name not in known:
        hint = did_you_mean(name, known, SCHEME)
        said = f"{shown(text)}: the zoo has no such model{hint}"
        raise CheckpointError(f"{said}{' It' if hint else '; it'} has {', '.join(known)}")
    return Address(name)


def address_for(kind: Kind, size: int) -> str:
    """Return the address of the model that solves puzzles of this kind and size by default.

    Raises:
        ConfigError: there is none.
    """
    name = _CHOSEN.get((kind.key, size)) or _CHOSEN.get((kind.key, None))
    if name not in names():
        what = f"{kind.name} puzzles of {size} x {size} cells"
        raise ConfigError(f"the zoo has no model for {what}: set checkpoint= to a run's folder")
    return f"{SCHEME}{name}"
