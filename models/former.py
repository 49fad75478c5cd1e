"""Settings of earlier versions, in the terms of this one. Imports no torch."""

from collections.abc import Mapping
from typing import Any

from models.technique import TECHNIQUES

# Settings of `arch` that are gone (docs/log/removed.md), with the value that changed nothing.
_GONE = {"chains": 1, "rollout_prob": 0.0, "rollout_max_steps": 64, "backprop_loops": None}
_GONE |= {"heads.q.exploration_bonus": 0.0, "loss.clip": None, "digit_attention": False}
_GONE |= {"heads.q.rule": None, "heads.q.halt_min_steps": 1, "shared_levels": False}
# Those of them that evaluations depend on.
_OF_ALL_RUNS = {"digit_attention", "heads.q.rule", "heads.q.halt_min_steps", "shared_levels"}


def in_present_terms(arch: Mapping[str, Any], *, training: bool) -> dict[str, Any]:
    """Return the settings of an architecture that was saved, with techniques in place of former
    settings, and without settings that are gone. Those that changed the result stay, as unknown
    settings or differences; for an evaluation only what matters there does.
    """
    arch = dict(arch)
    if not training and arch.get("attention") in ("sdpa_flash", "sdpa_cudnn"):
        arch["attention"] = "auto"  # Which chooses among them.
    given = arch.get("techniques")
    techniques, gone = dict(given) if isinstance(given, Mapping) else {}, dict(_GONE)
    for name in TECHNIQUES:
        schema = TECHNIQUES[name].schema
        former = schema.former
        gone |= {f"techniques.{name}.{key}": value for key, value in schema.gone.items()}
        off = {key: row.off for key, row in former.items() if row.off is not ...}
        saved = off | {key: value for key in former for value in _taken(arch, key)}
        if any(saved[key] != value for key, value in off.items()):
            techniques[name] = {
                row.field: saved[key] for key, row in former.items() if row.field and key in saved
            }
    arch |= {"techniques": techniques} if techniques else {}
    for key, neutral in gone.items():
        rest = dict(arch)
        found = _taken(rest, key)
        matters = training or key in _OF_ALL_RUNS
        if not matters or all(value in (neutral, _no_limits(value)) for value in found):
            arch = rest
    return arch


def present_name(key: str) -> str | None:
    """Return how a former setting of `arch` is written now; None: it was not one."""
    for name in TECHNIQUES:
        if row := TECHNIQUES[name].schema.former.get(key.removeprefix("arch.")):
            setting = f" arch.techniques.{name}.{row.field}=..." if row.field else ""
            return f"techniques=[{name}]{setting}"
    return None


def _no_limits(section: object) -> object:
    """Return a section without anything in it."""
    return dict.fromkeys(section) if isinstance(section, Mapping) else None


def _taken(tree: dict[str, Any], key: str) -> list[Any]:
    """Take a dotted key out of a tree, whose sections stay as they are for others; returns its
    value, in a list, if it was there.
    """
    section, _, rest = key.partition(".")
    if not rest:
        return [tree.pop(section)] if section in tree else []
    if not isinstance(tree.get(section), Mapping):
        return []
    tree[section] = dict(tree[section])
    return _taken(tree[section], rest)
