"""Our probes. Each is one function of its settings and a `Course`, and returns its columns."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from apps.inside import measures
from apps.inside.config import (
    EscapesConfig,
    FateConfig,
    InfluenceConfig,
    LyapunovConfig,
    PathConfig,
)
from apps.inside.course import Course, joined
from dataset.format.schema import IGNORE_LABEL_ID
from dataset.kinds.sudoku import SUDOKU
from evaluation.config import ThinkingSettings
from evaluation.probes import ProbeConfig
from evaluation.think import chain_steps
from evaluation.views import seen_by_chains, views_for
from models.heads.base import Examples
from models.recurrence import Latents
from runtime.errors import ConfigError

Form = Literal["value", "word", "curve", "map", "path"]


class Column(NamedTuple):
    """What a probe measured: an array whose first axis is the puzzles.

    Attributes:
        form: value [n]: a number for each puzzle, NaN if it was not measured; word [n]: a text;
            curve [n, steps]; map [k, S, S] and path [k, steps, 2]: of the first k puzzles.
    """

    values: np.ndarray
    form: Form = "value"


Columns = dict[str, Column]


def residual(config: ProbeConfig, course: Course) -> Columns:
    """Measure the change of the state in each step but the first."""
    course.require_steps("residual", 2)
    found = _host(measures.residuals(course.states()))
    return {"residual": Column(found, "curve"), "last_residual": Column(found[:, -1])}


def fate(config: FateConfig, course: Course) -> Columns:
    """Say how the states end, and after which step the answer stays the same."""
    course.require_steps("fate", 4)
    fates, period = measures.fate(course.states(), config.tolerance, config.longest_cycle)
    changed = (course.answers[1:] != course.answers[:-1]).any(-1)  # [N - 1, b]
    numbers = torch.arange(2, len(changed) + 2, device=changed.device).unsqueeze(1)
    names = np.array(measures.FATES)[_host(fates).astype(int)]
    return {
        "fate": Column(names, "word"),
        "period": Column(_host(period)),
        "settled": Column(_host(torch.where(changed, numbers, 1).amax(0))),
    }


def lyapunov(config: LyapunovConfig, course: Course) -> Columns:
    """Measure the largest Lyapunov exponent from the state after the last step on."""
    course.require_same_steps("lyapunov")
    if (dtype := course.model.model.inner.dtype).itemsize < 4:
        name = str(dtype).removeprefix("torch.")
        why = f"{name} rounds away the difference of near states"
        raise ConfigError(f"probes=lyapunov: {why}; add arch_overrides.forward_dtype=float32")

    def move(state: Tensor) -> Tensor:
        return course.moved(state, course.examples)

    found = measures.largest_lyapunov(move, joined(course.latents[-1]), config.size, config.steps)
    return {"lyapunov": Column(_host(found))}


def stability(config: ProbeConfig, course: Course) -> Columns:
    """Measure whether the model still answers right if it starts with the state that it reaches on
    the solved puzzle (`stays`), and whether it fills the one open cell of a puzzle (`one_open`).
    """
    if course.kind is not SUDOKU:
        raise ConfigError("probes=stability: only for Sudokus, whose solutions are puzzles too")
    labels, questions = course.examples["labels"], course.examples["inputs"]
    labels = torch.where(labels == IGNORE_LABEL_ID, questions, labels)
    open_token = SUDOKU.board(int(labels.shape[1] ** 0.5)).open
    first = (questions == open_token).int().argmax(1, keepdim=True)
    one_open = labels.scatter(1, first, open_token)
    reached = _run(course, labels)
    stays = _run(course, questions, reached)
    filled = _run(course, one_open)
    return {
        "solved_grid": Column(_right(course, reached)),
        "stays": Column(_right(course, stays)),
        "one_open": Column(_right(course, filled)),
    }


def readout(config: ProbeConfig, course: Course) -> Columns:
    """Let the heads read each latent: the share of labelled cells that are right after each step,
    and after the last one whether the whole answer is right, and Q's probability that it is.
    """
    columns, labels, inner = Columns(), course.examples["labels"], course.model.model.inner
    labelled = (labels != IGNORE_LABEL_ID).sum(-1).clamp_min(1)
    for name in course.latents[0]:
        read = [inner.read(latents[name], course.examples) for latents in course.latents]
        tokens = [outputs["logits"].argmax(-1) for outputs in read]
        shares = [(each == labels).sum(-1) / labelled for each in tokens]
        columns[f"{name}_cells"] = Column(_host(torch.stack(shares, 1)), "curve")
        columns[f"{name}_right"] = Column(_host(course.is_right(tokens[-1]).float()))
        if course.model.halting_head:
            q = read[-1]["q_halt_logits"].float().sigmoid()
            columns[f"{name}_q"] = Column(_host(q))
    return columns


def influence(config: InfluenceConfig, course: Course) -> Columns:
    """Measure which cells change their answer when the state of one cell is changed."""
    course.require_same_steps("influence")
    course.require_steps("influence", config.at_step or 1)
    wanted = min(config.puzzles - course.first_row, len(course.batch.inputs))
    if wanted <= 0:
        return {}
    step = config.at_step or (len(course.latents) + 1) // 2
    maps = np.stack([influence_on(course, row, step, config.size) for row in range(wanted)])
    return {"influence": Column(maps, "map")}


def influence_on(course: Course, row: int, step: int, size: float) -> np.ndarray:
    """Return the map of one puzzle after a step (from 1), float32 [S, S]: see
    `measures.influence`.
    """
    own = {name: z[row : row + 1] for name, z in course.latents[step - 1].items()}
    inner, answer = course.model.model.inner, course.model.model.inner.latents[0]

    def rows(number: int) -> Examples:
        found = course.examples.items()
        return {n: v[row : row + 1].expand(number, *v.shape[1:]) for n, v in found}

    def latents_of(cells: Tensor) -> Latents:
        wide = {name: z.expand(len(cells), *z.shape[1:]) for name, z in own.items()}
        return course.with_cells(wide, cells)

    def move(cells: Tensor) -> Tensor:
        return course.cells(inner(latents_of(cells), rows(len(cells)))[0])

    def read(cells: Tensor) -> Tensor:
        logits = course.answer(latents_of(cells)[answer], rows(len(cells)))
        return course.model.log_probs(logits).exp()

    return _host(measures.influence(move, course.cells(own)[0], read, size))


def escapes(config: EscapesConfig, course: Course) -> Columns:
    """Give puzzles with a wrong answer further tries: with noise after each step, from other random
    starts, and in other views, as far as the model and the puzzles have them. Return the share of
    tries that end right, and whether any does.
    """
    wrong = ~_host(course.right).astype(bool)
    columns = Columns()
    for way, right in _tries(config, course, wrong) if wrong.any() else ():
        for name, values in ((way, right.mean(0)), (f"{way}_any", right.any(0))):
            column = np.full(len(wrong), np.nan)
            column[wrong] = values
            columns[name] = Column(column)
    return columns


def _tries(
    config: EscapesConfig, course: Course, which: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name of each way, and which of its chains end right, bool [chains, n]. There are no
    more chains in views than the puzzles have views.
    """
    model, batch = course.model.model, course.batch
    size, enough = int(batch.inputs.shape[1] ** 0.5), config.chains + 1
    known = course.kind and course.kind.views(size)
    ways = {
        "noise": enough,
        "init": enough if model.inner.techniques.acting("start") else 1,
        "symmetry": min(enough, known.number) if known else 1,
    }
    inputs, ids = batch.inputs[which], batch.puzzle_identifiers[which]
    numbers = course.first_row + np.flatnonzero(which)
    for way, tries in ways.items():
        if tries == 1:
            continue  # The model or the puzzles do not have it.
        asked = {"chains": [tries], "perturb": way, "noise": config.noise, "seed": course.seed}
        settings = ThinkingSettings.model_validate(asked)
        views = views_for(settings, course.kind, size)
        right = []
        # The first chain is the course itself.
        for chain, seen in list(enumerate(seen_by_chains(views, course.seed, numbers, tries)))[1:]:
            arrays = {"inputs": seen.boards(inputs), "puzzle_identifiers": ids}
            given = (arrays, settings, chain, numbers, course.ranks.on_device)
            *_, (_, carry) = chain_steps(course.model, course.model, *given)
            tokens = course.answer(model.answer_of(carry), carry.examples).argmax(-1)
            answers = torch.from_numpy(seen.tokens(_host(tokens).astype(np.int32)))
            rows = torch.from_numpy(which)
            right.append(_host(course.is_right(answers.to(tokens.device), rows)).astype(bool))
        yield way, np.stack(right)


