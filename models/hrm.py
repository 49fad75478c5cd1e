"""The Hierarchical Reasoning Model (arXiv:2506.21734).

Two recurrent stacks share one width: L works fast on details, H slowly on plans. Post-norm blocks
without norm weights, bidirectional attention (or a mixer over the cells), rotary positions, a
puzzle embedding in front of the cells, and gradients through the last updates only. Built here in
the order data flow: block, stack, recurrence, model.

Shape letters: B batch, S cells, P puzzle prefix, T = P + S, D hidden width, V vocabulary.
"""

import math

import torch
from torch import Tensor, nn

from models.act import ACT, Examples, InnerCarry
from models.attention import Attention
from models.config import DataFacts, HRMConfig
from models.layers import (
    CastedEmbedding,
    CastedLinear,
    RotaryEmbedding,
    SwiGLU,
    add_rms_norm,
    trunc_normal_,
    weights_cast_once,
)
from models.losses import ACTLossHead
from models.sparse_embedding import CastedSparseEmbedding

Rotary = tuple[Tensor, Tensor] | None


class Block(nn.Module):
    """Post-norm block: mix the positions, then transform each one.

    With `mlp_t` the attention half becomes a SwiGLU over the T positions, normed over T too.
    """

    def __init__(self, config: HRMConfig, num_positions: int) -> None:
        super().__init__()
        self.eps = config.rms_norm_eps
        if config.mlp_t:
            self.mlp_t = SwiGLU(num_positions, config.expansion)
        else:
            self.self_attn = Attention(config.hidden_size, config.num_heads, config.attention)
        self.mixes_by_mlp = config.mlp_t
        self.mlp = SwiGLU(config.hidden_size, config.expansion)

    def forward(self, x: Tensor, rotary: Rotary) -> Tensor:
        """Map [B, T, D] to [B, T, D]."""
        if self.mixes_by_mlp:
            y = x.transpose(1, 2).contiguous()
            x = add_rms_norm(y, self.mlp_t(y), self.eps).transpose(1, 2).contiguous()
        else:
            x = add_rms_norm(x, self.self_attn(x, rotary), self.eps)
        return add_rms_norm(x, self.mlp(x), self.eps)


class ReasoningLevel(nn.Module):
    """A stack of blocks whose input is the sum of its state and what is injected."""

    def __init__(self, config: HRMConfig, num_layers: int, num_positions: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(config, num_positions) for _ in range(num_layers))

    def forward(self, state: Tensor, injected: Tensor, rotary: Rotary) -> Tensor:
        """Return the updated state [B, T, D]."""
        x = state + injected
        for layer in self.layers:
            x = layer(x, rotary)
        return x


