"""Settings of HRM: faulty combinations, and the published defaults."""

from typing import Any

import pytest
from pydantic import ValidationError

from models.hrm.config import HRMConfig
from models.transformer.config import TransformerConfig
from models.trm.config import TRMConfig
from training.config.composition import load_config
from training.config.schema import TrainConfig


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden_size": 64, "num_heads": 3}, "num_heads=3 must divide hidden_size=64, as 2 does"),
        ({"hidden_size": 8, "num_heads": 16}, "num_heads=16 must divide hidden_size=8"),
        ({"hidden_size": 6, "num_heads": 2}, "even head width.*= 3"),
        ({"puzzle_emb_ndim": 1025, "puzzle_emb_len": 2}, "puzzle_emb_ndim=1025 does not fit"),
        ({"puzzle_emb_ndim": 0, "puzzle_emb_len": 2}, "puzzle_emb_len=2 needs puzzle_emb_ndim > 0"),
    ],
)
def test_widths_that_do_not_fit_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        HRMConfig.model_validate(settings)


def test_without_attention_its_settings_may_have_any_value() -> None:
    settings = {"hidden_size": 72, "num_heads": 8, "puzzle_emb_ndim": 0}
    for mixer in (settings, settings | {"num_heads": 7}):
        assert not HRMConfig.model_validate(mixer | {"mlp_t": True}).has_attention
    with pytest.raises(ValidationError, match=r"even head width.*= 9"):
        HRMConfig.model_validate(settings)
    assert HRMConfig.model_validate(settings | {"pos_encodings": "none"}).has_attention


def test_a_length_without_a_puzzle_embedding_is_refused_unless_it_is_published() -> None:
    settings = {"puzzle_emb_ndim": 0, "puzzle_emb_len": 8}
    with pytest.raises(ValidationError, match="puzzle_emb_len=8 needs puzzle_emb_ndim > 0"):
        TransformerConfig.model_validate(settings)
    assert TRMConfig.model_validate(settings).num_prefix == 0


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
        (
            {"no_ACT_continue": True},
            "sparse_look_ahead: with no_ACT_continue=true q_continue is not",
        ),
        ({"heads": {"q": None}}, "sparse_look_ahead: with heads.q=null q_continue is not learned"),
        (
            {"halt_max_steps": 1},
            "sparse_look_ahead: with halt_max_steps=1 q_continue is not learned",
        ),
    ],
)
def test_a_target_of_what_is_not_learned_is_refused(more: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        HRMConfig.model_validate({"techniques": {"sparse_look_ahead": {}}} | more)
    HRMConfig.model_validate(more)
