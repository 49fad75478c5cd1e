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
from typing import Any

from harness.operations import Operation, watch


@dataclass(frozen=True)
class RecordTo:
    """Write down every file operation below `root`, with the content of files that are flushed or
    closed, and every save that is done.

    Attributes:
        record: folder for it, outside of `root`; exists.
    """

    root: Path
    record: Path

    def __call__(self) -> None:
        """Arm this process."""
        from training.trainer import Trainer

        numbers, save = itertools.count(), Trainer.save

        def note(name: str, path: Path | None, other: Path | None, **more: Any) -> None:
            line = {"name": name, "path": self._name(path), "other": self._name(other), **more}
            with (self.record / "operations.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")

        def before(operation: Operation) -> None:
            path, more = operation.path, {}
            if operation.name in ("fsync", "close") and path.is_file():
                more["content"] = f"content-{next(numbers)}"
                (self.record / more["content"]).write_bytes(path.read_bytes())
            more["folder"] = path.is_dir()
            note(operation.name, path, operation.other, **more)

        def save_and_tell(trainer: Any, **options: Any) -> None:
            save(trainer, **options)
            note("saved", None, None, step=trainer.progress.step)

        watch(self.root, before)
        Trainer.save = save_and_tell

    def _name(self, path: Path | None) -> str | None:
        return None if path is None else os.path.relpath(path, self.root)


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
        _apply(self.now, change)

    def flush(self) -> None:
        for change in self.pending:
            _apply(self.safe, change)
        self.pending = []

    def contents(self, choose: "_Choose") -> list[Tree]:
        found: dict[Any, Tree] = {}
        for choice in choose(self.pending):
            entries = dict(self.safe)
            for change in choice:
                _apply(entries, change)
            options = [entry.contents(choose) for entry in entries.values()]
            for picked in _picks(options):
                tree = dict(zip(entries, picked, strict=True))
                found.setdefault(_frozen(tree), tree)
        return list(found.values())


@dataclass(frozen=True)
class Image:
    """One thing that the disk may hold.

    Attributes:
        tree: the folder's content. saved: the last step that was reported as saved, None before the
            first. after: the operation behind which the power went out.
    """

    tree: Tree
    saved: int | None
    after: str

    def put(self, root: Path) -> None:
        """Write it into a new folder."""
        _put(self.tree, root)


def images(record: Path, *, any_choice: bool = False) -> Iterator[Image]:
    """Yield the images after each operation of a record, without repeating one.

    Args:
        record: a folder that `RecordTo` has filled.
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
    if operation["path"] == ".":
        if operation["name"] == "fsync":
            root.flush()
        return
    folder, name = _parent(root, operation["path"])
    kind = operation["name"]
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
    elif kind == "rename":
        _rename(root, folder, name, operation["other"])
    elif kind == "exchange":
        _, other = _parent(root, operation["other"])
        folder.change({name: folder.now[other], other: folder.now[name]})
    elif kind in ("unlink", "rmdir") and here is not None:
        folder.change({name: None})


def _rename(root: _Folder, folder: _Folder, name: str, other: str) -> None:
    target, new_name = _parent(root, other)
    assert target is folder, "renames inside one folder are all there are"
    folder.change({name: None, new_name: folder.now[name]})


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
    for number in range(len(pending)):
        yield pending[:number] + pending[number + 1 :]
        yield pending[number : number + 1]


def _any_choice(pending: list[_Change]) -> Iterator[list[_Change]]:
    """Yield all choices of changes that came through."""
    for through in itertools.product((True, False), repeat=len(pending)):
        yield list(itertools.compress(pending, through))


def _picks(options: list[list[Any]]) -> Iterator[tuple[Any, ...]]:
    """Yield one of each: all the first, all the last, each other one with the first of the rest."""
    yield tuple(values[0] for values in options)
    yield tuple(values[-1] for values in options)
    for place, values in enumerate(options):
        for value in values[1:]:
            yield (*(o[0] for o in options[:place]), value, *(o[0] for o in options[place + 1 :]))


def _apply(entries: _Entries, change: _Change) -> None:
    for name, entry in change.items():
        if entry is None:
            entries.pop(name, None)
        else:
            entries[name] = entry


def _put(tree: Tree, folder: Path) -> None:
    folder.mkdir()
    for name, content in tree.items():
        if isinstance(content, bytes):
            (folder / name).write_bytes(content)
        else:
            _put(content, folder / name)


def _frozen(tree: Tree) -> Any:
    return tuple(
        (name, content if isinstance(content, bytes) else _frozen(content))
        for name, content in sorted(tree.items())
    )
