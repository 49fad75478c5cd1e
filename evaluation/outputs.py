"""Saved outputs of an evaluation: one `.npy` file for each field and set; for published
checkpoints, the files that the published evaluation leaves; and the files of evaluators.

The `.npy` files are not mapped: a full disk is an error, never a SIGBUS.
"""

import contextlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from models.act import LossOutput
from puzzle_dataset import EvalBatches
from runtime.files import replacing, require_no_link, write_together
from runtime.ranks import Ranks

_OUTPUTS: dict[str, Callable[[LossOutput], Tensor]] = {
    "inputs": lambda step: step.carry.examples["inputs"],
    "labels": lambda step: step.carry.examples["labels"],
    "puzzle_identifiers": lambda step: step.carry.examples["puzzle_identifiers"],
    "preds": lambda step: step.outputs["logits"].argmax(-1),
    "logits": lambda step: step.outputs["logits"],
    "q_halt_logits": lambda step: step.outputs["q_halt_logits"],
    "q_continue_logits": lambda step: step.outputs["q_continue_logits"],
}


class OutputError(OSError):
    """An output cannot be written; the message names the file and the reason."""


class Outputs(AbstractContextManager["Outputs"]):
    """A context that saves the outputs of an evaluation, and drops them when it fails."""

    def write(self, set_name: str, step: LossOutput, count: int) -> None:
        """Save this rank's slice of a batch, after the last ACT step; the first `count` rows of the
        batch, over all ranks, are no padding.
        """
        raise NotImplementedError


def open_outputs(
    fields: Sequence[str],
    folder: Path,
    batches: EvalBatches,
    ranks: Ranks,
    published_prefix: Path | None = None,
) -> AbstractContextManager[Outputs | None]:
    """Return what saves these fields: nothing where there are none, else `PublishedOutputFiles`
    where their prefix is given, else `OutputFiles` in `folder`.
    """
    if not fields:
        return contextlib.nullcontext()
    if published_prefix is not None:
        return PublishedOutputFiles(published_prefix, fields, batches, ranks)
    return OutputFiles(folder, fields, batches, ranks)


class OutputFiles(Outputs):
    """The files FOLDER/SET__FIELD.npy of one evaluation.

    Fields, of N rows in test order: inputs, labels (-100 where ignored) int32 [N, S] and
    puzzle_identifiers int32 [N], as the model saw them; preds uint8 [N, S] (int32 when the
    vocabulary needs it), the most likely token of each cell; logits float32 [N, S, V];
    q_halt_logits and q_continue_logits float32 [N]. Outputs are those of the last ACT step.

    Rank 0 writes hidden temporary files, batch by batch, which take their names when all is
    complete; all ranks take part in every call.

    Raises:
        OutputError: rank 0 cannot write; raised on every rank, names the file.
    """

    def __init__(
        self, folder: Path, fields: Sequence[str], batches: EvalBatches, ranks: Ranks
    ) -> None:
        self._folder, self._fields, self._ranks = folder, tuple(dict.fromkeys(fields)), ranks
        self._files: dict[tuple[str, str], BinaryIO] = {}
        self._writing = contextlib.ExitStack()
        metadata = batches.dataset.metadata
        self._formats = _row_formats(metadata.seq_len, metadata.vocab_size)
        self._on_main(partial(self._open, batches.num_examples))

    def _open(self, num_examples: Mapping[str, int]) -> None:
        make_own_folder(self._folder)
        for name, number in num_examples.items():
            for field in self._fields:
                dtype, shape = self._formats[field]
                descr = np.lib.format.dtype_to_descr(dtype)
                header = {"descr": descr, "fortran_order": False, "shape": (number, *shape)}
                file = self._writing.enter_context(replacing(self._folder / f"{name}__{field}.npy"))
                np.lib.format.write_array_header_1_0(file, header)
                self._files[name, field] = file

    def write(self, set_name: str, step: LossOutput, count: int) -> None:
        gathered = {}
        for field in self._fields:
            values = _OUTPUTS[field](step)
            # NumPy has no bfloat16.
            values = values.float() if values.is_floating_point() else values.int()
            gathered[field] = self._ranks.gather_rows(values)

        def append() -> None:
            for field, rows in gathered.items():
                dtype, _ = self._formats[field]
                values = np.ascontiguousarray(rows[:count].numpy(), dtype)
                self._files[set_name, field].write(values.data)

        self._on_main(append)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._on_main(self._writing.close) if kind is None else self._discard()

    def _on_main(self, action: Callable[[], None]) -> None:
        """Act on rank 0; where that fails, remove the files and raise OutputError on all ranks."""
        try:
            _act_on_main(action, self._folder, self._ranks)
        except OutputError:
            self._discard()
            raise

    def _discard(self) -> None:
        with contextlib.suppress(OSError):  # What is still buffered may not fit on the disk.
            self._writing.__exit__(OSError, OSError("given up"), None)


