"""The jobs of a sweep: one for each combination of the values on the command line."""

import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from hydra.core.override_parser.types import Glob, Override

from runtime.errors import ConfigError
from runtime.text import shown

_LONGEST_NAME = 120


class Job(NamedTuple):
    """A job of a sweep: a training run or an evaluation.

    Attributes:
        name: the swept settings as the name of a folder: "lr-0.001__seed-0".
        values: the swept settings, as text for a command line.
        overrides: the whole command line, including the swept settings.
    """

    name: str
    values: dict[str, str]
    overrides: tuple[str, ...]


def swept(overrides: Iterable[Override]) -> list[Override]:
    """Return the overrides that list several values, or an interval."""
    return [override for override in overrides if override.is_sweep_override()]


def without_overruled(overrides: Sequence[Override]) -> list[Override]:
    """Leave out the lists of values for keys that are set again later: the last override counts."""
    last = {override.key_or_group: override for override in overrides}
    return [o for o in overrides if o is last[o.key_or_group] or not o.is_sweep_override()]


def expand(overrides: Sequence[Override]) -> list[Job]:
    """Return all combinations of the swept values as jobs; the last setting changes fastest.

    Raises:
        ConfigError: a setting has an interval or no value, or two jobs would have the same name.
    """
    values = {o.key_or_group: _values(o) for o in swept(overrides)}
    jobs = [
        job(overrides, dict(zip(values, chosen, strict=True)))
        for chosen in itertools.product(*values.values())
    ]
    name, count = Counter(job.name for job in jobs).most_common(1)[0]
    if count > 1:
        raise ConfigError(f"{count} jobs would share the folder {name}: leave out equal values")
    return jobs


def job(overrides: Sequence[Override], values: dict[str, str]) -> Job:
    """Return the job with these values of the swept settings, given as text for a command line."""
    fixed = [str(override.input_line) for override in overrides if not override.is_sweep_override()]
    keys = {override.key_or_group: override.get_key_element() for override in swept(overrides)}
    chosen = (f"{keys[key]}={value}" for key, value in values.items())
    return Job(_name(values), values, (*fixed, *chosen))


def digest(*parts: Any) -> str:
    """Return ten hexadecimal digits that identify values; JSON must be able to write them."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:10]


def _values(override: Override) -> list[str]:
    if not override.is_discrete_sweep() or isinstance(override.value(), Glob):
        raise ConfigError(
            f"{shown(override.input_line)}: list the values, a,b,c or range(1,4); an interval "
            "needs hydra/sweeper=optuna"
        )
    if not (values := list(dict.fromkeys(override.sweep_string_iterator()))):
        raise ConfigError(f"{shown(override.input_line)}: has no value")
    return values


def _name(values: dict[str, str]) -> str:
    """Return a folder's name for the values. It needs no quotes on a command line and does not
    depend on their order. [a,b] becomes a+b, a path its last part; a shortened name gets a digest.
    """
    leaves = [key.rpartition(".")[2] for key in values]
    keys = leaves if len(set(leaves)) == len(leaves) else list(values)
    texts = [_list_as_sum(value) for value in values.values()]
    ends = [text.rstrip("/'\"]").rpartition("/")[2] for text in texts]
    plain = [re.sub(r"[^A-Za-z0-9_.+-]+", ".", end).strip(".") for end in ends]
    parts = [f"{key}-{text}" for key, text in zip(keys, plain, strict=True)]
    name = "__".join(sorted(parts)) or "run"
    is_exact = plain == texts and len(name) <= _LONGEST_NAME
    return name if is_exact else f"{name[:_LONGEST_NAME]}.{digest(values)}"


def _list_as_sum(value: str) -> str:
    is_list = re.fullmatch(r"\[[\w.-]+(,[\w.-]+)*\]", value)
    return value[1:-1].replace(",", "+") if is_list else value
