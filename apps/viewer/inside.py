"""What a model does inside while it solves a puzzle, for the part "Look inside" of the page."""

from functools import partial

import numpy as np
import torch
from torch import Tensor

from apps.inside import measures
from apps.inside.course import Course, course_of, joined
from apps.inside.probes import influence_on
from apps.inside.recording import ATTENTION, Recorder, recordable
from apps.reports.asking import load_for
from apps.reports.boards import board_of_step
from apps.viewer.thinking import Event, svg_of
from dataset.kinds.base import Puzzle
from evaluation.config import ArchOverrides, ThinkingSettings
from evaluation.think import chain_steps, evaluating
from models.act import ACTLossHead
from puzzle_dataset import Batch
from runtime.device import resolve_device
from runtime.errors import ConfigError
from runtime.ranks import Ranks
from runtime.text import many
from training.checkpoint.trained_model import TrainedModel

_OTHERS = 3  # Other tries of the puzzle, and other puzzles, behind its path.
_NOISE = 0.3
_MOST_CELLS = 256
_TOLERANCE, _LONGEST_CYCLE, _SIZE = 0.01, 8, 0.5  # As in the probes of evaluations.
_FATES = {"fixed": "a fixed point", "drift": "a drift", "moving": "still moving"}


def looked_inside(trained: TrainedModel, puzzle: Puzzle, steps: int | None) -> Event:
    """Return what the page draws, JSON-ready:

    - `paths`, each [steps, 2]: the puzzle's own, then so many `tries` of it, then those of other
      puzzles, in the plane of the first two kinds; `in_plane`, the share of their variance;
    - `residual`, the change of the state from step 2 on, and its `fate` in words;
    - `said`: for each latent but the answer's the boards that the head for tokens reads from it;
    - `attention`, whether the model has any.
    """
    model, ranks = _model(trained, puzzle, steps)
    size = len(puzzle.question)
    others = (puzzle.kind.example(size, seed) for seed in range(1, 1 + _OTHERS))
    batch = _batch([puzzle, *(one for one in others if one is not None)])
    with evaluating(model, ranks, 0):
        course = course_of(model, batch, puzzle.kind, ranks, puzzle.row, 0)
        course.require_steps("fate", 4)
        states = course.states()
        tries = _tries(course) if not trained.run.arch.takes_no_noise else states[:, :0]
        own = torch.cat([states[:, :1], tries], 1)
        paths, share = measures.plane(own, torch.cat([own, states[:, 1:]], 1))
        fate, period = measures.fate(states[:, :1], _TOLERANCE, _LONGEST_CYCLE)
        latents = course.latents[0].keys() - {model.model.inner.latents[0]}
        said = {name: _said(course, puzzle, name) for name in sorted(latents)}
    name = measures.FATES[int(fate)]
    return {
        "paths": paths.transpose(0, 1).tolist(),
        "tries": tries.shape[1],
        "in_plane": float(share),
        "residual": measures.residuals(states[:, :1])[0].tolist(),
        "fate": _FATES.get(name, f"a cycle of {many(int(period), 'step')}"),
        "said": said,
        "attention": ATTENTION in recordable(model),
    }


def listened(
    trained: TrainedModel, puzzle: Puzzle, steps: int | None, step: int, of: str
) -> list[list[float]]:
    """Return how much each cell listens to each other one, [S, S], after an ACT step (from 1): the
    influence of a changed state, or the attention of the last layer, as the mean over its heads.

    Raises:
        ConfigError: there is no such step, or the model has no attention.
    """
    model, ranks = _model(trained, puzzle, steps)
    if step > model.model.eval_max_steps:
        raise ConfigError(f"step={step}: this model took {model.model.eval_max_steps} steps")
    if puzzle.tokens.size > _MOST_CELLS:  # Influence takes a pass for each cell.
        raise ConfigError(f"only for boards of at most {_MOST_CELLS} cells")
    follow = partial(course_of, model, _batch([puzzle]), puzzle.kind, ranks, puzzle.row, 0)
    with evaluating(model, ranks, 0):
        if of == ATTENTION:
            recorder = Recorder(model, [ATTENTION])
            model.model.halt_max_steps = step  # The last step is the one that is recorded.
            with recorder.recording():
                follow()
            first = model.model.inner.num_prefix
            found = recorder.take()[ATTENTION][-1].mean(0)[first:, first:]
        else:
            course = follow()
            course.require_same_steps("influence")
            found = influence_on(course, 0, step, _SIZE)
    return np.round(found, 5).tolist()


def _model(trained: TrainedModel, puzzle: Puzzle, steps: int | None) -> tuple[ACTLossHead, Ranks]:
    if trained.run.arch.searches:
        raise ConfigError("this model searches: there are no ACT steps to look into")
    ranks = Ranks(resolve_device("auto"))
    _, model = load_for([puzzle], trained, ranks.device, ArchOverrides(halt_max_steps=steps))
    return model, ranks


def _batch(puzzles: list[Puzzle]) -> Batch:
    tokens = np.stack([one.tokens for one in puzzles]).astype(np.int32)
    return Batch(tokens, tokens, np.full(len(puzzles), puzzles[0].identifier, np.int32))


def _tries(course: Course) -> Tensor:
    """Return the states of further tries of the first puzzle, with noise, [steps, tries, F]."""
    batch = course.batch
    arrays = {"inputs": batch.inputs[:1], "puzzle_identifiers": batch.puzzle_identifiers[:1]}
    settings = ThinkingSettings(chains=[1 + _OTHERS], perturb="noise", noise=_NOISE)
    tries = list[Tensor]()
    for chain in range(1, 1 + _OTHERS):
        given = (arrays, settings, chain, course.first_row, course.ranks.on_device)
        running = chain_steps(course.model, course.model, *given)
        tries.append(torch.stack([joined(carry.inner)[0] for _, carry in running]))
    return torch.stack(tries, 1)


def _said(course: Course, puzzle: Puzzle, name: str) -> list[str]:
    """Return the boards that the head for tokens reads from a latent of the first puzzle."""
    boards, before = list[str](), puzzle.question
    for latents in course.latents:
        logits = course.answer(latents[name], course.examples)[:1]
        best = logits.argmax(-1)
        sure = course.model.log_probs(logits).amax(-1).exp()
        answer = puzzle.kind.to_grid(best[0].cpu().numpy().astype(np.uint8))
        certainty = sure[0].float().cpu().numpy().reshape(answer.shape)
        boards.append(svg_of(board_of_step(puzzle, before, answer, certainty)))
        before = answer
    return boards
