from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter

from models.architectures import ArchConfig
from models.hrm.config import HRMConfig
from models.transformer.config import TransformerConfig
from models.trm.config import TRMConfig
from runtime.errors import CheckpointError
from training.checkpoint.published import published_arch, read_published_config

ARCH: dict[str, Any] = yaml.safe_load("""{
    name: hrm.hrm_act_v1@HierarchicalReasoningModel_ACTV1,
    loss: {name: losses@ACTLossHead, loss_type: softmax_cross_entropy},
    H_cycles: 2, L_cycles: 3, H_layers: 4, L_layers: 5, hidden_size: 64, num_heads: 4,
    expansion: 4, pos_encodings: learned, halt_max_steps: 8}""")
WIDTHS: Any = {
    **{"hidden_size": 64, "num_heads": 4, "pos_encodings": "learned", "halt_max_steps": 8},
    **{"puzzle_emb_ndim": 0, "loss": {"loss_type": "softmax_cross_entropy"}},
}
CYCLES = {"H_cycles": 2, "L_cycles": 3, "L_layers": 5}


def write(folder: Path, arch: Any, **settings: Any) -> Path:
    (folder / "all_config.yaml").write_text(yaml.safe_dump({"arch": arch, **settings}))
    return folder / "step_5"


def test_the_architecture_and_the_data_are_translated(tmp_path: Path) -> None:
    arch = ARCH | {"puzzle_emb_ndim": 64, "forward_dtype": "float32", "rope_theta": 500.0}
    kept = {"data_path": "data/arc", "global_batch_size": 96, "evaluators": [{"name": "arc@ARC"}]}
    run = read_published_config(write(tmp_path, arch, **kept))
    changed = {"puzzle_emb_ndim": 64, "forward_dtype": "float32", "rope_theta": 500.0}
    own = HRMConfig(**WIDTHS | changed, L_cycles=3, L_layers=5)
    assert HRMConfig.model_validate(run.pop("arch")) == own
    assert run == kept
    # Absent keys have the defaults of the published class.
    config = HRMConfig.model_validate(read_published_config(write(tmp_path, ARCH))["arch"])
    assert (config.puzzle_emb_ndim, config.forward_dtype) == (0, "bfloat16")
    assert (config.rms_norm_eps, config.rope_theta) == (1e-5, 10000.0)
    assert not config.no_ACT_continue


def of(module: str, class_name: str, **settings: Any) -> dict[str, Any]:
    return ARCH | {"name": f"recursive_reasoning.{module}@{class_name}"} | settings


TRM = "TinyRecursiveReasoningModel_ACTV1"
TRANSFORMER = of("transformers_baseline", "Model_ACTV2", act_enabled=True, act_inference=False)
del TRANSFORMER["L_cycles"], TRANSFORMER["L_layers"]


@pytest.mark.parametrize(
    ("arch", "own"),
    [
        (
            of("hrm", "HierarchicalReasoningModel_ACTV1", mlp_t=True),
            HRMConfig(**WIDTHS | CYCLES, mlp_t=True),
        ),
        (of("trm", TRM, H_layers=0), TRMConfig(**WIDTHS | CYCLES, puzzle_emb_len=16)),
        (
            of("trm", TRM, no_ACT_continue=False, puzzle_emb_len=2),
            TRMConfig(**WIDTHS | CYCLES, H_layers=4, puzzle_emb_len=2, no_ACT_continue=False),
        ),
        (
            of("trm_singlez", TRM, mlp_t=True, H_layers=0),
            TRMConfig(**WIDTHS | CYCLES, name="trm_singlez", mlp_t=True),
        ),
        (TRANSFORMER, TransformerConfig(**WIDTHS, H_cycles=2, H_layers=4)),
    ],
)
def test_every_published_class_is_known(
    tmp_path: Path, arch: dict[str, Any], own: ArchConfig
) -> None:
    translated = read_published_config(write(tmp_path, arch))["arch"]
    assert TypeAdapter(ArchConfig).validate_python(translated) == own
    # And back: the written settings are read as the same architecture.
    again = read_published_config(write(tmp_path, published_arch(own)))["arch"]
    back = TypeAdapter(ArchConfig).validate_python(again)
    assert back.model_copy(update={"puzzle_emb_len": own.puzzle_emb_len}) == own


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in ARCH.items() if name != key}


@pytest.mark.parametrize(
    ("arch", "told"),
    [
        (ARCH | {"name": "mine@Model"}, "arch.name is 'mine@Model'.*known: hrm.hrm_act_v1@"),
        (ARCH | {"name": ["x"]}, "arch.name is not a name"),
        (without("name"), "arch.name is None"),
        (ARCH | {"loss": {"name": "other@Loss"}}, "arch.loss.name is 'other@Loss'"),
        (ARCH | {"loss": ARCH["loss"] | {"weights": {"lm": 0}}}, "arch.loss.weights is not a pl"),
        (without("loss"), "arch.loss is not a mapping"),
        (without("num_heads"), "arch.num_heads is missing"),
        (ARCH | {"act_enabled": False}, "arch.act_enabled must be True"),
        (ARCH | {"act_inference": True}, "arch.act_inference must be False"),
        (ARCH | {"causal": True}, "arch.causal must be False"),
        (ARCH | {"mlp_t": True}, "unknown key arch.mlp_t; accepted: H_cycles"),
        ([1, 2], "arch is not a mapping"),
    ],
)
def test_unknown_and_missing_settings_are_named(tmp_path: Path, arch: Any, told: str) -> None:
    with pytest.raises(CheckpointError, match=told) as caught:
        read_published_config(write(tmp_path, arch))
    assert str(tmp_path / "all_config.yaml") in str(caught.value)
    assert "\n" not in str(caught.value)


LEVELS = [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, 12)]
ALIASES = "\n".join(["l0: &l0 [x, x]", *LEVELS, "arch: {name: *l11}"])


@pytest.mark.parametrize(
    "content",
    [
        ALIASES.encode(),
        b"!!python/object/apply:os.system ['touch CANARY']",
        b"arch: !!python/object/apply:pathlib.Path.touch [!!python/name:pathlib.Path CANARY]",
        b"arch: [unclosed",
        b"- a\n- list\n",
        b"\xff\xfe\x00",
        b"[" * 1200,
        b"x" * (2**20 + 1),
    ],
)
def test_other_content_is_refused_and_not_run(
    tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "all_config.yaml").write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        read_published_config(tmp_path / "step_1")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    assert [path.name for path in tmp_path.iterdir()] == ["all_config.yaml"]
