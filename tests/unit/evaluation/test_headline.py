from typing import Any

import pytest

from evaluation.headline import headline_of, score_of, weight_of
from evaluation.metrics import wilson

SHARE = {"value": 0.5, "low": 0.4, "high": 0.6}
PLAIN = {"metrics": {"exact_accuracy": 0.25, "count": 20}, "data": ["data/x/test"], "step": 8}
ARC = {"evaluators": {"arc": {"metrics": {"pass@2": 0.25}, "details": {"num_scored_tasks": 10}}}}
RULES = {"evaluators": {"rules": {"details": {"num_examples": 20, "valid": SHARE}}}}
SEARCHER = {"searcher": "model", "solved": SHARE, "wrong": SHARE | {"value": 0.1}}
LINE = {"depth": 4, "breadth": 1, "select": "q", "selected": SHARE, "num_puzzles": 20}


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (PLAIN, "exact accuracy: 0.2500 [0.1119, 0.4687], 20 puzzles"),
        (PLAIN | ARC, "ARC pass@2: 0.2500 [0.0809, 0.5578], 10 tasks"),
        (PLAIN | RULES, "valid answers: 0.5000 [0.4000, 0.6000], 20 puzzles"),
        (
            {"searchers": [SEARCHER | {"num_puzzles": 1}, SEARCHER | {"searcher": "solver"}]},
            "solved by search: 0.5000 [0.4000, 0.6000], wrong 0.1000 [0.4000, 0.6000], 1 puzzle",
        ),
        ({"chains": [LINE]}, "exact accuracy: 0.5000 [0.4000, 0.6000], 20 puzzles"),
        (
            {"chains": [LINE | {"distinct": 1.5}]},
            "valid answers: 0.5000 [0.4000, 0.6000], 20 puzzles",
        ),
        (
            {"chains": [LINE | {"distinct": None}]},
            "exact accuracy: 0.5000 [0.4000, 0.6000], 20 puzzles",
        ),
        ({"chains": [LINE, LINE | {"depth": 8}]}, "None"),
        ({"metrics": {"exact_accuracy": "nan"}, "evaluators": 7, "chains": [3]}, "None"),
    ],
)
def test_each_kind_of_result_has_one_headline(content: dict[str, Any], line: str) -> None:
    assert str(score_of(content)) == line


def test_several_sets_of_a_search_count_together() -> None:
    lines = [SEARCHER | {"num_puzzles": n, "solved": {"value": v}} for n, v in ((10, 1), (30, 0))]
    score = score_of({"searchers": lines})
    assert score is not None
    assert (score.estimate, score.count) == (wilson(10, 40), 40)


def test_votes_come_before_single_views() -> None:
    names = ["eval/count", "eval/exact_accuracy", "eval/arc/pass@2"]
    assert headline_of(names, "eval/") == "eval/arc/pass@2"
    assert headline_of(names[:2], "eval/") == "eval/exact_accuracy"
    assert headline_of(names) is None


def test_the_whole_own_data_measured_as_usual_stand_for_a_run() -> None:
    count = {"metrics": {"exact_accuracy": 1.0, "count": 500}}
    ascending = [
        PLAIN | count | {"data": ["data/x/train"]},
        PLAIN | count | {"data": ["data/y/test"]},
        PLAIN | {"max_examples": 20, "step": 9},  # As earlier versions wrote it.
        PLAIN | {"metrics": {"exact_accuracy": 1.0, "count": 30}, "differs": ["first30"]},
        PLAIN | {"step": 7},
        PLAIN | {"differs": ["halt_max_steps-8"]},
        PLAIN | {"max_examples": 20, "differs": [], "data": ["/from/the/root/data/x/test"]},
        PLAIN | ARC,
    ]
    scores = [(one, score_of(one)) for one in ascending]
    weights = [weight_of(one, score, ["./data/x/"]) for one, score in scores if score]
    assert len(weights) == len(ascending)
    assert weights == sorted(weights)
    assert len(set(weights)) == len(weights)
