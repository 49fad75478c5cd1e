"""Settings and hardware decide whether a model is compiled; the reason is given."""

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from runtime import compiler
from runtime.compiler import (
    FOLDER_VARIABLE,
    WORTH_COMPILING,
    choose_compiling,
    code_folder,
    describe_compiler,
)


@pytest.fixture
def has_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that this machine has everything to compile with."""
    monkeypatch.setattr(compiler, "missing_for_compiling", lambda device: None)
    monkeypatch.setattr(compiler, "_compiler_serves_this_cpu", lambda: True)


@pytest.mark.parametrize(
    ("setting", "form"), [("block", "block"), ("model", "model"), (True, "model"), (False, False)]
)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_setting_names_the_part_to_compile(
    has_compiler: None, setting: Any, form: Any, device: str
) -> None:
    for saved in (None, False, "block", "model"):
        choice = choose_compiling(setting, device, saved=saved)
        assert choice == (form, f"compile={setting}".lower())


def test_auto_compiles_long_runs(has_compiler: None) -> None:
    def choose(operations: float, device: str = "cpu", **saved: Any) -> Any:
        return choose_compiling("auto", device, operations=lambda: operations, **saved).form

    for threads in (1, 4):
        torch.set_num_threads(threads)
        assert choose(WORTH_COMPILING * threads) == "block"
        assert choose(WORTH_COMPILING * threads * 0.99) is False
    assert choose(0, "cuda") == "model"
    for saved in (False, "block", "model"):
        for operations in (0, 1e30):
            assert choose(operations, saved=saved) == saved


@pytest.mark.parametrize(
    ("device", "language", "variable"), [("cpu", "C++", "CXX"), ("cuda", "C", "CC")]
)
def test_without_a_compiler_or_python_s_headers_nothing_is_compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, device: str, language: str, variable: str
) -> None:
    for each in ("CC", "CXX"):
        monkeypatch.setenv(each, sys.executable)  # Any existing program.
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    assert "python3-dev" in str(choose_compiling("block", device))
    (tmp_path / "Python.h").touch()
    assert choose_compiling("block", device).form == "block"
    monkeypatch.setenv(variable, str(tmp_path / "none"))
    for setting in ("auto", "block", "model", True):
        choice = choose_compiling(setting, device, operations=lambda: 1e30)
        named = (
            f"there is no {language} compiler ({tmp_path / 'none'}; set {variable} to use another)"
        )
        assert str(choice) == f"nothing is compiled: {named}"
    assert choose_compiling("auto", device, saved="block").form is False
    monkeypatch.delenv(variable)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ("gcc or clang" in str(choose_compiling(True, device))) == (device == "cuda")


def test_code_is_kept_in_the_user_s_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = code_folder()
    assert folder is not None
    assert folder.parent == tmp_path / "recursive-reasoning"
    monkeypatch.setattr(compiler, "cpu_flags", lambda: ["another", "kind"])
    assert code_folder() not in (folder, None)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert code_folder() is None


@pytest.mark.slow
@pytest.mark.parametrize("own", [None, "mine"])
def test_prepare_compiler_sets_torch_s_options(own: str | None, tmp_path: Path) -> None:
    code = (
        "from runtime.compiler import prepare_compiler; prepare_compiler();"
        "from torch._inductor.runtime.cache_dir_utils import cache_dir; print(cache_dir());"
        "import torch._inductor.config as c; print(c.deterministic)"
    )
    environment = {name: v for name, v in os.environ.items() if name != FOLDER_VARIABLE}
    environment["XDG_CACHE_HOME"] = str(tmp_path)
    if own:
        environment[FOLDER_VARIABLE] = str(tmp_path / own)
    out = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    folder, deterministic = out.split()
    expected = tmp_path if own else tmp_path / "recursive-reasoning"
    assert (Path(folder).parent, deterministic) == (expected, "True")


def test_a_model_without_countable_operations_is_not_compiled(has_compiler: None) -> None:
    def operations() -> float:
        return torch.zeros(2, device="meta").sum().item()

    choice = choose_compiling("auto", "cpu", operations=operations)
    assert choice == (False, "the model's operations cannot be counted")


def test_the_compiler_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", sys.executable)
    assert describe_compiler("cpu") == f"Python {platform.python_version()}, deterministic=True"
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert describe_compiler("cpu") == "an unknown compiler, deterministic=True"
