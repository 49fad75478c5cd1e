"""Whether and how a model is compiled, and where the compiled code stays: decided once by the entry
points.
"""

import contextlib
import functools
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

# Operations of a run, for each CPU thread, from which on compiling pays: about two minutes of a
# small model's training, of which a third is saved, while the first compilation takes 40 s.
WORTH_COMPILING = 6e12

FOLDER_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"  # torch's own; where it is set, it is obeyed.

# For the same bits at every start no choice is left to a timing. Code with an `autograd.Function`
# is kept on disk, too: its forward and backward are part of what it is found by.
_OPTIONS = {
    "torch._inductor.config": {"deterministic": True},
    "torch._functorch.config": {"autograd_cache_allow_custom_autograd_functions": True},
    # Gradients or none, weights cast or not, and the batch shapes of training and evaluations.
    "torch._dynamo.config": {"recompile_limit": 64},
}


class Compiling(NamedTuple):
    """What is compiled, and why, in words."""

    form: CompiledForm
    reason: str

    def __str__(self) -> str:
        what = {"block": "the block is compiled", "model": "the model is compiled"}
        return f"{what.get(str(self.form), 'nothing is compiled')}: {self.reason}"


def choose_compiling(
    setting: CompileSetting,
    device: str,
    *,
    saved: CompiledForm | None = None,
    operations: Callable[[], float] = lambda: 0.0,
) -> Compiling:
    """Return what to compile on a device type; it follows from settings and hardware alone.

    Args:
        saved: what the run has compiled so far, for `auto`; None: it begins.
        operations: counts those of the matrix products until the run ends or stops, for `auto` on
            a CPU.
    """
    if setting == "auto" and saved is not None:
        asked = Compiling(saved, "so the run began")
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
    except RuntimeError:  # A head or a loss of a plug-in wants values, and there are none.
        return Compiling(False, "the operations of its model cannot be counted")
    if count < WORTH_COMPILING * torch.get_num_threads():
        return Compiling(False, "the run is too short for it to pay")
    if not _compiler_serves_this_cpu():
        return Compiling(False, "the C++ compiler does not build vector code for this CPU")
    return Compiling("block", "the run is long enough for it to pay")


# By device type: the variable that names the compiler, its language, and the usual ones.
_COMPILERS = {
    "cpu": ("CXX", "C++", ["clang++" if sys.platform == "darwin" else "g++"]),
    "cuda": ("CC", "C", ["gcc", "clang"]),  # With it Triton builds a Python module.
}


def missing_for_compiling(device: str) -> str | None:
    """Return what torch's compiler lacks on a device type, in words; None: it is complete."""
    variable, language, usual = _COMPILERS[device]
    if _compiler(device) is None:
        known = os.environ.get(variable) or " or ".join(usual)
        return f"there is no {language} compiler ({known}; {variable} names another)"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return "Python's C headers are missing (the package python3-dev)"
    return None


def _compiler(device: str) -> str | None:
    variable, _, usual = _COMPILERS[device]
    named = os.environ.get(variable)
    return next(filter(shutil.which, usual if named is None else [named]), None)


def describe_compiler(device: str) -> str:
    """Return what decides, beside torch, which code is made for a device type."""
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


@functools.cache
def prepare_compiler() -> None:
    """Set the compiler's options, and the folder in which its code stays: to be called before its
    first use.
    """
    # First, because what is imported below settles on a folder.
    if FOLDER_VARIABLE not in os.environ and (folder := code_folder()) is not None:
        os.environ[FOLDER_VARIABLE] = str(folder)
    for module, options in _OPTIONS.items():
        config = importlib.import_module(module)
        for name, value in options.items():
            setattr(config, name, value)


def code_folder() -> Path | None:
    """Return the user's folder for code that is compiled for this kind of CPU, which is created;
    None where that is impossible. A home may be shared by machines that cannot run each other's
    code, and torch's own choice, in /tmp, is lost when the machine starts again.
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
    """Return the instruction sets that Linux names for this CPU, sorted."""
    try:
        with open("/proc/cpuinfo") as info:
            named = next((line for line in info if line.startswith(("flags", "Features"))), "")
    except OSError:
        return []
    return sorted(named.partition(":")[2].split())
