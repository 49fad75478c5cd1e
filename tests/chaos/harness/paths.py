"""Small builds, and a hub whose files go through a folder of their own."""

import importlib
import json
import sys
import types
from dataclasses import dataclass
from pathlib import Path

_SUDOKU = ("--size=4", "--subsample-size=4", "--test-size=2", "--num-aug=1")
_MAZE = ("--source=generate", "--size=6", "--min-length=6", "--subsample-size=4", "--test-size=2")


def build_puzzles(kind: str, tasks: Path, output: Path) -> None:
    """Build a small set as its command line does: generated puzzles, those of the hub (`download`)
    or the ARC tasks in `tasks`.
    """
    flags = {
        "sudoku": ("--source=generate", *_SUDOKU),
        "download": ("--source=hf", "--subsample-size=2"),
        "maze": _MAZE,
        "arc": ("--dataset-dirs", str(tasks), "--num-aug=1"),
    }[kind]
    builder = "sudoku" if kind == "download" else kind
    module = importlib.import_module(f"dataset.build_{builder}_dataset")
    sys.exit(module.main([*flags, f"--output-dir={output}"]))


def write_tasks(folder: Path) -> None:
    """Write two ARC tasks, one to train on and one to evaluate."""
    for subset in ("training", "evaluation"):
        pair = {"input": [[1, 2], [3, len(subset) % 10]], "output": [[len(subset) % 10]]}
        (folder / subset).mkdir(parents=True)
        content = {"train": [pair, pair | {"output": [[5]]}], "test": [pair]}
        (folder / subset / f"{subset}.json").write_text(json.dumps(content))


@dataclass(frozen=True)
class CachedDownloads:
    """Let huggingface_hub keep what it downloads in `folder`, as the real one does."""

    folder: Path

    def __call__(self) -> None:
        """Arm this process."""

        def download(repository: str, name: str, repo_type: str) -> str:
            path = self.folder / repo_type / repository / name
            path.parent.mkdir(parents=True)
            path.write_text("source,question,answer,rating\n")
            return str(path)

        module = types.ModuleType("huggingface_hub")
        vars(module).update(hf_hub_download=download)
        sys.modules["huggingface_hub"] = module
