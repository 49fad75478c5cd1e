"""Write the settings, their defaults and descriptions into config/: python -m scripts.write_config.

The schemas hold them; what stands in a file above `MARK` is written by hand and stays.
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

from evaluation.config import EvalConfig, SolveConfig
from models.config import (
    ACTLossConfig,
    AdaptiveHeadConfig,
    FactorizedHeadConfig,
    FieldHeadConfig,
    FurtherHeadConfig,
    HierarchicalHeadConfig,
    HRMConfig,
    LinearHeadConfig,
    MoEHeadConfig,
    PuzzleHeadConfig,
    QHeadConfig,
    TiedHeadConfig,
    TransformerConfig,
    TRMConfig,
)
from runtime.schema import Schema
from scripts.convert_checkpoint import ConvertConfig
from training.config.composition import CONFIG_DIR
from training.config.schema import LoggerConfig, OptimizerConfig, ParamGroupConfig, TrainConfig

MARK = "# Written by `make config` from the schemas, with their defaults:\n"
WIDTH = 120
# Settings that are groups, with files of their own.
GROUPS = ("arch", "heads", "loss", "optimizer", "logger", "data")

AS_WIDE = {"puzzle_emb_ndim": "${.hidden_size}"}
SECTIONS: dict[str, Schema | dict[str, Schema]] = {
    "cfg_pretrain": TrainConfig.model_construct(data_path="${data.path}"),
    "cfg_evaluate": EvalConfig.model_construct(),
    "cfg_solve": SolveConfig.model_construct(),
    "cfg_convert": ConvertConfig(),
    "arch/hrm_v1": HRMConfig.model_construct(**AS_WIDE),
    "arch/trm": TRMConfig.model_construct(**AS_WIDE),
    "arch/transformer": TransformerConfig.model_construct(**AS_WIDE),
    "loss/act_stablemax": ACTLossConfig(),
    "optimizer/adam_atan2": OptimizerConfig(groups={"all": ParamGroupConfig(params=["*"])}),
    "logger/wandb": LoggerConfig(),
    "heads/base/q": {"q": QHeadConfig()},
    "heads/standard": {"lm": LinearHeadConfig()},
    "heads/tied": {"lm": TiedHeadConfig()},
    "heads/factorized": {"lm": FactorizedHeadConfig()},
    "heads/adaptive": {"lm": AdaptiveHeadConfig()},
    "heads/puzzle": {"lm": PuzzleHeadConfig()},
    "heads/moe": {"lm": MoEHeadConfig()},
    "heads/hierarchical": {"lm": HierarchicalHeadConfig()},
    "heads/confidence": {"confidence": FurtherHeadConfig()},
    "heads/attention": {"attention": FurtherHeadConfig()},
    "heads/action": {"action": FieldHeadConfig(field="actions")},
    "heads/pixel": {"pixel": FieldHeadConfig(field="pixels")},
    "heads/halt": {"halt": FurtherHeadConfig()},
}


def written(name: str) -> str:
    """Return what `config/NAME.yaml` should hold: its head as it is, and its settings anew."""
    head = (CONFIG_DIR / f"{name}.yaml").read_text().partition(MARK)[0]
    section = SECTIONS[name]
    lines = settings(section) if isinstance(section, Schema) else sections(section, "")
    return head + MARK + "".join(f"{line}\n" for line in lines)


def settings(section: Schema, indent: str = "") -> Iterator[str]:
    """Yield the lines of a section: its own settings, then those of each base, under its title at
    the top level.
    """
    schema = type(section)
    left = [name for name in schema.model_fields if name not in GROUPS]
    for owner in (schema, *reversed(schema.__mro__[1:])):
        names = [name for name in owner.__dict__.get("__annotations__", {}) if name in left]
        left = [name for name in left if name not in names]
        if names and owner is not schema and not indent:
            yield from ("", f"{indent}# {inspect.cleandoc(str(owner.__doc__)).splitlines()[0]}")
        for name in names:
            value = getattr(section, name, None)
            text = comment(schema, name)
            if isinstance(value, Schema):
                yield f"{indent}{name}:{text}"
                yield from settings(value, f"{indent}  ")
            elif isinstance(value, Mapping):
                yield f"{indent}{name}:{text}"
                yield from sections(value, f"{indent}  ")
            else:
                shown = yaml.safe_dump(value, default_flow_style=True).partition("\n")[0]
                line = f"{indent}{name}: {shown}"
                if len(line + text) > WIDTH:
                    yield from (f"{indent}# {row}" for row in textwrap.wrap(text[3:], WIDTH - 10))
                    text = ""
                yield line + text


def sections(named: Mapping[str, Schema], indent: str) -> Iterator[str]:
    """Yield the lines of sections under their names."""
    for name, section in named.items():
        yield f"{indent}{name}:"
        yield from settings(section, f"{indent}  ")


def comment(schema: type[Schema], name: str) -> str:
    """Return the words that a setting accepts and its description, behind a number sign."""
    annotation = schema.model_fields[name].annotation
    words = " | ".join(accepted(annotation))
    if "|" not in words:
        words = ""
    elif get_origin(annotation) is list or any(get_origin(a) is list for a in get_args(annotation)):
        words = f"list of {words}"
    described = (descriptions(owner).get(name) for owner in schema.__mro__)
    parts = [part for part in (words, next(filter(None, described), "")) if part]
    return f" # {'; '.join(parts)}" if parts else ""


def accepted(annotation: Any) -> list[str]:
    """List the words of the literals in an annotation."""
    if get_origin(annotation) is Literal:
        return [str(word) for word in get_args(annotation)]
    return [word for argument in get_args(annotation) for word in accepted(argument)]


@functools.cache
def descriptions(owner: type) -> dict[str, str]:
    """Return the string below each field that a schema declares itself."""
    if not issubclass(owner, Schema):
        return {}
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    assert isinstance(body, ast.ClassDef)
    return {
        field.target.id: " ".join(str(below.value.value).split())
        for field, below in pairwise(body.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
    }


def main() -> None:
    """Write the files that are out of date, and say which."""
    for name in SECTIONS:
        path = CONFIG_DIR / f"{name}.yaml"
        content = written(name)
        if path.read_text() != content:
            path.write_text(content)
            sys.stdout.write(f"written: {path}\n")


if __name__ == "__main__":
    main()
