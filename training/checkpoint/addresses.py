"""Checkpoints that are not on this machine: their addresses begin with a scheme, hf://OWNER/NAME."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol


class Address(Protocol):
    """Where a checkpoint is."""

    @property
    def folder_name(self) -> str:
        """A name for what belongs to it on this machine."""
        ...

    def fetch(self) -> tuple[Path, str]:
        """Fetch what is missing; returns the folder that holds the checkpoint, and the address with
        its version. CheckpointError: it cannot be reached.
        """
        ...


SCHEMES: dict[str, Callable[[], Callable[[str], Address | None]]] = {}
"""By scheme what imports and returns the function that reads an address. What fetches from there
registers it; the function raises CheckpointError for what only begins like one.
"""


def parse_address(path: Path | str) -> Address | None:
    """Return what an address says; None: it is a path on this machine."""
    scheme, slash, _ = str(path).partition(":/")
    return SCHEMES[scheme]()(str(path)) if slash and scheme in SCHEMES else None
