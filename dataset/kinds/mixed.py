"""The kind `mixed`: puzzles of several kinds in one data set, built by
dataset/build_mixed_dataset.py. The names in identifiers.json are the kinds.
"""

from math import isqrt

import numpy as np

from dataset.kinds.base import BoardLook, Kind, Verdict, plain_colours

_MOST_TOKENS = 64


class MixedKind(Kind):
    """Puzzles of several kinds. A board does not tell its kind, so answers are compared with the
    right one; the evaluator `rules` knows the kinds, and checks their rules.
    """

    name = "Mixed"
    goal = "the stored answer"
    is_named = True

    def fits(self, seq_len: int, vocab_size: int) -> bool:
        return isqrt(seq_len) ** 2 == seq_len and vocab_size <= _MOST_TOKENS

    def vocab_size(self, size: int) -> int:
        return _MOST_TOKENS

    def board(self, size: int) -> BoardLook:
        return plain_colours(_MOST_TOKENS)

    def wrong(
        self, question: np.ndarray, answer: np.ndarray, target: np.ndarray | None
    ) -> np.ndarray:
        return np.zeros(answer.shape, bool) if target is None else (answer != target) & (target > 0)

    def judge(self, question: np.ndarray, answer: np.ndarray, target: np.ndarray | None) -> Verdict:
        if target is None:
            return Verdict(None, "an answer whose kind is not known")
        return super().judge(question, answer, target)


MIXED = MixedKind()
