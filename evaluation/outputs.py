"""Files of an evaluation: saved outputs (`.npy`, one for each field and set) and the JSON files of
evaluators.

The `.npy` files are not memory-mapped, so that a full disk raises an error and not a SIGBUS.
"""

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np

from models.act import LossOutput
from puzzle_dataset import EvalBatches
from runtime.files import flush, replacing, require_no_link, write_together
from runtime.ranks import Ranks


class OutputError(OSError):
    """An output cannot be written; the message names the file and the reason."""


class Outputs(contextlib.AbstractContextManager["Outputs"]):
    """A context that saves the outputs of one evaluation as FOLDER/SET__FIELD.npy, or no file if
    the evaluation fails.

    The fields, for N rows in test order: inputs, labels (-100 where ignored) int32 [N, S] and
    puzzle_identifiers int32 [N]; preds uint8 [N, S] (int32 if the vocabulary needs it), the most
    likely token of each cell; logits float32 [N, S, V]; q_halt_logits and q_continue_logits
    float32 [N]. All outputs are from the last ACT step.

    All ranks make every call. Rank 0 writes hidden temporary files and renames them at the end.

    Raises:
        OutputError: rank 0 cannot write a file; raised on every rank.
    """

    def __init__(
        self, folder: Path, fields: Sequence[str], batches: EvalBatches, ranks: Ranks
    ) -> None:
        self._folder, self._ranks = folder, ranks
        self._files: dict[tuple[str, str], BinaryIO] = {}
        self._writing = contextlib.ExitStack()
        metadata = batches.dataset.metadata
        self._formats = {
            field: _row_format(field, metadata.seq_len, metadata.vocab_size) for field in fields
        }
        if fields:
            _act_on_main(partial(self._open, batches.num_examples), folder, ranks)

    def _open(self, num_examples: Mapping[str, int]) -> None:
        make_own_folder(self._folder)
        with contextlib.ExitStack() as opened:  # If one cannot be opened, none is left.
            for name, number in num_examples.items():
                for field, (dtype, shape) in self._formats.items():
                    descr = np.lib.format.dtype_to_descr(dtype)
                    header = {"descr": descr, "fortran_order": False, "shape": (number, *shape)}
                    file = opened.enter_context(replacing(self._folder / f"{name}__{field}.npy"))
                    np.lib.format.write_array_header_1_0(file, header)
                    self._files[name, field] = file
            self._writing = opened.pop_all()

    def write(self, set_name: str, step: LossOutput, count: int) -> None:
        """Save this rank's part of a batch after the last ACT step. Over all ranks, the rows after
        the first `count` are padding.
        """
        if not self._formats:
            return
        preds, gathered = step.outputs["logits"].argmax(-1), {}
        known = {**step.outputs, "preds": preds, **step.carry.examples}
        for field in self._formats:
            # NumPy has no bfloat16.
            is_float = (values := known[field]).is_floating_point()
            gathered[field] = self._ranks.gather_rows(values.float() if is_float else values.int())

        def append() -> None:
            for field, rows in gathered.items():
                values = np.ascontiguousarray(rows[:count].numpy(), self._formats[field][0])
                self._files[set_name, field].write(values.data)

        _act_on_main(append, self._folder, self._ranks)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            with contextlib.suppress(OSError):  # Closing flushes buffers, and the disk may be full.
                self._writing.__exit__(OSError, OSError("given up"), None)
        elif self._formats:
            _act_on_main(self._commit, self._folder, self._ranks)

    def _commit(self) -> None:
        with self._writing:
            for file in self._files.values():  # All, so that a full disk replaces no older file.
                flush(file)


def _row_format(field: str, seq_len: int, vocab_size: int) -> tuple[np.dtype, tuple[int, ...]]:
    """Return dtype and shape of one row of a field."""
    if field.endswith("logits"):
        return np.dtype(np.float32), (seq_len, vocab_size) if field == "logits" else ()
    is_small = field == "preds" and vocab_size <= 256
    shape = () if field == "puzzle_identifiers" else (seq_len,)
    return np.dtype(np.uint8 if is_small else np.int32), shape


def _act_on_main(action: Callable[[], None], place: Path, ranks: Ranks) -> None:
    """Run `action` on rank 0. If it fails, raise OutputError on all ranks, so that none waits."""
    failure = None
    if ranks.is_main:
        try:
            action()
        except OSError as error:
            path = error.filename2 or error.filename or place
            failure = f"{path}: {error.strerror or error}"
    failure = ranks.broadcast_object(failure)
    if failure is not None:
        raise OutputError(failure)


def make_own_folder(folder: Path) -> None:
    """Create a folder, and refuse a symbolic link in its place.

    Raises:
        OSError: it cannot be created, or is a link.
    """
    folder.mkdir(parents=True, exist_ok=True)
    require_no_link(folder)


def as_line(content: object) -> str:
    """Return JSON-ready content as the text of a file with one line."""
    return json.dumps(content, separators=(",", ":"), allow_nan=False) + "\n"


def write_json_files(folder: Path, files: Mapping[str, Callable[[], object]], ranks: Ranks) -> None:
    """Write the JSON files of evaluators into a folder, which must not be a link. All ranks call.

    Args:
        files: functions that return the JSON-ready content, by file name; only rank 0 calls them.
    Raises:
        OutputError: rank 0 cannot write a file; raised on every rank.
    """

    def write() -> None:
        make_own_folder(folder)
        write_together({folder / name: as_line(content()) for name, content in files.items()})

    if files:
        _act_on_main(write, folder, ranks)
