"""The counts of `make weight`."""

import importlib
import re
from operator import attrgetter
from pathlib import Path

import pytest

import pretrain
from apps.bench import weight


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(weight, "ROOT", tmp_path)
    return tmp_path


def test_rooms_and_the_core(project: Path) -> None:
    for name, lines in {"a.py": 1, "models/x/b.py": 2, "apps/hub/c.py": 4, "tests/d.py": 7}.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("pass\n" * lines)
    (project / "page.css").write_text("a {}\n" * 8)
    files = [path.relative_to(project) for path in project.rglob("*.*")]
    assert weight.lines_by_room(files) == {
        "apps/hub": 4,
        "models": 2,
        "tests": 7,
        "top level": 1,
        "style sheets, scripts, pages": 8,
        "source": 7,
        "core": 3,
        "tests in 100 lines of source": 100,
    }


def test_density_long_functions_and_turns(project: Path) -> None:
    body = "".join(f"    x = {number}  # no line of its own\n" for number in range(weight._LONG))
    text = f'"""What is such a thing?\n\nNone where none."""\n\n# One.\ndef long():\n{body}\n'
    (project / "a.py").write_text(text + "def short():\n    pass\n")
    found = weight.density([Path("a.py")])
    lines = weight._LONG + 9
    assert found["docstrings (%)"] == round(100 * 3 / lines, 1)
    assert found["comments (%)"] == round(100 / lines, 1)
    assert found["blank (%)"] == round(100 * 3 / lines, 1)
    assert weight.long_functions([Path("a.py")]) == {"a.py:6 long": weight._LONG + 1}
    counted = weight.turns([Path("a.py")])
    one = round(1000 / lines, 2)
    assert {name for name, share in counted.items() if share == one} == {
        "what is, are, it, a ...",
        "such",
        "where there is",
        "None where",
    }


def test_the_tour_names_each_file_of_a_training_step(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = weight.traced_step(pretrain.main)
    files = {str(Path(code.co_filename).relative_to(weight.ROOT)) for code in seen}
    named = re.findall(r"`([\w/]+\.py):([\w.]+)`", (weight.ROOT / "docs/tour.md").read_text())
    assert files <= {path for path, _ in named}
    for path, name in named:
        module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
        assert attrgetter(name)(module), (path, name)
    monkeypatch.setattr(weight, "traced_step", lambda _: seen)
    found = weight.training_step(pretrain.main)
    assert found["files"] == len(files)
    assert 200 < found["lines executed"] < found["lines of their functions"]
