"""Start weights from a run, a checkpoint and a published file; files that must be refused."""

import os
import pickle
import warnings
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from models.act import ACTLossHead
from models.config import DataFacts
from models.hrm.config import HRMConfig
from models.registry import build_model
from runtime.errors import CheckpointError
from training.checkpoint.store import MODEL, RunState, save_checkpoint
from training.checkpoint.tensors import (
    load_start_weights,
    load_weights,
    model_tensors,
    write_tensors,
)
from training.checkpoint.trained_model import find_start_weights

assert_equal = partial(assert_close, rtol=0, atol=0)
TENSOR = torch.zeros(10)
TABLE = "model.inner.puzzle_emb.weights"


def build(seed: int = 0, num_puzzles: int = 5, **arch: Any) -> ACTLossHead:
    torch.manual_seed(seed)
    settings = {"H_layers": 1, "L_layers": 1, "hidden_size": 16, "num_heads": 2, "expansion": 1}
    config = HRMConfig.model_validate(settings | {"puzzle_emb_ndim": 16} | arch)
    model = build_model(config, DataFacts(6, 4, num_puzzles))
    if model.puzzle_embedding is not None:
        model.puzzle_embedding.weights.normal_()
    return model


def save(run_dir: Path, step: int, model: ACTLossHead) -> Path:
    files = {MODEL: partial(write_tensors, model_tensors(model))}
    return save_checkpoint(run_dir, RunState(step=step), files)


def test_start_weights_of_a_run_are_those_of_its_newest_good_checkpoint(tmp_path: Path) -> None:
    models = {step: build(seed=step) for step in (1, 2, 3)}
    for step, model in models.items():
        save(tmp_path, step, model)
    (tmp_path / "step_3" / MODEL).write_bytes(b"")
    warned: list[str] = []
    found = find_start_weights(tmp_path, warned.append)
    assert (found, len(warned)) == (tmp_path / "step_2", 1)
    assert_equal(load_weights(found), model_tensors(models[2]))
    assert find_start_weights(tmp_path / "step_1", pytest.fail) == tmp_path / "step_1"
    with pytest.raises(CheckpointError, match=f"step_3/{MODEL}"):
        find_start_weights(tmp_path / "step_3", pytest.fail)
    with pytest.raises(CheckpointError, match="load_checkpoint=nowhere: nowhere: no such"):
        find_start_weights(Path("nowhere"), pytest.fail)
    with pytest.raises(CheckpointError, match="step_9: no such checkpoint"):
        load_weights(tmp_path / "step_9")


def test_start_weights_in_a_published_folder_are_the_newest(tmp_path: Path) -> None:
    for name in ("step_5", "step_40", "step_40_ema"):
        torch.save(build().state_dict(), tmp_path / name)
    with pytest.raises(CheckpointError, match="there is no checkpoint in this folder"):
        find_start_weights(tmp_path, pytest.fail)
    (tmp_path / "all_config.yaml").touch()
    assert find_start_weights(tmp_path, pytest.fail) == tmp_path / "step_40"
    assert find_start_weights(tmp_path / "step_5", pytest.fail) == tmp_path / "step_5"


@pytest.mark.parametrize("prefix", ["", "_orig_mod."])
def test_weights_of_a_published_file_and_the_average_beside_it(tmp_path: Path, prefix: str) -> None:
    last, average, other = build(seed=1), build(seed=2), build(seed=3)
    for name, model in (("step_7", last), ("step_7_ema", average)):
        content = {f"{prefix}{key}": value for key, value in model.state_dict().items()}
        torch.save(content, tmp_path / name)
    assert_equal(load_weights(tmp_path / "step_7"), model_tensors(average))
    assert_equal(load_weights(tmp_path / "step_7", averaged=False), model_tensors(last))
    load_start_weights(other, tmp_path / "step_7", pytest.fail)
    assert_equal(model_tensors(other), model_tensors(average))


def test_saved_parameters_are_read_as_tensors(tmp_path: Path) -> None:
    parameters = dict(build().named_parameters())
    torch.save(parameters, tmp_path / "step_1")
    loaded = load_weights(tmp_path / "step_1")
    assert_equal(loaded, {name: value.detach() for name, value in parameters.items()})
    assert {type(value) for value in loaded.values()} == {torch.Tensor}


