"""The headline: the one figure that stands for a result. It is the share solved for a search,
pass@2 for ARC, the share of valid answers with the evaluator `rules` or of chains judged by the
rules, and else the exact accuracy. All commands, reports and tables take it from here.
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
    "rules/valid": "valid answers",
    "exact_accuracy": "exact accuracy",
}
"""The possible headlines by name; the first one that was measured counts."""


def headline_of(figures: Container[str], prefix: str = "") -> str | None:
    """Return the name of the headline among figures; names have a prefix such as `eval/`."""
    return next((prefix + key for key in MEASURES if prefix + key in figures), None)


def measure_in_words(name: str) -> str:
    """Return the words for the headline of this name; any other name is returned as it is."""
    return MEASURES.get(name.removeprefix("eval/"), name)


@dataclass(frozen=True)
class Score:
    """The headline of an evaluation.

    Attributes:
        name: of the measure, a key of MEASURES.
        estimate: its value, with its 95 % interval if known.
        count: number of measured puzzles; for ARC, of tasks.
        wrong: for a search, the share of wrong answers.
    """

    name: str
    estimate: Estimate
    count: int
    wrong: Estimate | None = None

    @property
    def counted(self) -> str:
        """The count in words: 1,000 puzzles, 10 tasks; "" if unknown."""
        thing = "task" if self.name == "arc/pass@2" else "puzzle"
        return f"{self.count:,} {thing}{'s' * (self.count != 1)}" if self.count else ""

    def __str__(self) -> str:
        """The last line of an evaluation's output."""
        wrong = f", wrong {self.wrong.with_interval()}" if self.wrong else ""
        what = f", {self.counted}" if self.counted else ""
        return f"{MEASURES[self.name]}: {self.estimate.with_interval()}{wrong}{what}"


def score_of(content: Mapping[str, Any]) -> Score | None:
    """Return the headline of an evaluation's JSON, of any version; None if nothing was scored, or
    if there are chains with several numbers of steps, numbers of chains or choices.
    """
    readers = (_of_search, _of_votes, _of_rules, _of_puzzles, _of_chains)
    return next((score for reader in readers if (score := reader(content))), None)


def arc_interval(share: float, num_tasks: int) -> Estimate:
    """Return the mean of the tasks' shares with its Wilson interval. A task's share of solved test
    outputs varies at most as much as a yes or no with the same mean, so the interval is wide
    enough, also for few tasks.
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
    by_rules = any(number(at(one, "distinct")) is not None for one in lines)
    return Score("rules/valid" if by_rules else "exact_accuracy", *found) if found else None


def _over_sets(lines: list[Any], name: str) -> tuple[Estimate, int] | None:
    """Return a share over the puzzles of all sets (one of `lines` each), and their number."""
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


def _of_rules(content: Mapping[str, Any]) -> Score | None:
    details = at(content, "evaluators", "rules", "details")
    valid, count = estimate_of(at(details, "valid")), number(at(details, "num_examples"))
    return Score("rules/valid", valid, int(count or 0)) if valid else None


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
    """Return a key to order the results of a run; the largest one stands for the run. First come
    results on all of the run's own test puzzles (the newest weights first, then the run's own
    settings), then samples of these, the largest first, then other test data, then training data.

    Args:
        own: the run's test folders, the parents of `test`; empty if unknown.
    """
    folders = [os.path.normpath(str(folder)) for folder in listed(content.get("data"))]
    is_test = any(folder.endswith("test") for folder in folders)
    wanted = [os.path.normpath(f"{folder}/test") for folder in own]
    # One of the two paths may be relative.
    same = [f"/{a}".endswith(f"/{b}") or f"/{b}".endswith(f"/{a}") for a in folders for b in wanted]
    is_own = is_test and (not own or len(own) == len(folders) == sum(same))
    different = differs(content)
    is_whole = is_own and not any(part.startswith("first") for part in different)
    puzzles = number(at(content, "metrics", "count")) or score.count
    kind = -list(MEASURES).index(score.name)
    step = number(content.get("step")) or 0
    return is_test + is_own + is_whole, not is_whole and puzzles, step, not different, kind


def differs(content: Mapping[str, Any]) -> list[str]:
    """Return the differences from the run's own evaluations, as in `Job.differs`. Of a result of an
    older version only some are known.
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
