"""Build a data set of any kind of puzzles with a generator, ours or a plug-in's.

    python dataset/build_puzzle_dataset.py --kind futoshiki --size 5 --output-dir data/futoshiki
    python dataset/build_puzzle_dataset.py --kind queens --size 8 --output-dir data/queens

docs/data_format.md describes the files. `dataset.puzzle_build` has the parts shared with the other
builders.
"""

import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from dataset.command_line import Parser, flag, integer
from dataset.format.schema import LabelField
from dataset.format.writing import Fields
from dataset.kinds import KINDS
from dataset.kinds.base import Kind, kind_named
from dataset.kinds.making import make_puzzles
from dataset.puzzle_build import PuzzleBuild
from dataset.sources import CsvRow, GeneratedPuzzle, Puzzles
from runtime.registry import import_plugins
from runtime.streams import Stream, random_words

_MOST_ANSWERS = 10_000  # found for a puzzle
# Without a generator of the kind; listed, so that --help need not load the kinds.
_NOT_GENERATED = ("sudoku", "maze", "arc", "mixed")


class KindBuild(PuzzleBuild):
    """A build of one kind. Questions and answers are tokens."""

    program, kind, puzzle = "build_puzzle_dataset.py", "", "puzzle"
    csv_contents = "; question and answer have the characters in which puzzles are typed"
    needs_rating = False
    own_flags = {
        "--kind": flag(
            "kind of puzzles: one of"
            f" {', '.join(name for name in KINDS if name not in _NOT_GENERATED)}, or a plug-in's"
        ),
        "--plugins": flag("modules of yours that register kinds", metavar="A,B"),
        "--size": flag("size of the puzzles; an N x N Futoshiki has size N", integer(1)),
        "--num-aug": flag("random images to add to each training puzzle", integer(0), 0),
        "--answers": flag(
            "right answers of each training puzzle, for kinds with several: one in each example,"
            " and all in the field `answers`",
            integer(1, 256),
            1,
        ),
        "--min-rating": flag("leave out puzzles with a lower rating", integer(0), 0),
    }

    def __init__(self, options: Namespace) -> None:
        super().__init__(options)
        self.rules: Kind = kind_named(options.kind)
        self.kind, self.size = options.kind, self.rules.rows(options.size)
        self._others = set[bytes]()

    @staticmethod
    def complete(parser: Parser, options: Namespace) -> None:
        import_plugins(options.plugins.split(",") if options.plugins else [])
        made = {name: KINDS.load(name) for name in KINDS}
        made = {name: kind for name, kind in made.items() if type(kind).draw is not Kind.draw}
        if options.kind not in made:
            parser.error(f"--kind {options.kind}; accepted: {', '.join(made)}")
        kind = made[options.kind]
        if options.size is None:
            parser.error(f"--size is needed; accepted: {', '.join(map(str, kind.sizes))}")
        if options.size not in kind.sizes:
            sizes = ", ".join(map(str, kind.sizes))
            parser.error(f"--size {options.size}; accepted for {options.kind}: {sizes}")
        if options.answers > 1 and not kind.many_answers:
            parser.error(f"--answers {options.answers}: each {kind.name} has one answer")
        if options.num_aug and kind.views(kind.rows(options.size)) is None:
            parser.error(f"--num-aug {options.num_aug}: the symmetries of {kind.name} are unknown")

    @property
    def views(self) -> int:
        return max(1 + self.options.num_aug, self.options.answers)

    def generate(self, *, size: int, **how: Any) -> Iterator[GeneratedPuzzle]:
        return make_puzzles(
            self.rules, self.options.size, min_rating=self.options.min_rating, **how
        )

    def similar_build(self, puzzles: Puzzles) -> "KindBuild":
        return self

    @cached_property
    def _tokens(self) -> dict[str, int]:
        return {text: one.token for one in self.rules.board(self.size).tokens for text in one.keys}

    def parsed(self, rows: list[CsvRow]) -> tuple[Puzzles, dict[str, np.ndarray]]:
        """Turn rows into tokens. A rating that is left out is computed; one that counts right
        answers is checked.
        """
        questions, answers = (
            np.array([[self._tokens.get(cell, 0) for cell in text] for text in texts], np.uint8)
            for texts in ([row.question for row in rows], [row.answer for row in rows])
        )
        valid, kept = self.rules.holds(questions, answers)
        known, ratings = np.asarray(questions.all(axis=1)), np.zeros(len(rows), np.int64)
        counts, rated = self.rules.rating == "solutions", np.ones(len(rows), bool)
        refused = dict[str, np.ndarray]()
        for number in np.flatnonzero(valid & known):
            rating = rows[number].rating
            try:
                question = self.rules.parse(rows[number].question).question
            except ValueError as error:
                refused[f"question: {error}"] = np.arange(len(rows)) != number
                break
            own = self.rules.rating_of(question) if rating is None or counts else rating
            ratings[number], rated[number] = own, rating in (None, own)
        return Puzzles(questions, answers, ratings), {
            f"question: its characters must be of {''.join(self._tokens)!r}": known,
            "answer: it changes the question": kept,
            f"answer: it is not {self.rules.goal}": valid,
            "rating: it must be the number of right answers, 10,000 at most, or empty": rated,
            **refused,
        }

    def keys(self, questions: np.ndarray) -> list[bytes]:
        return [self.rules.key_of(question) for question in questions]

    def filtered(self, puzzles: Puzzles, counts: dict[str, Any]) -> Puzzles:
        least = self.options.min_rating
        return self.without_easy(puzzles, least, counts) if least else puzzles

    def enlarged(self, train: Puzzles, others: Sequence[Puzzles]) -> Puzzles:
        """Return the training puzzles, and remember the others: `examples` makes none of them."""
        self._others = {question.tobytes() for some in others for question in some.questions}
        return train

    def statistics(self, puzzles: Puzzles) -> dict[str, Any]:
        open = self.rules.board(self.size).open
        return {
            "mean_open_cells": (puzzles.questions == open).sum(axis=1).mean(),
            "mean_rating": puzzles.ratings.mean(),
        }

    def examples(self, puzzles: Puzzles, views: int) -> tuple[np.ndarray, np.ndarray, Fields]:
        """Example j has answer j of its puzzle, or they take turns; the field `answers` has all of
        them, the first one again in place of those that a puzzle does not have. The original
        stands in place of an image that is a puzzle of another split.
        """
        inputs, most = puzzles.questions.repeat(views, axis=0), self.options.answers
        pairs = zip(puzzles.questions, puzzles.answers, strict=True)
        found = [self._answers(*pair) if most > 1 else pair[1][None] for pair in pairs]
        labels = np.concatenate([one[np.arange(views) % len(one)] for one in found])
        answers = np.stack([one[np.arange(most) % len(one)] for one in found]).repeat(views, axis=0)
        if self.options.num_aug and views > 1:
            symmetries = self.rules.views(self.size)
            assert symmetries is not None
            words = random_words(self.options.seed, Stream.AUGMENTATION, (0, 0, 0, 0), len(inputs))
            numbers = (words % np.uint64(symmetries.number)).astype(np.int64)
            numbers[::views] = 0  # The first example is the original.
            boards = (inputs, labels, *answers.swapaxes(0, 1))
            images = symmetries.apply(numbers, *boards)
            taken = np.array([[image.tobytes() in self._others] for image in images[0]])
            inputs, labels, *turned = (
                np.where(taken, old, new) for old, new in zip(boards, images, strict=True)
            )
            answers = np.stack(turned, axis=1)
        if most == 1:
            return inputs, labels, {}
        field = LabelField(self.rules.vocab_size(self.size), channels=most)
        return inputs, labels, {"answers": (field, answers.swapaxes(1, 2))}

    def _answers(self, question: np.ndarray, answer: np.ndarray) -> np.ndarray:
        """Return up to `--answers` answers, uint8 [n, cells]: the given one, then others in the
        order of their tokens, which does not depend on the solver, unless there are too many.
        """
        grids = islice(self.rules.solutions(self.rules.to_grid(question)), _MOST_ANSWERS)
        found = sorted(self.rules.to_tokens(grid).tolist() for grid in grids)
        others = [one for one in found if one != answer.tolist()]
        return np.array([answer, *others[: self.options.answers - 1]], np.uint8)


main, make = KindBuild.main, KindBuild.make

if __name__ == "__main__":
    sys.exit(main())
