"""TRM with one latent as a neural cellular automaton: an update reads a cell and its neighbours.

A wave passes one cell an update. So a shortest path in a maze needs two waves: from the goal, each
cell learns which neighbours are closer to it; then a wave from the start marks the path. Each cell
needs to learn only what to do with its neighbours' states, so gradients through a few updates are
enough. A gate decides how much of a cell's state changes (arXiv:1511.08228).

With keeps=answers cells take only what their heads chose from one ACT step to the next, as a sum of
fixed codes. So small errors do not add up over hundreds of updates, and training can show what
cells should hold at any step (the technique `hints`).

Shape letters: B batch, S cells of a square grid, D hidden width.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from models.config import DataFacts
from models.heads.base import Examples, Outputs
from models.heads.field import FieldHead
from models.layers import CastedLinear, add_rms_norm
from models.recurrence import Block, Latents, Rotary
from models.trm.model import TRMSingleInner


class Neighbours(CastedLinear):
    """Maps [n, rows, columns, D] to a learned sum over each cell and its neighbours: eight, or four
    without `diagonals`. There are zeros outside.
    """

    cross: Tensor | None

    def __init__(self, width: int, diagonals: bool = True) -> None:
        super().__init__((9 if diagonals else 5) * width, width)
        cross = None if diagonals else torch.eye(9)[[1, 3, 4, 5, 7]]
        self.register_buffer("cross", cross, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        D = x.shape[-1]
        weight = self.weight_in(x.dtype).view(D, -1, D).transpose(1, 2)
        if self.cross is not None:
            weight = weight @ self.cross.to(x.dtype)
        weight = weight.reshape(D, D, 3, 3)
        return F.conv2d(x.permute(0, 3, 1, 2), weight, padding=1).permute(0, 2, 3, 1)


class NCABlock(Block):
    """Post-norm block on [B, S, D]: mix each cell with its neighbours, then transform it."""

    def add_mixer(self, config: Any, num_positions: int) -> None:
        self.side = math.isqrt(num_positions)
        self.near = Neighbours(config.hidden_size, diagonals=False)

    def forward(self, x: Tensor, rotary: Rotary) -> Tensor:
        grid = x.unflatten(1, (self.side, self.side))
        x = add_rms_norm(x, self.near(grid).flatten(1, 2), self.eps)
        return add_rms_norm(x, self.mlp(x), self.eps)


class NCAInner(TRMSingleInner):
    """One latent; all updates are alike. With keeps=answers the latent z_kept [B, S, D] holds the
    codes of the last answers, and a step starts at it; z_L is only read.
    """

    block = NCABlock

    def __init__(self, config: Any, facts: DataFacts) -> None:
        super().__init__(config, facts)
        D = config.hidden_size
        self.gate = CastedLinear(D, D, bias=True)
        self.keeps_answers, self.kept_heads = config.keeps == "answers", list[FieldHead]()
        if self.keeps_answers:
            self.latents = (*self.latents, "z_kept")
            self.register_buffer("kept_init", torch.zeros(D, dtype=self.dtype))
            self.register_buffer("token_codes", self._codes(facts.vocab_size))
            heads = [head for head in self.heads.values() if isinstance(head, FieldHead)]
            self.kept_heads = [head for head in heads if len(head.shape) == 1]
            for head in self.kept_heads:
                self.register_buffer(f"{head.field}_codes", self._codes(*head.shape))

    def _codes(self, classes: int) -> Tensor:
        """Return random codes [classes, D]: 0 for class 0; the others share half of their square,
        so that it is easy to learn whether a cell has an answer at all.
        """
        D = self.hidden_size
        codes = math.sqrt(0.5) * (torch.randn(D) + torch.randn(classes, D))
        return torch.cat((torch.zeros(1, D), codes[1:])).to(self.dtype)

    def reached(self, outputs: Outputs) -> Tensor:
        reached = super().reached(outputs)
        for head in self.kept_heads:
            reached |= outputs[f"{head.name}_logits"].argmax(-1) > 0
        return reached

    def holding(self, latents: Latents, examples: Examples) -> Latents:
        """Return the latents with z_kept as the codes of labels and fields. A token that equals the
        input counts as class 0.
        """
        inputs, labels = examples["inputs"], examples["labels"]
        codes = self.get_buffer("token_codes")[torch.where(labels == inputs, 0, labels).long()]
        for head in self.kept_heads:
            codes = codes + self.get_buffer(f"{head.field}_codes")[examples[head.field].long()]
        return latents | {"z_kept": codes}

    def forward(self, carry: Latents, examples: Examples) -> tuple[Latents, Tensor]:
        latents, answer = super().forward(carry, examples)
        if not self.keeps_answers:
            return latents, answer
        with torch.no_grad():
            outputs = self.read(answer.detach(), examples)
            logits = {"labels": outputs["logits"]}
            logits |= {head.field: outputs[f"{head.name}_logits"] for head in self.kept_heads}
            chosen = {name: values.argmax(-1) for name, values in logits.items()}
        return self.holding(latents, examples | chosen), answer

    def recur(self, latents: Latents, injected: Tensor, rotary: Rotary) -> Latents:
        if self.keeps_answers:  # All that a step knows of the one before.
            latents = latents | {"z_L": self.replaced(latents["z_L"], latents["z_kept"])}
        return super().recur(latents, injected, rotary)

    def cycle(self, latents: Latents, injected: Tensor, rotary: Rotary) -> Latents:
        """z = g new + (1 - g) z, L_cycles times, where new = net(z + input), g = sigmoid(W new)."""
        z_L = latents["z_L"]
        for _ in range(self.L_cycles):
            new = self.L_level(z_L + injected, rotary)
            z_L = self.moved(z_L, torch.lerp(z_L, new, self.gate(new).sigmoid()))
        return latents | {"z_L": z_L}
