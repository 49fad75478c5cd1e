"""Anchors: in training the answer of some puzzles starts at their own solution, with some cells
wrong (the anchor rows of the repository Aakash-Marthandan/Fixed-Point-Reasoner-Structures).

The model learns to keep a right answer and to mend wrong cells.
"""

from typing import TYPE_CHECKING, ClassVar

from models.technique import TECHNIQUES, Former, Technique
from runtime.schema import Probability

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from models.act import Drawn
    from models.heads.base import Examples
    from models.recurrence import Latents, Recurrence
    from runtime.streams import Address

_STREAM = 0x616E6368


class Anchors(Technique):
    former: ClassVar = {
        "anchor_prob": Former("prob", 0.0),
        "anchor_corruption": Former("corruption"),
    }

    prob: Probability = 0.25
    """share of the new puzzles that start at their solution"""
    corruption: Probability = 0.2
    """largest share of their open cells that takes the token of a random cell"""

    def draw(self, at: "Address") -> "dict[str, np.ndarray]":
        """Draw the anchored rows and their wrong cells, for the rows of this rank.

        A row is anchored with probability `prob`. A share of its cells, uniform in [0, corruption],
        takes the token of a random cell of the solution. In a Sudoku all digits are equally likely.

        Returns:
            `anchors`, int32 [parts, rows, seq_len]: the cell whose token each cell takes, mostly
            itself; -1 in rows that are not anchored. Nothing if prob=0.
        """
        import numpy as np

        if not self.prob:
            return {}
        anchored, share = at.uniform(_STREAM)
        sources = np.full((len(at.own), at.seq_len), -1, np.int32)
        for place, row in enumerate(at.own):
            if anchored[row] < self.prob:
                words = at.words(_STREAM, at.seq_len, 1 + row)
                # The upper half of a word decides whether a cell is corrupted, the lower how.
                corrupted = (words >> np.uint64(32)) * 2.0**-32 < self.corruption * share[row]
                others = (words & np.uint64(2**32 - 1)) % np.uint64(at.seq_len)
                own = np.arange(at.seq_len, dtype=np.uint64)
                sources[place] = np.where(corrupted, others, own)
        return {"anchors": at.parts(sources)}

    def begun(
        self,
        inner: "Recurrence",
        new: "Tensor",
        steps: "Tensor",
        latents: "Latents",
        examples: "Examples",
        drawn: "Drawn",
    ) -> "Latents":
        """Start the answers of new anchored rows at the embedding of their corrupted solution. The
        prefix keeps its start. Only open cells, where label and input differ, are corrupted; a cell
        without a label takes its input.
        """
        import torch

        from models.act import choose_rows
        from models.losses import IGNORE_LABEL_ID

        sources = drawn.get("anchors")
        if sources is None:
            return latents
        inputs, labels = examples["inputs"], examples["labels"]
        solution = torch.where(labels == IGNORE_LABEL_ID, inputs, labels)
        taken = solution.gather(1, sources.clamp_min(0).long())
        corrupted = torch.where(solution == inputs, solution, taken)
        name, P = inner.latents[0], inner.num_prefix
        z = latents[name]
        with torch.no_grad():
            start = inner.embed_puzzle(corrupted, examples["puzzle_identifiers"]).view_as(z)
        where = new & (sources[:, 0] >= 0)
        anchored = choose_rows(where, start[:, P:], z[:, P:])
        return latents | {name: torch.cat((z[:, :P], anchored), dim=1)}


TECHNIQUES.add("anchors", Anchors, text="some answers start at their solution, with wrong cells")