class RunsCode:
    """An object that creates a file when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, str]]:
        return os.system, (f"touch {self.canary}", "")[:1]  # type: ignore[return-value]


@pytest.mark.parametrize("how", ["torch.save", "torch.save, old", "pickle", "in a state dict"])
def test_a_pickle_never_runs_code(tmp_path: Path, how: str) -> None:
    canary, file = tmp_path / "canary", tmp_path / "step_1"
    evil: Any = RunsCode(canary)
    if how == "pickle":
        file.write_bytes(pickle.dumps(evil))
    elif how == "in a state dict":
        torch.save({"model.inner.H_init": torch.zeros(2), "x": evil}, file)
    else:
        torch.save(evil, file, _use_new_zipfile_serialization=how == "torch.save")
    with pytest.raises(CheckpointError, match="step_1: not a published checkpoint") as caught:
        load_weights(file)
    assert not canary.exists()
    assert len(str(caught.value).splitlines()) == 1
    pickle.loads(pickle.dumps(evil))
    assert canary.exists()  # The payload works in an ordinary unpickler.


# A tuple of 64 levels, each holding the next one twice: hashing it takes 2**64 steps.
SLOW = b"K\x01q\x00" + b"".join(b"h%c\x86q%c" % (i, i + 1) for i in range(64))
A, METADATA = b"X\x01\x00\x00\x00a", b"X\x09\x00\x00\x00_metadata"
DICT, TENSOR_OF = b"ccollections\nOrderedDict\n", b"ctorch._utils\n_rebuild_tensor_v2\n"
PARAMETER_OF = b"ctorch._utils\n_rebuild_parameter\n"


@pytest.mark.parametrize(
    ("program", "told"),
    [
        (b"}" + SLOW + b"K\x01s.", "keys that are not text"),
        (b"}(" + A + b"K\x01" + SLOW + b"K\x01u.", "keys that are not text"),
        (b"}" + A + b"}" + SLOW + b"K\x01ss.", "keys that are not text"),
        (DICT + b")R}" + METADATA + b"}" + SLOW + b"K\x01ssb.", "keys that are not text"),
        (DICT + SLOW + b"R.", "a call with arguments"),
        (DICT + b")R" + SLOW + b"b.", "a state, which"),
        (TENSOR_OF + SLOW + b"R.", "a call with arguments"),
        (PARAMETER_OF + SLOW + b"R.", "a call with arguments"),
        (PARAMETER_OF + b"(K\x01\x88}tR.", "a call with arguments"),
        (b"c__builtin__\nset\n" + SLOW + b"\x85R.", "calls '__builtin__ set'"),
        (b"(" + SLOW + b"\x91.", "calls 'FROZENSET'"),
        (SLOW + b"Q.", "data that no state dict has"),
        (SLOW + b".", "not a state dict"),
        (b"}" + A + b"}r\xff\xff\xff\x7fs.", "not a state dict"),
        (b"}q\x00" + A + b"h\x00s.", "not a state dict"),  # The dict holds itself.
        (b")" + b"\x85" * 10**6 + b".", "not a state dict"),
        (b"}" * 2**20 + b".", "must have one data.pkl of at most 1048576"),
        (b"}" + A + b"s.", "damaged"),
        (b"t.", "damaged"),
        (b"h\x07.", "damaged"),
        (b"}", "exhausted before seeing STOP"),
    ],
)
def test_a_pickle_of_anything_but_a_state_dict_is_not_carried_out(
    tmp_path: Path, program: bytes, told: str
) -> None:
    with zipfile.ZipFile(tmp_path / "step_1", "w") as archive:
        archive.writestr("x/data.pkl", b"\x80\x02" + program)
    with pytest.raises(CheckpointError, match=f"step_1: not a published checkpoint: .*{told}"):
        load_weights(tmp_path / "step_1")


MANY = [(f"{number}{'x' * 6000}", b"") for number in range(200)]
EMPTY = pickle.dumps({}, 2)


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (MANY, "it has too many files"),
        ([("x/data.pkl", SLOW), ("x/y/data.pkl", EMPTY)], r"it must have one data\.pkl"),
        ([("x/data.pkl", SLOW), ("x/data.pkl", EMPTY)], r"it must have one data\.pkl"),
        ([("x/data", EMPTY)], r"it must have one data\.pkl"),
        ([("x/data.pkl", EMPTY), ("x/byteorder", b"big")], "its byte order is not this machine's"),
    ],
)
def test_archives_with_other_files_are_refused(
    tmp_path: Path, files: list[tuple[str, bytes]], told: str
) -> None:
    quiet = warnings.catch_warnings(action="ignore")  # Two files have the same name.
    with quiet, zipfile.ZipFile(tmp_path / "step_1", "w") as archive:
        for name, content in files:
            archive.writestr(name, content)
    with pytest.raises(CheckpointError, match=f"step_1: not .*: {told}"):
        load_weights(tmp_path / "step_1")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "not a published checkpoint"),
        (b"\0" * 100, "not a published checkpoint"),
        (b"PK\x03\x04 cut", "not a published checkpoint"),
        ([1, 2], "not a pub.* its pickle calls 'EMPTY_LIST'"),
        ({"a": 1}, "not a pub.* it is not a state dict"),
        (torch.zeros(2), "not a pub.* it is not a state dict"),
        ({"a": torch.zeros(1), "b": "text"}, "not a pub.* it is not a state dict"),
        ({1: torch.zeros(1)}, "not a pub.* keys that are not text"),
        ({"a": torch.zeros(9).expand(10_000, 9)}, "not a pub.* a is larger than its data"),
        ({"a": TENSOR, "b": TENSOR[:5]}, "not a pub.* two tensors share their data"),
    ],
)
def test_files_without_a_state_dict_are_refused(tmp_path: Path, content: Any, told: str) -> None:
    if isinstance(content, bytes):
        (tmp_path / "step_1").write_bytes(content)
    else:
        torch.save(content, tmp_path / "step_1")
    with pytest.raises(CheckpointError, match=f"step_1: {told}"):
        load_weights(tmp_path / "step_1")


def test_weights_of_another_architecture_are_refused(tmp_path: Path) -> None:
    save(tmp_path, 1, build(H_layers=2))
    with pytest.raises(CheckpointError, match=r"H_level\.layers\.1\.\S+ is unknown to this model"):
        load_start_weights(build(), tmp_path / "step_1", pytest.fail)
    with pytest.raises(CheckpointError, match=r"has shape \(6, 16\), the model has \(6, 32\)"):
        load_start_weights(build(hidden_size=32), tmp_path / "step_1", pytest.fail)
    save(tmp_path, 2, build(puzzle_emb_ndim=8))
    with pytest.raises(CheckpointError, match=r"puzzle_emb\.weights has shape \(5, 8\)"):
        load_start_weights(build(), tmp_path / "step_2", pytest.fail)


def test_a_puzzle_embedding_of_another_size_starts_at_the_mean(tmp_path: Path) -> None:
    old, new, warned = build(num_puzzles=5), build(seed=1, num_puzzles=3), list[str]()
    path = save(tmp_path, 1, old)
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    load_start_weights(new, path, warned.append)
    expected = model_tensors(old)
    expected[TABLE] = expected[TABLE].mean(0).expand(3, 16)
    assert_equal(model_tensors(new), expected)
    assert ["has 5 rows, this data set 3" in warning for warning in warned] == [True]
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before


@pytest.mark.parametrize("start", ["mean", "zero", 0, 4])
@pytest.mark.parametrize("number", [3, 5])
def test_rows_of_the_puzzle_embedding_start_as_asked(
    tmp_path: Path, start: Any, number: int
) -> None:
    old, new = build(num_puzzles=5), build(seed=1, num_puzzles=number)
    load_start_weights(new, save(tmp_path, 1, old), pytest.fail, start)
    trained = model_tensors(old)[TABLE]
    named = {"mean": trained.mean(0), "zero": torch.zeros(16)}
    row = named[start] if isinstance(start, str) else trained[start]
    torch.testing.assert_close(model_tensors(new)[TABLE], row.expand(number, 16))
    with pytest.raises(CheckpointError, match="load_puzzle_rows=5: .* has the rows 0 to 4"):
        load_start_weights(new, tmp_path / "step_1", pytest.fail, 5)
