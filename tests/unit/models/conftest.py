"""Small models and batches in which every path carries signal."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from models.act import ACTLossHead
from models.carry import Examples, Exploration
from models.config import DataFacts, HRMConfig
from models.losses import IGNORE_LABEL_ID
from models.registry import build_model

FACTS = DataFacts(
    vocab_size=7, seq_len=5, num_puzzle_identifiers=6, fields={"actions": (4, 0), "pixels": (8, 3)}
)


@pytest.fixture
def facts() -> DataFacts:
    return FACTS


@pytest.fixture
def make_config() -> Callable[..., HRMConfig]:
    """A tiny configuration; keywords override it."""

    def make(**overrides: Any) -> HRMConfig:
        settings = {
            "H_layers": 1,
            "L_layers": 1,
            "hidden_size": 16,
            "num_heads": 2,
            "expansion": 1.0,
            "puzzle_emb_ndim": 16,
            "halt_max_steps": 4,
            "halt_exploration_prob": 0.0,
            "forward_dtype": "float32",
        }
        return HRMConfig.model_validate(settings | overrides)

    return make


@pytest.fixture
def make_model(make_config: Callable[..., HRMConfig]) -> Callable[..., ACTLossHead]:
    """A tiny model whose Q head and puzzle embedding, 0 at the start, are random; with `signal`
    all parameters are moved.
    """

    def make(batch_size: int = 3, *, signal: bool = False, **overrides: Any) -> ACTLossHead:
        torch.manual_seed(0)
        model = build_model(make_config(**overrides), FACTS)
        with torch.no_grad():
            if "q" in model.heads:
                for parameter in model.heads["q"].parameters():
                    parameter.normal_(std=0.3)
            if model.puzzle_embedding is not None:
                model.puzzle_embedding.weights.normal_(std=0.3)
            for parameter in model.parameters() if signal else ():
                parameter.add_(0.1 * torch.randn_like(parameter))
        model.prepare(batch_size)
        return model

    return make


@pytest.fixture
def make_examples() -> Callable[..., Examples]:
    """Random examples; the last row has no labels, the first is labelled in full."""

    def make(batch_size: int = 3, seed: int = 0) -> Examples:
        generator = torch.Generator().manual_seed(seed)

        def draw(high: int, *shape: int) -> torch.Tensor:
            return torch.randint(high, shape, generator=generator, dtype=torch.int32)

        B, S, V = batch_size, FACTS.seq_len, FACTS.vocab_size
        inputs, labels = draw(V, B, S), draw(V, B, S)
        labels[1:, ::2] = IGNORE_LABEL_ID
        if batch_size > 1:
            labels[-1] = IGNORE_LABEL_ID
        identifiers = draw(FACTS.num_puzzle_identifiers, B)
        return {
            "inputs": inputs,
            "labels": labels,
            "puzzle_identifiers": identifiers,
            "actions": draw(4, B, S),
            "pixels": draw(8, B, S, 3),
        }

    return make


@pytest.fixture
def require_same_compiled() -> Callable[..., None]:
    """Demand that three compiled steps, one graph each, equal plain ones, gradients included."""

    def require(model: ACTLossHead, make_examples: Callable[..., Examples], backend: str) -> None:
        torch.compiler.reset()
        compiled = torch.compile(model, fullgraph=True, dynamic=False, backend=backend)
        carry = twin_carry = model.initial_carry(make_examples())
        free = Exploration(torch.tensor([0, 2, 3], dtype=torch.int32))
        for step in range(3):
            examples = make_examples(seed=step)
            output, twin = compiled(carry, examples, free), model(twin_carry, examples, free)
            torch.testing.assert_close(output.loss, twin.loss, rtol=1e-5, atol=1e-5)
            for name, value in twin.carry.tensors().items():
                torch.testing.assert_close(
                    output.carry.tensors()[name], value, rtol=1e-4, atol=1e-4, msg=name
                )
            carry, twin_carry = output.carry, twin.carry
            if model.training:
                parameters = list(model.parameters())
                grads = torch.autograd.grad(output.loss, parameters)
                twins = torch.autograd.grad(twin.loss, parameters)
                torch.testing.assert_close(grads, twins, rtol=1e-4, atol=1e-4)

    return require
