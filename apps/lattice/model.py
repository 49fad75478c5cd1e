"""Deduction on a grid of candidates: the lattice deduction transformer (arXiv:2605.08605).

The state of a puzzle is the set of tokens that each cell may still hold: its candidates. A looped
transformer predicts the candidates to strike, the token of each cell, and whether the solution has
been struck already. A step strikes unlikely candidates and guesses one cell. A guess may be wrong,
so the model learns on the states that it reaches itself, and learns to notice a contradiction.

Shape letters: B batch, S cells, V tokens, N digits, P positions in front of the cells, T = P + S,
D hidden width, K loops.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from apps.dec.model import FIRST_DIGIT, DigitBlock, answer_of_digits
from apps.lattice.config import LatticeConfig
from apps.lattice.heads import CANDIDATES, solution_gone
from dataset.sudoku.rules import EMPTY_TOKEN
from dataset.sudoku.symmetries import SudokuSymmetries, sudoku_symmetries
from models.act import ACT, ACTCarry, Drawn, Judged
from models.biases.base import build_bias
from models.config import DataFacts, RecurrenceConfig
from models.heads.base import Answer, Examples, Head, Outputs
from models.layers import (
    Attention,
    CastedEmbedding,
    CastedLinear,
    LayerNorm,
    trunc_normal_,
    weights_cast_once,
)
from models.recurrence import Block, Latents, ReasoningLevel, Recurrence, Rotary
from runtime.streams import Address, Stream

# Optional entries of the examples:
# the cell, int64 [B, S], and the token, int64 [B, V], of the original puzzle for each cell and
# token of the present view;
ORIGIN_CELLS, ORIGIN_TOKENS = "origin_cells", "origin_tokens"
# the candidates to begin with, bool [B, S, V]; by default all;
BEGINNINGS = "beginnings"
# the threshold for striking of each row, float32 [B]; by default the configuration's.
STRIKE_BELOW = "strike_below"
# Verdicts of a step.
DECIDED, CONTRADICTION = 1, 2


class LatticeBlock(Block):
    """Pre-norm block on [B, T, D] with LayerNorm and GELU: mix the positions, transform each."""

    def __init__(self, config: RecurrenceConfig, num_positions: int) -> None:
        nn.Module.__init__(self)
        assert isinstance(config, LatticeConfig)
        D = config.hidden_size
        inner = max(1, round(config.expansion * D))
        bias = build_bias(config.attention_bias, config.num_heads, num_positions - 1, 1)
        self.norm_1, self.norm_2 = LayerNorm(D), LayerNorm(D)
        self.self_attn = Attention(D, config.num_heads, config.attention, bias)
        self.up_proj = CastedLinear(D, inner, bias=True)
        self.down_proj = CastedLinear(inner, D, bias=True)
        self.dropout = config.dropout

    def forward(self, x: Tensor, rotary: Rotary) -> Tensor:
        x = x + self._dropped(self.self_attn(self.norm_1(x), rotary))
        return x + self._dropped(self.down_proj(F.gelu(self.up_proj(self.norm_2(x)))))

    def _dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training) if self.dropout else x


class Loop(ReasoningLevel):
    """A stack of blocks with a residual and a norm: maps [B, T, D] to norm(x + blocks(x))."""

    def __init__(self, config: LatticeConfig, num_positions: int, block: type[Block]) -> None:
        super().__init__(config, config.L_layers, num_positions, block)
        self.norm = LayerNorm(config.hidden_size)

    def forward(self, x: Tensor, rotary: Rotary) -> Tensor:
        return self.norm(x + super().forward(x, rotary))


class Deduced(NamedTuple):
    """The result of a step for B rows."""

    candidates: Tensor  # bool [B, S, V], after striking and guessing
    guessed: Tensor  # int64 [B], the guessed cell; -1: none
    decided: Tensor  # bool [B], each cell had one candidate already, and the model accepts them
    contradiction: Tensor  # bool [B], a cell has no candidate, or the model sees a contradiction


class LatticeInner(Recurrence):
    """The model inside one step on candidate sets.

    The carry has z_H [B, T, D], the states of the last loop, which heads read; z_candidates, bool
    [B, S, V], the candidates that were shown; z_next, the candidates for the next step; z_guess,
    int64 [B], the guessed cell or -1; z_verdict, int64 [B]: DECIDED, CONTRADICTION, or 0.
    """

    open_cell: Tensor
    latents = ("z_H",)

    def __init__(self, config: LatticeConfig, facts: DataFacts) -> None:
        side = math.isqrt(facts.seq_len)
        self.views = sudoku_symmetries(side)
        # Learned positions are a vector for each row and column, not one for each cell.
        learned = config.pos_encodings == "learned"
        super().__init__(
            config.model_copy(update={"pos_encodings": "none"}) if learned else config, facts
        )
        D = config.hidden_size
        self.pos_encodings = config.pos_encodings
        if learned:
            self.embed_row, self.embed_column = (
                CastedEmbedding(side, D, init_std=D**-0.5, dtype=self.dtype) for _ in range(2)
            )
        self.seq_len, self.num_loops = facts.seq_len, config.loops
        self.keeps_states, self.guess_temperature = config.keep_states, config.guess_temperature
        self.strike_below = _logit(config.strike_below)
        self.contradiction_above = _logit(config.contradiction_above)
        self.guesses_always = config.guess == "always"
        # Not computed by torch, which loads its compiler to compute on the meta device.
        open_cell = torch.tensor([token >= FIRST_DIGIT for token in range(facts.vocab_size)])
        self.register_buffer("open_cell", open_cell, persistent=False)
        self.add_layers(config)

    def add_layers(self, config: LatticeConfig) -> None:
        """Build the loop and its input layers."""
        D = self.hidden_size
        self.num_prefix = 1  # One position for the whole puzzle.
        self.num_positions = self.num_states = 1 + self.seq_len
        self.embed_whole = nn.Parameter(trunc_normal_(torch.empty(D), std=D**-0.5))
        self.H_level = Loop(config, self.num_positions, LatticeBlock)

    def empty_carry(self, batch_size: int) -> Latents:
        z_H = super().empty_carry(batch_size)["z_H"]
        shape = (batch_size, self.seq_len, len(self.open_cell))
        candidates = torch.zeros(shape, dtype=torch.bool, device=z_H.device)
        zeros = torch.zeros(batch_size, dtype=torch.int64, device=z_H.device)
        state = {CANDIDATES: candidates, "z_next": candidates.clone()}
        return {"z_H": z_H, **state, "z_guess": zeros, "z_verdict": zeros.clone()}

    @property
    def kept_states(self) -> dict[str, str]:
        return {"candidates": "z_next"} | (super().kept_states if self.keeps_states else {})

    def begin(
        self, new: Tensor, carry: Latents, examples: Examples, drawn: Drawn | None = None
    ) -> tuple[Latents, Examples]:
        """Return the latents with the candidates of this step, and the examples, both in the drawn
        view. `new` rows (bool [B]) begin with all candidates or with their `BEGINNINGS`.
        """
        new, fresh = new.view(-1, 1, 1), examples.get(BEGINNINGS)
        if fresh is None:
            fresh = self.all_candidates(examples["inputs"])
        candidates, z_H = (new & fresh) | (~new & carry["z_next"]), carry["z_H"]
        if self.keeps_states:
            z_H = torch.where(new, 0.0, z_H)
        if drawn is not None and "cells" in drawn:
            candidates, examples = _turn(candidates, examples, drawn)
        return carry | {"z_H": z_H, CANDIDATES: candidates}, examples

    def all_candidates(self, inputs: Tensor) -> Tensor:
        """Return all candidates of unsolved puzzles, bool [B, S, V], for inputs [B, S]."""
        given = F.one_hot(inputs.long(), len(self.open_cell)).bool()
        is_open = (inputs == EMPTY_TOKEN).unsqueeze(-1)
        return (is_open & self.open_cell) | (~is_open & given)

    def forward(self, carry: Latents, examples: Examples) -> tuple[Latents, Tensor]:
        """Run all loops. Return the latents, detached, and the states after each loop, [K * B, T,
        D]; in evaluation mode only after the last loop.
        """
        injected = self.embed(carry[CANDIDATES])
        first_kept = 0 if self.training else self.num_loops - 1
        h = carry["z_H"].view(injected.shape) if self.keeps_states else injected
        answers = []
        with weights_cast_once(self, self.dtype):
            for loop in range(self.num_loops):
                with torch.set_grad_enabled(torch.is_grad_enabled() and loop >= first_kept):
                    h = self.H_level(h + injected, None)
                if loop >= first_kept:
                    answers.append(self.as_carried(h))
        return carry | {"z_H": answers[-1].detach()}, torch.cat(answers)

    def embed(self, candidates: Tensor) -> Tensor:
        """Return the input of each loop, [B, T, D], for candidates [B, S, V]."""
        table, D = self.embed_tokens.embedding_weight.to(self.dtype), self.hidden_size
        cells = candidates.to(self.dtype) @ table
        if self.pos_encodings == "learned":
            tables = (self.embed_row.embedding_weight, self.embed_column.embedding_weight)
            row, column = (table.to(self.dtype) for table in tables)
            cells = cells + (row.unsqueeze(1) + column).flatten(0, 1)
        whole = self.embed_whole.to(self.dtype).expand(cells.shape[0], 1, D)
        return torch.cat((whole, cells), dim=1) * math.sqrt(D)

    def answer(self, states: Tensor, examples: Examples) -> Answer:
        return Answer(states, num_prefix=1)

    def as_carried(self, h: Tensor) -> Tensor:
        """Return the states of a loop in the shape of the carry."""
        return h

    @torch.no_grad()
    def deduce(
        self,
        outputs: Outputs,
        candidates: Tensor,
        inputs: Tensor,
        guesses: Tensor | None,
        solution: Tensor | None = None,
        strike_below: Tensor | None = None,
    ) -> Deduced:
        """Strike candidates, and guess a cell in rows that are neither decided nor contradictory.

        Args:
            outputs: outputs of the heads for `candidates`, bool [B, S, V].
            inputs: int [B, S]; the candidates of given cells are never struck.
            guesses: [B, 2], uniform in [0, 1), to choose an open cell and one of its tokens; None:
                guess nothing.
            solution: int [B, S], tokens to guess as long as they are candidates; the model guesses
                in cells with a negative token or without that candidate. None: it always guesses.
            strike_below: float32 [B], the threshold of each row; None: the configuration's.
        """
        bound = self.strike_below if strike_below is None else strike_below.logit().view(-1, 1, 1)
        unlikely = outputs["candidates_logits"] < bound
        kept = candidates & ~(unlikely & (inputs == EMPTY_TOKEN).unsqueeze(-1))
        left = kept.sum(-1)
        noticed = outputs["contradiction_logits"] > self.contradiction_above
        contradiction = noticed | (left == 0).any(-1)
        complete = (left == 1).all(-1)
        unchanged = (kept == candidates).flatten(1).all(-1)
        decided = complete & unchanged & ~contradiction
        if guesses is None:
            return Deduced(kept, torch.full_like(left[:, 0], -1), decided, contradiction)
        cell, token = self._guess(outputs["logits"], kept, left > 1, guesses)
        if solution is not None:
            token = _guided(token, cell, kept, solution)
        goes_on = ~(complete | contradiction)
        guessed = torch.where(goes_on if self.guesses_always else goes_on & unchanged, cell, -1)
        chosen = torch.arange(len(left[0]), device=cell.device) == guessed.unsqueeze(-1)
        only = F.one_hot(token, kept.shape[-1]).bool().unsqueeze(1)
        kept = torch.where(chosen.unsqueeze(-1), only, kept)
        return Deduced(kept, guessed, decided, contradiction)

    def _guess(
        self, logits: Tensor, candidates: Tensor, is_open: Tensor, guesses: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Choose an open cell of each row and its token, int64 [B]; any if no cell is open."""
        number = is_open.cumsum(-1)
        wanted = (guesses[:, :1] * number[:, -1:]).floor() + 1
        cell = ((number == wanted) & is_open).int().argmax(-1)
        rows = torch.arange(len(cell), device=cell.device)
        scores = logits[rows, cell].float() / self.guess_temperature
        scores = scores.masked_fill(~candidates[rows, cell], -math.inf)
        # Cumulative sums as a product: torch's cumsum has no deterministic form on GPUs.
        below = scores.softmax(-1) @ torch.ones_like(scores[0]).expand(scores.shape[-1], -1).triu()
        token = (below <= guesses[:, 1:] * below[:, -1:]).sum(-1).clamp_max(len(self.open_cell) - 1)
        return cell, token


