"""Writing checkpoints in the published format."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from apps.export.published import to_published
from models.config import DataFacts
from models.registry import build_model
from runtime.errors import ConfigError
from scripts import convert_checkpoint
from training.checkpoint.store import EMA, MODEL, RunState, save_checkpoint
from training.checkpoint.tensors import load_tensors, load_weights, model_tensors, write_tensors
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
    """Return a checkpoint of ours at step 5 with random weights."""
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
    writers = {name: partial(write_tensors, tensors) for name, tensors in files.items()}
    save_checkpoint(folder, state, writers)
    return find_trained_model(folder, pytest.fail)


@pytest.mark.parametrize("ema", [False, True])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_written_checkpoints_are_read_as_the_same_bytes(
    tmp_path: Path, name: str, ema: bool
) -> None:
    trained = own_run(tmp_path / "own", ARCHITECTURES[name], ema=ema)
    written = to_published(trained, tmp_path / "published")
    averages = ["step_5_ema"] if ema else []
    assert [path.name for path in written] == ["step_5", *averages, "all_config.yaml"]
    published = find_trained_model(tmp_path / "published", pytest.fail)
    assert published.is_published
    assert (published.step, published.facts) == (5, FACTS)
    assert published.run.arch.num_prefix == trained.run.arch.num_prefix
    for averaged in (False, True):
        own = load_weights(trained.weights, averaged=averaged)
        theirs = load_weights(published.weights, averaged=averaged)
        assert theirs.keys() == own.keys()
        for key, value in own.items():
            assert theirs[key].dtype == value.dtype
            assert theirs[key].equal(value)


def test_the_published_code_can_read_the_files(tmp_path: Path) -> None:
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
    assert not {"optimizer", "device", "resume", "logger"} & settings.keys()  # Only ours.


@pytest.mark.parametrize(
    ("arch", "message"),
    [
        ({"gradient": "last_cycle"}, r"no published class has arch\.gradient=last_cycle$"),
        ({"heads": {"lm": {"name": "tied"}}}, r"no published .*arch\.heads\.lm.name=tied"),
        ({"name": "trm", "heads": {"confidence": {}}}, r"arch\.heads\.confidence"),
        ({"name": "trm", "loss": {"weights": {"q_halt": 1.0}}}, r"arch\.loss\.weights"),
        ({"name": "trm", "loss": {"weighting": "uncertainty"}}, r"arch\.loss\.weighting"),
        ({"name": "trm", "techniques": {"damped_noise": {}}}, r"arch\.techniques\.damped_noise"),
    ],
)
def test_models_that_no_published_class_computes_are_refused(
    tmp_path: Path, arch: dict[str, Any], message: str
) -> None:
    trained = own_run(tmp_path / "own", {"name": "hrm"} | arch)
    with pytest.raises(ConfigError, match=message):
        to_published(trained, tmp_path / "published")
    assert not (tmp_path / "published").exists()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    trained = own_run(tmp_path / "own", {"name": "hrm"})
    to_published(trained, tmp_path / "published")
    before = (tmp_path / "published" / "step_5").read_bytes()
    with pytest.raises(ConfigError, match="step_5 exists already"):
        to_published(trained, tmp_path / "published")
    assert (tmp_path / "published" / "step_5").read_bytes() == before


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own_run(tmp_path / "own", {"name": "hrm"})
    output = tmp_path / "published"
    convert_checkpoint.main([f"checkpoint={tmp_path / 'own'}", f"output={output}"])
    written = (output / "step_5", output / "all_config.yaml")
    assert capsys.readouterr().out == "".join(f"written: {path}\n" for path in written)
    with pytest.raises(ConfigError, match="step_5 is in the published format already"):
        convert_checkpoint.main([f"checkpoint={output}", "output=x"])
    for given in ("checkpoint=x", "output=x"):
        with pytest.raises(ConfigError, match="set checkpoint=PATH .* and output=FOLDER"):
            convert_checkpoint.main([given])
