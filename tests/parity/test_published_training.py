"""A run of the published trainer, with its learning rate schedule, step by step.

The training set of `published_format/data` holds one example and the batch size is 1, so each batch
is that example, however it is drawn.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.act import ACTCarry, ACTLossHead
from models.config import DataFacts
from models.heads.base import Examples
from models.hrm.config import HRMConfig
from models.losses import IGNORE_LABEL_ID
from models.registry import build_model
from runtime.ranks import Ranks
from training.data import published_total_steps
from training.optim.adam_atan2 import AdamATan2
from training.optim.groups import lr_factor
from training.optim.sparse_sign_sgd import SparseSignSGD

FOLDER = Path(__file__).parent / "published_format"

LOSSES, FINAL_WEIGHTS = 5e-5, 1e-4


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    return json.loads((FOLDER / "expected_train.json").read_text())


@pytest.fixture(scope="module")
def metadata() -> dict[str, Any]:
    return json.loads((FOLDER / "data/train/dataset.json").read_text())


@pytest.fixture(scope="module")
def example(metadata: dict[str, Any]) -> Examples:
    """Return the only training example as a batch."""
    arrays = {
        name: np.load(FOLDER / f"data/train/all__{name}.npy").astype(np.int32)
        for name in ("inputs", "labels", "puzzle_identifiers")
    }
    assert arrays["inputs"].shape[0] == 1
    labels = arrays["labels"]
    labels[labels == metadata["ignore_label_id"]] = IGNORE_LABEL_ID
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def build(expected: dict[str, Any], metadata: dict[str, Any]) -> ACTLossHead:
    loss = {"loss_type": expected["overrides"]["arch.loss.loss_type"]}
    names = ("vocab_size", "seq_len", "num_puzzle_identifiers")
    facts = DataFacts(**{name: metadata[name] for name in names})
    model = build_model(HRMConfig.model_validate(expected["arch"] | {"loss": loss}), facts)
    model.load_state_dict(torch.load(FOLDER / "init_step_0", weights_only=True))
    return model


def test_training_run(
    expected: dict[str, Any], metadata: dict[str, Any], example: Examples
) -> None:
    settings = expected["overrides"]
    assert settings["global_batch_size"] == 1
    total_steps = published_total_steps(
        settings["epochs"], metadata["total_groups"], metadata["mean_puzzle_examples"], 1
    )
    assert total_steps == len(expected["trace"])

    model = build(expected, metadata).train()
    model.prepare(1)
    assert model.puzzle_embedding is not None
    sparse = SparseSignSGD(
        model.puzzle_embedding,
        Ranks("cpu"),
        lr=settings["puzzle_emb_lr"],
        weight_decay=settings["puzzle_emb_weight_decay"],
    )
    optimizer = AdamATan2(
        model.parameters(),
        lr=settings["lr"],
        betas=(settings["beta1"], settings["beta2"]),
        weight_decay=settings["weight_decay"],
    )

    carry: ACTCarry = model.initial_carry(example)
    free = {"min_steps": torch.zeros(1, dtype=torch.int32)}
    for record in expected["trace"]:
        factor = lr_factor(
            record["step"],
            warmup_steps=settings["lr_warmup_steps"],
            total_steps=total_steps,
            min_ratio=settings["lr_min_ratio"],
        )
        assert settings["lr"] * factor == pytest.approx(record["lr"], rel=1e-12)
        optimizer.param_groups[0]["lr"] = settings["lr"] * factor
        sparse.lr = settings["puzzle_emb_lr"] * factor

        output = model(carry, example, free)
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
        sparse.step()
        sparse.zero_grad()
        carry = output.carry

        where = f"step {record['step']}"
        assert output.loss.item() == pytest.approx(record["loss"], abs=LOSSES), where
        for name in ("lm_loss", "q_halt_loss", "q_continue_loss"):
            assert output.metrics[name].item() == pytest.approx(record[name], abs=LOSSES), where
        assert output.metrics["count"].item() == record["count"], where
        assert output.metrics["exact_accuracy"].item() == record["exact"], where
        assert carry.halted.tolist() == [record["halted"]], where
        assert carry.steps.tolist() == [record["carry_steps"]], where

    with np.load(FOLDER / "expected_final.npz") as final:
        state = model.state_dict()
        assert set(state) == set(final)
        for key in final:
            difference = np.abs(state[key].numpy() - final[key]).max()
            assert difference <= FINAL_WEIGHTS, f"{key}: off by {difference:.2e}"
