"""Calls of the builders, tiny sources of each kind, and a stand-in for the Hub."""

import contextlib
import importlib
import io
import json
import sys
import tempfile
import types
from pathlib import Path
from typing import Any
from unittest.mock import patch

from harness.processes import call_main

KINDS = ("sudoku", "maze", "arc")

_CSV = {
    "sudoku": [
        "a,.234341221434321,1234341221434321,3",
        "b,12.434122143432.,1234341221434321,5",
        "c,123434124321214.,1234341243212143,-1",
    ],
    "maze": ["a,S  # #  G,So #o# oG,5", "b, GS   # #, GS   # #,2", "c,S G   # #,SoG   # #,3"],
}


def write_sources(folder: Path) -> Path:
    """Write sources of all kinds (two puzzles or three tasks to train) into a new folder."""
    for kind, (*train, test) in _CSV.items():
        (folder / kind).mkdir(parents=True)
        for split, rows in (("train", train), ("test", [test])):
            text = "\n".join(["source,question,answer,rating", *rows, ""])
            (folder / kind / f"{split}.csv").write_text(text)
    for number, name in enumerate(("training/b", "training/a", "concept/d", "evaluation/c")):
        path = folder / "arc" / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(arc_task(number)))
    return folder


def arc_task(number: int) -> dict[str, Any]:
    """Return a task with two demonstrations and a test; each number below 10 gives another one."""
    pairs = [
        {"input": [[number, one], [one, 3], [4, 5]], "output": [[one, number]]} for one in (6, 7, 8)
    ]
    return {"train": pairs[:2], "test": pairs[2:]}


def flags(kind: str, sources: Path | str, output: Path | str, *more: str) -> list[str]:
    """Return the command line that builds a set of this kind at `output`."""
    arguments = {
        "sudoku": [f"--source={sources}/{kind}", "--size=4", "--num-aug=2"],
        "maze": [f"--source={sources}/{kind}", "--size=3", "--aug"],
        "arc": ["--dataset-dirs", f"{sources}/{kind}", "--num-aug=0"],
    }[kind]
    return [*arguments, *more, f"--output-dir={output}"]


def build_here(kind: str, *arguments: str) -> int:
    """Build in this process, and return the exit code."""
    return importlib.import_module(f"dataset.build_{kind}_dataset").main(arguments)


def build(kind: str, *arguments: str) -> None:
    """Act as `python dataset/build_KIND_dataset.py ARGUMENTS`, with its exit code."""
    call_main(f"dataset.build_{kind}_dataset", *arguments)


def warm_up() -> None:
    """Build each kind once, so that all late imports and compilations are done."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        sources = write_sources(Path(folder) / "sources")
        for kind in KINDS:
            assert build_here(kind, *flags(kind, sources, Path(folder) / kind)) == 0


def contents(folder: Path, *, folders: bool = False) -> dict[str, bytes | None]:
    """Return each file's content by its relative path, with `folders` also None for each folder."""
    found = {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}
    return {
        path.relative_to(folder).as_posix(): content
        for path, content in sorted(found.items())
        if folders or content is not None
    }


def no_exchange() -> None:
    """Act as a file system that cannot swap two names."""
    patch("runtime.files.exchange", lambda first, second: False).start()


def cached_downloads(folder: Path) -> None:
    """Replace huggingface_hub by a stand-in that stores its downloads in `folder`."""

    def download(repository: str, name: str, repo_type: str) -> str:
        path = folder / repo_type / repository / name
        path.parent.mkdir(parents=True)
        path.write_text("source,question,answer,rating\n")
        return str(path)

    sys.modules["huggingface_hub"] = types.SimpleNamespace(hf_hub_download=download)
