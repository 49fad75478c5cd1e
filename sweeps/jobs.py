"""The jobs of a sweep: one for each combination of the values that the command line lists."""

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.types import Glob, Override

from runtime.errors import ConfigError
from runtime.text import shown

_LONGEST_NAME = 120


@dataclass(frozen=True)
class Job:
    """One run of a sweep.

    Attributes:
        name: what differs from the other jobs, as a folder's name: "lr-0.001__seed-0".
        values: the swept settings, as they are written on a command line.
        overrides: of the whole command line, swept settings included.
    """

    name: str
    values: dict[str, str]
    overrides: tuple[str, ...]


def swept(overrides: Iterable[Override]) -> list[Override]:
    """Return the overrides that list several values, or an interval."""
    return [override for override in overrides if override.is_sweep_override()]


def expand(overrides: Sequence[Override], choices: Callable[[str], list[str]]) -> list[Job]:
    """List the jobs in the order in which a reader would count: the last setting changes fastest.

    Args:
        overrides: of the command line; of two for one key the last one counts.
        choices: returns the choices of a group, for `glob(...)`.
    Raises:
        ConfigError: an interval, which only a search can take, or a `glob` that finds nothing.
    """
    values = {o.key_or_group: _values(o, choices) for o in swept(overrides)}
    return [
        job(overrides, dict(zip(values, chosen, strict=True)))
        for chosen in itertools.product(*values.values())
    ]


def job(overrides: Sequence[Override], values: dict[str, str]) -> Job:
    """Return the job that gives the swept settings these values, as text for a command line."""
    fixed = [override.input_line for override in overrides if not override.is_sweep_override()]
    keys = {override.key_or_group: override.get_key_element() for override in swept(overrides)}
    return Job(
        _name(values), values, (*fixed, *(f"{keys[key]}={value}" for key, value in values.items()))
    )


def quoted(text: object) -> str:
    """Write a text as a value of Hydra's grammar, which has meanings for commas and the like."""
    return "'" + re.sub(r"(\\*)'", r"\1\1\\'", re.sub(r"(\\+)$", r"\1\1", str(text))) + "'"


def digest(*parts: Any) -> str:
    """Return ten letters that stand for values which JSON can write."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:10]


def _values(override: Override, choices: Callable[[str], list[str]]) -> list[str]:
    key = override.key_or_group
    if not override.is_discrete_sweep():
        raise ConfigError(
            f"{shown(override.input_line)}: an interval needs a search: add hydra/sweeper=optuna"
        )
    value = override.value()
    if isinstance(value, Glob):
        found = value.filter(choices(key))
        if not found:
            raise ConfigError(f"{shown(override.input_line)}: no choice of {key} has such a name")
        return found
    return list(dict.fromkeys(override.sweep_string_iterator()))


def _name(values: dict[str, str]) -> str:
    """Write the values as a folder's name that needs no quotes on a command line."""
    leaves = [key.rpartition(".")[2] for key in values]
    keys = leaves if len(set(leaves)) == len(leaves) else list(values)
    plain = "__".join(f"{key}-{value}" for key, value in zip(keys, values.values(), strict=True))
    name = re.sub(r"[^A-Za-z0-9_.+-]+", ".", plain)[:_LONGEST_NAME]
    return name if name == plain else f"{name}.{digest(values)}"
