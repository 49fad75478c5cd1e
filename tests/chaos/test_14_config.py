"""Row 14: configurations with one thing wrong, made from the schema, are refused, each in one line
that names it.
"""

import itertools
import json
import re
import string
from collections.abc import Iterator
from math import inf
from typing import Any, NamedTuple

import numpy as np
import pytest
from harness.lab import Lab

from evaluation.config import EvalConfig, SolveConfig
from runtime.errors import ConfigError
from runtime.schema import Schema
from scripts.convert_checkpoint import ConvertConfig
from training.config.composition import load_config
from training.config.schema import TrainConfig
from training.config.source import CONFIG_DIR

# What makes each configuration valid, so that the mutation alone is to blame.
PROGRAMS: dict[str, tuple[type[Schema], tuple[str, ...]]] = {
    "cfg_pretrain": (TrainConfig, ()),
    "cfg_evaluate": (EvalConfig, ("checkpoint=x",)),
    "cfg_solve": (SolveConfig, ("checkpoint=x",)),
    "cfg_convert": (ConvertConfig, ("checkpoint=x", "output=y")),
}
GROUPS = ("arch", "heads", "loss", "optimizer", "data", "logger", "experiment")
# Members of the unions that are not the default, and the choice that makes them so.
CHOSEN = {
    "TRMConfig": "arch=trm",
    "TransformerConfig": "arch=transformer",
    "TiedHeadConfig": "heads=tied",
    "FactorizedHeadConfig": "heads=factorized",
    "AdaptiveHeadConfig": "heads=adaptive loss=act_softmax",
    "PuzzleHeadConfig": "heads=puzzle",
    "MoEHeadConfig": "heads=moe",
    "HierarchicalHeadConfig": "heads=hierarchical loss=act_softmax",
}
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 3, 2.5, -0.25, 1.5, 1e300, 2**70, -(2**70)),
    *("word", "", "3", "true", "0.5", "../x", [], [1], ["word"], [[]], {"a": 1}, {}),
)
WORDS = string.ascii_lowercase + "_"


class Place(NamedTuple):
    """A setting: its path, its JSON schema, and the overrides that bring it about."""

    path: str
    node: dict[str, Any]
    given: tuple[str, ...]


class Mutation(NamedTuple):
    """Overrides of which the last is wrong; `right` is the name it should have had."""

    config_name: str
    overrides: tuple[str, ...]
    path: str
    right: str | None = None


# The schema


def places(schema: type[Schema]) -> list[Place]:
    """List the settings and sections of a schema."""
    whole = schema.model_json_schema()
    definitions = whole.get("$defs", {})

    def resolved(node: dict[str, Any]) -> dict[str, Any]:
        name = node.get("$ref", "").removeprefix("#/$defs/")
        return definitions[name] | {"title": name} if name else node

    def inside(node: dict[str, Any], path: str, given: tuple[str, ...]) -> Iterator[Place]:
        node = resolved(node)
        if path:
            yield Place(path, with_definitions(node), given)
        for member in map(resolved, members_of(node)):
            if member.get("type") == "object":
                choice = (*given, *CHOSEN.get(member["title"], "").split())
                yield from list(inside(member, path, choice))[1:]
        for name, value in node.get("properties", {}).items():
            yield from inside(value, f"{path}.{name}".removeprefix("."), given)
        free = node.get("additionalProperties")
        if isinstance(free, dict):
            yield from inside(free, f"{path}.all", given)

    def with_definitions(node: Any) -> Any:
        if isinstance(node, list):
            return [with_definitions(part) for part in node]
        if not isinstance(node, dict):
            return node
        return {key: with_definitions(value) for key, value in resolved(node).items()}

    return list({(place.path, place.given): place for place in inside(whole, "", ())}.values())


def members_of(node: dict[str, Any]) -> list[dict[str, Any]]:
    """The alternatives of a schema, if it has any."""
    return node.get("anyOf", node.get("oneOf", []))


def is_legal(node: dict[str, Any], value: Any) -> bool:
    """Judge a value by a JSON schema: the slow, obvious twin of what the project does."""
    if members := members_of(node):
        return any(is_legal(member, value) for member in members)
    if "const" in node or "enum" in node:
        known = node.get("enum", [node.get("const")])
        return any(value == each and type(value) is type(each) for each in known)
    kind = node.get("type")
    if kind == "object":
        # Whoever has all keys right is legal: none of VALUES has one, but {}.
        return value == {}
    if kind == "array":
        if not isinstance(value, list) or len(value) < node.get("minItems", 0):
            return False
        return all(is_legal(node["items"], item) for item in value)
    if kind in ("integer", "number"):
        kinds = int if kind == "integer" else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds):
            return False
        is_inside = node.get("exclusiveMinimum", -inf) < value < node.get("exclusiveMaximum", inf)
        return is_inside and node.get("minimum", value) <= value <= node.get("maximum", value)
    accepted = {"string": str, "boolean": bool, "null": type(None)}
    return isinstance(value, accepted[kind])


# The mutations


def one_edit(name: str, rng: np.random.Generator) -> str:
    """Insert, drop, replace or transpose one character."""
    letter, place = rng.choice(list(WORDS)), int(rng.integers(len(name)))
    before, here, after = name[:place], name[place], name[place + 1 :]
    edits = (letter + here + after, after, letter + after, after[:1] + here + after[1:])
    return before + edits[rng.integers(4)]


