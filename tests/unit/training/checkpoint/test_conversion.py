"""Checkpoints into the published format and back."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from models.config import DataFacts
from models.registry import build_model
from runtime.errors import CheckpointError, ConfigError
from training.checkpoint.conversion import from_published, to_published
from training.checkpoint.state import RunState
from training.checkpoint.store import EMA, MODEL, load_checkpoint, save_checkpoint
from training.checkpoint.tensors import load_tensors, model_tensors, tensor_writer
from training.checkpoint.trained_model import TrainedModel, find_trained_model
from training.config.schema import TrainConfig

FACTS = DataFacts(vocab_size=5, seq_len=4, num_puzzle_identifiers=6)
WIDTHS = {"hidden_size": 8, "num_heads": 2, "expansion": 1.0, "puzzle_emb_ndim": 8}

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "hrm": {"name": "hrm", "H_layers": 1, "L_layers": 2},
    "hrm mixer": {"name": "hrm", "mlp_t": True, "forward_dtype": "float32"},
    "hrm without puzzle embedding": {"name": "hrm", "puzzle_emb_ndim": 0},
    "trm": {"name": "trm", "L_layers": 1, "puzzle_emb_len": 3},
    "trm without puzzle embedding": {"name": "trm", "puzzle_emb_ndim": 0},
    "trm_singlez": {"name": "trm_singlez", "mlp_t": True},
    "transformer": {"name": "transformer", "H_layers": 2, "pos_encodings": "learned"},
}


def own_run(folder: Path, arch: dict[str, Any], *, ema: bool = False) -> TrainedModel:
    """A checkpoint of ours at step 5 with random weights."""
    settings: Any = {
        "arch": WIDTHS | arch,
        "optimizer": {"groups": {"all": {"params": ["*"]}}},
        "data_path": "data/some",
        "lr": 0.25,
        "ema": ema,
    }
    config = TrainConfig.model_validate(settings)
    torch.manual_seed(0)
    model = build_model(config.arch, FACTS)
    if model.puzzle_embedding is not None:
        model.puzzle_embedding.weights.normal_()
    files = {MODEL: model_tensors(model)}
    if ema:
        files[EMA] = {name: torch.randn_like(p) for name, p in model.named_parameters()}
    state = RunState(step=5, config=config.model_dump(mode="json"), facts=FACTS.to_dict())
    folder.mkdir()
    writers = {name: tensor_writer(tensors) for name, tensors in files.items()}
    save_checkpoint(folder, state, writers)
    return find_trained_model(folder, pytest.fail)


def bits(path: Path) -> dict[str, tuple[str, list[int], bytes]]:
    return {
        name: (str(value.dtype), list(value.shape), value.view(torch.uint8).numpy().tobytes())
        for name, value in load_tensors(path).items()
    }


@pytest.mark.parametrize("ema", [False, True])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_round_trip_keeps_every_byte(tmp_path: Path, name: str, ema: bool) -> None:
    trained = own_run(tmp_path / "own", ARCHITECTURES[name], ema=ema)
    written = to_published(trained, tmp_path / "published")
    averages = ["step_5_ema"] if ema else []
    assert [path.name for path in written] == ["step_5", *averages, "all_config.yaml"]
    published = find_trained_model(tmp_path / "published", pytest.fail)
    assert published.is_published
    assert published.step == 5
    assert published.run.arch.num_prefix == trained.run.arch.num_prefix
    if name == "saved with shared levels":
        assert (published.run.arch.name, published.run.arch.no_ACT_continue) == ("trm", False)
    back = from_published(published, None, tmp_path / "back")
    for file in [MODEL, *([EMA] if ema else [])]:
        assert bits(back / file) == bits(trained.weights / file)
    assert (back / EMA).exists() == ema
    again = find_trained_model(tmp_path / "back", pytest.fail)
    assert again.facts == FACTS
    assert again.run.arch == published.run.arch
    assert load_checkpoint(back).step == 5


def test_what_is_written_is_what_the_published_code_reads(tmp_path: Path) -> None:
    trained = own_run(tmp_path / "own", {"name": "trm", "L_layers": 1, "attention": "math"})
    to_published(trained, tmp_path / "published")
    tensors = torch.load(tmp_path / "published" / "step_5", weights_only=True)
    own = load_tensors(trained.weights / MODEL)
    assert tensors.keys() == {f"_orig_mod.{name}" for name in own}
    settings = yaml.safe_load((tmp_path / "published" / "all_config.yaml").read_text())
    assert settings["arch"] == yaml.safe_load("""{
        name: recursive_reasoning.trm@TinyRecursiveReasoningModel_ACTV1,
        loss: {name: losses@ACTLossHead, loss_type: stablemax_cross_entropy},
        H_cycles: 3, L_cycles: 6, H_layers: 0, L_layers: 1, hidden_size: 8, num_heads: 2,
        expansion: 1.0, mlp_t: false, rms_norm_eps: 1.0e-5, pos_encodings: rope,
        rope_theta: 10000.0, puzzle_emb_ndim: 8, puzzle_emb_len: 16, halt_max_steps: 16,
        halt_exploration_prob: 0.1, no_ACT_continue: true, forward_dtype: bfloat16}""")
    assert settings["data_path"] == "data/some"
    assert settings["data_paths"] == ["data/some"]
    assert settings["data_paths_test"] == []
    assert settings["evaluators"] == []
    assert settings["lr"] == 0.25
    assert not {"optimizer", "device", "resume", "logger"} & settings.keys()  # Ours alone.


@pytest.mark.parametrize(
    ("arch", "told"),
    [
        ({"gradient": "last_cycle"}, "gradient=last_cycle: no published architecture"),
        ({"heads": {"lm": {"name": "tied"}}}, r"no published class.*arch\.heads\.lm"),
        ({"name": "trm", "heads": {"confidence": {}}}, r"arch\.heads\.confidence"),
        ({"name": "trm", "loss": {"weights": {"q_halt": 1.0}}}, r"arch\.loss\.weights"),
        ({"name": "trm", "loss": {"weighting": "uncertainty"}}, r"arch\.loss\.weighting"),
        ({"name": "trm", "techniques": {"damped_noise": {}}}, r"arch\.techniques\.damped_noise"),
    ],
)
def test_what_no_published_class_computes_is_refused(
    tmp_path: Path, arch: dict[str, Any], told: str
) -> None:
    trained = own_run(tmp_path / "own", {"name": "hrm"} | arch)
    with pytest.raises(ConfigError, match=told):
        to_published(trained, tmp_path / "published")
    assert not (tmp_path / "published").exists()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    trained = own_run(tmp_path / "own", {"name": "hrm"})
    to_published(trained, tmp_path / "published")
    before = (tmp_path / "published" / "step_5").read_bytes()
    with pytest.raises(ConfigError, match="step_5 is there already"):
        to_published(trained, tmp_path / "published")
    assert (tmp_path / "published" / "step_5").read_bytes() == before
    published = find_trained_model(tmp_path / "published", pytest.fail)
    from_published(published, None, tmp_path / "back")
    with pytest.raises(ConfigError, match="step_5 is there already"):
        from_published(published, None, tmp_path / "back")


def test_without_facts_the_data_are_asked_for(tmp_path: Path) -> None:
    to_published(own_run(tmp_path / "own", {"name": "hrm"}), tmp_path / "published")
    path = tmp_path / "published" / "all_config.yaml"
    settings = yaml.safe_load(path.read_text())
    del settings["data_facts"]
    path.write_text(yaml.safe_dump(settings))
    published = find_trained_model(tmp_path / "published", pytest.fail)
    with pytest.raises(ConfigError, match="data_path=FOLDER"):
        from_published(published, None, tmp_path / "back")
    from_published(published, FACTS, tmp_path / "back")
    other = DataFacts(vocab_size=6, seq_len=4, num_puzzle_identifiers=6)
    with pytest.raises(CheckpointError, match=r"does not fit the model: .*lm_head"):
        from_published(published, other, tmp_path / "other")
    assert not (tmp_path / "other").exists()
