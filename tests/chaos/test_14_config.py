"""Row 14: configurations with one error, made from the schema, are refused by name in one line."""

import itertools
import json
import re
import string
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import numpy as np
import pytest
from harness.lab import Lab
from pydantic import BaseModel, TypeAdapter, ValidationError

from evaluation.config import EvalConfig, SolveConfig
from runtime.errors import ConfigError
from runtime.registry import sections_in
from runtime.schema import Schema
from scripts.convert_checkpoint import ConvertConfig
from training.config.composition import load_config
from training.config.schema import TrainConfig
from training.config.source import CONFIG_DIR

# Overrides that make each configuration valid, so that the mutation is its only error.
PROGRAMS: dict[str, tuple[type[Schema], tuple[str, ...]]] = {
    "cfg_pretrain": (TrainConfig, ()),
    "cfg_evaluate": (EvalConfig, ("checkpoint=x",)),
    "cfg_solve": (SolveConfig, ("checkpoint=x",)),
    "cfg_convert": (ConvertConfig, ("checkpoint=x", "output=y")),
}
GROUPS = ("arch", "heads", "loss", "optimizer", "lr_schedule", "data", "logger", "experiment")
# Schemas that are not the default choice, and the overrides that choose them.
CHOSEN = {
    "TRMConfig": "arch=trm",
    "TransformerConfig": "arch=transformer",
    "TiedHeadConfig": "heads=tied",
    "FactorizedHeadConfig": "heads=factorized",
    "AdaptiveHeadConfig": "heads=adaptive loss=act_softmax",
    "PuzzleHeadConfig": "heads=puzzle",
    "MoEHeadConfig": "heads=moe",
    "HierarchicalHeadConfig": "heads=hierarchical loss=act_softmax",
    "WSDConfig": "lr_schedule=wsd lr_min_ratio=0",
}
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 3, 2.5, -0.25, 1.5, 1e300, 2**70, -(2**70)),
    *("word", "", "3", "true", "0.5", "../x", [], [1], ["word"], [[]], {"a": 1}, {}),
)
WORDS = string.ascii_lowercase + "_"


class Place(NamedTuple):
    """A setting: its path, its type, and the overrides that make it exist."""

    path: str
    annotation: Any
    given: tuple[str, ...]

    def is_legal(self, value: Any) -> bool:
        """Return whether a value fits the setting's annotation."""
        try:
            TypeAdapter(self.annotation).validate_json(json.dumps(value), strict=True)
        except ValidationError:
            return False
        return True


class Mutation(NamedTuple):
    """Overrides with an error in the last one; `right` is the right name."""

    config_name: str
    overrides: tuple[str, ...]
    path: str
    right: str | None = None


def places(
    schema: type[BaseModel], prefix: str = "", given: tuple[str, ...] = ()
) -> Iterator[Place]:
    """Yield the settings and sections of a schema; settings within lists have no path."""
    for name, field in schema.model_fields.items():
        path, about = f"{prefix}{name}", (field.annotation, *field.metadata)
        yield Place(path, Annotated[*about] if field.metadata else field.annotation, given)
        for member, inside in sections_in(*about):
            chosen = (*given, *CHOSEN.get(member.__name__, "").split())
            if "list[" not in str(field.annotation):
                yield from places(member, f"{path}{inside.replace('*', 'all')}.", chosen)


def one_edit(name: str, rng: np.random.Generator) -> str:
    """Insert, drop, replace or transpose one character."""
    letter, place = rng.choice(list(WORDS)), int(rng.integers(len(name)))
    before, here, after = name[:place], name[place], name[place + 1 :]
    edits = (letter + here + after, after, letter + after, after[:1] + here + after[1:])
    return before + edits[rng.integers(4)]


def misspelt_keys(config_name: str, rng: np.random.Generator) -> Iterator[Mutation]:
    """Yield overrides with a wrong key that is one edit away from a right one."""
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
    """Yield overrides with a value of a wrong type, out of range, or not among the choices."""
    schema, given = PROGRAMS[config_name]
    for place in places(schema):
        # A name may look like a number.
        taken = (int, float) if place.path in ("run_name", "project_name", "sweep_name") else ()
        for value in VALUES:
            is_taken = isinstance(value, taken) and not isinstance(value, bool)
            if is_taken or value == {} or place.path in GROUPS or place.is_legal(value):
                continue
            # Hydra merges a mapping into a section, where its key is wrong.
            text = json.dumps(value).replace('"a": ', "a: ") if value != {"a": 1} else "{a: 1}"
            plus = str(rng.choice(["", "++"]))
            overrides = (*place.given, *given, f"{plus}{place.path}={text}")
            yield Mutation(config_name, overrides, place.path)


def unknown_choices(rng: np.random.Generator) -> Iterator[Mutation]:
    """Yield choices of groups without a file, and names without a class."""
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
    """Draw some mutations from the first 20,000."""
    found = list(itertools.islice(stream, 20_000))
    return [found[i] for i in rng.permutation(len(found))[:count]]


def refusal(mutation: Mutation) -> str:
    """Load a mutated configuration, and return the error: one line that names the setting."""
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