class DigitLatticeInner(LatticeInner):
    """The same with a state for each digit in each cell, z_H [B, N * S, D], and shared weights for
    all digits, as in `apps.dec.model`: permuting the digits of a puzzle permutes all deductions.
    """

    num_kinds = 4  # In an open cell a digit is struck or possible; in a decided one, out or in.

    def add_layers(self, config: LatticeConfig) -> None:
        self.num_digits = len(self.open_cell) - FIRST_DIGIT
        self.num_states = self.num_digits * self.seq_len
        self.H_level = Loop(config, self.num_positions, DigitBlock)

    def embed(self, candidates: Tensor) -> Tensor:
        """Return the input of each loop, [B * N, S, D]."""
        decided = candidates.sum(-1, keepdim=True) == 1
        kinds = candidates[..., FIRST_DIGIT:].long() + 2 * decided
        kinds = kinds.transpose(1, 2).flatten(0, 1)
        return self.embed_tokens(kinds) * math.sqrt(self.hidden_size)

    def as_carried(self, h: Tensor) -> Tensor:
        return h.reshape(-1, self.num_states, self.hidden_size)

    def answer(self, states: Tensor, examples: Examples) -> Answer:
        answer = answer_of_digits(states, self.num_digits)
        whole = states.max(1, keepdim=True).values
        return answer._replace(states=torch.cat((whole, answer.cells), dim=1))


