"""Record what happens inside the ACT steps of a model of any architecture."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.act import ACTLossHead
from models.layers import Attention
from models.recurrence import Latents, Recurrence
from runtime.errors import ConfigError
from runtime.host_memory import host_memory_left
from training.config.explain import did_you_mean
from training.tracking import warn

ATTENTION = "attention"
_UPDATES = ".updates"

Recorded = dict[str, np.ndarray]


def recordable(model: ACTLossHead) -> list[str]:
    """Return what can be recorded of a model:

    - `z_H`, `z_L`: a latent after the step, float32 [states, D];
    - `z_H.updates`: the same after each of its updates in the step, [updates, states, D];
    - `attention`: the weights of each layer's last pass in the step, [layers, heads, T, T].
    """
    inner = model.model.inner
    layers = any(isinstance(layer, Attention) for layer in inner.modules())
    names = [*inner.latents, *(f"{name}{_UPDATES}" for name in inner.latents)]
    return names + [ATTENTION] * layers


class Recorder:
    """Records the first puzzle of the batch in each ACT step, between entering and leaving
    `recording`. `take` returns the last step's record.
    """

    def __init__(self, model: ACTLossHead, names: Sequence[str]) -> None:
        known = recordable(model)
        for name in names:
            if name not in known:
                hint = did_you_mean(name, known)
                raise ConfigError(f"record={name}: this model has {', '.join(known)}{hint}")
        self._inner, self._names, self._steps = model.model.inner, names, model.model.eval_max_steps
        self._found: dict[str, Any] = {}
        self._left: int | None = None  # Steps that still fit into memory.

    def take(self) -> Recorded:
        """Return what the last step recorded, by name. Record nothing more once half of the
        machine's free memory would be taken, and say so in advance.
        """
        arrays = {name: np.asarray(self._found[name]) for name in self._names}
        if self._left is None:
            size, free = sum(each.nbytes for each in arrays.values()), host_memory_left() / 2
            self._left = int(min(self._steps, free // max(1, size)))
            if self._left < self._steps:
                needs = f"{self._steps} steps need {self._steps * size / 1e9:.3g} GB"
                warn(f"record: {needs}, {free / 1e9:.3g} GB are free: {self._left} steps are kept")
        self._left -= 1
        return arrays if self._left >= 0 else {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record in the block, and leave the model as it was."""
        inner, wanted = self._inner, set(self._names)
        with ExitStack() as hooks:
            hooks.enter_context(inner.register_forward_hook(self._after_step))
            if wanted & {f"{name}{_UPDATES}" for name in inner.latents}:
                for name in ("recur", "moved", "replaced"):
                    # Of this one model, until the block ends.
                    setattr(inner, name, getattr(self, f"_{name}"))
                    hooks.callback(delattr, inner, name)
            if ATTENTION in wanted:
                layers = [each for each in inner.modules() if isinstance(each, Attention)]
                self._weights = list[Tensor | None]([None] * len(layers))
                for number, layer in enumerate(layers):
                    note = partial(self._attended, number)
                    hooks.enter_context(layer.register_forward_hook(note, with_kwargs=True))
            yield

    def _after_step(self, inner: Recurrence, given: Any, result: tuple[Latents, Tensor]) -> None:
        self._found |= {name: _host(z[:1])[0] for name, z in result[0].items()}
        if ATTENTION in self._names:
            weights = [_host(each[0]) for each in self._weights if each is not None]
            self._found[ATTENTION] = np.stack(weights)

    def _recur(self, latents: Latents, *more: Any) -> Latents:
        """Follow each latent by its identity: `moved` and `replaced` see no names."""
        self._owners = {id(z): name for name, z in latents.items()}
        self._found |= {f"{name}{_UPDATES}": [] for name in latents}
        self._kept = [*latents.values()]  # An identity is unique only while its owner exists.
        return type(self._inner).recur(self._inner, latents, *more)

    def _moved(self, before: Tensor, after: Tensor) -> Tensor:
        name = self._owners[id(before)]
        moved = self._replaced(before, type(self._inner).moved(self._inner, before, after))
        shape = (-1, self._inner.num_states, self._inner.hidden_size)
        self._found[f"{name}{_UPDATES}"].append(_host(moved.reshape(shape)[:1])[0])
        return moved

    def _replaced(self, before: Tensor, after: Tensor) -> Tensor:
        self._owners[id(after)] = self._owners[id(before)]
        self._kept.append(after)
        return after

    def _attended(
        self, number: int, layer: Attention, given: Any, named: Any, result: Tensor
    ) -> None:
        q, k, _ = layer.projected(*given, **named)
        scores = torch.einsum("btnk,bsnk->bnts", q.float(), k.float()) / q.shape[-1] ** 0.5
        bias = 0.0 if layer.bias is None else layer.bias(q.dtype).float()
        self._weights[number] = (scores + bias).softmax(-1)


def _host(values: Tensor) -> np.ndarray:
    return values.detach().float().cpu().numpy()
