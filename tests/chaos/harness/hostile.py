"""Files that a stranger might send, and where they are put."""

import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from runtime.files import sha256


class Place(NamedTuple):
    """Where a payload is put: copies of published weights, of a checkpoint of ours, and of their
    data; and the file `canary` that must not come into being.
    """

    folder: Path

    @property
    def canary(self) -> Path:
        return self.folder / "canary"

    @property
    def published(self) -> Path:
        return self.folder / "published" / "step_7"

    @property
    def own(self) -> Path:
        return self.folder / "own" / "step_7"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def settings(self, weights: Path) -> tuple[str, ...]:
        """The overrides of an evaluation."""
        given = (f"checkpoint={weights}", "device=cpu", "num_threads=1", "evaluators=[]")
        return (*given, f"data_path={self.data}", f"output={self.folder / 'result.json'}")

    def run_settings(self) -> tuple[str, ...]:
        """The overrides of a run."""
        given = "global_batch_size=2 epochs=2 eval_interval=2 logger=jsonl evaluators=[] device=cpu"
        return (*given.split(), f"data_path={self.data}", f"checkpoint_path={self.folder / 'run'}")


# Pickles


class Calls:
    """An object whose pickle calls `function(*arguments)` when it is read."""

    def __init__(self, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self._call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[Any, ...]]:
        return self._call


def touches(canary: Path) -> Calls:
    """What creates the canary by a command."""
    return Calls(os.system, (f"touch '{canary}'",))


def archive_of(content: bytes, *, storages: dict[str, bytes], deflated: bool = False) -> bytes:
    """Return an archive as torch writes it, with a pickle and storages of one's own."""
    file = io.BytesIO()
    kind = zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED
    with zipfile.ZipFile(file, "w", kind) as archive:
        archive.writestr("x/data.pkl", content)
        archive.writestr("x/byteorder", "little")
        for name, data in storages.items():
            archive.writestr(f"x/data/{name}", data)
        archive.writestr("x/version", "3\n")
    return file.getvalue()


def slow_to_hash() -> bytes:
    """Return operations that put a tuple on the stack which takes 2**64 steps to hash: it and each
    of those in it, 64 levels deep, has the next one twice.
    """
    return b"K\x01q\x00" + b"".join(b"h%c\x86q%c" % (i, i + 1) for i in range(64))


class _Storage(NamedTuple):
    claim: tuple[Any, ...]


class _StatePickler(pickle._Pickler):  # in Python: its persistent_id may return anything
    def persistent_id(self, obj: Any) -> Any:
        return obj.claim if isinstance(obj, _Storage) else None


def tensor_of(key: str, shape: tuple[int, ...], stride: tuple[int, ...], numel: int) -> bytes:
    """Return the pickle of a state dict {key: tensor} whose storage claims `numel` floats."""
    import torch

    storage = _Storage(("storage", torch.FloatStorage, "0", "cpu", numel))
    claim = (storage, 0, shape, stride, False, {})
    file = io.BytesIO()
    _StatePickler(file, 2).dump({key: Calls(torch._utils._rebuild_tensor_v2, claim)})
    return file.getvalue()


# Other files


def seal(checkpoint: Path) -> None:
    """Give a checkpoint of ours a manifest that fits what is in it now."""
    paths = sorted(path for path in checkpoint.iterdir() if path.name != "MANIFEST.json")
    files = {path.name: {"size": path.stat().st_size, "sha256": sha256(path)} for path in paths}
    (checkpoint / "MANIFEST.json").write_text(json.dumps({"files": files}))


def safetensors(header: str, data: bytes = b"", length: int | None = None) -> bytes:
    """Return a safetensors file with this header, whatever it says."""
    return struct.pack("<Q", len(header) if length is None else length) + header.encode() + data


def npy(header: str) -> bytes:
    """Return a .npy file with this header, whatever it says."""
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode("latin1")


def header(descr: str, shape: str) -> bytes:
    """Return a .npy file whose header says this."""
    return npy(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}")