def path(config: PathConfig, course: Course) -> Columns:
    """Return the paths of the first puzzles in their common plane."""
    course.require_steps("path", 2)
    if course.first_row:  # Paths of two batches would lie in two planes.
        return {}
    places, share = measures.plane(course.states()[:, : config.puzzles])
    shares = np.full(len(course.batch.inputs), np.nan)
    shares[: places.shape[1]] = float(share)
    return {"path": Column(_host(places.transpose(0, 1)), "path"), "in_plane": Column(shares)}


def _run(course: Course, inputs: Tensor, start: Latents | None = None) -> Latents:
    """Return the latents after all steps on other questions, from the usual start or another."""
    model, examples = course.model.model, course.examples | {"inputs": inputs}
    carry = model.initial_carry(examples)
    if start is not None:
        kept = torch.zeros_like(carry.halted)
        carry = replace(carry, inner=start, halted=kept, examples=examples)
    for _ in course.latents:
        carry, _ = model.think(carry, examples)
    return carry.inner


def _right(course: Course, latents: Latents) -> np.ndarray:
    """Return whether the answers in latents are right, float [b]."""
    answer = latents[course.model.model.inner.latents[0]]
    tokens = course.answer(answer, course.examples).argmax(-1)
    return _host(course.is_right(tokens).float())


def _host(values: Tensor) -> np.ndarray:
    return values.cpu().numpy()
