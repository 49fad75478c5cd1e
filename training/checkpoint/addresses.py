"""Checkpoints on other machines: their addresses begin with a scheme, as in hf://OWNER/NAME."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

SCHEMES: dict[str, Callable[[], Callable[[str], Any]]] = {}
"""For each scheme, a function that imports and returns its parser. The parser takes an address, and
raises CheckpointError if it is malformed. `apps.hub.config` registers the one for hf.
"""


def parse_address(path: Path | str) -> Any:
    """Return the parsed address (an `apps.hub.address.Address`), or None for a local path."""
    scheme, slash, _ = str(path).partition(":/")
    return SCHEMES[scheme]()(str(path)) if slash and scheme in SCHEMES else None
