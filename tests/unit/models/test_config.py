"""Configurations that cannot start: unknown keys, wrong types, ranges, widths that do not fit."""

import copy
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from models.hrm.config import HRMConfig
from runtime.errors import ConfigError
from training.config.composition import load_config
from training.config.explain import validate
from training.config.schema import TrainConfig

ROOT = Path(__file__).resolve().parents[3]

BASE: dict[str, Any] = load_config(
    TrainConfig, "cfg_pretrain", ["optimizer=grouped", "run_name=mine"]
).model_dump()


def with_value(path: str, value: object) -> dict[str, Any]:
    tree = copy.deepcopy(BASE)
    *sections, leaf = path.split(".")
    node = tree
    for section in sections:
        node = node[section]
    node[leaf] = value
    return tree


def refusal(path: str, value: object) -> str:
    """The message with which `path=value` is refused."""
    with pytest.raises(ConfigError) as error:
        validate(TrainConfig, with_value(path, value))
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("arch.L_cylces", "arch.L_cycles"),
        ("arch.hiden", "arch.hidden_size"),
        ("hidden_size", "arch.hidden_size"),
        ("arch.weight_decay", "weight_decay"),
        ("global_batchsize", "global_batch_size"),
        ("optimizer.groups.q_head.weight_decy", "optimizer.groups.q_head.weight_decay"),
    ],
)
def test_known_mistakes_are_answered_with_what_was_meant(wrong: str, meant: str) -> None:
    assert f"unknown setting {wrong}=4; did you mean {meant}?" in refusal(wrong, 4)


# Types and ranges

NAN = float("nan")
WRONG: list[tuple[str, object]] = [
    *itertools.product(["epochs", "arch.hidden_size"], ["3", True, 3.0, None, [3], -1, NAN]),
    *itertools.product(["lr", "arch.expansion"], ["0.5", True, None, -1e-9, NAN, float("inf")]),
    *itertools.product(["arch.mlp_t"], ["true", 1, 1.0, None]),
]


@pytest.mark.parametrize(("path", "value"), WRONG)
def test_what_is_no_count_number_or_boolean_is_refused(path: str, value: object) -> None:
    assert refusal(path, value).startswith(f"{path}={value}: ")


@pytest.mark.parametrize(
    ("path", "value", "accepted"),
    [
        ("arch.pos_encodings", "ropes", "'rope', 'learned' or 'none'"),
        ("arch.gradient", "last", "'last_step' or 'last_cycle'"),
        ("arch.forward_dtype", "bf16", "'bfloat16'"),
        ("arch.attention", "flash", "'math'"),
        ("arch.loss.loss_type", "cross_entropy", "'softmax_cross_entropy'"),
        ("arch.name", "hrm_v2", "trm, trm_singlez,"),
        ("optimizer.name", "sgd", "adamw"),
        ("device", "gpu", "'cuda'"),
        ("lr_min_ratio", 1.5, "less than or equal to 1"),
        ("beta1", 1.0, "less than 1"),
        ("beta2", -0.1, "greater than or equal to 0"),
        ("keep_last", 1, "greater than or equal to 2"),
        ("seed", 2**64, "less than"),
        ("epochs", 0, "greater than or equal to 1"),
        ("data_paths", "data/a", "list"),
    ],
)
def test_the_message_says_what_is_accepted(path: str, value: object, accepted: str) -> None:
    message = refusal(path, value)
    assert message.startswith(f"{path}={value}: ")
    assert accepted in message


# HRM


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden_size": 64, "num_heads": 3}, "num_heads=3 must divide hidden_size=64, as 2 does"),
        ({"hidden_size": 8, "num_heads": 16}, "num_heads=16 must divide hidden_size=8"),
        ({"hidden_size": 6, "num_heads": 2}, "even head width.*= 3"),
        ({"puzzle_emb_ndim": 0, "puzzle_emb_len": 2}, "puzzle_emb_len=2 needs puzzle_emb_ndim"),
        ({"puzzle_emb_ndim": 1025, "puzzle_emb_len": 2}, "puzzle_emb_ndim=1025 does not fit"),
    ],
)
def test_widths_that_do_not_fit_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        HRMConfig.model_validate(settings)


@pytest.mark.parametrize(
    ("ndim", "length", "prefix"),
    [(0, 0, 0), (1, 0, 1), (512, 0, 1), (513, 0, 2), (1024, 0, 2), (512, 16, 16), (1024, 2, 2)],
)
def test_positions_of_the_puzzle_embedding(ndim: int, length: int, prefix: int) -> None:
    config = HRMConfig.model_validate({"puzzle_emb_ndim": ndim, "puzzle_emb_len": length})
    assert config.num_prefix == prefix


def test_the_default_is_the_published_model() -> None:
    composed = load_config(TrainConfig, "cfg_pretrain", []).arch
    assert composed == HRMConfig()
    published = {"H_cycles": 2, "L_cycles": 2, "H_layers": 4, "L_layers": 4, "hidden_size": 512}
    published |= {"num_heads": 8, "expansion": 4, "puzzle_emb_ndim": 512, "halt_max_steps": 16}
    published |= {"pos_encodings": "rope", "halt_exploration_prob": 0.1, "rms_norm_eps": 1e-5}
    published |= {"rope_theta": 10000, "forward_dtype": "bfloat16", "no_ACT_continue": False}
    assert published.items() <= composed.model_dump().items()
    assert composed.loss.loss_type == "stablemax_cross_entropy"


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"no_ACT_continue": True}, "sparse_look_ahead: with no_ACT_continue=true no q_continue"),
        ({"heads": {"q": None}}, "sparse_look_ahead: with heads.q=null no q_continue is learned"),
    ],
)
def test_a_target_of_what_is_not_learned_is_refused(more: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        HRMConfig.model_validate({"techniques": {"sparse_look_ahead": {}}} | more)
    HRMConfig.model_validate(more)


def test_schemas_load_no_torch() -> None:
    code = "import sys, models.config, training.config.schema; print('torch' in sys.modules)"
    out = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True)
    assert out.strip() == "False"
