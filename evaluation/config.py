"""Schemas of `evaluate.py` and `scripts/solve.py`. Imports no torch."""

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from models.config import AttentionBackend, EvaluatorName, ForwardDtype, OutputField
from runtime.schema import (
    Count,
    CountOrZero,
    PositiveFloat,
    Schema,
    Seconds,
    StrictBool,
)

Device = Literal["auto", "cpu", "cuda"]
DecodeMethod = Literal["greedy", "temperature", "top_k", "top_p", "beam"]

# The decoders that read a parameter.
_READ_BY: dict[str, tuple[DecodeMethod, ...]] = {
    "temperature": ("temperature", "top_k", "top_p"),
    "top_k": ("top_k",),
    "top_p": ("top_p",),
    "beam_width": ("beam",),
}


class KernelOverrides(Schema):
    """How a trained model computes, which has no weights; None: as recorded."""

    attention: AttentionBackend | None = None
    forward_dtype: ForwardDtype | None = None


class ArchOverrides(KernelOverrides):
    """What may differ from the trained architecture because it has no weights; None: as recorded.

    Attributes:
        halt_max_steps: ACT steps that every puzzle takes.
    """

    halt_max_steps: Count | None = None


class EvalConfig(Schema):
    """Everything an evaluation is told; None stands for what the checkpoint recorded.

    Attributes:
        checkpoint: a run's folder, a checkpoint in it, or a published `step_N` file.
        data_path, data_paths: folders to evaluate on (one or several).
        global_batch_size: puzzles at a time, over all ranks.
        max_examples: measure the first rows of each set only.
        weights: `averaged` where the checkpoint has a moving average, or those of the last step.
        evaluators: what is measured besides the usual figures.
        save_outputs: fields to write beside the result, see `evaluation.outputs`.
        num_threads: CPU threads of a rank.
        rank_timeout: seconds that a rank waits for another one before the evaluation ends.
        output: the JSON file; None gives eval_step_N.json in the run's folder.
    """

    checkpoint: str
    data_path: str | None = None
    data_paths: list[str] | None = None
    split: Literal["test", "train"] = "test"
    global_batch_size: Count | None = None
    max_examples: Count | None = None
    weights: Literal["averaged", "last"] = "averaged"
    evaluators: list[EvaluatorName] | None = None
    save_outputs: list[OutputField] = []
    arch_overrides: ArchOverrides = ArchOverrides()
    device: Device = "auto"
    compile: Literal["auto"] | StrictBool = "auto"
    num_threads: Count | None = None
    rank_timeout: Seconds = 600.0
    output: str | None = None

    @field_validator("checkpoint", mode="before")
    @classmethod
    def _checkpoint_is_given(cls, path: object) -> object:
        return _require_checkpoint(path)

    @property
    def data_folders(self) -> list[str]:
        """Folders asked for; empty: those of the run. `data_paths` comes before `data_path`."""
        return self.data_paths or ([self.data_path] if self.data_path else [])


class SolveConfig(Schema):
    """What `scripts/solve.py` is told: a model, and one source of puzzles (else standard input).

    Attributes:
        checkpoint: as for an evaluation.
        puzzle: the cells row by row, '.' or '0' where empty.
        file: a text file with a puzzle on each line; '-' is standard input.
        count: the first puzzles of a data set, `data_path` or the run's.
        steps: ACT steps; None: as many as in training.
        decode: how the logits of the last step become its answer, see `evaluation.decoding`.
        constraint: what that answer is held to while it is decoded.
        temperature: None: 1. top_k, top_p: needed by the decoders so called. beam_width: None: 8.
        seed: of the draws.
        num_threads: CPU threads.
    """

    checkpoint: str
    puzzle: str | None = None
    file: str | None = None
    count: Count | None = None
    data_path: str | None = None
    split: Literal["test", "train"] = "test"
    steps: Count | None = None
    decode: DecodeMethod = "greedy"
    constraint: Literal["none", "sudoku"] = "none"
    temperature: PositiveFloat | None = None
    top_k: Count | None = None
    top_p: Annotated[float, Field(strict=True, gt=0.0, le=1.0)] | None = None
    beam_width: Count | None = None
    seed: Annotated[CountOrZero, Field(lt=2**63)] = 0
    arch_overrides: KernelOverrides = KernelOverrides()
    device: Device = "auto"
    num_threads: Count | None = None

    @field_validator("checkpoint", mode="before")
    @classmethod
    def _checkpoint_is_given(cls, path: object) -> object:
        return _require_checkpoint(path)

    @model_validator(mode="after")
    def _one_source(self) -> "SolveConfig":
        given = [name for name in ("puzzle", "file", "count") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are both set; choose one source of puzzles")
        if self.data_path is not None and self.count is None:
            raise ValueError("data_path needs count=N, the number of its puzzles to solve")
        return self

    @model_validator(mode="after")
    def _parameters_of_the_decoder(self) -> "SolveConfig":
        for name, methods in _READ_BY.items():
            if getattr(self, name) is not None and self.decode not in methods:
                raise ValueError(
                    f"{name} is for decode={' or '.join(methods)}; decode is {self.decode}"
                )
        for name in ("top_k", "top_p"):
            if self.decode == name and getattr(self, name) is None:
                raise ValueError(f"decode={name} needs {name}, the size of its choice")
        return self


def _require_checkpoint(path: object) -> object:
    if path is None or path == "":
        raise ValueError("set it to a run's folder, a checkpoint in it, or a published step_N file")
    return path
