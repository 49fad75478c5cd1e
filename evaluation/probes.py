"""The registry of probes, which measure what a model does between a question and its answer.
`evaluate.py probes=[NAME, {name: NAME, ...}]` runs them. Imports no torch.
"""

from typing import Annotated

from runtime.registry import NAMED, Registry
from runtime.schema import Schema


class ProbeConfig(Schema):
    """The base of the settings of probes."""

    name: str


PROBES = Registry("probe", ProbeConfig)
"""Functions of the settings and an `apps.inside.course.Course`."""
AnyProbe = Annotated[ProbeConfig, PROBES, NAMED]
