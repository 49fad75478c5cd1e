"""Import plug-ins: modules of the user that register parts of their own (`runtime.registry`).

Only a command line or the user's own configuration names them, never a checkpoint or a data set.
"""

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from runtime.errors import ConfigError
from runtime.schema import rebuild_schemas
from runtime.text import shown

_imported: list[str] = []


def import_plugins(names: Sequence[str]) -> None:
    """Import modules, found as Python finds them or in the current folder, and let all schemas
    know what they register.

    Raises:
        ConfigError: a module cannot be imported, or registers what is there already.
    """
    new = [name for name in names if name not in _imported]
    if not new:
        return
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    for name in new:
        try:
            importlib.import_module(name)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise ConfigError(f"plugins=[{shown(name)}]: {shown(reason, 300)}") from error
        _imported.append(name)
    rebuild_schemas()


def plugins_added() -> list[str]:
    """Return the override that names the plug-ins imported so far; [] where there are none."""
    return [f"plugins=[{','.join(_imported)}]"] if _imported else []
