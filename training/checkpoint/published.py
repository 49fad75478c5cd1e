"""Published checkpoints: a `step_N` file of weights with the run's `all_config.yaml` beside it.

Translates settings of the published HRM and TRM trainers into ours, and back. A table maps each
published class name to ours; nothing is imported from the checkpoint's folder. Imports no torch.
"""

from pathlib import Path
from typing import Any

import yaml

from models.architectures import PUBLISHED_ARCHITECTURES, PUBLISHED_LOSSES, ArchConfig
from runtime.errors import CheckpointError, ConfigError
from runtime.files import read_bounded
from runtime.text import shown
from training.config.schema import flatten

CONFIG_FILE = "all_config.yaml"
FACTS_KEY = "data_facts"  # Our own key: the facts of the data set. Published trainers lack it.
_MAX_CONFIG_BYTES = 2**20

# The settings of the published trainers, apart from `arch`.
PUBLISHED_KEYS = (
    *("data_path", "data_paths", "data_paths_test", "global_batch_size", "epochs", "seed"),
    *("eval_interval", "min_eval_interval", "checkpoint_every_eval", "eval_save_outputs"),
    *("lr", "lr_min_ratio", "lr_warmup_steps", "beta1", "beta2", "weight_decay"),
    *("puzzle_emb_lr", "puzzle_emb_weight_decay", "ema", "ema_rate", "freeze_weights"),
    *("project_name", "run_name", "checkpoint_path", "evaluators"),
)

# The keys of `arch` that change the results of a published class, with its defaults.
_NEEDED = object()  # The key has no default.
_SHARED = dict.fromkeys(
    ("hidden_size", "expansion", "num_heads", "pos_encodings", "halt_max_steps"), _NEEDED
) | {
    "puzzle_emb_ndim": 0,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "halt_exploration_prob": 0.1,
    "forward_dtype": "bfloat16",
}
_HRM = dict.fromkeys(("H_cycles", "L_cycles", "H_layers", "L_layers"), _NEEDED) | _SHARED
_TRM = _HRM | {"mlp_t": False, "puzzle_emb_len": 16, "no_ACT_continue": True, "H_layers": 0}
_CLASSES: dict[str, dict[str, Any]] = {
    "hrm.hrm_act_v1@HierarchicalReasoningModel_ACTV1": _HRM,
    "recursive_reasoning.hrm@HierarchicalReasoningModel_ACTV1": _HRM | {"mlp_t": False},
    "recursive_reasoning.trm@TinyRecursiveReasoningModel_ACTV1": _TRM,
    "recursive_reasoning.trm_singlez@TinyRecursiveReasoningModel_ACTV1": _TRM,
    "recursive_reasoning.transformers_baseline@Model_ACTV2": (
        {"H_layers": _NEEDED, "H_cycles": 1} | _SHARED
    ),
}
# Keys that we accept only with this value, which changes nothing.
_INERT = {"act_enabled": True, "act_inference": False, "causal": False}


def average_of(weights: Path) -> Path:
    """Return the path of the moving average beside a published file. Only we write one."""
    return weights.with_name(f"{weights.name}_ema")


def read_published_config(weights: Path) -> dict[str, Any]:
    """Return the settings of the run that wrote `weights` in our terms: `arch`, not yet validated,
    and the recorded PUBLISHED_KEYS and FACTS_KEY.

    Raises:
        CheckpointError: all_config.yaml is missing, too large, not YAML of plain values, or has an
            unknown class or key.
    """
    path = weights.parent / CONFIG_FILE
    recorded = read_yaml(path)
    arch = _require_mapping(recorded.get("arch"), path, "arch")
    loss = _require_mapping(arch.pop("loss", None), path, "arch.loss")
    for key, value in loss.items():
        if not isinstance(value, str | int | float | None):
            raise CheckpointError(f"{path}: arch.loss.{key} is not a plain value")
    loss["name"] = _look_up(PUBLISHED_LOSSES, loss.get("name"), path, "arch.loss.name")
    run = {"arch": {**_translate_arch(arch, path), "loss": loss}}
    kept = (*PUBLISHED_KEYS, FACTS_KEY)
    return run | {key: recorded[key] for key in kept if recorded.get(key) is not None}


