"""Read state dicts that torch.save wrote, without an unpickler.

A pickle is a program. This module carries out only the operations that a state dict needs, on plain
values. It imports and calls nothing that the pickle names, accepts only text as keys (hashing
nested tuples may never end), and checks a tensor's size against the file before allocating memory.
"""

import math
import os
import pickletools
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from runtime.errors import CheckpointError, disk_errors
from runtime.files import open_regular
from runtime.text import shown

# A tensor takes about 250 bytes of pickle. One byte of pickle may cost a hundred bytes of memory.
_MAX_PICKLE_BYTES = 2**20
_MAX_LIST_BYTES = 2**20
_MAX_DIMS = 64
_CHUNK_BYTES = 2**20

_DTYPES = {
    "torch DoubleStorage": torch.float64,
    "torch FloatStorage": torch.float32,
    "torch HalfStorage": torch.float16,
    "torch BFloat16Storage": torch.bfloat16,
    "torch LongStorage": torch.int64,
    "torch IntStorage": torch.int32,
    "torch ShortStorage": torch.int16,
    "torch CharStorage": torch.int8,
    "torch ByteStorage": torch.uint8,
    "torch BoolStorage": torch.bool,
}
# The functions that a state dict's pickle calls. Their names are never looked up.
_DICT, _TENSOR = "collections OrderedDict", "torch._utils _rebuild_tensor_v2"
_PARAMETER = "torch._utils _rebuild_parameter"
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}


@dataclass(frozen=True)
class _Storage:
    entry: str
    dtype: torch.dtype
    numel: int


