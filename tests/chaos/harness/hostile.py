"""Malicious files. If one of them is executed, it creates `canary` in the working folder."""

import io
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import torch

from harness.damage import npy
from runtime.files import sha256


class Calls:
    """An object that calls `function(*arguments)` when its pickle is read."""

    def __init__(self, *call: Any) -> None:
        self._function, *self._arguments = call

    def __reduce__(self) -> tuple[Any, ...]:
        return self._function, tuple(self._arguments)


TOUCHES = Calls(os.system, "touch canary")
EVALUATES = Calls(eval, "open('canary', 'w').close()")


def saved(content: Any, **how: Any) -> bytes:
    """Return the bytes that torch.save writes."""
    file = io.BytesIO()
    torch.save(content, file, **how)
    return file.getvalue()


def archive_of(content: bytes, storage: bytes = b"", *, deflated: bool = False) -> bytes:
    """Return an archive as torch writes it, with the given pickle and storage."""
    file = io.BytesIO()
    kind = zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED
    with zipfile.ZipFile(file, "w", kind) as archive:
        archive.writestr("x/data.pkl", content)
        archive.writestr("x/byteorder", "little")
        archive.writestr("x/data/0", storage)
        archive.writestr("x/version", "3\n")
    return file.getvalue()


# The key of this dict takes 2**64 steps to hash: 64 nested tuples, each holding the next one twice.
_TUPLES = b"K\x01q\x00" + b"".join(b"h%c\x86q%c" % (i, i + 1) for i in range(64))
SLOW_KEY = archive_of(b"\x80\x02}" + _TUPLES + b"K\x01s.")


class _Storage(NamedTuple):
    claim: tuple[Any, ...]


class _StatePickler(pickle._Pickler):  # The version in Python: its persistent_id may be anything.
    def persistent_id(self, obj: Any) -> Any:
        return obj.claim if isinstance(obj, _Storage) else None


def tensor_of(key: str, shape: tuple[int, ...], stride: tuple[int, ...], numel: int) -> bytes:
    """Return an archive with the state dict {key: tensor}; the storage claims `numel` floats."""
    storage = _Storage(("storage", torch.FloatStorage, "0", "cpu", numel))
    claim = (storage, 0, shape, stride, False, {})
    file = io.BytesIO()
    _StatePickler(file, 2).dump({key: Calls(torch._utils._rebuild_tensor_v2, *claim)})
    return archive_of(file.getvalue(), b"\0" * 16)


def seal(checkpoint: Path) -> None:
    """Give our checkpoint a manifest that fits its present content."""
    paths = sorted(path for path in checkpoint.iterdir() if path.name != "MANIFEST.json")
    files = {path.name: {"size": path.stat().st_size, "sha256": sha256(path)} for path in paths}
    (checkpoint / "MANIFEST.json").write_text(json.dumps({"files": files}))


def safetensors(header: str, data: bytes = b"", length: int | None = None) -> bytes:
    """Return a safetensors file with this header, unchecked."""
    return struct.pack("<Q", len(header) if length is None else length) + header.encode() + data


def array(descr: str, shape: str) -> bytes:
    """Return a .npy file with this header and no data."""
    return npy(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}")


def aliases(first: str, level: str) -> str:
    """Return eleven levels of YAML, each of nine aliases of the one before."""
    levels = [level.format(", ".join([f"*l{i}"] * 9)) for i in range(11)]
    return "\n".join([f"l0: &l0 {first}", *(f"l{i + 1}: &l{i + 1} {levels[i]}" for i in range(11))])
