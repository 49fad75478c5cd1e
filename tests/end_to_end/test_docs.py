"""README and docs/ keep their limits, have no dead links, and name every metric; examples run."""

import itertools
import json
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dataset import build_maze_dataset

ROOT = Path(__file__).resolve().parents[2]
MANUAL = ["README.md", *sorted(f"docs/{path.name}" for path in ROOT.glob("docs/*.md"))]
LOG = [f"docs/log/{path.name}" for path in ROOT.glob("docs/log/*.md")]
PUBLIC = ["CONTRIBUTING.md", "SECURITY.md"]
EXTENDING = ["docs/extending.md", "docs/extending_models.md", "docs/extending_data.md"]


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


def section(page: str, heading: str) -> str:
    """Return the text below a heading, up to the next heading of its level or above."""
    level, text = heading.split()[0], text_of(page)
    _, found, rest = text.partition(f"\n{heading}\n")
    assert found, f"{page} has no heading {heading!r}"
    return re.split(rf"\n#{{1,{len(level)}}} ", rest)[0]


def test_the_manual_is_short() -> None:
    words = {page: len(text_of(page).split()) for page in MANUAL if page != "README.md"}
    assert sum(words.values()) <= 27_600
    assert max(words.values()) <= 1_500
    assert len(text_of("README.md").splitlines()) <= 140


@pytest.mark.parametrize("page", MANUAL)
def test_a_page_begins_with_an_example(page: str) -> None:
    """The example is a block of code or a picture before the first section."""
    top = text_of(page).split("\n## ")[0]
    assert re.search(r"^(```|    |\[?!\[)", top, re.MULTILINE)
    for line in text_of(page).splitlines():
        assert len(line) <= 120 or line.startswith(("|", "    ", "python ")), line


def test_every_file_of_config_is_in_its_index() -> None:
    named = set(re.findall(r"`([\w/.]+)`", text_of("config/README.md")))
    files = {path.relative_to(ROOT / "config") for path in ROOT.glob("config/**/*.yaml")}
    assert {path.stem for path in files if len(path.parts) > 1} <= {
        Path(name).stem for name in named
    }
    assert {path.name for path in files if len(path.parts) == 1} <= named


@pytest.mark.parametrize("page", [*MANUAL, *LOG, *PUBLIC, "CHANGELOG.md", "config/README.md"])
def test_links_lead_somewhere(page: str) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", text_of(page)):
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), link
        # GitHub's anchors of the page's headings.
        headings = re.findall(r"^#+ (.*)$", target.read_text() if anchor else "", re.MULTILINE)
        names = [re.sub(r"[^\w -]", "", text).lower().replace(" ", "-") for text in headings]
        assert not anchor or anchor in names, link


@pytest.mark.parametrize("page", [*MANUAL, *PUBLIC, "CHANGELOG.md"])
def test_files_and_choices_that_are_named_exist(page: str) -> None:
    text = "".join(map(text_of, EXTENDING)) if page in EXTENDING else text_of(page)
    named = re.findall(r"\b(?:python|sbatch) (?:PROJECT/)?((?:\w+/)*\w+\.(?:py|sh))", text)
    groups = "arch|heads|loss|optimizer|lr_schedule|data|logger|experiment"
    choices = re.findall(rf"(?<![\w.])({groups})=([A-Za-z]\w*)", text)
    named += [f"config/{group}/{choice}.yaml" for group, choice in choices if choice != "NAME"]
    for name in named:
        # The pages on extending let the reader create some of these files.
        own = [f"/{name.removeprefix('config/')}", f'.add("{Path(name).stem}"']
        assert (ROOT / name).is_file() or any(part in text for part in own), name
    for target in re.findall(r"\bmake ([a-z-]+)`", text):
        assert f"\n{target}:" in text_of("Makefile"), target


# Metrics


def keys_in(heading: str) -> list[str]:
    """Return the names in backticks in the first columns of a section's tables in metrics.md."""
    rows = re.findall(r"^\| (`.*?) \|", section("docs/metrics.md", heading), re.MULTILINE)
    return [key for row in rows for key in re.findall(r"`([^`]+)`", row)]


def patterns(keys: Sequence[str]) -> dict[str, re.Pattern[str]]:
    """Return an expression for each key; words in capitals stand for any of their names."""
    figures = [re.escape(name) for name in (*keys_in("## Figures"), *keys_in("## Evaluators"))]
    metric = "|".join(figures).replace("@K", r"@\d+")
    stands_for = {"METRIC": metric, "EVALUATOR": "sudoku|maze|arc", "K": r"\d+"}
    stands_for |= dict.fromkeys(["GROUP", "LOSS", "SET"], r"\w+")

    def expression(key: str) -> str:
        return re.sub(r"\b[A-Z]+\b", lambda word: f"(?:{stands_for[word[0]]})", re.escape(key))

    return {key: re.compile(expression(key)) for key in keys}