class LatticeACT(ACT):
    """A lattice under the ACT loop. Each slot of the batch keeps its puzzle until all cells are
    decided, a contradiction is found or all steps are taken; then it takes the next one.
    """

    inner: LatticeInner

    def __init__(self, inner: LatticeInner, config: LatticeConfig) -> None:
        super().__init__(inner, config)
        self.config = config

    @property
    def eval_max_steps(self) -> int:
        return self.config.eval_steps

    def draw(self, at: Address) -> dict[str, np.ndarray]:
        own, inner = slice(at.own.start, at.own.stop), self.inner
        drawn = guesses_and_views(at, self.config, inner.views)
        return super().draw(at) | {name: at.parts(rows[own]) for name, rows in drawn.items()}

    def think(
        self, carry: ACTCarry, offered: Examples, drawn: Drawn | None = None
    ) -> tuple[ACTCarry, Tensor]:
        """Run a step like `ACT.think`, in training with the answers of all loops.

        Args:
            drawn: `guesses`, float32 [B, 2], uniform in [0, 1), to choose cell and token of a
                guess; `guided`, bool [B, 1], rows that guess the solution's token; `cells` and
                `tokens`, int32 [B, S] and [B, V], the new view of a row: cells[i] is the old
                position of cell i, tokens[t] is the new token for t.
        """
        steps, examples = self._take_examples(carry, offered, drawn or {})
        latents, examples = self.inner.begin(carry.halted, carry.inner, examples, drawn)
        latents, answer = self.inner(latents, examples)
        with torch.no_grad():
            outputs = self.inner.read(latents["z_H"], examples)
        drawn, shown = drawn or {}, latents[CANDIDATES]
        guesses, bound, solution = drawn.get("guesses"), examples.get(STRIKE_BELOW), None
        if "guided" in drawn:
            solution = torch.where(drawn["guided"], examples["labels"], -1)
        deduced = self.inner.deduce(outputs, shown, examples["inputs"], guesses, solution, bound)
        halted = steps >= (self.halt_max_steps if self.training else self.eval_max_steps)
        if self.training:
            gone = solution_gone(deduced.candidates, examples["labels"])
            halted = halted | torch.where(gone, deduced.contradiction, deduced.decided)
        latents |= {"z_next": deduced.candidates, "z_guess": deduced.guessed}
        verdict = torch.where(deduced.contradiction, CONTRADICTION, 0)
        latents["z_verdict"] = torch.where(deduced.decided, DECIDED, verdict)
        return ACTCarry(latents, steps, halted, examples), answer

    def judge(self, heads: Iterable[Head], carry: ACTCarry, outputs: Outputs) -> Judged:
        """Judge like `ACT.judge`, with the shown candidates among the examples. Losses are means
        over the answers of all loops; metrics are those of the last loop.
        """
        examples = carry.examples | {CANDIDATES: carry.inner[CANDIDATES]}
        B, loops = len(carry.steps), len(outputs["logits"]) // len(carry.steps)
        if loops > 1:
            examples = {n: v.repeat(loops, *[1] * (v.ndim - 1)) for n, v in examples.items()}
        judged = super().judge(heads, replace(carry, examples=examples), outputs)
        losses = judged.losses
        if self.training and not self.config.learn_after_mistakes:
            gone = solution_gone(examples[CANDIDATES], examples["labels"])
            losses = {
                name: value if name == "contradiction" else value.masked_fill(gone, 0.0)
                for name, value in losses.items()
            }
        if loops == 1:
            return judged._replace(losses=losses)
        losses = {name: value.view(loops, B).mean(0) for name, value in losses.items()}
        metrics, last = (
            {name: value[-B:] for name, value in each.items()} for each in (judged.metrics, outputs)
        )
        return Judged(losses, metrics, judged.labelled[-B:], last)


