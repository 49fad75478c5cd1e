"""What a disk may hold after the power went out: a record of a run's file operations, and the
images of its folder that they allow.

The model is stricter than any common file system. The content of a file is safe once the file was
flushed; before that it may be what was flushed last, nothing, or half of what was written. What
happens in a folder (creating, renaming, deleting) is safe once the folder was flushed; before that
any part of it, in any choice, may have reached the disk; only a rename is indivisible.
"""

import itertools
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from harness.operations import Operation, watch


def record_to(root: Path, record: Path) -> None:
    """Write down every file operation below `root`, with the content of files that are flushed or
    closed, and every save that is done; into the folder `record` outside of `root`.
    """
    from training.trainer import Trainer

    numbers, save = itertools.count(), Trainer.save

    def note(name: str, *paths: Path | None, **more: Any) -> None:
        path, other = (None if path is None else os.path.relpath(path, root) for path in paths)
        with (record / "operations.jsonl").open("a") as file:
            file.write(json.dumps({"name": name, "path": path, "other": other, **more}) + "\n")

    def before(operation: Operation) -> None:
        path, more = operation.path, {}
        if operation.name in ("fsync", "close") and path.is_file():
            more["content"] = f"content-{next(numbers)}"
            (record / more["content"]).write_bytes(path.read_bytes())
        note(operation.name, path, operation.other, **more)

    def save_and_tell(trainer: Any, **options: Any) -> None:
        save(trainer, **options)
        note("saved", None, None, step=trainer.progress.step)

    watch(root, before)
    Trainer.save = save_and_tell


Tree = dict[str, Any]  # Of an image: bytes for a file, a tree for a folder.


@dataclass
class _File:
    """Content that is safe, and content that may be there as well."""

    safe: bytes = b""
    written: bytes | None = None

    def contents(self, choose: "_Choose") -> list[bytes]:
        if self.written is None:
            return [self.safe]
        kept = self.safe if self.written.startswith(self.safe) else b""
        half = self.written[: (len(kept) + len(self.written)) // 2]
        return list(dict.fromkeys([self.written, self.safe, kept, half]))


_Entries = dict[str, "_File | _Folder"]
_Change = dict[str, "_File | _Folder | None"]
_Choose = Callable[[list[_Change]], Iterator[list[_Change]]]


@dataclass
class _Folder:
    """What it holds by the latest changes, what it holds safely, and the changes in between."""

    now: _Entries = field(default_factory=dict)
    safe: _Entries = field(default_factory=dict)
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
                tree = dict(zip(entries, picked, strict=True))
                found.setdefault(_frozen(tree), tree)
        return list(found.values())


def _changed(entries: _Entries, changes: list[_Change]) -> _Entries:
    every: _Change = dict(entries)
    for change in changes:
        every |= change
    return {name: entry for name, entry in every.items() if entry is not None}


class Image(NamedTuple):
    """One thing that the disk may hold.

    Attributes:
        tree: the folder's content.
        saved: the last step that was reported as saved, None before the first.
        after: the operation behind which the power went out.
    """

    tree: Tree
    saved: int | None
    after: str


def images(record: Path, *, any_choice: bool = False) -> Iterator[Image]:
    """Yield the images after each operation of a record (see `record_to`), without repeating one.

    Args:
        any_choice: of the changes that are not safe, instead of those that `_choices` names.
    """
    choose = _any_choice if any_choice else _choices
    root, saved, seen = _Folder(), None, set[Any]()
    for operation in _moments(record):
        if operation["name"] == "saved":
            saved = operation["step"]
        else:
            _play(root, operation, record)
        for tree in root.contents(choose):
            key = (_frozen(tree), saved)
            if key not in seen:
                seen.add(key)
                yield Image(tree, saved, f"{operation['name']} {operation['path']}")


def _moments(record: Path) -> Iterator[dict[str, Any]]:
    """Yield the operations; a file that is to be flushed has first been written."""
    for line in (record / "operations.jsonl").read_text().splitlines():
        operation = json.loads(line)
        if operation["name"] == "fsync" and "content" in operation:
            yield operation | {"name": "close"}
        yield operation


def _play(root: _Folder, operation: dict[str, Any], record: Path) -> None:
    """Do to the model what was done to the folder."""
    kind = operation["name"]
    if operation["path"] == ".":
        if kind == "fsync":
            root.flush()
        return
    folder, name = _parent(root, operation["path"])
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
    """Yield choices of changes that came through: all, none, the first ones, all but one, one."""
    yield pending
    for number in range(len(pending)):
        yield pending[:number]
        yield pending[:number] + pending[number + 1 :]
        yield pending[number : number + 1]


def _any_choice(pending: list[_Change]) -> Iterator[list[_Change]]:
    """Yield all choices of changes that came through."""
    for through in itertools.product((True, False), repeat=len(pending)):
        yield list(itertools.compress(pending, through))


def _picks(options: list[list[Any]]) -> Iterator[tuple[Any, ...]]:
    """Yield one of each: all the first, all the last, each other one with the first of the rest."""
    first = [values[0] for values in options]
    yield tuple(first)
    yield tuple(values[-1] for values in options)
    for place, values in enumerate(options):
        for value in values[1:]:
            yield (*first[:place], value, *first[place + 1 :])


def put(tree: Tree, folder: Path) -> None:
    """Write the content of an image into a new folder."""
    folder.mkdir()
    for name, content in tree.items():
        if isinstance(content, bytes):
            (folder / name).write_bytes(content)
        else:
            put(content, folder / name)


def _frozen(tree: Tree) -> Any:
    return tuple(
        (name, content if isinstance(content, bytes) else _frozen(content))
        for name, content in sorted(tree.items())
    )