def paths(value: Any, prefix: str = "") -> Iterator[str]:
    """Yield the keys of nested objects, joined by dots; empty objects and `arch` are leaves."""
    if not isinstance(value, dict) or not value or prefix == "arch.":
        yield prefix.removesuffix(".")
    else:
        for key, inner in value.items():
            yield from paths(inner, f"{prefix}{key}.")


def test_the_documented_keys_are_the_written_ones(
    run: Any,
    run_evaluation: Any,
    arc_data: Path,
    tiny_settings: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every key of four small runs is documented, and every documented key is in one of them."""
    for bound in ("CONFIRMATIONS", "PATIENCE_STEPS", "LARGE_LOGIT"):  # So that they warn.
        monkeypatch.setattr(f"training.diagnostics.{bound}", 0)
    monkeypatch.setattr("training.speed._SETTLED_SECONDS", 0.0)
    mazes = tmp_path / "mazes"
    flags = "--source=generate --size=4 --min-length=2 --subsample-size=16 --test-size=8 --pixels"
    assert build_maze_dataset.main([*flags.split(), f"--output-dir={mazes}"]) == 0
    runs = {
        "sudoku": ["heads=enhanced", "optimizer=grouped", "arch.loss.weighting=uncertainty"]
        + ["on_nonfinite=skip"],
        "maze": [f"data_path={mazes}", "heads=sage"],
        "arc": [f"data_path={arc_data}", "heads=moe", "global_batch_size=6"],
    }
    logged, reported = set(), set()
    for evaluator, settings in runs.items():
        own = [*settings, f"evaluators=[{evaluator}]", "epochs=8", "diagnose_interval=1"]
        own.append("checkpoint_interval=2")
        files = run(*own, name=evaluator)
        logged |= {key for record in files.all_records for key in record}
        output = tmp_path / f"{evaluator}.json"
        evaluation = run_evaluation(output, f"checkpoint={files.folder}")
        reported |= set(paths(evaluation))
    tiny_settings.remove("arch.H_layers=1")
    files = run("arch=lattice", "heads=lattice", "arch.loops=2", name="lattice")
    logged |= {key for record in files.all_records for key in record}
    details = [key for key in keys_in("## Evaluators") if key.startswith("details.")]
    details = [f"evaluators.EVALUATOR.{key}" for key in details]
    rarely = {"eval/SET/count", "eval/SET/METRIC"}  # Only for several sets.
    rarely |= {f"memory/cuda_{name}_gib" for name in ("allocated", "reserved", "peak")}
    for written, keys in (
        (logged, keys_in("## metrics.jsonl")),
        (reported, [*keys_in("## An evaluation's JSON"), *details]),
    ):
        expressions = patterns([key for key in keys if key != "evaluators.EVALUATOR.details"])
        for key in written:
            assert any(e.fullmatch(key) for e in expressions.values()), f"not documented: {key}"
        for key in expressions.keys() - rarely:
            assert any(expressions[key].fullmatch(k) for k in written), f"never written: {key}"


# Examples


def blocks(page: str, language: str) -> list[str]:
    """Return the fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", text_of(page), re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_examples_of_python_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks("docs/python.md", "python"):
        exec(block, names)
    assert names["answer"].solved
    assert names["small"].trained.step == 10
    assert (tmp_path / "thinking.gif").exists()
    out = capsys.readouterr().out
    assert "puzzle 1 True\n" in out
    assert out.endswith("all torch.Size([100, 16, 6]) 32\n")


@pytest.mark.slow
def test_the_examples_of_extending_run(
    run_python: Any, files_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They run in a folder with only the pages' files."""
    monkeypatch.chdir(tmp_path)
    pages = [(page, language) for page in EXTENDING for language in ("python", "yaml")]
    for block in itertools.chain.from_iterable(blocks(*page) for page in pages):
        first, _, content = block.partition("\n")
        file = Path(first.removeprefix("# new file: "))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    commands = "".join(block for page in EXTENDING[::-1] for block in blocks(page, "sh"))
    for command in commands.replace("\\\n", " ").splitlines():
        _, script, *arguments = shlex.split(command.replace("PROJECT", str(ROOT)))
        finished = run_python(script, *arguments)
        assert finished.code == 0, finished.err
    assert "a solution" in finished.out
    run = files_of(tmp_path / "checkpoints" / "sorting")
    assert {"train/progress_loss", "train/progress_error"} <= run.train_records[-1].keys()
    assert 0 <= run.eval_records[-1]["eval/sorting/ascending"] <= 1
    measured = (run.folder / "eval_step_16_evaluators-sorting.json").read_text()
    assert json.loads(measured)["evaluators"]["sorting"]

    evaluated = [str(ROOT / "evaluate.py"), f"checkpoint={run.folder}"]
    finished = run_python(*evaluated)
    assert finished.code == 4
    assert "arch.name=looped: there is no such architecture" in finished.err
    assert "add plugins=[my_parts.plugin]" in finished.err
    assert len(finished.err.splitlines()) == 1
