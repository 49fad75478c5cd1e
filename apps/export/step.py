"""An ACT step with only tensors as inputs and outputs, so that it can be exported.

Shape letters: B batch, S cells, V vocabulary.
"""

import torch
from torch import Tensor, nn

from models.act import ACT, ACTCarry

Tensors = dict[str, Tensor]


class ExportedStep(nn.Module):
    """One ACT step of a model in evaluation mode, with the predictions of its heads.

    Inputs by name: `inputs` int32 [B, S]; `puzzle_identifiers` int32 [B], if the model has a puzzle
    embedding; the states, named in `states`; `new` bool [B], rows that begin, so their states are
    ignored. With random starts there is no `new`: the caller draws the first states. Outputs:

        next_STATE: each state after the step.
        answers: int32 [B, S], the likeliest token of each cell.
        logits: float32 [B, S, V]; q_halt_logits and q_continue_logits [B], if they are learned;
            NAME_logits of the other heads.
        q_halt: float32 [B], the probability that the answer is right, if a head predicts it.
        verdict: int32 [B], of a lattice: `apps.lattice.model.DECIDED`, `CONTRADICTION`, or 0.

    Attributes:
        states: for each state its latent in the carry.
        starts: the technique that draws starts, if there is one.
    Args:
        act: in evaluation mode; from now on it draws no starts.
    """

    def __init__(self, act: ACT) -> None:
        super().__init__()
        self.act, inner = act, act.inner
        self.states = inner.kept_states
        # If a technique draws the starts, the caller does it instead.
        self.starts, inner.at_starts = next(iter(inner.at_starts), None), []
        for tensor in (*self.parameters(), *self.buffers()):
            tensor.requires_grad_(False)

    def zeros(self, batch_size: int) -> Tensors:
        """Return all inputs of the step as zeros."""
        inner, ids = self.act.inner, torch.zeros(batch_size, dtype=torch.int32)
        given = {"inputs": ids.unsqueeze(1).repeat(1, inner.num_positions - inner.num_prefix)}
        if inner.puzzle_emb is not None:
            given["puzzle_identifiers"] = ids
        if self.starts is None:
            given["new"] = ids.bool()
        latents = inner.empty_carry(batch_size)
        return given | {name: latents[latent] for name, latent in self.states.items()}

    def forward(self, given: Tensors) -> Tensors:
        inner, inputs = self.act.inner, given["inputs"]
        none = torch.zeros_like(inputs[:, 0])
        ids = given.get("puzzle_identifiers", none).long()
        examples = {"inputs": inputs, "puzzle_identifiers": ids}
        latents = inner.empty_carry(inputs.shape[0])
        latents |= {latent: given[name] for name, latent in self.states.items()}
        carry = ACTCarry(latents, none, given.get("new", none.bool()), examples)
        carry, _ = self.act.think(carry, examples)
        outputs = inner.read(self.act.answer_of(carry), carry.examples)
        states = {f"next_{name}": carry.inner[latent] for name, latent in self.states.items()}
        return states | self._predicted(outputs, carry)

    def _predicted(self, outputs: Tensors, carry: ACTCarry) -> Tensors:
        named = {name: value for name, value in outputs.items() if name.endswith("logits")}
        if not self.act.learns_continue:
            del named["q_continue_logits"]
        if self.act.halting_head is None:
            del named["q_halt_logits"]
        else:
            named["q_halt"] = named["q_halt_logits"].sigmoid()
        if "candidates" in self.states:
            named["verdict"] = carry.inner["z_verdict"].int()
        return {"answers": named["logits"].argmax(-1).int(), **named}
