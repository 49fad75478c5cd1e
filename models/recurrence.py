"""What all recurrences share: blocks, embeddings in front, latent states that a carry keeps, heads.

A model of the family (HRM, TRM, the transformer) adds its stacks and says in `recur` how the
latents are updated; nothing else differs.

Shape letters: B batch, S cells, P puzzle prefix, T = P + S, D hidden width, V vocabulary.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from models.biases.base import build_bias
from models.config import DataFacts, RecurrenceConfig
from models.draws import BATCH_DRAWS, Draws, RowDraws
from models.heads.base import Answer, Examples, Outputs, TokenHead
from models.heads.build import build_heads
from models.layers import (
    Attention,
    CastedEmbedding,
    CastedSparseEmbedding,
    PositionSwiGLU,
    SwiGLU,
    add_rms_norm,
    rotary_tables,
    trunc_normal_,
    weights_cast_once,
)

if TYPE_CHECKING:
    from models.act import ACT
    from models.technique import Depth

# State of a recurrence by name (`z_H`, `z_L`), each forward dtype [B, T, D].
Latents = dict[str, Tensor]
Rotary = tuple[Tensor, Tensor] | None


class Block(nn.Module):
    """Post-norm block on [B, T, D]: mix the positions, then transform each one.

    With `mlp_t` the attention half becomes a SwiGLU over the T positions, normed over T too. Then
    the result is a view of [T, B, D] in memory, which costs the next block no copy.
    """

    def __init__(self, config: RecurrenceConfig, num_positions: int) -> None:
        super().__init__()
        self.eps, self.mixes_by_mlp = config.rms_norm_eps, config.mlp_t
        self.add_mixer(config, num_positions)
        self.mlp = SwiGLU(config.hidden_size, config.expansion, config.width_multiple)

    def add_mixer(self, config: RecurrenceConfig, num_positions: int) -> None:
        """Build what mixes the positions."""
        if config.mlp_t:
            self.mlp_t = PositionSwiGLU(num_positions, config.expansion, config.width_multiple)
            return
        P = config.num_prefix
        bias = build_bias(config.attention_bias, config.num_heads, num_positions - P, P)
        self.self_attn = Attention(config.hidden_size, config.num_heads, config.attention, bias)

    def forward(self, x: Tensor, rotary: Rotary) -> Tensor:
        if not self.mixes_by_mlp:
            x = add_rms_norm(x, self.self_attn(x, rotary), self.eps)
            return add_rms_norm(x, self.mlp(x), self.eps)
        x = self._mixed_by_mlp(x)
        return add_rms_norm(x, self.mlp(x), self.eps).transpose(0, 1)

    def _mixed_by_mlp(self, x: Tensor) -> Tensor:
        """Mix the positions of [B, T, D]; returns [T, B, D]."""
        B, T, D = x.shape
        columns = x.transpose(0, 1).reshape(T, B * D)
        return add_rms_norm(columns, self.mlp_t(columns), self.eps, dim=0).view(T, B, D)


class ReasoningLevel(nn.Module):
    """A stack of blocks, for the sum of a state and what is injected, [B, T, D]."""

    def __init__(
        self,
        config: RecurrenceConfig,
        num_layers: int,
        num_positions: int,
        block: type[Block] = Block,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(block(config, num_positions) for _ in range(num_layers))

    def forward(self, x: Tensor, rotary: Rotary) -> Tensor:
        for layer in self.layers:
            x = layer(x, rotary)
        return x


class Recurrence(nn.Module):
    """A model, one ACT step of it: embed the puzzle, update the latents, read the answer.

    A subclass adds its stacks, calls `add_initial_states`, and defines `recur`. Attribute names are
    the keys of the published checkpoints; the head NAME of `heads` is the module `NAME_head`.
    """

    lm_head: TokenHead
    cos: Tensor
    sin: Tensor
    block: type[Block] = Block
    # The ACT loop that it stands under, where that is not `models.act.ACT`.
    act_type: "type[ACT] | None" = None
    # Kinds of cells that the input embedding tells apart; None: all tokens.
    num_kinds: int | None = None
    # Where rows draw alone: the first is set for an evaluation, the second for each ACT step.
    noise_table: Tensor | None = None
    draws: Draws = BATCH_DRAWS
    # H_cycles and L_cycles in training, if a technique sets them, for a `CycledRecurrence`.
    depth: "Depth | None" = None

    def __init__(self, config: RecurrenceConfig, facts: DataFacts) -> None:
        super().__init__()
        self.dtype: torch.dtype = getattr(torch, config.forward_dtype)
        self.hidden_size, self.num_prefix = config.hidden_size, config.num_prefix
        self.num_positions = self.num_states = config.num_prefix + facts.seq_len
        self.pos_encodings, self.positions_first = config.pos_encodings, config.mlp_t
        self.techniques = config.techniques
        self.at_starts = self.techniques.acting("start")
        self.at_updates = self.techniques.acting("moved")
        D, T = config.hidden_size, self.num_positions

        kinds = self.num_kinds or facts.vocab_size
        self.embed_tokens = CastedEmbedding(kinds, D, init_std=D**-0.5, dtype=self.dtype)
        self.heads = build_heads(config, facts, self.embed_tokens)
        for name, head in self.heads.items():
            self.add_module(f"{name}_head", head)
        # Q last: the gradients of one state are added in this order, which the bits of a run show.
        self.read_in_order = [self.heads[n] for n in sorted(self.heads, key=lambda n: n == "q")]
        self.puzzle_emb = None
        if config.num_prefix:
            rows, width = facts.num_puzzle_identifiers, config.puzzle_emb_ndim
            self.puzzle_emb = CastedSparseEmbedding(rows, width, init_std=0.0, dtype=self.dtype)
        if config.pos_encodings == "learned":
            self.embed_pos = CastedEmbedding(T, D, init_std=D**-0.5, dtype=self.dtype)
        elif config.pos_encodings == "rope":
            cos, sin = rotary_tables(D // config.num_heads, T, config.rope_theta)
            self.register_buffer("cos", cos, persistent=False)
            self.register_buffer("sin", sin, persistent=False)

    def add_initial_states(self, names: Sequence[str]) -> None:
        """Give each latent z_NAME its fixed random start, the buffer NAME_init [D]; the first one
        is the answer, which heads read.
        """
        self.latents = tuple(f"z_{name}" for name in names)
        for name in names:
            start = trunc_normal_(torch.empty(self.hidden_size)).to(self.dtype)
            self.register_buffer(f"{name}_init", start)

    def recur(self, latents: Latents, injected: Tensor, rotary: Rotary) -> Latents:
        """Return the latents after an ACT step.

        Args:
            latents: z_H, z_L or one of them, [B, T, D] each, without gradients.
            injected: the embedded puzzle, [B, T, D]; with `mlp_t` views of [T, B, D], all of them.
            rotary: cos and sin [T, K], where positions are rotary.
        """
        raise NotImplementedError

    @property
    def kept_states(self) -> dict[str, str]:
        """The latents that are kept from step to step, by the names that exported files give."""
        return {name: name for name in self.latents}

    @property
    def draws_numbers(self) -> bool:
        """Whether a step draws random numbers."""
        return any(technique.draws_numbers for technique in self.techniques.active.values())

    def draw_by(self, keys: Tensor | None, steps: Tensor) -> None:
        """Let the next ACT step draw by the keys of rows, int64 [B], and the steps, int32 [B], that
        they are at; or by torch, for the whole batch, if `keys` is None.
        """
        self.draws = BATCH_DRAWS
        if keys is not None:
            assert self.noise_table is not None  # Of `ACT.initial_carry`.
            self.draws = RowDraws(self.noise_table, keys, steps)

    def empty_carry(self, batch_size: int) -> Latents:
        """Return zeros, never uninitialised memory: a stray NaN there would spread."""
        shape = (batch_size, self.num_states, self.hidden_size)
        device = self.embed_tokens.embedding_weight.device
        return {name: torch.zeros(shape, dtype=self.dtype, device=device) for name in self.latents}

    def reset_carry(self, reset: Tensor, carry: Latents) -> Latents:
        """Return `carry` with the rows where `reset` (bool [B]) is set back to start states."""
        where = reset.view(-1, 1, 1)
        return {name: torch.where(where, self._start(name, z), z) for name, z in carry.items()}

    def _start(self, name: str, z: Tensor) -> Tensor:
        """Return where a latent starts: [D], or [B, T, D] if each cell starts elsewhere."""
        for technique in self.at_starts:
            return technique.start(z, self.draws)
        return self.get_buffer(f"{name.removeprefix('z_')}_init")

    def moved(self, before: Tensor, after: Tensor) -> Tensor:
        """Return a latent [B, T, D] after an update that gives `after`, the same."""
        for technique in self.at_updates:
            after = technique.moved(before, after, self.draws)
        return after

    def forward(self, carry: Latents, examples: Examples) -> tuple[Latents, Tensor]:
        """Run one ACT step. Return the latents after it, [B, T, D] each, detached, and the answer's
        states [B, T, D], with gradients.
        """
        injected = self.embed_puzzle(examples["inputs"], examples["puzzle_identifiers"])
        rotary = (self.cos, self.sin) if self.pos_encodings == "rope" else None
        if self.positions_first:
            injected = _positions_first(injected)
            carry = {name: _positions_first(z) for name, z in carry.items()}
        with weights_cast_once(self, self.dtype):
            latents = self.recur(carry, injected, rotary)
        latents = {name: z.contiguous() for name, z in latents.items()}
        return {name: z.detach() for name, z in latents.items()}, latents[self.latents[0]]

    def read(self, states: Tensor, examples: Examples) -> Outputs:
        """Return what all heads predict from the answer's states [B, T, D]; without Q zeros."""
        zeros = states.new_zeros(states.shape[0], dtype=torch.float32)
        outputs = {"q_halt_logits": zeros, "q_continue_logits": zeros}
        answer = self.answer(states, examples)
        for head in self.read_in_order:
            outputs |= head.read(answer)
        return outputs

    def answer(self, states: Tensor, examples: Examples) -> Answer:
        """Return the answer's states [B, T, D] as heads read them."""
        ids, table = examples["puzzle_identifiers"], self.puzzle_emb
        return Answer(states, self.num_prefix, None if table is None else table.rows_in_use(ids))

    def embed_puzzle(self, inputs: Tensor, puzzle_identifiers: Tensor) -> Tensor:
        """Return what an ACT step injects, [B, T, D], for inputs [B, S]."""
        embedding, P, D = self.embed_tokens(inputs), self.num_prefix, self.hidden_size
        if self.puzzle_emb is not None:
            rows = self.puzzle_emb(puzzle_identifiers)
            padded = nn.functional.pad(rows, (0, P * D - rows.shape[-1]))
            embedding = torch.cat((padded.view(-1, P, D), embedding), dim=1)
        if self.pos_encodings == "learned":
            # 1/sqrt(2) keeps the sum of two embeddings at the variance of one.
            positions = self.embed_pos.embedding_weight.to(self.dtype)
            embedding = (embedding + positions) * math.sqrt(0.5)
        return embedding * math.sqrt(D)


class CycledRecurrence(Recurrence):
    """A recurrence whose ACT step consists of H_cycles cycles, each with L_cycles updates of z_L;
    always those of the configuration in evaluation.
    """

    def __init__(self, config: Any, facts: DataFacts) -> None:
        super().__init__(config, facts)
        self._full_depth = (config.H_cycles, config.L_cycles)

    H_cycles = property(lambda self: self.cycles[0])
    L_cycles = property(lambda self: self.cycles[1])

    @property
    def cycles(self) -> tuple[int, int]:
        """H_cycles and L_cycles."""
        return self._full_depth if self.depth is None or not self.training else self.depth


def _positions_first(x: Tensor) -> Tensor:
    """Return the values of x [B, T, D], ordered in memory as [T, B, D]."""
    return x.transpose(0, 1).contiguous().transpose(0, 1)