LatticeInner.act_type = LatticeACT


def guesses_and_views(
    at: Address, config: LatticeConfig, views: SudokuSymmetries
) -> dict[str, np.ndarray]:
    """Draw `guesses`, `guided`, `cells` and `tokens` of `LatticeACT.think` for the global batch."""
    words = at.words(Stream.GUESSES, 2 * at.num_rows)
    guesses = ((words >> np.uint64(40)) * 2.0**-24).astype(np.float32)
    drawn: dict[str, np.ndarray] = {"guesses": guesses.reshape(at.num_rows, 2)}
    if config.guided_guesses:
        words = at.words(Stream.GUESSES, at.num_rows, counter=1)
        drawn["guided"] = ((words >> np.uint64(11)) * 2.0**-53 < config.guided_guesses)[:, None]
    if config.views != "none":
        words = at.words(Stream.TURNS, 2 * at.num_rows).reshape(2, -1)
        drawn["cells"], drawn["tokens"] = views.turns(words)
    return drawn


def _guided(token: Tensor, cell: Tensor, candidates: Tensor, solution: Tensor) -> Tensor:
    """Return the solution's token of each row's cell if it is still a candidate, else `token`."""
    rows = torch.arange(len(cell), device=cell.device)
    right = solution[rows, cell].long()
    possible = (right >= 0) & candidates[rows, cell, right.clamp_min(0)]
    return torch.where(possible, right, token)


