"""Write the settings of the schemas into config/, with their defaults and descriptions.

The text of a file above `MARK` is written by hand and stays.
"""

import ast
import functools
import inspect
import sys
import textwrap
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Literal, get_args, get_origin

import yaml

from apps.attractor.config import AttractorConfig
from apps.dec.config import DECConfig
from apps.graph.config import GraphConfig
from apps.grid.config import GridConfig
from apps.lattice.config import LatticeConfig
from apps.nca.config import NCAConfig
from apps.sweeps.config import LAUNCHERS, SAMPLERS, SWEEPERS, SamplerConfig
from evaluation.config import EvalConfig, SolveConfig
from models.config import ACTLossConfig
from models.heads.config import AUXILIARY_HEADS, TOKEN_HEADS, QHeadConfig
from models.hrm.config import HRMConfig
from models.technique import TECHNIQUES
from models.transformer.config import TransformerConfig
from models.trm.config import TRMConfig
from runtime.registry import NameOf, Registry
from runtime.schema import Schema
from training.config.schema import MLflowConfig, OptimizerConfig, TrainConfig, WandbConfig
from training.config.source import CONFIG_DIR
from training.optim.schedules import LR_SCHEDULES

MARK = "# Written by `make config` from the schemas, with their defaults:\n"
WIDTH = 120
# Settings that are config groups: they have their own files.
GROUPS = ("arch", "heads", "loss", "techniques", "optimizer", "lr_schedule")
GROUPS += ("logger", "data")
# Heads of an app. Their settings are in the app's file, heads/lattice.yaml.
LATTICE_HEADS = ("candidates", "contradiction")
# The data set's field that an auxiliary head needs.
FIELDS = {"action": {"field": "actions"}, "pixel": {"field": "pixels"}}

AS_WIDE = {"puzzle_emb_ndim": "${.hidden_size}"}
SECTIONS: dict[str, Any] = {
    "cfg_pretrain": TrainConfig.model_construct(data_path="${data.path}"),
    "cfg_evaluate": EvalConfig.model_construct(),
    "cfg_solve": SolveConfig.model_construct(),
    "arch/hrm_v1": HRMConfig.model_construct(None, **AS_WIDE),
    "arch/trm": TRMConfig.model_construct(None, **AS_WIDE),
    "arch/dec": DECConfig(),
    "arch/attractor": AttractorConfig(),
    "arch/grid": GridConfig(),
    "arch/nca": NCAConfig(),
    "arch/graph": GraphConfig(),
    "arch/lattice": LatticeConfig(),
    "arch/transformer": TransformerConfig.model_construct(None, **AS_WIDE),
    "loss/act_stablemax": ACTLossConfig(),
    "optimizer/adam_atan2": OptimizerConfig(),
    "logger/wandb": WandbConfig(),
    "logger/tensorboard": {"tensorboard": True},
    "logger/mlflow": {"mlflow": MLflowConfig()},
    "heads/base/q": {"q": QHeadConfig()},
    **{f"hydra/launcher/{name}": launcher() for name, launcher in LAUNCHERS.items()},
    **{f"hydra/sweeper/{name}": sweeper() for name, sweeper in SWEEPERS.items()},
    **{f"hydra/sweeper/sampler/{name}": SamplerConfig(name=name) for name in SAMPLERS},
    **{f"lr_schedule/{name}": LR_SCHEDULES[name].schema() for name in LR_SCHEDULES},
    **{f"techniques/{name}": {name: TECHNIQUES[name].schema()} for name in TECHNIQUES},
    **{
        f"heads/{'standard' if name == 'linear' else name}": {"lm": TOKEN_HEADS[name].schema()}
        for name in TOKEN_HEADS
    },
    **{
        f"heads/{name}": {name: AUXILIARY_HEADS[name].schema(**FIELDS.get(name, {}))}
        for name in AUXILIARY_HEADS
        if name not in LATTICE_HEADS
    },
    "heads/lattice": {"q": None} | {name: AUXILIARY_HEADS[name].schema() for name in LATTICE_HEADS},
}


