"""The jobs of a sweep: one for each combination of the values that the command line lists."""

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


def without_overruled(overrides: Sequence[Override]) -> list[Override]:
    """Leave out lists of values of keys that are set once more later: the last one counts."""
    last = {override.key_or_group: override for override in overrides}
    return [o for o in overrides if o is last[o.key_or_group] or not o.is_sweep_override()]


def expand(overrides: Sequence[Override]) -> list[Job]:
    """List the jobs in the order in which a reader would count: the last setting changes fastest.

    Raises:
        ConfigError: an interval, which only a search can take, or two jobs with the same name.
    """
    values = {o.key_or_group: _values(o) for o in swept(overrides)}
    jobs = [
        job(overrides, dict(zip(values, chosen, strict=True)))
        for chosen in itertools.product(*values.values())
    ]
    name, count = Counter(job.name for job in jobs).most_common(1)[0]
    if count > 1:
        raise ConfigError(f"{count} jobs would share the folder {name}: leave out what is the same")
    return jobs


def job(overrides: Sequence[Override], values: dict[str, str]) -> Job:
    """Return the job that gives the swept settings these values, as text for a command line."""
    fixed = [str(override.input_line) for override in overrides if not override.is_sweep_override()]
    keys = {override.key_or_group: override.get_key_element() for override in swept(overrides)}
    chosen = (f"{keys[key]}={value}" for key, value in values.items())
    return Job(_name(values), values, (*fixed, *chosen))


def digest(*parts: Any) -> str:
    """Return ten letters that stand for values which JSON can write."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:10]


def _values(override: Override) -> list[str]:
    if not override.is_discrete_sweep() or isinstance(override.value(), Glob):
        raise ConfigError(
            f"{shown(override.input_line)}: list the values, a,b,c or range(1,4); an interval "
            "needs a search: add hydra/sweeper=optuna"
        )
    return list(dict.fromkeys(override.sweep_string_iterator()))


def _name(values: dict[str, str]) -> str:
    """Write the values as a folder's name that needs no quotes on a command line, whatever the
    order in which they were given: [a,b] is a+b, of a path the last part is shown, and what is not
    written in full gets a digest.
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
