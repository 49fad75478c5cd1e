"""Checkpoints outside the runs' folders: their addresses begin with a scheme, as in hf://OWNER/NAME
and zoo:NAME.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

SCHEMES: dict[str, Callable[[], Callable[[str], Any]]] = {}
"""For each scheme, a function that imports and returns its parser. The parser takes an address, and
raises CheckpointError if it is malformed. `apps.hub.config` registers the one for hf, and
`apps.zoo.config` the one for zoo.
"""


def parse_address(path: Path | str) -> Any:
    """Return the parsed address, or None for a local path. It has `folder_name`, the name of its
    folder of results, and the method `fetch`; see `apps.hub.address.Address`.
    """
    scheme, colon, _ = str(path).partition(":")
    return SCHEMES[scheme]()(str(path)) if colon and scheme in SCHEMES else None
