"""Saved outputs of an evaluation: one `.npy` file for each field and set; for published
checkpoints, the files that the published evaluation leaves; and the files of evaluators.

The `.npy` files are not mapped: a full disk is an error, never a SIGBUS.
"""

import contextlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from models.act import LossOutput
from puzzle_dataset import EvalBatches
from runtime.files import replacing, require_no_link
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

    def complete(self) -> None:
        """Finish the files."""
        raise NotImplementedError

    def discard(self) -> None:
        """Remove what has been written."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.complete() if kind is None else self.discard()


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
        self._files: dict[tuple[str, str], _GrowingArray] = {}
        metadata = batches.dataset.metadata
        formats = _row_formats(metadata.seq_len, metadata.vocab_size)

        def open_files() -> None:
            make_own_folder(folder)
            for name, num_examples in batches.num_examples.items():
                for field in self._fields:
                    dtype, shape = formats[field]
                    path = folder / f"{name}__{field}.npy"
                    self._files[name, field] = _GrowingArray(path, dtype, (num_examples, *shape))

        self._on_main(open_files)

    def write(self, set_name: str, step: LossOutput, count: int) -> None:
        gathered = {}
        for field in self._fields:
            values = _OUTPUTS[field](step)
            # NumPy has no bfloat16.
            values = values.float() if values.is_floating_point() else values.int()
            gathered[field] = self._ranks.gather_rows(values)

        def append() -> None:
            for field, rows in gathered.items():
                assert rows is not None
                self._files[set_name, field].append(rows[:count].numpy())

        self._on_main(append)

    def complete(self) -> None:
        def complete_all() -> None:
            for file in self._files.values():
                file.complete()

        self._on_main(complete_all)

    def discard(self) -> None:
        for file in self._files.values():
            file.discard()

    def _on_main(self, action: Callable[[], None]) -> None:
        """Act on rank 0; where that fails, remove the files and raise OutputError on all ranks."""
        failure = None
        if self._ranks.is_main:
            try:
                action()
            except OSError as error:
                self.discard()
                failure = f"{error.filename or self._folder}: {error.strerror or error}"
        _raise_on_all(failure, self._ranks)


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

    def complete(self) -> None:
        try:
            with replacing(self._path) as file:
                torch.save({name: torch.cat(rows) for name, rows in self._rows.items()}, file)
        except OSError as failure:
            raise OutputError(f"{self._path}: {failure.strerror or failure}") from None


def _raise_on_all(failure: str | None, ranks: Ranks) -> None:
    # The others would wait for ever.
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


def write_json_files(
    folder: Path, files: Mapping[str, Callable[[], object]], ranks: Ranks, *, own: bool = False
) -> None:
    """Write JSON files of evaluators, by name, each in one indivisible move; all ranks take part.

    Args:
        files: their JSON-ready content, made on rank 0 alone.
        own: we chose the folder's name: see `make_own_folder`.
    Raises:
        OutputError: rank 0 cannot write; raised on every rank, names the file.
    """
    failure = None
    if ranks.is_main:
        for path, content in ((folder / name, content) for name, content in files.items()):
            try:
                make_own_folder(folder) if own else folder.mkdir(parents=True, exist_ok=True)
                with replacing(path) as file:
                    file.write((json.dumps(content(), separators=(",", ":")) + "\n").encode())
            except OSError as error:
                failure = f"{path}: {error.strerror or error}"
                break
    _raise_on_all(failure, ranks)


def _remove_files_of_more_ranks(prefix: Path, world_size: int) -> None:
    # Readers take all files together.
    for path in list(prefix.parent.iterdir()):
        named = re.fullmatch(re.escape(prefix.name) + r"\.([0-9]{1,9})", path.name)
        if named and int(named[1]) >= world_size:
            path.unlink()


class _GrowingArray:
    """A `.npy` file whose header promises `shape` and whose rows are appended."""

    def __init__(self, path: Path, dtype: np.dtype, shape: tuple[int, ...]) -> None:
        self._dtype, self._shape, self._num_rows = dtype, shape, 0
        self._writing = contextlib.ExitStack()
        self._file = self._writing.enter_context(replacing(path))
        descr = np.lib.format.dtype_to_descr(dtype)
        header = {"descr": descr, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, header)

    def append(self, rows: np.ndarray) -> None:
        assert rows.shape[1:] == self._shape[1:]
        self._file.write(np.ascontiguousarray(rows, self._dtype).data)
        self._num_rows += len(rows)

    def complete(self) -> None:
        assert self._num_rows == self._shape[0], "not every row was written"
        self._writing.close()

    def discard(self) -> None:
        given_up = OSError("given up")
        with contextlib.suppress(OSError):  # What is still buffered may not fit on the disk.
            self._writing.__exit__(OSError, given_up, None)


def _row_formats(seq_len: int, vocab_size: int) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
    cells, number, token = np.dtype(np.int32), np.dtype(np.float32), np.dtype(np.uint8)
    return {
        "inputs": (cells, (seq_len,)),
        "labels": (cells, (seq_len,)),
        "puzzle_identifiers": (cells, ()),
        "preds": (token if vocab_size <= 256 else cells, (seq_len,)),
        "logits": (number, (seq_len, vocab_size)),
        "q_halt_logits": (number, ()),
        "q_continue_logits": (number, ()),
    }
