"""Weigh the project: python -m scripts.weight.

Counts the lines of each room, their density, long functions, turns of phrase that often need a
second reading, and the files and lines that run in one training step of HRM.
"""

import ast
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from unittest.mock import patch

from runtime.text import in_columns

ROOT = Path(__file__).resolve().parents[2]
Train = Callable[[list[str]], object]
_LONG = 45  # Lines of a function.
# A sign, not the aim: a sentence that avoids these turns can be as hard to read.
TURNS = {
    "what is, are, it, a ...": r"what (?:is|are|was|were|it|they|a|the|has|have|does|can)",
    "such": r"such",
    "so many": r"so (?:many|much|few|often)",
    "where there is": r"where (?:there|none|no|nothing|several)",
    "None where": r"(?:none|null|nan|0|-1) where",
    "of which": r"(?:of|in|from|by|to) which|whose",
    "Return of, what, how": r"returns? (?:of|what|how|where|which)",
    "the one that": r"the ones? (?:that|which|of)|(?:that|those) of",
}
_HRM_AS_PUBLISHED = [
    *("arch=hrm_v1", "arch.hidden_size=32", "arch.num_heads=2", "arch.forward_dtype=float32"),
    *("global_batch_size=4", "epochs=40", "eval_interval=40", "max_steps=3", "evaluators=[]"),
    *("logger=jsonl", "device=cpu", "compile=false", "num_threads=1"),
]


def main(train: Train) -> None:
    """Print all figures. `train` is the `main` of pretrain.py."""
    source = [path for path in tracked("*.py") if path.parts[0] != "tests"]
    found = {
        "lines": lines_by_room(tracked("*.py", "*.css", "*.js", "*.html")),
        "density of the source": density(source),
        f"functions over {_LONG} lines": long_functions(source),
        "turns in 1,000 lines": turns(tracked("*.py", "*.md", "*.yaml")),
        "a training step of HRM": training_step(train),
    }
    for title, figures in found.items():
        rows = [[f"  {name}", f"{figure:,}"] for name, figure in figures.items()]
        sys.stdout.write(f"{title}\n{in_columns(rows)}\n" if rows else f"{title}: none\n")


def tracked(*patterns: str) -> list[Path]:
    """Return the tracked files that match, relative to the project's folder."""
    listed = subprocess.check_output(["git", "ls-files", *patterns], cwd=ROOT, text=True)
    return [Path(line) for line in listed.splitlines()]


def text_of(path: Path) -> str:
    """Return the text of a tracked file."""
    return (ROOT / path).read_text()


def lines_by_room(files: Sequence[Path]) -> dict[str, int]:
    """Return the lines of Python in each top-level folder and each folder of `apps/`, then the
    sums. The core is all source outside `apps/`, `scripts/` and `examples/`.
    """
    rooms, pages = Counter[str](), 0
    for path in files:
        number = text_of(path).count("\n")
        if path.suffix != ".py":
            pages += number
            continue
        room = "/".join(path.parts[:-1][: 1 + (path.parts[0] == "apps")])
        rooms[room or "top level"] += number
    source = sum(rooms.values()) - rooms["tests"]
    outside = sum(n for room, n in rooms.items() if room.startswith(("apps", "scripts", "example")))
    sums = {"source": source, "core": source - outside, "tests in 100 lines of source": 0}
    sums["tests in 100 lines of source"] = round(100 * rooms["tests"] / source)
    return dict(sorted(rooms.items())) | {"style sheets, scripts, pages": pages} | sums


def density(files: Sequence[Path]) -> dict[str, float]:
    """Return the mean length of a line and the shares of three kinds of lines in percent."""
    lines, kinds = 0, Counter[str]()
    for path in files:
        text = text_of(path)
        lines += text.count("\n")
        kinds["characters"] += len(text) - text.count("\n")
        kinds["blank"] += sum(not line.strip() for line in text.splitlines())
        kinds["comments"] += sum(line.lstrip()[:1] == "#" for line in text.splitlines())
        kinds["docstrings"] += sum(node.end_lineno - node.lineno + 1 for node in docstrings(text))
    shares = {
        f"{name} (%)": round(100 * kinds[name] / lines, 1)
        for name in ("blank", "comments", "docstrings")
    }
    return {"characters a line": round(kinds["characters"] / lines, 1)} | shares


def docstrings(text: str) -> Iterator[Any]:
    """Yield the docstrings and the descriptions of settings."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node


def long_functions(files: Sequence[Path]) -> dict[str, int]:
    """Return the lines of each function over the limit, the longest first."""
    found = {}
    for path in files:
        for node in ast.walk(ast.parse(text_of(path))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > _LONG:
                    found[f"{path}:{node.lineno} {node.name}"] = lines
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def turns(files: Sequence[Path]) -> dict[str, float]:
    """Return the number of each turn of `TURNS` in 1,000 lines, not counting this file."""
    text = "\n".join(text_of(path) for path in files if path.name != Path(__file__).name)
    lines = text.count("\n")
    found = {
        name: round(1000 * len(re.findall(rf"\b(?:{turn})\b", text, re.IGNORECASE)) / lines, 2)
        for name, turn in TURNS.items()
    }
    return found | {"all": round(sum(found.values()), 2)}


def training_step(train: Train) -> dict[str, int]:
    """Count the files, the executed lines, and the lines of the functions in `traced_step`."""
    seen = traced_step(train)
    return {
        "files": len({code.co_filename for code in seen}),
        "lines executed": sum(map(len, seen.values())),
        "lines of their functions": sum(map(_lines_of, seen)),
    }


def traced_step(train: Train) -> dict[CodeType, set[int]]:
    """Run three steps of a small HRM on one CPU thread; trace the third, with drawing its batch.

    Returns:
        the project's functions in that step, each with its executed lines.
    """
    from training.trainer import Trainer

    seen: dict[CodeType, set[int]] = defaultdict(set)
    ours = {str(ROOT / path) for path in tracked("*.py")} - {__file__}

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in ours:
            return None
        if event == "line":
            seen[frame.f_code].add(frame.f_lineno)
        return trace

    train_step = Trainer._train_step

    def traced(self: Trainer, batch: Any) -> None:
        train_step(self, batch)
        # From the end of the second step to the end of the third.
        sys.settrace(trace if self.progress.step == 2 else None)

    data = ROOT / "tests/parity/published_format/data"
    with patch.object(Trainer, "_train_step", traced), tempfile.TemporaryDirectory() as folder:
        train([*_HRM_AS_PUBLISHED, f"data_path={data}", f"checkpoint_path={folder}/run"])
    return seen


def _lines_of(code: CodeType) -> int:
    numbers = [line for _, _, line in code.co_lines() if line is not None]
    return max(numbers) - min(numbers) + 1