class PublishedOutputFiles(Outputs):
    """The outputs as the published evaluation writes them: for each rank a file PREFIX.RANK, a
    pickled dict of tensors by field, the rows of all sets one after the other.

    A rank writes the rows that it computed, in their dtypes; padded rows are left out. As there,
    they are held in host memory until the evaluation is complete.

    Raises:
        OutputError: a rank cannot write; names the file.
    """

    def __init__(
        self, prefix: Path, fields: Sequence[str], batches: EvalBatches, ranks: Ranks
    ) -> None:
        self._path = prefix.with_name(f"{prefix.name}.{ranks.rank}")
        if ranks.is_main:
            _remove_files_of_more_ranks(prefix, ranks.world_size)
        self._first_row = ranks.rank * batches.local_batch_size
        self._rows: dict[str, list[Tensor]] = {field: [] for field in fields}

    def write(self, set_name: str, step: LossOutput, count: int) -> None:
        for field, rows in self._rows.items():
            rows.append(_OUTPUTS[field](step)[: max(0, count - self._first_row)].cpu())

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            return
        try:
            with replacing(self._path) as file:
                torch.save({name: torch.cat(rows) for name, rows in self._rows.items()}, file)
        except OSError as failure:
            raise OutputError(f"{self._path}: {failure.strerror or failure}") from None


def _act_on_main(action: Callable[[], None], place: Path, ranks: Ranks) -> None:
    """Act on rank 0; where that fails, raise OutputError on all ranks: they would wait for ever."""
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
    """Create a folder whose name we chose.

    Raises:
        OSError: it cannot be created, or a link has that name, which may lead anywhere.
    """
    folder.mkdir(parents=True, exist_ok=True)
    require_no_link(folder)


def as_line(content: object) -> str:
    """Return JSON-ready content as the text of a file that has it in one line."""
    return json.dumps(content, separators=(",", ":"), allow_nan=False) + "\n"


def write_json_files(folder: Path, files: Mapping[str, Callable[[], object]], ranks: Ranks) -> None:
    """Write JSON files of evaluators, by name, into a folder whose name we chose; all ranks take
    part.

    Args:
        files: their JSON-ready content, made on rank 0 alone.
    Raises:
        OutputError: rank 0 cannot write; raised on every rank, names the file.
    """

    def write() -> None:
        make_own_folder(folder)
        write_together({folder / name: as_line(content()) for name, content in files.items()})

    if files:
        _act_on_main(write, folder, ranks)


def _remove_files_of_more_ranks(prefix: Path, world_size: int) -> None:
    # Readers take all files together.
    for path in list(prefix.parent.iterdir()):
        named = re.fullmatch(re.escape(prefix.name) + r"\.([0-9]{1,9})", path.name)
        if named and int(named[1]) >= world_size:
            path.unlink()


def _row_formats(seq_len: int, vocab_size: int) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
    token = np.uint8 if vocab_size <= 256 else np.int32
    shapes = {
        "inputs": (np.int32, (seq_len,)),
        "labels": (np.int32, (seq_len,)),
        "puzzle_identifiers": (np.int32, ()),
        "preds": (token, (seq_len,)),
        "logits": (np.float32, (seq_len, vocab_size)),
        "q_halt_logits": (np.float32, ()),
        "q_continue_logits": (np.float32, ()),
    }
    return {name: (np.dtype(dtype), shape) for name, (dtype, shape) in shapes.items()}
