"""The models of the zoo: complete, small, unchanged, found by name and by puzzle."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from apps.reports.asking import kind_read_by
from apps.zoo import address as zoo
from apps.zoo import making
from apps.zoo.making import Recipe, commit_of, recipes, write_model
from dataset.kinds import KINDS
from runtime.errors import CheckpointError, ConfigError
from training.checkpoint.store import MANIFEST, MODEL
from training.checkpoint.tensors import load_weights
from training.checkpoint.trained_model import find_trained_model

FILES = {"model.safetensors", "config.yaml", "card.md", "score.json", "MANIFEST.json"}


def quiet(message: str) -> None:
    raise AssertionError(message)


def test_each_model_has_a_recipe_and_all_are_small() -> None:
    assert set(zoo.names()) == set(recipes())
    for name in zoo.names():
        files = {path.name for path in (zoo.ZOO / name).iterdir()}
        assert files - {"identifiers.json"} == FILES
    assert sum(path.stat().st_size for path in zoo.ZOO.rglob("*") if path.is_file()) < 6_000_000


@pytest.mark.parametrize("name", zoo.names())
def test_a_model_loads_and_its_score_is_recorded(name: str) -> None:
    trained = find_trained_model(Path(f"zoo:{name}"), quiet)
    assert trained.origin == f"zoo:{name}"
    assert trained.facts is not None
    model = trained.load(trained.run.arch, trained.facts, "itself", torch.device("cpu"))
    assert sum(p.numel() for p in model.parameters()) > 10_000
    scores = json.loads((zoo.ZOO / name / "score.json").read_text())
    for score in scores.values():
        assert 0 <= score["low"] <= score["share"] <= score["high"] <= 1
        assert score["correct"] == round(score["share"] * score["count"])
    assert f"make zoo-{name}" in (zoo.ZOO / name / "card.md").read_text()


@pytest.mark.parametrize(
    ("kind", "size"), [asked for asked, name in zoo._CHOSEN.items() if name in zoo.names()]
)
def test_the_model_for_a_puzzle_reads_its_kind_and_size(kind: str, size: int | None) -> None:
    address = zoo.address_for(KINDS.load(kind), size or 30)
    trained = find_trained_model(Path(address), quiet)
    assert trained.facts is not None
    assert trained.cells == (None if size is None else size**2)
    assert kind_read_by(trained) is KINDS.load(kind)


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of one model, in a zoo of its own."""
    shutil.copytree(zoo.ZOO / "sudoku-4x4", tmp_path / "sudoku-4x4")
    monkeypatch.setattr(zoo, "ZOO", tmp_path)
    return tmp_path / "sudoku-4x4"


@pytest.mark.parametrize("name", sorted(FILES - {"MANIFEST.json"}))
def test_a_flipped_bit_is_refused_with_the_files_name(copy: Path, name: str) -> None:
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"sudoku-4x4/{name}: content changed"):
        find_trained_model(Path("zoo:sudoku-4x4"), quiet)


def test_a_flipped_bit_in_the_manifest_is_refused(copy: Path) -> None:
    content = (copy / MANIFEST).read_text()
    digit = next(i for i, c in enumerate(content) if c == '"' and content[i + 1] in "0123456789")
    other = "1" if content[digit + 1] == "0" else "0"
    (copy / MANIFEST).write_text(content[: digit + 1] + other + content[digit + 2 :])
    with pytest.raises(CheckpointError, match="sudoku-4x4/"):
        find_trained_model(Path("zoo:sudoku-4x4"), quiet)


def test_an_unknown_name_is_answered_with_the_nearest(copy: Path) -> None:
    said = "zoo:sudoku-4by4: the zoo has no such model; did you mean zoo:sudoku-4x4?"
    with pytest.raises(CheckpointError, match=said):
        find_trained_model(Path("zoo:sudoku-4by4"), quiet)
    with pytest.raises(CheckpointError, match=r"zoo:\.\./x: the zoo has no such model"):
        find_trained_model(Path("zoo:../x"), quiet)


def test_a_puzzle_without_a_model_is_said_to_have_none(copy: Path) -> None:
    with pytest.raises(ConfigError, match="no model for Sudoku puzzles of 12 x 12 cells"):
        zoo.address_for(KINDS.load("sudoku"), 12)


def test_a_model_can_be_written_again_and_rounded(copy: Path, tmp_path: Path) -> None:
    trained = find_trained_model(Path("zoo:sudoku-4x4"), quiet)
    recipe = Recipe(data=[], train=[], measure=[], float16=True, limits="none")
    write_model(trained, recipe, tmp_path / "again")
    again = find_trained_model(tmp_path / "again", quiet)
    assert again.run == trained.run
    write_model(trained, recipe.model_copy(update={"steps": 3}), tmp_path / "shorter")
    shorter = find_trained_model(tmp_path / "shorter", quiet)
    assert shorter.run.arch == trained.run.arch.with_depth(3)
    assert (tmp_path / "again" / MODEL).stat().st_size < 0.6 * (copy / MODEL).stat().st_size
    rounded, exact = load_weights(tmp_path / "again"), load_weights(copy)
    for name, tensor in exact.items():
        torch.testing.assert_close(rounded[name].to(tensor.dtype), tensor, rtol=1e-3, atol=1e-6)


def test_without_a_card_the_old_score_stays(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(facts: object) -> None:
        raise ConfigError("no card")

    done: dict[str, object] = {"run_command": None, "find_trained_model": None, "write_model": None}
    done |= {"measure": {}, "score_json": {}, "card_facts": None}
    for name, result in done.items():
        monkeypatch.setattr(making, name, lambda *_, result=result, **__: result)
    monkeypatch.setattr(making, "ZOO", tmp_path)
    monkeypatch.setattr(making, "card", fail)
    train = ["data_path=data", f"checkpoint_path={tmp_path / 'run'}"]
    recipe = Recipe(data=[], train=train, measure=[], limits="none")
    before = (copy / "score.json").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("apps.hub.pushing.find_spec", lambda name: None)
        with pytest.raises(ConfigError, match="huggingface-hub is not installed"):
            making.make("sudoku-4x4", recipe)
    assert not (tmp_path / "run").exists()  # Nothing was begun.
    monkeypatch.setattr(making, "require_hub", lambda: None)
    with pytest.raises(ConfigError, match="no card"):
        making.make("sudoku-4x4", recipe)
    assert (copy / "score.json").read_bytes() == before


def test_without_git_the_commit_of_a_run_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    assert commit_of(tmp_path / "outside a clone") == ""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit_of(tmp_path / "without git") == ""
