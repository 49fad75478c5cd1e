"""Translate settings of earlier versions. Imports no torch."""

from collections.abc import Mapping
from typing import Any

from models.technique import TECHNIQUES

# Settings of `arch` by their former names.
_RENAMED = {"learns_when_gone": "learn_after_mistakes"}
# Removed settings of `arch` (docs/log/removed.md), each with the value that had no effect.
_GONE = {"chains": 1, "rollout_prob": 0.0, "rollout_max_steps": 64, "backprop_loops": None}
_GONE |= {"heads.q.exploration_bonus": 0.0, "loss.clip": None, "digit_attention": False}
_GONE |= {"heads.q.rule": None, "heads.q.halt_min_steps": 1, "shared_levels": False}
# The removed settings that also affect evaluations.
_OF_ALL_RUNS = {"digit_attention", "heads.q.rule", "heads.q.halt_min_steps", "shared_levels"}


def in_present_terms(arch: Mapping[str, Any], *, training: bool) -> dict[str, Any]:
    """Translate the saved settings of an architecture: use present names, turn former settings
    into techniques, and leave out removed settings that had no effect. A removed setting with an
    effect stays, so the caller reports it; in an evaluation, only if it matters there.
    """
    arch = dict(arch)
    if not training and arch.get("attention") in ("sdpa_flash", "sdpa_cudnn"):
        arch["attention"] = "auto"  # `auto` may choose either of them.
    for key, name in _RENAMED.items():
        if key in arch:
            arch[name] = arch.pop(key)
    given = arch.get("techniques")
    techniques, gone = dict(given) if isinstance(given, Mapping) else {}, dict(_GONE)
    for name in TECHNIQUES:
        schema = TECHNIQUES[name].schema
        former = schema.former
        gone |= {f"techniques.{name}.{key}": value for key, value in schema.gone.items()}
        off = {key: row.off for key, row in former.items() if row.off is not ...}
        saved = off | {key: value for key in former for value in _pop_path(arch, key)}
        if any(saved[key] != value for key, value in off.items()):
            techniques[name] = {
                row.field: saved[key] for key, row in former.items() if row.field and key in saved
            }
    arch |= {"techniques": techniques} if techniques else {}
    for key, neutral in gone.items():
        rest = dict(arch)
        found = _pop_path(rest, key)
        matters = training or key in _OF_ALL_RUNS
        if not matters or all(value in (neutral, _all_null(value)) for value in found):
            arch = rest
    return arch


def present_name(key: str) -> str | None:
    """Return the present form of a former setting of `arch`, or None if `key` never was one."""
    if name := _RENAMED.get(key.removeprefix("arch.")):
        return f"arch.{name}=..."
    for name in TECHNIQUES:
        schema = TECHNIQUES[name].schema
        if row := schema.former.get(key.removeprefix("arch.")):
            kept = row.field and row.field not in schema.gone
            setting = f" arch.techniques.{name}.{row.field}=..." if kept else ""
            return f"techniques=[{name}]{setting}"
    return None


def _all_null(section: object) -> object:
    """Return a section with all values null: how a removed section without effect was saved."""
    return dict.fromkeys(section) if isinstance(section, Mapping) else None


def _pop_path(tree: dict[str, Any], key: str) -> list[Any]:
    """Remove a dotted key from `tree`; sections on the way are copied before they change. Return
    [value], or [] if the key was absent.
    """
    section, _, rest = key.partition(".")
    if not rest:
        return [tree.pop(section)] if section in tree else []
    if not isinstance(tree.get(section), Mapping):
        return []
    tree[section] = dict(tree[section])
    return _pop_path(tree[section], rest)
