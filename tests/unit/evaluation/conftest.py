from collections.abc import Callable

import pytest
import torch

from models.act import ACTLossHead
from models.config import DataFacts
from models.hrm.config import HRMConfig
from models.registry import build_model
from puzzle_dataset import PuzzleDataset
from training.data import data_facts


@pytest.fixture
def make_model() -> Callable[..., ACTLossHead]:
    """Build a tiny HRM in float32 for a data set or its facts, with random weights that answer
    differently at each ACT step.
    """

    def make(data: DataFacts | PuzzleDataset, **settings: object) -> ACTLossHead:
        sizes = {"H_layers": 1, "L_layers": 1, "hidden_size": 32, "num_heads": 2, "expansion": 1}
        rest = {"puzzle_emb_ndim": 32, "halt_max_steps": 3, "forward_dtype": "float32"}
        config = HRMConfig(**(sizes | rest | settings))  # type: ignore[arg-type]
        is_set = isinstance(data, PuzzleDataset)
        facts = data_facts(data.metadata, data.fields) if is_set else data
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(0)
            model = build_model(config, facts)
            for name, value in model.state_dict().items():
                if "q_head" in name or "puzzle_emb" in name:
                    value.normal_()
        return model

    return make
