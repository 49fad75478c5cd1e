"""README and docs/ hold what they promise: limits, links, every metric, and the examples run."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dataset import build_maze_dataset

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["README.md", "CHANGELOG.md", *(f"docs/{path.name}" for path in ROOT.glob("docs/*.md"))]

Train = Callable[[Sequence[str]], None]


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


def section(page: str, heading: str) -> str:
    """The text below a heading, up to the next heading of its level or above."""
    level, text = heading.split()[0], text_of(page)
    _, found, rest = text.partition(f"\n{heading}\n")
    assert found, f"{page} has no heading {heading!r}"
    return re.split(rf"\n#{{1,{len(level)}}} ", rest)[0]


def anchors(page: str) -> set[str]:
    """The names that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_readme_is_short() -> None:
    lines = text_of("README.md").splitlines()
    assert len(lines) <= 150
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", text_of(page)):
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(str(target.resolve().relative_to(ROOT))), link


@pytest.mark.parametrize("page", PAGES)
def test_files_and_choices_that_are_named_exist(page: str) -> None:
    text = text_of(page)
    for script in re.findall(r"\b(?:python|sbatch) ((?:\w+/)*\w+\.(?:py|sh))", text):
        assert (ROOT / script).is_file(), script
    for group, choice in re.findall(r"\b(arch|loss|optimizer|data|logger|experiment)=(\w+)", text):
        known = {path.stem for path in (ROOT / "config" / group).glob("*.yaml")}
        assert choice in known or choice.isupper(), f"{group}={choice}"
    for target in re.findall(r"\bmake ([a-z-]+)`", text):
        assert f"\n{target}:" in text_of("Makefile"), target


# Metrics


def keys_in(heading: str) -> list[str]:
    """What the first columns of the tables of a section of metrics.md name, in backticks."""
    rows = re.findall(r"^\| (`.*?) \|", section("docs/metrics.md", heading), re.MULTILINE)
    return [key for row in rows for key in re.findall(r"`([^`]+)`", row)]


def patterns(keys: Sequence[str]) -> dict[str, re.Pattern[str]]:
    """Expressions for keys, the words in capitals replaced by the names that they stand for."""
    figures = [re.escape(name) for name in (*keys_in("## Figures"), *keys_in("## Evaluators"))]
    stands_for = {
        "METRIC": "|".join(figures).replace("@K", r"@\d+"),
        "EVALUATOR": "sudoku|maze|arc",
        "GROUP": r"\w+",
        "LOSS": r"\w+",
        "SET": r"\w+",
        "K": r"\d+",
    }
    return {
        key: re.compile(
            re.sub(r"\b[A-Z]+\b", lambda word: f"(?:{stands_for[word[0]]})", re.escape(key))
        )
        for key in keys
    }


def paths(value: Any, prefix: str = "") -> Iterator[str]:
    """The keys of nested JSON objects, joined by dots; empty objects and `arch` are leaves."""
    if not isinstance(value, dict) or not value or prefix == "arch.":
        yield prefix.removesuffix(".")
    else:
        for key, inner in value.items():
            yield from paths(inner, f"{prefix}{key}.")


def test_every_key_that_is_written_is_documented(
    train: Train,
    tiny_settings: list[str],
    run_evaluation: Callable[..., dict[str, Any]],
    arc_data: Path,
    files_of: Any,
    tmp_path: Path,
) -> None:
    """And every documented key is written by one of three small runs."""
    mazes = tmp_path / "mazes"
    flags = ["--size=4", "--min-length=2", "--subsample-size=16", "--test-size=8", "--pixels"]
    build = ["--source=generate", f"--output-dir={mazes}", *flags]
    assert build_maze_dataset.main(build) == 0
    runs = {
        "sudoku": ["heads=enhanced", "optimizer=grouped", "arch.loss.weighting=uncertainty"],
        "maze": [f"data_path={mazes}", "heads=sage"],
        "arc": [f"data_path={arc_data}", "heads=moe", "global_batch_size=6"],
    }
    logged, reported = set(), set()
    for evaluator, settings in runs.items():
        own = [f"checkpoint_path={tmp_path / evaluator}", f"evaluators=[{evaluator}]"]
        train([*tiny_settings, *settings, *own, "diagnose_interval=1"])
        logged |= {key for record in files_of(tmp_path / evaluator).records for key in record}
        output = tmp_path / f"{evaluator}.json"
        reported |= set(paths(run_evaluation(output, f"checkpoint={tmp_path / evaluator}")))
    details = [
        f"evaluators.EVALUATOR.{key}"
        for key in keys_in("## Evaluators")
        if key.startswith("details.")
    ]
    rarely = {"eval/SET/count", "eval/SET/METRIC"}  # Only where there are several sets.
    for written, keys in (
        (logged, keys_in("## metrics.jsonl")),
        (reported, [*keys_in("## An evaluation's JSON"), *details]),
    ):
        expressions = patterns([key for key in keys if key != "evaluators.EVALUATOR.details"])
        for key in written:
            assert any(e.fullmatch(key) for e in expressions.values()), f"not documented: {key}"
        for key in expressions.keys() - rarely:
            assert any(expressions[key].fullmatch(k) for k in written), f"never written: {key}"
