"""A model of power loss: a record of a run's file operations, and the images a disk may then hold.

The model is stricter than any common file system. A file's content is safe once the file was
flushed; before that the disk may hold the last flushed content, nothing, or half of the new one.
Changes of a folder (create, rename, delete) are safe once the folder was flushed; before that any
subset of them may have reached the disk. Only a rename is indivisible.
"""

import itertools
import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.operations import Operation, watch

# A folder's content by path: the bytes of a file, None for a folder.
Tree = dict[str, bytes | None]


def record_to(root: Path, record: Path) -> None:
    """Record every file operation below `root`, and every finished save, in the folder `record`.

    Flushed and closed files are recorded with their content. `record` lies outside `root`.
    """
    from training.checkpoint.background import BackgroundWrite

    numbers, finish, lock = itertools.count(), BackgroundWrite.finish, threading.Lock()

    def note(**line: Any) -> None:
        with (record / "operations.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    def before(operation: Operation) -> None:
        path, other = operation.path, operation.other
        line = {"name": operation.name, "path": os.path.relpath(path, root)}
        if other is not None:
            line["other"] = os.path.relpath(other, root)
        with lock:  # A checkpoint is written while training logs.
            if operation.name in ("fsync", "close") and path.is_file():
                line["content"] = f"content-{next(numbers)}"
                (record / line["content"]).write_bytes(path.read_bytes())
            note(**line)

    def finish_and_tell(writing: Any, **options: Any) -> None:
        step = writing.step
        finish(writing, **options)
        if step is not None and writing.step is None:
            note(name="saved", step=step)

    watch(root, before)
    BackgroundWrite.finish = finish_and_tell  # type: ignore[method-assign]


@dataclass
class _File:
    """A file: its safe content, and newer content that may have reached the disk."""

    safe: bytes = b""
    written: bytes | None = None

    def contents(self, choose: "_Choose") -> list[Tree]:
        if self.written is None:
            return [{"": self.safe}]
        kept = self.safe if self.written.startswith(self.safe) else b""
        half = self.written[: (len(kept) + len(self.written)) // 2]
        return [{"": each} for each in dict.fromkeys([self.written, self.safe, kept, half])]


_Change = dict[str, "_File | _Folder | None"]
_Choose = Callable[[list[_Change]], Iterator[list[_Change]]]


@dataclass
class _Folder:
    """A folder: its entries now, its safe entries, and the changes in between."""

    now: dict[str, "_File | _Folder"] = field(default_factory=dict)
    safe: dict[str, "_File | _Folder"] = field(default_factory=dict)
    pending: list[_Change] = field(default_factory=list)

    def change(self, change: _Change) -> None:
        self.pending.append(change)
        self.now = _changed(self.now, [change])

    def flush(self) -> None:
        self.safe, self.pending = _changed(self.safe, self.pending), []

    def contents(self, choose: _Choose) -> list[Tree]:
        found: dict[Any, Tree] = {}
        for choice in choose(self.pending):
            entries = _changed(self.safe, choice)
            for picked in _picks([entry.contents(choose) for entry in entries.values()]):
                tree: Tree = {"": None}
                for name, below in zip(entries, picked, strict=True):
                    tree |= {f"{name}/{path}".strip("/"): file for path, file in below.items()}
                found.setdefault(frozenset(tree.items()), tree)
        return list(found.values())


def _changed(entries: dict[str, Any], changes: list[_Change]) -> dict[str, Any]:
    every = dict(entries)
    for change in changes:
        every |= change
    return {name: entry for name, entry in every.items() if entry is not None}


def images(record: Path, *, any_choice: bool = False) -> Iterator[tuple[Tree, int | None, str]]:
    """Yield each image that the disk may hold after an operation of a record (see `record_to`).

    With it come the last step reported as saved (None before the first) and the last operation.

    Args:
        any_choice: try every subset of the unsafe changes, not only those of `_choices`.
    """
    choose = _any_choice if any_choice else _choices
    root, saved, seen = _Folder(), None, set[Any]()
    for line in (record / "operations.jsonl").read_text().splitlines():
        operation = json.loads(line)
        moments = [operation]
        if operation["name"] == "saved":
            saved = operation["step"]
        elif operation["name"] == "fsync" and "content" in operation:
            moments.insert(0, operation | {"name": "close"})  # First it was written.
        for moment in moments:
            _play(root, moment, record)
            for tree in root.contents(choose):
                key = (frozenset(tree.items()), saved)
                if key not in seen:
                    seen.add(key)
                    yield tree, saved, f"{moment['name']} {moment.get('path')}"


def _play(root: _Folder, operation: dict[str, Any], record: Path) -> None:
    """Apply an operation to the model."""
    kind, path = operation["name"], operation.get("path", ".")
    if path == ".":
        if kind == "fsync":
            root.flush()
        return
    folder, name = _parent(root, path)
    here = folder.now.get(name)
    if kind == "mkdir":
        folder.change({name: _Folder()})
    elif kind == "open" and here is None:
        folder.change({name: _File()})
    elif kind in ("fsync", "close") and isinstance(here, _File):
        here.written = (record / operation["content"]).read_bytes()
        if kind == "fsync":
            here.safe, here.written = here.written, None
    elif kind == "fsync" and isinstance(here, _Folder):
        here.flush()
    elif kind in ("rename", "exchange"):
        target, other = _parent(root, operation["other"])
        assert target is folder, "renames inside one folder are all there are"
        partner = folder.now[other] if kind == "exchange" else None
        folder.change({name: partner, other: folder.now[name]})
    elif kind in ("unlink", "rmdir") and here is not None:
        folder.change({name: None})


def _parent(root: _Folder, path: str) -> tuple[_Folder, str]:
    *folders, name = Path(path).parts
    for part in folders:
        inside = root.now[part]
        assert isinstance(inside, _Folder)
        root = inside
    return root, name


def _choices(pending: list[_Change]) -> Iterator[list[_Change]]:
    """Yield some subsets of the changes: all, the first ones, all but one, only one."""
    yield pending
    for number in range(len(pending)):
        yield pending[:number]
        yield pending[:number] + pending[number + 1 :]
        yield pending[number : number + 1]


def _any_choice(pending: list[_Change]) -> Iterator[list[_Change]]:
    """Yield all subsets of the changes."""
    for through in itertools.product((True, False), repeat=len(pending)):
        yield list(itertools.compress(pending, through))


def _picks(options: list[list[Tree]]) -> Iterator[tuple[Tree, ...]]:
    """Yield combinations of one value each: all first, all last, and one not first."""
    first = [values[0] for values in options]
    yield tuple(first)
    yield tuple(values[-1] for values in options)
    for place, values in enumerate(options):
        for value in values[1:]:
            yield (*first[:place], value, *first[place + 1 :])


def put(tree: Tree, folder: Path) -> None:
    """Write an image into a new folder."""
    for path, content in tree.items():
        if content is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content)
