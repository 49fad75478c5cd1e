"""A model's work on a batch of puzzles: its states and answers after each ACT step."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from dataset.format.schema import IGNORE_LABEL_ID
from dataset.kinds.base import Kind
from evaluation.think import all_steps, steps, valid_rows, with_draws
from models.act import ACTLossHead
from models.heads.base import Examples
from models.recurrence import Latents
from puzzle_dataset import Batch
from runtime.errors import ConfigError
from runtime.ranks import Ranks


@dataclass(frozen=True)
class Course:
    """A model's work on a batch of b puzzles, in N ACT steps.

    Attributes:
        model: in evaluation mode.
        batch: the puzzles, on the host.
        kind: their kind, if it is known.
        first_row: the number of the first puzzle in its set.
        seed: of the random numbers.
        latents: after each step.
    """

    model: ACTLossHead
    batch: Batch
    kind: Kind | None
    ranks: Ranks
    first_row: int
    seed: int
    latents: list[Latents]

    @cached_property
    def examples(self) -> Examples:
        """The puzzles on the device, with the keys of their rows if the model draws numbers."""
        arrays = with_draws(self.batch.arrays(), self.model, self.seed, self.first_row)
        return self.ranks.on_device(arrays)

    @cached_property
    def answers(self) -> Tensor:
        """The tokens after each step, int16 [N, b, S]."""
        name, examples = self.model.model.inner.latents[0], self.examples
        logits = (self.answer(latents[name], examples) for latents in self.latents)
        return torch.stack([each.argmax(-1).short() for each in logits])

    @cached_property
    def right(self) -> Tensor:
        """Whether the answer is right after the last step, bool [b]."""
        return self.is_right(self.answers[-1])

    def is_right(self, answers: Tensor, rows: Tensor | slice = slice(None)) -> Tensor:
        """Return whether answers [..., b, S] to these rows of the batch are right in all labelled
        cells, bool [..., b]; for kinds with several right answers, whether they keep the rules.
        """
        questions, labels = (self.examples[name][rows] for name in ("inputs", "labels"))
        if self.kind is not None and self.kind.many_answers:
            pair = (questions.expand(answers.shape), answers)
            boards = (each.reshape(-1, answers.shape[-1]) for each in pair)
            return valid_rows(self.kind, *boards).reshape(answers.shape[:-1])
        return ((answers == labels) | (labels == IGNORE_LABEL_ID)).all(-1)

    def states(self) -> Tensor:
        """Return the states after all steps, float32 [N, b, F]."""
        return torch.stack([joined(each) for each in self.latents])

    def moved(self, state: Tensor, examples: Examples) -> Tensor:
        """Return states [n, F] one ACT step later, for `examples` with n rows."""
        inner, latents = self.model.model.inner, self.latents[-1]
        shapes = [(len(state), *z.shape[1:]) for z in latents.values()]
        parts = state.split([z[0].numel() for z in latents.values()], dim=1)
        given = {
            name: part.reshape(shape).to(inner.dtype).contiguous()
            for name, part, shape in zip(latents, parts, shapes, strict=True)
        }
        return joined(inner(given, examples)[0])

    def cells(self, latents: Latents) -> Tensor:
        """Return the states of each cell in all latents [n, T, D], as float32 [n, S, F]."""
        return torch.cat([self._by_cell(z).float().flatten(2) for z in latents.values()], dim=2)

    def with_cells(self, latents: Latents, cells: Tensor) -> Latents:
        """Return latents [n, T, D] with other states of their cells, [n, S, F]."""
        changed, start = {}, 0
        for name, z in latents.items():
            changed[name] = z.clone()
            there = self._by_cell(changed[name])  # A view, which is written to.
            width = there[0, 0].numel()
            there.copy_(cells[:, :, start : start + width].reshape(there.shape))
            start += width
        return changed

    def _by_cell(self, z: Tensor) -> Tensor:
        """View a latent as [n, S, groups, D]: an architecture may have several states in a cell."""
        inner = self.model.model.inner
        apart = z.view(len(z), -1, inner.num_positions, z.shape[-1])
        return apart[:, :, inner.num_prefix :].transpose(1, 2)

    def answer(self, latent: Tensor, examples: Examples) -> Tensor:
        """Return the logits [n, S, V] that the head for tokens reads from a latent [n, T, D]."""
        inner = self.model.model.inner
        return inner.heads["lm"].read(inner.answer(latent, examples))["logits"]

    def require_steps(self, probe: str, least: int) -> None:
        """Raise ConfigError if the model took fewer steps."""
        if (taken := len(self.latents)) < least:
            enough = f"set steps={max(16, least)}"
            raise ConfigError(f"{probe} needs {least} ACT steps, not {taken}; {enough}")

    def require_same_steps(self, probe: str) -> None:
        """Raise ConfigError if equal states may move differently: if the steps draw numbers."""
        drawing = [one for one in self.model.model.inner.at_updates if one.draws_numbers]
        if drawing:
            raise ConfigError(f"probes={probe}: each step of this model draws random numbers")


def joined(latents: Latents) -> Tensor:
    """Return latents [b, T, D] as one state, float32 [b, F]."""
    return torch.cat([z.float().flatten(1) for z in latents.values()], dim=1)


def course_of(
    model: ACTLossHead, batch: Batch, kind: Kind | None, ranks: Ranks, first_row: int, seed: int
) -> Course:
    """Run a model in evaluation mode on a batch for all its ACT steps."""
    course = Course(model, batch, kind, ranks, first_row, seed, [])
    running = steps(model, model, all_steps(model, course.examples))
    course.latents.extend(carry.inner for _, carry in running)
    return course


def bytes_of_course(model: ACTLossHead, cells: int) -> int:
    """Return the bytes that the course of one puzzle takes, with its states in float32."""
    inner, steps = model.model.inner, model.model.eval_max_steps
    width = len(inner.latents) * inner.num_states * inner.hidden_size
    return steps * (width * (inner.dtype.itemsize + 4) + 2 * cells)
