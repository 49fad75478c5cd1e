"""Files and names that a stranger might send, and the scripts that read them."""

import hashlib
import io
import json
import os
import pickle
import struct
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def score_arc(*arguments: str) -> None:
    """`python scripts/score_arc.py ARGUMENTS`."""
    from scripts.score_arc import main

    sys.exit(main(arguments))


def show_votes(*arguments: str) -> None:
    """`python scripts/show_votes.py ARGUMENTS`."""
    from scripts.show_votes import main

    sys.exit(main(arguments))


# Pickles


@dataclass(frozen=True)
class Calls:
    """An object whose pickle calls `function(*arguments)` when it is read."""

    function: Callable[..., object]
    arguments: tuple[Any, ...]

    def __reduce__(self) -> tuple[Callable[..., object], tuple[Any, ...]]:
        return self.function, self.arguments


def touches(canary: Path) -> Calls:
    """What creates the canary by a command."""
    return Calls(os.system, (f"touch '{canary}'",))


def evaluates(canary: Path) -> Calls:
    """What creates the canary by an expression."""
    return Calls(eval, (f"open({str(canary)!r}, 'w').close()",))


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


class _StatePickler(pickle._Pickler):  # in Python: its persistent_id may return anything
    def persistent_id(self, obj: Any) -> Any:
        return obj.claim if isinstance(obj, _Storage) else None


@dataclass(frozen=True)
class _Storage:
    claim: tuple[Any, ...]


def tensor_of(
    key: str, shape: tuple[int, ...], stride: tuple[int, ...], numel: int, *, times: int = 1
) -> bytes:
    """Return the pickle of a state dict {key: tensor} whose storage claims `numel` floats; `times`:
    that of so many tensors, which share it.
    """
    import torch

    storage = _Storage(("storage", torch.FloatStorage, "0", "cpu", numel))
    claim = (storage, 0, shape, stride, False, {})
    state = {
        f"{key}{number or ''}": Calls(torch._utils._rebuild_tensor_v2, claim)
        for number in range(times)
    }
    file = io.BytesIO()
    _StatePickler(file, 2).dump(state)
    return file.getvalue()


# Other files


def seal(checkpoint: Path) -> None:
    """Give a checkpoint of ours a manifest that fits what is in it now."""
    files = {
        path.name: {
            "size": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in sorted(checkpoint.iterdir())
        if path.name != "MANIFEST.json"
    }
    (checkpoint / "MANIFEST.json").write_text(json.dumps({"files": files}))


def safetensors(header: str, data: bytes = b"", length: int | None = None) -> bytes:
    """Return a safetensors file with this header, whatever it says."""
    return struct.pack("<Q", len(header) if length is None else length) + header.encode() + data


def npy(header: str, data: bytes = b"") -> bytes:
    """Return a .npy file with this header, whatever it says."""
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode("latin1") + data