@dataclass(frozen=True)
class _Claim:
    """A tensor as the pickle describes it, not yet checked."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Return the tensors by key of a state dict that torch.save wrote; parameters become tensors.

    Raises:
        CheckpointError: the file is missing, damaged or not a state dict; names file and reason.
    """
    with disk_errors(path, CheckpointError), open_regular(path) as file:
        try:
            # zipfile reads the whole list of names and needs ten times its size in memory.
            end = zipfile._EndRecData(file)  # type: ignore[attr-defined]
            if end and end[zipfile._ECD_SIZE] > _MAX_LIST_BYTES:  # type: ignore[attr-defined]
                raise ValueError("it has too many files")
            with zipfile.ZipFile(file) as archive:
                return _read_archive(archive, os.fstat(file.fileno()).st_size)
        # zipfile raises these for formats that it does not know, and torch for bad strides.
        except (ValueError, zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as e:
            raise CheckpointError(f"{path}: not a published checkpoint: {shown(e, 200)}") from None


def _read_archive(archive: zipfile.ZipFile, size: int) -> dict[str, Tensor]:
    entries = archive.infolist()
    is_compressed = any(entry.compress_type != zipfile.ZIP_STORED for entry in entries)
    if is_compressed or sum(entry.file_size for entry in entries) > size:
        raise ValueError("it has compressed files, and torch writes none")
    pickles = [entry for entry in entries if entry.filename.rpartition("/")[2] == "data.pkl"]
    if len(pickles) != 1 or pickles[0].file_size > _MAX_PICKLE_BYTES:
        raise ValueError(f"it must have one data.pkl of at most {_MAX_PICKLE_BYTES} bytes")
    folder = pickles[0].filename.removesuffix("data.pkl")
    sizes = {entry.filename.removeprefix(folder): entry.file_size for entry in entries}
    if "byteorder" in sizes and archive.read(f"{folder}byteorder") != sys.byteorder.encode():
        raise ValueError(f"its byte order is not this machine's ({sys.byteorder})")
    claims = _Program().run(archive.read(pickles[0]))
    _require_sizes(claims, sizes)
    return {key: _read_tensor(archive, folder, claim) for key, claim in claims.items()}


def _require_sizes(claims: dict[str, _Claim], sizes: dict[str, int]) -> None:
    """Raise ValueError if a tensor needs more data than its file in the archive holds."""
    for key, claim in claims.items():
        storage, named, numel = claim.storage, shown(key, 100), math.prod(claim.shape)
        if sizes.get(storage.entry) != storage.numel * storage.dtype.itemsize:
            raise ValueError(f"the data of {named} are missing or have another size")
        steps = ((n - 1) * s for n, s in zip(claim.shape, claim.stride, strict=True))
        # Strides of 0 would turn a few bytes into a tensor of any size.
        if numel and max(claim.offset + sum(steps), numel - 1) >= storage.numel:
            raise ValueError(f"{named} is larger than its data")
    if len({claim.storage.entry for claim in claims.values()}) < len(claims):
        raise ValueError("two tensors share their data, unlike in published files")


def _read_tensor(archive: zipfile.ZipFile, folder: str, claim: _Claim) -> Tensor:
    content = torch.empty(claim.storage.numel, dtype=claim.storage.dtype)
    view = content.view(torch.uint8).numpy().data
    with archive.open(f"{folder}{claim.storage.entry}") as file:
        for begin in range(0, len(view), _CHUNK_BYTES):
            view[begin : begin + _CHUNK_BYTES] = file.read(_CHUNK_BYTES)
    found = content.as_strided(claim.shape, claim.stride, claim.offset)
    return found if found.numel() == len(content) else found.clone()


class _Program:
    """The machine that carries out a state dict's pickle: a stack, its marks and a memo."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def run(self, program: bytes) -> dict[str, _Claim]:
        """Return the tensors that a pickle describes; raise ValueError if it is no state dict."""
        try:
            for opcode, argument, _ in pickletools.genops(program):
                self._step(opcode.name, argument)
            found = self._last(1)[0]
        except (IndexError, KeyError):
            raise ValueError("its pickle is damaged") from None
        is_dict = not self._stack and isinstance(found, dict)
        if not is_dict or not all(isinstance(value, _Claim) for value in found.values()):
            raise ValueError("it is not a state dict")
        return found

    def _step(self, name: str, argument: Any) -> None:
        stack = self._stack
        match name:
            case "PROTO" | "STOP":
                pass
            case "MARK":
                self._marks.append(len(stack))
            case "EMPTY_DICT":
                stack.append({})
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append(_CONSTANTS[name])
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINUNICODE":
                stack.append(argument)
            case "GLOBAL" if argument in (*_DTYPES, _DICT, _TENSOR, _PARAMETER):
                stack.append(argument)
            case "BINPUT" | "LONG_BINPUT":
                self._memo[argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(self._memo[argument])
            case "TUPLE":
                stack.append(tuple(self._since_mark()))
            case "EMPTY_TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3":
                size = int(name[-1]) if name != "EMPTY_TUPLE" else 0
                stack.append(tuple(self._last(size)))
            case "SETITEM" | "SETITEMS":
                items = self._since_mark() if name == "SETITEMS" else self._last(2)
                _set_items(stack[-1], items)
            case "BINPERSID":
                stack.append(_storage(stack.pop()))
            case "REDUCE":
                stack.append(_call(*self._last(2)))
            case "BUILD":
                _, state = stack[-2], stack.pop()  # The versions of a module's parts.
                if not (isinstance(state, dict) and state.keys() <= {"_metadata"}):
                    raise ValueError("its pickle sets a state, which a state dict never needs")
            case _:
                called = argument if name == "GLOBAL" else name
                raise ValueError(f"its pickle calls {shown(called)!r}, which no state dict does")

    def _last(self, count: int) -> list[Any]:
        if count > len(self._stack):
            raise IndexError
        taken = self._stack[len(self._stack) - count :]
        del self._stack[len(self._stack) - count :]
        return taken

    def _since_mark(self) -> list[Any]:
        return self._last(len(self._stack) - min(self._marks.pop(), len(self._stack)))


def _set_items(into: Any, items: list[Any]) -> None:
    keys, values = items[::2], items[1::2]
    if not isinstance(into, dict) or not all(isinstance(key, str) for key in keys):
        raise ValueError("its pickle has keys that are not text")
    into.update(zip(keys, values, strict=True))


def _storage(described: Any) -> _Storage:
    match described:
        case ("storage", str(name), str(key), str(), numel) if name in _DTYPES:
            if _are_counts((numel,)):
                return _Storage(f"data/{key}", _DTYPES[name], numel)
    raise ValueError("its pickle has data that no state dict has")


def _call(function: Any, arguments: Any) -> Any:
    """Return the value that stands for the result of a call."""
    match function, arguments:
        case (str(name), ()) if name == _DICT:
            return {}
        case (
            str(name),
            (_Storage() as storage, offset, tuple(shape), tuple(stride), bool(), dict()),
        ) if name == _TENSOR and len(shape) == len(stride) <= _MAX_DIMS:
            if _are_counts((offset, *shape, *stride)):
                return _Claim(storage, offset, shape, stride)
        case (str(name), (_Claim() as tensor, bool(), dict())) if name == _PARAMETER:
            return tensor
    raise ValueError("its pickle has a call with arguments that no state dict has")


def _are_counts(values: tuple[Any, ...]) -> bool:
    return all(type(value) is int and 0 <= value < 2**63 for value in values)
