"""Published checkpoints: a `step_N` file of weights with the run's `all_config.yaml` beside it.

What the published trainers of HRM wrote is put into our terms. The class to build is looked up in
our table by the published name; nothing is imported from the checkpoint's folder. Imports no torch.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from training.errors import CheckpointError

CONFIG_FILE = "all_config.yaml"
_MAX_CONFIG_BYTES = 2**20

# The keys of `arch` that decide what the model computes. The published class has defaults for some.
_HRM_REQUIRED = (
    "H_cycles",
    "L_cycles",
    "H_layers",
    "L_layers",
    "hidden_size",
    "expansion",
    "num_heads",
    "pos_encodings",
    "halt_max_steps",
)
_HRM_DEFAULTS = {
    "puzzle_emb_ndim": 0,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "halt_exploration_prob": 0.1,
    "forward_dtype": "bfloat16",
}
_LOSSES = {"losses@ACTLossHead": "act"}


def read_published_config(weights: Path) -> dict[str, Any]:
    """Return the run that wrote the file `weights`, in our terms.

    Returns:
        `arch` for `models.config.ArchConfig` (not yet validated), and those of `data_path`,
        `data_paths`, `data_paths_test` and `global_batch_size` that the run recorded.
    Raises:
        CheckpointError: all_config.yaml is missing, too large, not YAML of plain values, or names
            a class or key that we do not know.
    """
    path = weights.parent / CONFIG_FILE
    recorded = _read_yaml(path)
    arch = _mapping(recorded.get("arch"), path, "arch")
    loss = _mapping(arch.pop("loss", None), path, "arch.loss")
    run: dict[str, Any] = {"arch": _translate_arch(arch, path)}
    run["arch"]["loss"] = {
        "name": _known(_LOSSES, loss.pop("name", None), path, "arch.loss.name"),
        **_plain(loss, path, "arch.loss"),
    }
    for key in ("data_path", "data_paths", "data_paths_test", "global_batch_size"):
        if recorded.get(key) is not None:
            run[key] = recorded[key]
    return run


def _translate_arch(arch: dict[str, Any], path: Path) -> dict[str, Any]:
    translate = _known(_ARCHITECTURES, arch.pop("name", None), path, "arch.name")
    return translate(_plain(arch, path, "arch"), path)


def _translate_hrm(arch: dict[str, Any], path: Path) -> dict[str, Any]:
    accepted = (*_HRM_REQUIRED, *_HRM_DEFAULTS)
    for key in arch:
        if key not in accepted:
            raise CheckpointError(
                f"{path}: unknown key arch.{key}; accepted: {', '.join(sorted(accepted))}"
            )
    for key in _HRM_REQUIRED:
        if key not in arch:
            raise CheckpointError(f"{path}: arch.{key} is missing")
    return {"name": "hrm", **_HRM_DEFAULTS, **arch}


_ARCHITECTURES: dict[str, Callable[[dict[str, Any], Path], dict[str, Any]]] = {
    "hrm.hrm_act_v1@HierarchicalReasoningModel_ACTV1": _translate_hrm,
}


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise CheckpointError(
            f"{path}: {error.strerror or error}; a published checkpoint needs it beside its weights"
        ) from None
    if len(content) > _MAX_CONFIG_BYTES:
        raise CheckpointError(f"{path}: more than {_MAX_CONFIG_BYTES} bytes")
    try:
        return _mapping(yaml.safe_load(content), path, "its content")
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise CheckpointError(f"{path}: not YAML of plain values: {reason[:200]}") from None


def _mapping(value: object, path: Path, what: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise CheckpointError(f"{path}: {what} is not a mapping")
    return dict(value)


def _plain(values: Mapping[str, Any], path: Path, section: str) -> dict[str, Any]:
    # Aliases let a small file stand for a huge tree: nothing nested is looked at, or printed.
    for key, value in values.items():
        if not isinstance(value, str | int | float | None):
            raise CheckpointError(f"{path}: {section}.{key} is not a plain value")
    return dict(values)


def _known(table: Mapping[str, Any], name: object, path: Path, what: str) -> Any:
    if not isinstance(name, str) or name not in table:
        shown = repr(name)[:100] if isinstance(name, str | None) else "not a name"
        raise CheckpointError(
            f"{path}: {what} is {shown}, which is not known here; known: {', '.join(table)}"
        )
    return table[name]
