"""Tiny runs on the GPU, or in a rehearsal on the CPU."""

import os
from collections.abc import Mapping

import pytest

from runtime.process import PARENT_PID

# Variables of `make gpu` for packages, devices and the rehearsal.
KEPT = ("PYTHONPATH", "CUDA_VISIBLE_DEVICES", "TORCHDYNAMO_DISABLE")


@pytest.fixture(scope="session")
def clean_environment(clean_environment: Mapping[str, str]) -> Mapping[str, str]:
    """Keep these variables, and let processes end when pytest is killed."""
    kept = {key: os.environ[key] for key in KEPT if key in os.environ}
    return {**clean_environment, **kept, PARENT_PID: str(os.getpid())}


@pytest.fixture
def tiny_settings(tiny_settings: list[str], gpu: str) -> list[str]:
    """Return settings of eager runs of 24 steps, with halting and exploration."""
    own = ["epochs=24", "eval_interval=12", "arch.halt_exploration_prob=0.5"]
    return [*tiny_settings, f"device={gpu}", "compile=false", *own]
