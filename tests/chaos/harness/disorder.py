"""Build data sets and train in a process in which folders list their files in another order.

python -m harness.disorder '{"seed": 1, "builds": [[KIND, SOURCES, OUTPUT, FLAG, ...]],
                             "train": [SETTING, ...], "mutant": null}'
"""

import contextlib
import json
import os
import random
import sys
from collections.abc import Iterator
from typing import Any

from harness import builds, mutants


class _Entries(contextlib.closing):
    """The result of `os.scandir`, in another order."""

    def __iter__(self) -> Iterator[Any]:
        return self.thing

    def __next__(self) -> Any:
        return next(self.thing)


def disorder(seed: int) -> None:
    """Make all folders list their entries backwards (seed 0) or shuffled."""
    listdir, scandir = os.listdir, os.scandir

    def moved(entries: Any) -> list[Any]:
        backwards = sorted(entries, key=lambda e: os.fsdecode(getattr(e, "name", e)), reverse=True)
        if seed:
            random.Random(seed).shuffle(backwards)
        return backwards

    def scan(path: Any = ".") -> _Entries:
        with scandir(path) as entries:
            return _Entries(entry for entry in moved(entries))

    os.listdir, os.scandir = lambda path=".": moved(listdir(path)), scan


def main(order: dict[str, Any]) -> None:
    """Carry out an order; see above."""
    disorder(order["seed"])
    if order["mutant"] is not None:
        mutants.take_out(order["mutant"])
    for kind, *arguments in order["builds"]:
        assert builds.build_here(kind, *builds.flags(kind, *arguments)) == 0
    if order["train"]:
        import pretrain

        pretrain.main(order["train"])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