def _translate_arch(arch: dict[str, Any], path: Path) -> dict[str, Any]:
    name = arch.pop("name", None)
    known = _look_up(_CLASSES, name, path, "arch.name")
    for key, value in _INERT.items():
        if arch.pop(key, value) is not value:
            raise CheckpointError(f"{path}: arch.{key} must be {value}")
    if unknown := [key for key in arch if key not in known]:
        accepted = ", ".join(sorted(known))
        raise CheckpointError(f"{path}: unknown key arch.{unknown[0]}; accepted: {accepted}")
    settings = known | arch
    for key, value in settings.items():
        if value is _NEEDED:
            raise CheckpointError(f"{path}: arch.{key} is missing")
    return {"name": PUBLISHED_ARCHITECTURES[str(name)], **settings}


def published_arch(arch: ArchConfig) -> dict[str, Any]:
    """Translate our architecture into the settings of a published class, for `all_config.yaml`.
    If no class computes the same, raise ConfigError with the settings that differ.
    """
    if arch.name == "transformer" and arch.pos_encodings == "none":
        raise ConfigError("arch.pos_encodings=none: the published transformer needs positions")
    for name in arch.techniques.in_evaluations:
        raise ConfigError(f"arch.techniques.{name}: no published class has this technique")
    settings, changed = arch.model_dump(mode="json"), [f"arch.name={arch.name}"]
    if arch.num_prefix in (0, -(-arch.puzzle_emb_ndim // arch.hidden_size)):
        settings["puzzle_emb_len"] = 0  # The published class derives it from the width.
    loss = {"loss_type": arch.loss.loss_type}
    for name, known in _CLASSES.items():
        if PUBLISHED_ARCHITECTURES[name] == arch.name:
            kept = {key: settings[key] for key in known if key in settings}
            read = _translate_arch({"name": name, **kept}, Path(CONFIG_FILE))
            changed = _changed(arch, type(arch).model_validate(read | {"loss": loss}))
            if not changed:
                (loss_name,) = PUBLISHED_LOSSES
                return {"name": name, "loss": {"name": loss_name, **loss}, **kept}
    raise ConfigError(f"no published class has {', '.join(changed)}")


def _changed(arch: ArchConfig, read: ArchConfig) -> list[str]:
    """Return the settings of `arch` that differ from `read`, its translation there and back."""
    neutral = {"attention", "techniques", "puzzle_emb_len"}
    own, theirs = (
        dict(flatten(each.model_dump(exclude=neutral) | {"puzzle_emb_len": each.num_prefix}))
        for each in (arch, read)
    )
    differing = (key for key in own.keys() | theirs.keys() if own.get(key) != theirs.get(key))
    return sorted(f"arch.{key}={own.get(key)}" for key in differing)


class PlainLoader(yaml.SafeLoader):
    """A YAML loader of plain values. It refuses aliases: a few can stand for an endless tree."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has an alias (*)")
        return super().compose_node(parent, index)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file of plain values; raise CheckpointError if it holds no mapping of them."""
    try:
        content = yaml.load(read_bounded(path, _MAX_CONFIG_BYTES), PlainLoader)
    except OSError as error:
        hint = "a published checkpoint needs this file beside its weights"
        raise CheckpointError(f"{path}: {error.strerror or error}; {hint}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise CheckpointError(f"{path}: not YAML of plain values: {reason[:200]}") from None
    return _require_mapping(content, path, "its content")


def _require_mapping(value: object, path: Path, what: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise CheckpointError(f"{path}: {what} is not a mapping")
    return dict(value)


def _look_up(table: dict[str, Any], name: object, path: Path, what: str) -> Any:
    if isinstance(name, str) and name in table:
        return table[name]
    found = shown(repr(name), 100) if isinstance(name, str | None) else "not a name"
    known = ", ".join(table)
    raise CheckpointError(f"{path}: {what} is {found}, which is unknown; known: {known}")