def _turn(candidates: Tensor, examples: Examples, drawn: Drawn) -> tuple[Tensor, Examples]:
    """Return candidates [B, S, V] and examples in the drawn view."""
    cells, tokens = drawn["cells"].long(), drawn["tokens"].long()
    turned = {}
    for name in ("inputs", "labels"):
        if name in examples:
            moved = examples[name].gather(1, cells)
            renamed = tokens.gather(1, moved.clamp_min(0).long()).to(moved.dtype)
            turned[name] = torch.where(moved < 0, moved, renamed)
    if ORIGIN_CELLS in examples:
        turned[ORIGIN_CELLS] = examples[ORIGIN_CELLS].gather(1, cells)
        known = examples[ORIGIN_TOKENS]
        turned[ORIGIN_TOKENS] = torch.zeros_like(known).scatter(1, tokens, known)
    old = candidates.gather(1, cells.unsqueeze(-1).expand_as(candidates))
    new = torch.zeros_like(old).scatter(2, tokens.unsqueeze(1).expand_as(old), old)
    return new, examples | turned


def lattice(config: LatticeConfig, facts: DataFacts) -> LatticeInner:
    """Build the model for `config.symmetry`."""
    inner = LatticeInner if config.symmetry == "none" else DigitLatticeInner
    return inner(config, facts)


def _logit(probability: float) -> float:
    if probability in (0, 1):
        return math.copysign(math.inf, probability - 0.5)
    return math.log(probability / (1 - probability))