def misspelt_keys(config_name: str, rng: np.random.Generator) -> Iterator[Mutation]:
    """Yield overrides whose key is one edit away from a right one, and no right one itself."""
    schema, given = PROGRAMS[config_name]
    right = [place.path for place in places(schema) if ".all" not in place.path]
    right += GROUPS if config_name == "cfg_pretrain" else ()
    while True:
        key = str(rng.choice(right))
        typo = one_edit(key, rng)
        if typo in right or not re.fullmatch(r"[a-z_]\w*(\.[a-z_]\w*)*", typo, re.IGNORECASE):
            continue
        plus = str(rng.choice(["", "+", "++"]))
        yield Mutation(config_name, (*given, f"{plus}{typo}=1"), typo, key)


def wrong_values(config_name: str, rng: np.random.Generator) -> Iterator[Mutation]:
    """Yield overrides whose value has another type, is out of range, or no choice of a setting."""
    schema, given = PROGRAMS[config_name]
    for place in places(schema):
        # A name may be a number: it is a word all the same.
        taken = (int, float) if place.path in ("run_name", "project_name", "sweep_name") else ()
        for value in VALUES:
            is_taken = isinstance(value, taken) and not isinstance(value, bool)
            if is_taken or is_legal(place.node, value) or value == {} or place.path in GROUPS:
                continue
            # Hydra merges a mapping into a section: that is a key that is wrong there.
            text = json.dumps(value).replace('"a": ', "a: ") if value != {"a": 1} else "{a: 1}"
            plus = str(rng.choice(["", "++"]))
            overrides = (*place.given, *given, f"{plus}{place.path}={text}")
            yield Mutation(config_name, overrides, place.path)
        for known in choices_of(place.node):
            typo = one_edit(known, rng)
            if not is_legal(place.node, typo) and re.fullmatch(r"\w+", typo):
                override = f'{place.path}="{typo}"'
                yield Mutation(config_name, (*place.given, *given, override), place.path)


def choices_of(node: dict[str, Any]) -> list[str]:
    """The words that a setting accepts; none where it takes any word."""
    members = members_of(node) or [node]
    if any(m.get("type") == "string" and not {"enum", "const"} & m.keys() for m in members):
        return []
    found = [m.get("enum", [m.get("const")]) for m in members]
    return [word for word in itertools.chain(*found) if isinstance(word, str)]


def unknown_choices(rng: np.random.Generator) -> Iterator[Mutation]:
    """Yield choices that no file stands for, and kinds that no class stands for."""
    for group in itertools.cycle(GROUPS):
        known = sorted(path.stem for path in (CONFIG_DIR / group).glob("*.yaml"))
        right = str(rng.choice(known))
        typo = one_edit(right, rng)
        if typo not in known and re.fullmatch(r"[a-z]\w*", typo, re.IGNORECASE):
            yield Mutation("cfg_pretrain", (f"{group}={typo}",), group, f"{group}={right}")
        elsewhere = str(rng.choice(["[a,b]", "3", f"'../{group}/{right}'", f"'{right}.yaml'"]))
        yield Mutation("cfg_pretrain", (f"{group}={elsewhere}",), group)
        for path in ("arch.name", "arch.loss.name", "arch.heads.lm.name"):
            name = str(rng.choice(["os.system@x", "hrmm", "models.hrm@HRM", "__main__", "Linear"]))
            yield Mutation("cfg_pretrain", (f"{path}='{name}'",), path)


def drawn(stream: Iterator[Mutation], count: int, rng: np.random.Generator) -> list[Mutation]:
    """Choose some of a list, or take the first of an endless one."""
    found = list(itertools.islice(stream, 20_000))
    return [found[i] for i in rng.permutation(len(found))[:count]]


def refusal(mutation: Mutation) -> str:
    """Load the mutated configuration as the command line does, and require that it is refused in
    one line that names the setting; returns what is said.
    """
    schema, _ = PROGRAMS[mutation.config_name]
    print(mutation)  # noqa: T201
    with pytest.raises(ConfigError) as caught:
        load_config(schema, mutation.config_name, mutation.overrides)
    said = str(caught.value)
    assert said.isprintable(), (mutation, said)
    assert mutation.path in said, (mutation, said)
    assert len(said) < 1000, (mutation, said)
    return said


def test_no_wrong_configuration_is_accepted(lab: Lab) -> None:
    total, rng = lab.cases(quick=500, long=5000), lab.rng
    others = ("cfg_evaluate", "cfg_solve", "cfg_convert")
    typos = list(itertools.islice(misspelt_keys("cfg_pretrain", rng), total * 3 // 10))
    for name in others:
        typos += itertools.islice(misspelt_keys(name, rng), total // 30)
    values = drawn(wrong_values("cfg_pretrain", rng), total * 3 // 10, rng)
    for name in others[:2]:
        values += drawn(wrong_values(name, rng), total // 30, rng)
    choices = itertools.islice(unknown_choices(rng), total - len(typos) - len(values))
    near = 0
    for mutation in typos:
        offered = refusal(mutation).partition("did you mean ")[2].removesuffix("?").split(" or ")
        near += mutation.right in offered
    for mutation in [*values, *choices]:
        refusal(mutation)
    assert near >= 0.95 * len(typos), f"the right name offered for {near} of {len(typos)}"
    said = f"the right name offered for {near} of {len(typos)} misspelt keys"
    lab.tally(said, mutations=total, accepted=0)
