"""The settings of our probes. Imports no torch."""

from evaluation.probes import PROBES, ProbeConfig
from runtime.registry import imported
from runtime.schema import Count, PositiveFloat


class FateConfig(ProbeConfig):
    tolerance: PositiveFloat = 0.01
    """states are the same if they differ by at most this share of their norm"""
    longest_cycle: Count = 8
    """the longest cycle to look for, in ACT steps"""


class LyapunovConfig(ProbeConfig):
    size: PositiveFloat = 1e-3
    """distance of the second start, as a share of the state's norm"""
    steps: Count = 16
    """ACT steps over which the exponent is the mean"""


class InfluenceConfig(ProbeConfig):
    puzzles: Count = 8
    """measured for the first puzzles of each set"""
    size: PositiveFloat = 0.5
    """change of a cell's state, as a share of its norm"""
    at_step: Count | None = None
    """the ACT step after which a state is changed; null: the middle one"""


class EscapesConfig(ProbeConfig):
    chains: Count = 4
    """further tries of each way for each puzzle; in views, as many as the puzzles have"""
    noise: PositiveFloat = 0.3
    """standard deviation of the noise after each step"""


class PathConfig(ProbeConfig):
    puzzles: Count = 8
    """drawn for the first puzzles of each set"""


for _name, _schema, _text in (
    ("residual", ProbeConfig, "the change of the state in each step"),
    ("fate", FateConfig, "fixed point, cycle, drift, or still moving"),
    ("lyapunov", LyapunovConfig, "whether nearby states come closer or part"),
    ("stability", ProbeConfig, "whether a model stays at a solution, and fills one open cell"),
    ("readout", ProbeConfig, "what each latent would answer"),
    ("influence", InfluenceConfig, "which cells change when one cell's state is changed"),
    ("escapes", EscapesConfig, "how often noise, another start or a view cures a wrong answer"),
    ("path", PathConfig, "the way of the state in its plane"),
):
    PROBES.add(_name, _schema, imported("apps.inside.probes", _name), _text)
