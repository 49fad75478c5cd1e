from collections.abc import Callable

import pytest
import torch

from models.config import DataFacts, HRMConfig
from models.losses import ACTLossHead
from models.registry import build_model


@pytest.fixture
def make_model() -> Callable[..., ACTLossHead]:
    """Build a tiny HRM in float32 with random weights that answers differently at each ACT step."""

    def make(facts: DataFacts, *, seed: int = 0, **settings: object) -> ACTLossHead:
        config = HRMConfig(
            **{
                "H_layers": 1,
                "L_layers": 1,
                "hidden_size": 32,
                "num_heads": 2,
                "puzzle_emb_ndim": 32,
                "expansion": 1,
                "halt_max_steps": 3,
                "forward_dtype": "float32",
                **settings,
            }  # type: ignore[arg-type]
        )
        generator_state = torch.get_rng_state()
        torch.manual_seed(seed)
        model = build_model(config, facts)
        with torch.no_grad():
            for name, value in model.state_dict().items():
                if "q_head" in name or "puzzle_emb" in name:
                    value.normal_()
        torch.set_rng_state(generator_state)
        return model

    return make
