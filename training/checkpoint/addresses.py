"""Checkpoints that are not on this machine.

Their addresses begin with a scheme, as hf://OWNER/NAME does; what fetches from there registers it.
"""

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
        the version that this is.

        Raises:
            CheckpointError: it is not there, or cannot be reached; says what to do.
        """
        ...


SCHEMES: dict[str, Callable[[], Callable[[str], Address | None]]] = {}
"""By scheme what imports and returns a function that reads an address; it raises CheckpointError
for what only begins like one.
"""


def parse_address(path: Path | str) -> Address | None:
    """Return what an address says; None: it is a path on this machine."""
    scheme, slash, _ = str(path).partition(":/")
    return SCHEMES[scheme]()(str(path)) if slash and scheme in SCHEMES else None
