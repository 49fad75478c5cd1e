"""Write a checkpoint in a thread, while training goes on."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from threading import Thread

from torch import Tensor

from runtime.errors import CheckpointError, NonFiniteError
from runtime.host_memory import host_memory_left
from runtime.ranks import Ranks
from training.tracking import warn


class BackgroundWrite:
    """The write of at most one checkpoint, by rank 0. All ranks call `start` and `finish` at the
    same places. A `with` block does not end before the write. `step` is the checkpoint's step until
    all ranks know the outcome, else None.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.step: int | None = None
        self._ranks, self._warned = ranks, False
        self._thread: Thread | None = None
        self._error: Exception | None = None
        self._copies: dict[str, dict[str, Tensor]] = {}

    def has_room(self, size: int) -> bool:
        """Return whether the host has room for two copies of `size` bytes. Warn once if not."""
        held = sum(one.nbytes for kept in self._copies.values() for one in kept.values())
        left = host_memory_left() + held
        if 2 * size > left and not self._warned:
            self._warned = True
            sizes = f"{left / 1e9:.3g} GB of memory are left, a copy takes {size / 1e9:.3g} GB"
            warn(f"training halts while a checkpoint is written: {sizes}, and as much must be free")
        return 2 * size <= left

    def copied(self, files: Mapping[str, dict[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
        """Return copies of tensors on the CPU, which later steps do not change. They take the
        memory of the last copies: new memory costs more time than the copy.
        """
        for file, tensors in files.items():
            kept = self._copies.setdefault(file, {})
            for name, tensor in tensors.items():
                kept[name] = kept[name].copy_(tensor) if name in kept else tensor.clone()
        return self._copies

    def start(self, step: int, write: Callable[[], None] | None, *, wait: bool) -> None:
        """Call `write` in a thread (None: another rank writes). Then do the same as `finish`."""
        self.step = step
        if write is not None:
            self._thread = Thread(target=self._call, args=(write,), name=f"save-{step}")
            self._thread.start()
        self.finish(wait=wait)

    def _call(self, write: Callable[[], None]) -> None:
        try:
            write()
        except Exception as error:
            self._error = CheckpointError(str(error)) if isinstance(error, OSError) else error

    def finish(self, *, wait: bool = True) -> None:
        """Tell all ranks the outcome of the write, if there is one. Without `wait`, let it go on.

        Raises:
            CheckpointError, NonFiniteError: the write failed, see `RunKeeper.save`; on all ranks.
        """
        if self.step is None:
            return
        if wait:
            self._ranks.mark(f"saving step {self.step}", long=True)
            if self._thread is not None:
                self._thread.join()
        ended = self._thread is None or not self._thread.is_alive()
        # Also a barrier: after it, every rank may rely on the checkpoint.
        ended, error = self._ranks.broadcast_object((ended, self._error))
        self._ranks.mark(f"after {'saving' if ended else 'beginning to save'} step {self.step}")
        if ended:
            self.step = self._thread = self._error = None
            if error is not None:
                raise error

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, NonFiniteError):  # On all ranks at the same step.
            with suppress(CheckpointError) if error else nullcontext():  # It would hide the cause.
                self.finish()
        elif self._thread is not None:  # Other ranks may be gone.
            self._thread.join()
