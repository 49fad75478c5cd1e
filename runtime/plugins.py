"""Import plug-ins: modules of the user that register parts of their own (`runtime.registry`).

Only a command line or the user's own configuration names them, never a checkpoint or a data set.
"""

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from runtime.errors import ConfigError
from runtime.registry import CONFIG_FOLDERS, Registry, rebuild_schemas
from runtime.text import shown

IMPORTED: list[str] = []
"""Names of the plug-ins imported so far."""
ADDED: list[tuple[Registry, str]] = []
"""What they have registered."""


def import_plugins(names: Sequence[str]) -> None:
    """Import modules, found as Python finds them or in the current folder, and let all schemas
    know what they register.

    Raises:
        ConfigError: a module cannot be imported, or registers what is there already.
    """
    new = [name for name in names if name not in IMPORTED]
    if not new:
        return
    before, folders = _all_parts(), list(CONFIG_FOLDERS)
    for name in new:
        try:
            if importlib.util.find_spec(name.partition(".")[0]) is None:
                sys.path.append(str(Path.cwd()))
            importlib.import_module(name)
        except (Exception, SystemExit) as error:
            reason = f"{type(error).__name__}: {error}"
            raise ConfigError(f"plugins=[{shown(name)}]: {shown(reason, 300)}") from error
        IMPORTED.append(name)
    added = [part for part in _all_parts() if part not in before]
    if not added and folders == CONFIG_FOLDERS:
        raise ConfigError(
            f"plugins=[{', '.join(new)}]: {sys.modules[new[0]].__file__} registers nothing"
        )
    ADDED.extend(added)
    try:
        rebuild_schemas()
    except ConfigError as error:
        raise ConfigError(f"plugins=[{', '.join(new)}]: {error}") from None


def _all_parts() -> list[tuple[Registry, str]]:
    return [(registry, name) for registry in Registry.all for name in registry]