class HRMInner(nn.Module):
    """One ACT step of the recurrence, with its embeddings and heads."""

    H_init: Tensor
    L_init: Tensor

    def __init__(self, config: HRMConfig, facts: DataFacts) -> None:
        super().__init__()
        self.config = config
        self.dtype: torch.dtype = getattr(torch, config.forward_dtype)
        D, P, T = config.hidden_size, config.num_prefix, config.num_prefix + facts.seq_len
        self.num_positions = T

        self.embed_tokens = CastedEmbedding(facts.vocab_size, D, init_std=D**-0.5, dtype=self.dtype)
        self.lm_head = CastedLinear(D, facts.vocab_size)
        self.q_head = CastedLinear(D, 2, bias=True)
        if P:
            self.puzzle_emb = CastedSparseEmbedding(
                facts.num_puzzle_identifiers, config.puzzle_emb_ndim, init_std=0.0, dtype=self.dtype
            )
        if config.pos_encodings == "learned":
            self.embed_pos = CastedEmbedding(T, D, init_std=D**-0.5, dtype=self.dtype)
        elif config.pos_encodings == "rope":
            self.rotary_emb = RotaryEmbedding(D // config.num_heads, T, config.rope_theta)

        if not config.shared_levels:
            self.H_level = ReasoningLevel(config, config.H_layers, T)
        self.L_level = ReasoningLevel(config, config.L_layers, T)
        self.register_buffer("H_init", trunc_normal_(torch.empty(D)).to(self.dtype))
        self.register_buffer("L_init", trunc_normal_(torch.empty(D)).to(self.dtype))

        # Q starts near "never right, never stop": its first bootstrapped targets are then close to
        # 0 and stable.
        with torch.no_grad():
            self.q_head.weight.zero_()
            assert self.q_head.bias is not None
            self.q_head.bias.fill_(-5.0)

    def empty_carry(self, batch_size: int) -> InnerCarry:
        """Return zeros, never uninitialised memory: a stray NaN there would spread."""
        shape = (batch_size, self.num_positions, self.config.hidden_size)
        zeros = torch.zeros(shape, dtype=self.dtype, device=self.H_init.device)
        return InnerCarry(zeros, zeros.clone())

    def reset_carry(self, reset: Tensor, carry: InnerCarry) -> InnerCarry:
        """Return `carry` with z_H and z_L of the rows where `reset` (bool [B]) is set back to
        H_init and L_init.
        """
        where = reset.view(-1, 1, 1)
        return InnerCarry(
            torch.where(where, self.H_init, carry.z_H), torch.where(where, self.L_init, carry.z_L)
        )

    def forward(
        self, carry: InnerCarry, examples: Examples
    ) -> tuple[InnerCarry, Tensor, tuple[Tensor, Tensor]]:
        """Run H_cycles x L_cycles updates; gradients as `config.gradient` says.

        Returns:
            the detached carry; logits forward dtype [B, S, V]; (q_halt, q_continue) logits, float32
            [B] each.
        """
        injected = self._embed(examples["inputs"], examples["puzzle_identifiers"])
        rotary = self.rotary_emb() if self.config.pos_encodings == "rope" else None
        L_level = self.L_level
        H_level = L_level if self.config.shared_levels else self.H_level
        z_H, z_L = carry.z_H, carry.z_L
        H_cycles, L_cycles = self.config.H_cycles, self.config.L_cycles

        # Everything before the last updates (arXiv:2506.21734, one-step gradient) or the last cycle
        # (arXiv:2510.04871).
        with torch.no_grad(), weights_cast_once(self, self.dtype):
            for _ in range(H_cycles - 1):
                for _ in range(L_cycles):
                    z_L = L_level(z_L, z_H + injected, rotary)
                z_H = H_level(z_H, z_L, rotary)
            if self.config.gradient == "last_step":
                for _ in range(L_cycles - 1):
                    z_L = L_level(z_L, z_H + injected, rotary)

        for _ in range(1 if self.config.gradient == "last_step" else L_cycles):
            z_L = L_level(z_L, z_H + injected, rotary)
        z_H = H_level(z_H, z_L, rotary)

        logits = self.lm_head(z_H)[:, self.config.num_prefix :]
        q_logits = self.q_head(z_H[:, 0]).float()
        return InnerCarry(z_H.detach(), z_L.detach()), logits, (q_logits[:, 0], q_logits[:, 1])

    def _embed(self, inputs: Tensor, puzzle_identifiers: Tensor) -> Tensor:
        embedding = self.embed_tokens(inputs)
        if self.config.num_prefix:
            D = self.config.hidden_size
            rows = self.puzzle_emb(puzzle_identifiers)
            padded = nn.functional.pad(rows, (0, self.config.num_prefix * D - rows.shape[-1]))
            embedding = torch.cat((padded.view(-1, self.config.num_prefix, D), embedding), dim=1)
        if self.config.pos_encodings == "learned":
            # Two embeddings of equal variance are added: 1/sqrt(2) keeps the sum at the variance of
            # one.
            embedding = (embedding + self.embed_pos.embedding_weight.to(self.dtype)) * math.sqrt(
                0.5
            )
        return embedding * math.sqrt(self.config.hidden_size)


def build_hrm(config: HRMConfig, facts: DataFacts) -> ACTLossHead:
    """Build HRM with ACT and its loss; the state dict has the published keys (`model.inner...`)."""
    act = ACT(
        HRMInner(config, facts),
        halt_max_steps=config.halt_max_steps,
        learns_continue=not config.no_ACT_continue,
    )
    return ACTLossHead(act, config.loss.loss_type)
