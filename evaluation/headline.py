"""The one figure that stands for a result. Commands, lists, reports, cards and the tables of sweeps
all ask here: ARC has pass@2, a search what it solved, anything else the exact accuracy.
"""

import os
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evaluation.metrics import Estimate, wilson
from evaluation.values import at, estimate_of, items, listed, number, share_of

MEASURES = {
    "solved": "solved by search",
    "arc/pass@2": "ARC pass@2",
    "exact_accuracy": "exact accuracy",
}
"""The measures by their names among figures, the first one that was measured counts."""


def headline_of(figures: Container[str], prefix: str = "") -> str | None:
    """Return which of the figures, named with a prefix such as `eval/`, is the headline."""
    return next((prefix + key for key in MEASURES if prefix + key in figures), None)


def measure_in_words(name: str) -> str:
    """Return what a headline measures, by its name among figures; other names stay."""
    return MEASURES.get(name.removeprefix("eval/"), name)


@dataclass(frozen=True)
class Score:
    """The headline of an evaluation.

    Attributes:
        name: of the measure, a key of MEASURES.
        estimate: its value, with its 95 % interval where that is known.
        count: of the puzzles that were measured; of ARC, the tasks.
        wrong: of a search, the share that it answered wrongly.
    """

    name: str
    estimate: Estimate
    count: int
    wrong: Estimate | None = None

    @property
    def counted(self) -> str:
        """What was measured: 1,000 puzzles, 10 tasks; "" where that is not known."""
        thing = "task" if self.name == "arc/pass@2" else "puzzle"
        return f"{self.count:,} {thing}{'s' * (self.count != 1)}" if self.count else ""

    def __str__(self) -> str:
        """The line that ends an evaluation's table."""
        wrong = f", wrong {self.wrong.with_interval()}" if self.wrong else ""
        what = f", {self.counted}" if self.counted else ""
        return f"{MEASURES[self.name]}: {self.estimate.with_interval()}{wrong}{what}"


def score_of(content: Mapping[str, Any]) -> Score | None:
    """Return the headline of an evaluation's JSON, of any version; None where nothing was scored,
    or where chains of several depths, breadths or choices were.
    """
    return _of_search(content) or _of_votes(content) or _of_puzzles(content) or _of_chains(content)


def arc_interval(share: float, num_tasks: int) -> Estimate:
    """Return a mean over tasks of shares with its interval: Wilson's for so many trials. A share of
    a task's test outputs varies no more than a yes or no of the same mean, so that the interval is
    wide enough, also for few tasks; where tasks have one test output each it is Wilson's itself.
    """
    return replace(wilson(share * num_tasks, num_tasks), value=share)


def _of_search(content: Mapping[str, Any]) -> Score | None:
    lines = [one for one in listed(content.get("searchers")) if at(one, "searcher") == "model"]
    solved, wrong = (_over_sets(lines, name) for name in ("solved", "wrong"))
    return Score("solved", *solved, wrong[0] if wrong else None) if solved else None


def _of_chains(content: Mapping[str, Any]) -> Score | None:
    lines = listed(content.get("chains"))
    if len({tuple(str(at(one, n)) for n in ("depth", "breadth", "select")) for one in lines}) != 1:
        return None
    found = _over_sets(lines, "selected")
    return Score("exact_accuracy", *found) if found else None


def _over_sets(lines: list[Any], name: str) -> tuple[Estimate, int] | None:
    """Return a share over the puzzles of all sets, a line each, and their number."""
    known = [(estimate_of(at(one, name)), number(at(one, "num_puzzles"))) for one in lines]
    parts = [(share, int(count)) for share, count in known if share is not None and count]
    if len(parts) < 2:
        return next(iter(parts), None)
    total = sum(count for _, count in parts)
    found = share_of(sum(share.value * count for share, count in parts) / total, total)
    return (found, total) if found else None


def _of_votes(content: Mapping[str, Any]) -> Score | None:
    found, counted = at(content, "evaluators", "arc", "metrics"), "num_scored_tasks"
    value, details = number(at(found, "pass@2")), at(content, "evaluators", "arc", "details")
    if value is None:
        return None
    count = int(number(at(details, counted)) or 0)
    known = estimate_of(at(details, "pass@2"))
    if known is None and 0 <= value <= 1 and 0 < count < 2**53:
        known = arc_interval(value, count)
    return Score("arc/pass@2", known or Estimate(value, None, None), count)


def _of_puzzles(content: Mapping[str, Any]) -> Score | None:
    metrics, sets = content.get("metrics"), items(content.get("sets"))
    value, count = number(at(metrics, "exact_accuracy")), int(number(at(metrics, "count")) or 0)
    if value is None:
        return None
    estimate = share_of(value, count) or Estimate(value, None, None)
    if len(sets) == 1:
        estimate = estimate_of(at(sets[0][1], "metrics", "exact_accuracy")) or estimate
    return Score("exact_accuracy", estimate, count)


def weight_of(content: Mapping[str, Any], score: Score, own: Sequence[str]) -> tuple[float, ...]:
    """Return a key by which the result that stands for a run is the largest: all of the run's own
    test puzzles first, of these the newest weights measured as the run would; then the larger
    sample; then other test data; then data of training.

    Args:
        own: the run's test folders, which hold `test`; none where they are not known.
    """
    folders = [os.path.normpath(str(folder)) for folder in listed(content.get("data"))]
    is_test = any(folder.endswith("test") for folder in folders)
    wanted = [os.path.normpath(f"{folder}/test") for folder in own]
    # They may be named from the root in one place only.
    same = [f"/{a}".endswith(f"/{b}") or f"/{b}".endswith(f"/{a}") for a in folders for b in wanted]
    is_own = is_test and (not own or len(own) == len(folders) == sum(same))
    told = differs(content)
    is_whole = is_own and not any(part.startswith("first") for part in told)
    puzzles = number(at(content, "metrics", "count")) or score.count
    kind = -list(MEASURES).index(score.name)
    step = number(content.get("step")) or 0
    return is_test + is_own + is_whole, not is_whole and puzzles, step, not told, kind


def differs(content: Mapping[str, Any]) -> list[str]:
    """Return what a result was measured otherwise than its run would, as far as its version says
    it, as names of files do.
    """
    if isinstance(content.get("differs"), list):
        return list(map(str, content["differs"]))
    sample = content.get("max_examples")
    parts = {
        f"first{sample}": sample is not None,
        "at_halt": content.get("halting") == "q",
        "last_weights": content.get("weights") == "last",
        "thinking": "thinking" in content,
    }
    return [part for part, is_so in parts.items() if is_so]
