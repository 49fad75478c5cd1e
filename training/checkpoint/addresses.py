"""Checkpoints that are not on this machine: their addresses begin with a scheme, hf://OWNER/NAME."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

SCHEMES: dict[str, Callable[[], Callable[[str], Any]]] = {}
"""By scheme what imports and returns the function that reads an address, or raises CheckpointError
for what only begins like one. What fetches from there registers it: see `apps.hub.address`.
"""


def parse_address(path: Path | str) -> Any:
    """Return what an address says, such as an `apps.hub.address.Address`; None: it is a path on
    this machine.
    """
    scheme, slash, _ = str(path).partition(":/")
    return SCHEMES[scheme]()(str(path)) if slash and scheme in SCHEMES else None
