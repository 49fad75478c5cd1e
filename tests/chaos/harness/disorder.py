"""Build data sets, and train, in a process in which folders list their files in another order.

python -m harness.disorder '{"seed": 1, "builds": [[KIND, SOURCES, OUTPUT, FLAG, ...]],
                             "train": [SETTING, ...], "mutant": null}'
"""

import json
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from harness import builds, mutants


class _Entries:
    """What `os.scandir` returns, in an order of our own."""

    def __init__(self, entries: Iterable[Any]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[Any]:
        return self._entries

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> "_Entries":
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def close(self) -> None:
        """Forget the rest."""
        self._entries = iter(())


def disorder(seed: int) -> None:
    """Let all folders list their entries backwards (seed 0) or shuffled."""
    listdir, scandir = os.listdir, os.scandir

    def moved(entries: Iterable[Any], name: Callable[[Any], str]) -> list[Any]:
        backwards = sorted(entries, key=name, reverse=True)
        if seed:
            random.Random(seed).shuffle(backwards)
        return backwards

    def list_names(path: Any = ".") -> list[Any]:
        return moved(listdir(path), os.fsdecode)

    def scan(path: Any = ".") -> _Entries:
        with scandir(path) as entries:
            return _Entries(moved(entries, lambda entry: os.fsdecode(entry.name)))

    os.listdir, os.scandir = list_names, scan


def main(order: dict[str, Any]) -> None:
    """Do what the order says; see above."""
    disorder(order["seed"])
    if order["mutant"] is not None:
        getattr(mutants, order["mutant"])()
    for kind, *arguments in order["builds"]:
        assert builds.main_of(kind)(builds.flags(kind, *arguments)) == 0
    if order["train"]:
        import pretrain

        pretrain.main(order["train"])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
