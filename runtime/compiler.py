"""Choose whether to compile a model and where to keep the code. Each entry point does this once."""

import contextlib
import hashlib
import importlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import torch

from runtime.schema import CompiledForm, CompileSetting

# Compiling pays for runs with at least this many operations per CPU thread: about two minutes of
# training a small model. The first compilation takes 40 s and saves a third of the training time.
WORTH_COMPILING = 6e12

FOLDER_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"  # torch's own variable; a user's choice counts.

_OPTIONS = {
    # Choose no kernel by timing it, so that every start computes the same bits.
    "torch._inductor.config": {"deterministic": True},
    # Keep code with an `autograd.Function` on disk too; its cache key includes the function's code.
    "torch._functorch.config": {"autograd_cache_allow_custom_autograd_functions": True},
    # Variants differ in gradients, weight casts, and the batch shapes of training and evaluation.
    "torch._dynamo.config": {"recompile_limit": 64},
}


class Compiling(NamedTuple):
    """The part of a model to compile, and the reason, in words."""

    form: CompiledForm
    reason: str

    def __str__(self) -> str:
        part = f"the {self.form}" if self.form else "nothing"
        return f"{part} is compiled: {self.reason}"


def choose_compiling(
    setting: CompileSetting,
    device: str,
    *,
    saved: CompiledForm | None = None,
    operations: Callable[[], float] = lambda: 0.0,
) -> Compiling:
    """Return the part to compile on a device type. Only settings and hardware decide.

    Args:
        saved: for `auto`, the part that a resumed run compiled before; None in a new run.
        operations: for `auto` on a CPU, counts the run's operations in matrix products.
    """
    if setting == "auto" and saved is not None:
        asked = Compiling(saved, "as when the run began")
    elif setting == "auto":
        asked = _automatic(device, operations)
    else:
        asked = Compiling("model" if setting is True else setting, f"compile={setting}".lower())
    missing = missing_for_compiling(device) if asked.form else None
    return Compiling(False, missing) if missing else asked


def _automatic(device: str, operations: Callable[[], float]) -> Compiling:
    if device != "cpu":
        return Compiling("model", f"the device is {device}")
    if missing := missing_for_compiling(device):
        return Compiling(False, missing)
    try:
        count = operations()
    except RuntimeError:  # Counting has no values, but a plug-in's head or loss reads some.
        return Compiling(False, "the model's operations cannot be counted")
    if count < WORTH_COMPILING * torch.get_num_threads():
        return Compiling(False, "the run is too short to gain from it")
    if not _compiler_serves_this_cpu():
        return Compiling(False, "the C++ compiler does not build vector code for this CPU")
    return Compiling("block", "the run is long enough to gain from it")


# For each device type: the variable that names the compiler, its language, the usual compilers.
_COMPILERS = {
    "cpu": ("CXX", "C++", ["clang++" if sys.platform == "darwin" else "g++"]),
    "cuda": ("CC", "C", ["gcc", "clang"]),  # Triton builds a Python module with it.
}


def missing_for_compiling(device: str) -> str | None:
    """Return in words which program or file is missing for torch's compiler, or None."""
    variable, language, usual = _COMPILERS[device]
    if _compiler(device) is None:
        known = os.environ.get(variable) or " or ".join(usual)
        return f"there is no {language} compiler ({known}; set {variable} to use another)"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return "Python's C headers are missing (the package python3-dev)"
    return None


def _compiler(device: str) -> str | None:
    variable, _, usual = _COMPILERS[device]
    named = os.environ.get(variable)
    return next(filter(shutil.which, usual if named is None else [named]), None)


def describe_compiler(device: str) -> str:
    """Return the compiler and options that, apart from torch's version, change the code."""
    made_by = "an unknown compiler"
    if device != "cpu":
        with contextlib.suppress(PackageNotFoundError):
            made_by = f"triton {version('triton')}"
    elif compiler := _compiler(device):
        command = [compiler, "--version"]
        lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        made_by = lines.partition("\n")[0]
    choices = [f"{name}={value}" for name, value in _OPTIONS["torch._inductor.config"].items()]
    return ", ".join([made_by, *choices])


def _compiler_serves_this_cpu() -> bool:
    """Whether vector code that the compiler builds for this CPU can be loaded."""
    if sys.platform != "linux":
        return False
    prepare_compiler()
    from torch._inductor.cpu_vec_isa import pick_vec_isa  # Takes a second.

    return bool(pick_vec_isa())


def prepare_compiler() -> None:
    """Set the options and the code folder of torch's compiler; call it before each use."""
    # The folder first, because the imports below read it.
    if FOLDER_VARIABLE not in os.environ and (folder := code_folder()) is not None:
        os.environ[FOLDER_VARIABLE] = str(folder)
    for module, options in _OPTIONS.items():
        config = importlib.import_module(module)
        for name, value in options.items():
            setattr(config, name, value)


def code_folder() -> Path | None:
    """Create and return the user's folder for code compiled for this kind of CPU, or return None if
    that fails. Machines with other CPUs may share the home. torch's default is in /tmp, which a
    reboot clears.
    """
    cache = os.environ.get("XDG_CACHE_HOME")
    try:
        base = Path(cache) if cache else Path.home() / ".cache"
        kind = hashlib.sha256(" ".join(cpu_flags()).encode()).hexdigest()[:8]
        folder = base / "recursive-reasoning" / f"compiled-{platform.machine()}-{kind}"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return folder if os.access(folder, os.W_OK) else None


def cpu_flags() -> list[str]:
    """Return the instruction sets of this CPU that Linux lists, sorted."""
    try:
        with open("/proc/cpuinfo") as info:
            named = next((line for line in info if line.startswith(("flags", "Features"))), "")
    except OSError:
        return []
    return sorted(named.partition(":")[2].split())
