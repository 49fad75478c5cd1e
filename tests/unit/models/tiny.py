"""Small models and batches with signal on every path."""

from typing import Any

import torch

from models.act import ACTLossHead
from models.config import DataFacts, RecurrenceConfig
from models.heads.base import Examples
from models.hrm.config import HRMConfig
from models.losses import IGNORE_LABEL_ID
from models.recurrence import Recurrence
from models.registry import build_model
from models.trm.config import TRMConfig

FACTS = DataFacts(7, 5, 6, fields={"actions": (4, 0), "pixels": (8, 3), "answers": (7, 2)})
TINY = {"H_layers": 1, "L_layers": 1, "hidden_size": 16, "num_heads": 2, "expansion": 1.0}
TINY |= {"puzzle_emb_ndim": 16, "halt_max_steps": 4, "halt_exploration_prob": 0.0}


def make_config(**overrides: Any) -> HRMConfig:
    return HRMConfig.model_validate(TINY | {"forward_dtype": "float32"} | overrides)


def make_model(*, signal: bool = False, **overrides: Any) -> ACTLossHead:
    """Return a tiny model with random numbers in Q head and puzzle embedding, which otherwise start
    at 0. With `signal` all parameters are moved.
    """
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
    model.prepare(3)
    return model


def inner_of(model: ACTLossHead) -> Any:
    """Return the recurrence, untyped, so that a test can use its submodules."""
    return model.model.inner


def make_examples(seed: int = 0) -> Examples:
    """Return three random examples; the first is fully labelled, the last has no labels."""
    generator = torch.Generator().manual_seed(seed)
    B, S, V = 3, FACTS.seq_len, FACTS.vocab_size

    def draw(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(high, shape, generator=generator, dtype=torch.int32)

    inputs, labels = draw(V, B, S), draw(V, B, S)
    labels[1:, ::2] = labels[-1] = IGNORE_LABEL_ID
    examples = {"inputs": inputs, "labels": labels, "puzzle_identifiers": draw(6, B)}
    examples |= {"actions": draw(4, B, S), "pixels": draw(8, B, S, 3)}
    return examples | {"answers": torch.stack((labels.clamp_min(0), draw(V, B, S)), dim=-1)}


def first_step(model: ACTLossHead, examples: Examples | None = None) -> Any:
    """Return the results of the first ACT step."""
    examples = examples or make_examples()
    return model(model.initial_carry(examples), examples)


def require_same_compiled(model: ACTLossHead, backend: str, ahead: list[int] | None = None) -> None:
    """Demand that three compiled steps, one graph each, equal plain ones with their gradients. The
    rows `ahead` look ahead.
    """
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, dynamic=False, backend=backend)
    carry = twin_carry = model.initial_carry(make_examples())
    free = {"min_steps": torch.tensor([0, 2, 3], dtype=torch.int32)}
    if ahead is not None:
        free["ahead"] = torch.tensor(ahead, dtype=torch.int64)
    for step in range(3):
        examples = make_examples(seed=step)
        output, twin = compiled(carry, examples, free), model(twin_carry, examples, free)
        torch.testing.assert_close(output.loss, twin.loss, rtol=1e-5, atol=1e-5)
        carry, twin_carry = output.carry, twin.carry
        found, expected = carry.tensors(), twin_carry.tensors()
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        if model.training:
            parameters = list(model.parameters())
            grads = torch.autograd.grad(output.loss, parameters)
            twins = torch.autograd.grad(twin.loss, parameters)
            torch.testing.assert_close(grads, twins, rtol=1e-4, atol=1e-4)


def sudoku_facts(size: int) -> DataFacts:
    return DataFacts(size + 2, size**2, 1)


def sudoku_examples(size: int = 4, rows: int = 3) -> Examples:
    """Return random digits with two fifths of them given."""
    generator = torch.Generator().manual_seed(size)
    shape = (rows, size**2)
    labels = torch.randint(2, size + 2, shape, generator=generator, dtype=torch.int32)
    given = torch.rand(shape, generator=generator) < 0.4
    ids = torch.zeros(rows, dtype=torch.int32)
    return {"inputs": torch.where(given, labels, 1), "labels": labels, "puzzle_identifiers": ids}


def shaken(config: RecurrenceConfig, facts: DataFacts) -> Any:
    """Return a model in float64 with all parameters moved from their start."""
    torch.manual_seed(0)
    model = build_model(config, facts).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


# A model with its own positions, and one without.
ARCHS: list[dict[str, Any]] = [{}, {"name": "trm", "mlp_t": True, "pos_encodings": "none"}]


def small_inner(name: str = "hrm", **settings: Any) -> Recurrence:
    """Return a recurrence in evaluation mode."""
    kind = TRMConfig if name == "trm" else HRMConfig
    torch.manual_seed(0)
    config = kind.model_validate(TINY | {"forward_dtype": "float32"} | settings)
    return build_model(config, FACTS).eval().model.inner


def latents(inner: Recurrence, rows: int = 3) -> dict[str, torch.Tensor]:
    """Return latents of 1."""
    return {name: z + 1 for name, z in inner.empty_carry(rows).items()}
