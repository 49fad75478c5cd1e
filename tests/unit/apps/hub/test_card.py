import re
from pathlib import Path
from typing import Any

import pytest

from apps.hub.card import CardFacts, card, read_json_files
from apps.reports.values import MAX_VALUES
from training.checkpoint.store import RunState

pytest.importorskip("huggingface_hub", reason="huggingface-hub is not installed (the extra `hub`)")

HARMFUL = "</code><script>alert(1)</script>`]|*[x](http://evil)\n# title"
SHARE = {"value": 0.5, "low": 0.4, "high": 0.6}


def facts(evaluations: dict[str, Any] | None = None) -> CardFacts:
    config = {"arch": {"name": HARMFUL}, "data_path": HARMFUL, HARMFUL: HARMFUL}
    state = RunState(step=12, config=config, environment={"torch": HARMFUL})
    manifest = {"command": [HARMFUL], "counts": {"test": {HARMFUL: 1}, "x": 2}}
    manifests = {HARMFUL: manifest}
    return CardFacts("me/x", "mit", 1234, state, manifests, evaluations or {})


def test_names_with_markup_are_text() -> None:
    text = card(facts())
    # Markdown shows the text between backticks unchanged.
    outside = re.sub(r"`[^`\n]*`", "", text)
    assert "<script" not in outside
    assert "[x](http" not in outside
    assert "\n# title" not in text
    assert text.count("```") == 2  # Only around the commands.
    assert "No evaluation was found" in text
    assert "hours of training: not recorded" in text


def test_results_of_a_search_are_listed_with_its_wrong_answers() -> None:
    searcher = {"set_name": "all", "searcher": "model", "solved": SHARE, "num_puzzles": 7}
    content = {"data": ["/home/somebody/data/x/test"], "search": {"chains": 8, "rounds": 400}}
    searchers = [searcher | {"wrong": SHARE}, searcher | {"wrong": SHARE, "searcher": "solver"}]
    text = card(facts({"eval.json": content | {"searchers": searchers}}))
    assert "somebody" not in text
    assert "| solved by search, answered wrongly 0.5000 | x/test | 7 puzzles | 0.5000 " in text
    assert text.count("value: 0.5") == 1


def test_the_most_representative_result_comes_first() -> None:
    chain = {"set_name": "all", "depth": 4, "breadth": 1, "select": "q", "selected": SHARE}
    common = {"data": ["x/test"], "arch": {"halt_max_steps": 4}, "step": 12, "thinking": {}}
    sample = common | {"max_examples": 20, "chains": [chain | {"num_puzzles": 20}]}
    whole = common | {"chains": [chain | {"num_puzzles": 1000}]}
    other = whole | {"data": ["y/test"]}
    votes = {"metrics": {"pass@2": 0.2}, "details": {"num_scored_tasks": 10}}
    arc = common | {"metrics": {"exact_accuracy": 0.1, "count": 8000}, "evaluators": {"arc": votes}}
    text = card(facts({"a.json": sample, "b.json": whole, "c.json": other, "d.json": arc}))
    named = [line.split(" | ")[:3] for line in text.splitlines() if line.startswith("| ")][1:]
    assert named == [
        ["| ARC pass@2, thinking", "x/test", "10 tasks"],
        ["| exact accuracy, thinking", "x/test", "1,000 puzzles"],
        ["| exact accuracy, thinking", "y/test", "1,000 puzzles"],
        ["| exact accuracy, first20, thinking", "x/test", "20 puzzles"],
    ]
    assert "| 10 tasks | 0.2000 \\[0.0567, 0.5098\\]" in text


@pytest.mark.parametrize(
    "content",
    [
        *({}, {"data": 7}, {"data": [1]}, {"sets": 7}, {"data": [], "chains": [{}]}),
        {"metrics": {"exact_accuracy": "x", "count": 3}},
        {"metrics": {"exact_accuracy": 0.5, "count": "many"}},
        {"sets": [1], "chains": {"a": 1}, "searchers": [None, 3], "data": 5, "arch": []},
    ],
)
def test_files_that_are_no_evaluation_are_left_out(content: Any) -> None:
    assert "No evaluation was found" in card(facts({"eval.json": content}))


def test_figures_of_wrong_types_are_left_out() -> None:
    figures = {"metrics": {"exact_accuracy": SHARE | {"low": ""}}, "count": 3}
    odd = {"sets": {"all": figures}, "metrics": {"exact_accuracy": 0.5, "count": 3}}
    assert "| 3 puzzles | 0.5000 |" in card(facts({"eval.json": odd | {"data": ["x"]}}))
    state = RunState(step=1, config={})
    manifests = {"x": {"command": "build", "counts": {"test": 1}}}
    assert "built by `not recorded`" in card(CardFacts("me/x", "mit", 1, state, manifests))


def test_files_of_too_many_values_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "eval.json"
    path.write_text('{"data": [1, 2]}')
    assert read_json_files([path]) == {"eval.json": {"data": [1, 2]}}
    path.write_text(f'{{"data": [{"0," * MAX_VALUES}0]}}')
    assert read_json_files([path]) == {}
