"""The shared parts of all recurrences: blocks, embeddings, latent states and heads.

Each model of the family (HRM, TRM, the transformer) adds its stacks, and updates the latents in
`recur`; nothing else differs.

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

# States of a recurrence by name (`z_H`, `z_L`), each [B, T, D] in the forward dtype.
Latents = dict[str, Tensor]
Rotary = tuple[Tensor, Tensor] | None


class Block(nn.Module):
    """Post-norm block on [B, T, D]: mix the positions, then transform each one.

    With `mlp_t` a SwiGLU over the T positions replaces attention, with a norm over T too. The
    result is then a view of [T, B, D] in memory, which the next block need not copy.
    """

    def __init__(self, config: RecurrenceConfig, num_positions: int) -> None:
        super().__init__()
        self.eps, self.mixes_by_mlp = config.rms_norm_eps, config.mlp_t
        self.add_mixer(config, num_positions)
        self.mlp = SwiGLU(config.hidden_size, config.expansion, config.width_multiple)

    def add_mixer(self, config: RecurrenceConfig, num_positions: int) -> None:
        """Build the layer that mixes the positions."""
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
        """Mix the positions of [B, T, D] and return [T, B, D]."""
        B, T, D = x.shape
        columns = x.transpose(0, 1).reshape(T, B * D)
        return add_rms_norm(columns, self.mlp_t(columns), self.eps, dim=0).view(T, B, D)


class ReasoningLevel(nn.Module):
    """A stack of blocks: maps [B, T, D], the sum of a state and its injected input."""

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
    """The model inside one ACT step: embed the puzzle, update the latents, read the answer.

    A subclass adds its stacks, calls `add_initial_states`, and defines `recur`. Attribute names are
    the keys of the published checkpoints; the module of the head NAME is `NAME_head`.
    """

    lm_head: TokenHead
    cos: Tensor
    sin: Tensor
    block: type[Block] = Block
    # The ACT loop for this model; None: `models.act.ACT`.
    act_type: "type[ACT] | None" = None
    # Rows of the input embedding; None: one for each token.
    num_kinds: int | None = None
    # Set for an evaluation if each row draws by its key.
    noise_table: Tensor | None = None
    # Set before each ACT step.
    draws: Draws = BATCH_DRAWS
    # H_cycles and L_cycles in training of a `CycledRecurrence`; None: as configured.
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
        # Q last: gradients of a state are added in this order; another order changes their bits.
        self.read_in_order = [self.heads[n] for n in sorted(self.heads, key=lambda n: n == "q")]
        self.puzzle_emb = None
        if config.puzzle_emb_ndim:
            rows, width = facts.num_puzzle_identifiers, config.puzzle_emb_width
            self.puzzle_emb = CastedSparseEmbedding(rows, width, init_std=0.0, dtype=self.dtype)
        if config.pos_encodings == "learned":
            self.embed_pos = CastedEmbedding(T, D, init_std=D**-0.5, dtype=self.dtype)
        elif config.pos_encodings == "rope":
            cos, sin = rotary_tables(D // config.num_heads, T, config.rope_theta)
            self.register_buffer("cos", cos, persistent=False)
            self.register_buffer("sin", sin, persistent=False)

    def add_initial_states(self, names: Sequence[str]) -> None:
        """Register the fixed start NAME_init [D] of each latent z_NAME; the first is the answer."""
        self.latents = tuple(f"z_{name}" for name in names)
        for name in names:
            start = trunc_normal_(torch.empty(self.hidden_size)).to(self.dtype)
            self.register_buffer(f"{name}_init", start)

    def recur(self, latents: Latents, injected: Tensor, rotary: Rotary) -> Latents:
        """Return the latents after an ACT step. With `mlp_t` inputs are views of [T, B, D].

        Args:
            latents: z_H, z_L or one of them, [B, T, D] each, without gradients.
            injected: the embedded puzzle, [B, T, D].
            rotary: cos and sin [T, K] for pos_encodings=rope, else None.
        """
        raise NotImplementedError

    @property
    def kept_states(self) -> dict[str, str]:
        """Names of the latents that a step passes on, by their names in exported files."""
        return {name: name for name in self.latents}

    @property
    def draws_numbers(self) -> bool:
        """Whether a step draws random numbers."""
        return any(technique.draws_numbers for technique in self.techniques.active.values())

    def draw_by(self, keys: Tensor | None, steps: Tensor) -> None:
        """Choose the draws of the next ACT step: by row keys, int64 [B], and step numbers, int32
        [B]; or by torch for the whole batch if `keys` is None.
        """
        self.draws = BATCH_DRAWS
        if keys is not None:
            assert self.noise_table is not None  # Set by `ACT.initial_carry`.
            self.draws = RowDraws(self.noise_table, keys, steps)

    def empty_carry(self, batch_size: int) -> Latents:
        """Return latents of zeros. Uninitialised memory could hold a NaN, which would spread."""
        shape = (batch_size, self.num_states, self.hidden_size)
        device = self.embed_tokens.embedding_weight.device
        return {name: torch.zeros(shape, dtype=self.dtype, device=device) for name in self.latents}

    def reset_carry(self, reset: Tensor, carry: Latents) -> Latents:
        """Return `carry` with the rows that `reset` (bool [B]) marks set to their start states."""
        where = reset.view(-1, 1, 1)
        return {name: torch.where(where, self._start(name, z), z) for name, z in carry.items()}

    def _start(self, name: str, z: Tensor) -> Tensor:
        """Return the start of a latent: [D], or [B, T, D] if each cell has its own."""
        for technique in self.at_starts:
            return technique.start(z, self.draws)
        return self.get_buffer(f"{name.removeprefix('z_')}_init")

    def moved(self, before: Tensor, after: Tensor) -> Tensor:
        """Return the new value of a latent whose update gave `after`, all [B, T, D]."""
        for technique in self.at_updates:
            after = technique.moved(before, after, self.draws)
        return after

    def replaced(self, before: Tensor, after: Tensor) -> Tensor:
        """Return `after`, which takes the place of a latent without an update."""
        return after

    def holding(self, latents: Latents, examples: Examples) -> Latents:
        """Return the latents as they are after a step that answered with the labels and fields of
        `examples`; only of models with `arch.local_updates`.
        """
        raise NotImplementedError

    def reached(self, outputs: Outputs) -> Tensor:
        """Return bool [B, S], the cells where a head other than that of tokens has an answer, if
        answers spread as waves (`arch.local_updates`); else none.
        """
        return torch.zeros_like(outputs["logits"][..., 0], dtype=torch.bool)

    def forward(self, carry: Latents, examples: Examples) -> tuple[Latents, Tensor]:
        """Run one ACT step. Return the latents, detached, and the answer with gradients."""
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
        """Return the heads' outputs for the answer's states [B, T, D]. Q's are 0 by default."""
        zeros = states.new_zeros(states.shape[0], dtype=torch.float32)
        outputs = {"q_halt_logits": zeros, "q_continue_logits": zeros}
        answer = self.answer(states, examples)
        for head in self.read_in_order:
            outputs |= head.read(answer)
        return outputs

    def answer(self, states: Tensor, examples: Examples) -> Answer:
        """Wrap the answer's states [B, T, D] for the heads."""
        ids, table = examples["puzzle_identifiers"], self.puzzle_emb
        return Answer(states, self.num_prefix, None if table is None else table.rows_in_use(ids))

    def embed_puzzle(self, inputs: Tensor, puzzle_identifiers: Tensor) -> Tensor:
        """Return the embedded puzzle [B, T, D] for inputs [B, S]."""
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
    """A recurrence with H_cycles cycles in an ACT step, each with L_cycles updates of z_L. In
    training a technique may lower both numbers.
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
    """Return x [B, T, D] in the memory order of [T, B, D]."""
    return x.transpose(0, 1).contiguous().transpose(0, 1)