def written(name: str, section: Any) -> str:
    """Return the new text of `config/NAME.yaml`: its text above `MARK`, and its settings."""
    head = (CONFIG_DIR / f"{name}.yaml").read_text().partition(MARK)[0]
    return head + MARK + "".join(f"{line}\n" for line in lines(section))


def lines(section: Schema | Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """Yield the lines of a section: its own settings, then registered settings, then the settings
    of base classes (below a title at the top level).
    """
    if isinstance(section, Mapping):
        for name, value in section.items():
            yield from setting(name, value, "", indent)
        return
    schema = type(section)
    skipped = {*GROUPS, *LATTICE_HEADS, *getattr(schema, "fixed", ())}
    left = [name for name in schema.model_fields if name not in skipped]
    declared = {owner: list(vars(owner).get("__annotations__", {})) for owner in schema.__mro__}
    registered = [name for name in left if not any(name in own for own in declared.values())]
    for owner in (schema, *reversed(schema.__mro__[1:])):
        names = [name for name in declared[owner] if name in left]
        names += registered if owner is schema else []
        left = [name for name in left if name not in names]
        if names and owner is not schema and not indent:
            yield from ("", f"# {inspect.cleandoc(str(owner.__doc__)).splitlines()[0]}")
        for name in names:
            yield from setting(name, getattr(section, name, None), comment(schema, name), indent)


def setting(name: str, value: Any, text: str, indent: str) -> Iterator[str]:
    """Yield the lines of a setting with its comment, or of a section below its name."""
    if isinstance(value, Schema | Mapping):
        yield f"{indent}{name}: {text}".rstrip()
        yield from lines(value, f"{indent}  ")
        return
    if isinstance(value, list):
        value = [one.model_dump() if isinstance(one, Schema) else one for one in value]
    line = f"{indent}{name}: {yaml.safe_dump(value, default_flow_style=True).splitlines()[0]}"
    if len(f"{line} {text}") > WIDTH:
        yield from textwrap.wrap(
            text, WIDTH, initial_indent=indent, subsequent_indent=f"{indent}# "
        )
        text = ""
    yield f"{line} {text}".rstrip()


def comment(schema: type[Schema], name: str) -> str:
    """Return a comment with the words that a setting accepts and its description."""
    field = schema.model_fields[name]
    words = " | ".join(accepted(field.annotation, *field.metadata))
    if "|" not in words:
        words = ""
    elif list in (get_origin(field.annotation), *map(get_origin, get_args(field.annotation))):
        words = f"list of {words}"
    parts = "; ".join(filter(None, (words, description(schema, name))))
    return f"# {parts}" if parts else ""


def description(schema: type[Schema], name: str) -> str:
    """Return a setting's description: the string below its field, or the descriptions of the parts
    that it can name.
    """
    field = schema.model_fields[name]
    described = [_descriptions(owner).get(name) for owner in schema.__mro__]
    named = [one.registry for one in field.metadata if isinstance(one, NameOf)]
    texts = ["; ".join(f"{part}: {parts[part].text}" for part in parts) for parts in named]
    return next(filter(None, [*described, *texts, field.description]), "")


def accepted(*annotations: Any) -> list[str]:
    """List the words of the literals, and the names of the registries, in annotations."""
    words = []
    for annotation in annotations:
        if isinstance(annotation, Registry | NameOf) or get_origin(annotation) is Literal:
            words += map(str, get_args(annotation) or annotation)
        else:
            words += accepted(*get_args(annotation))
    return words


@functools.cache
def _descriptions(owner: type) -> dict[str, str]:
    """Return the string below each field that a schema itself declares. (Pydantic's
    `use_attribute_docstrings` would read them at each import.)
    """
    if not issubclass(owner, Schema):
        return {}
    (definition,) = ast.parse(inspect.getsource(owner)).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for field, below in pairwise(definition.body):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
            found[ast.unparse(field.target)] = " ".join(ast.literal_eval(below.value).split())
    return found


def write(sections: Mapping[str, Any]) -> None:
    """Write the files that are out of date, and print their names."""
    for name, section in sections.items():
        path = CONFIG_DIR / f"{name}.yaml"
        if path.read_text() != (content := written(name, section)):
            path.write_text(content)
            sys.stdout.write(f"written: {path}\n")
