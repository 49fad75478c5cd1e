"""Files and names that a stranger might send, and the entry points that read them."""

import hashlib
import io
import json
import os
import pickle
import resource
import struct
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SPARE_BYTES = 3 * 2**30


def convert(*overrides: str) -> None:
    """`python scripts/convert_checkpoint.py OVERRIDES`, exit code and all."""
    from scripts import convert_checkpoint as entry_point
    from training.composition import run_entry_point

    sys.argv = ["convert_checkpoint.py", *overrides]
    run_entry_point(entry_point.ConvertConfig, "cfg_convert", entry_point.main, "")


def score_arc(*arguments: str) -> None:
    """`python scripts/score_arc.py ARGUMENTS`."""
    from scripts.score_arc import main

    sys.exit(main(arguments))


def show_votes(*arguments: str) -> None:
    """`python scripts/show_votes.py ARGUMENTS`."""
    from scripts.show_votes import main

    sys.exit(main(arguments))


def build_arc(*arguments: str) -> None:
    """`python dataset/build_arc_dataset.py ARGUMENTS`."""
    from dataset.build_arc_dataset import main

    sys.exit(main(arguments))


def build_sudoku(*arguments: str) -> None:
    """`python dataset/build_sudoku_dataset.py ARGUMENTS`."""
    from dataset.build_sudoku_dataset import main

    sys.exit(main(arguments))


def bound_memory() -> None:
    """Let this process have three gigabytes more than it has, and no more."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + _SPARE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


# Mutants


def skip_the_look() -> None:
    """published pickles are not looked through before they are read"""
    from training import weights

    weights.require_state_dict = lambda path: None


def trust_pickles() -> None:
    """published files read with weights_only=False"""
    import torch

    from training import weights

    skip_the_look()
    load = torch.load
    weights.torch.load = lambda path, **how: load(path, **how | {"weights_only": False})


def allow_pickled_arrays() -> None:
    """arrays read with allow_pickle=True"""
    import numpy as np

    from dataset import common

    common._map_array = lambda path: np.load(path, allow_pickle=True)


def load_any_yaml() -> None:
    """all_config.yaml read as by yaml.unsafe_load"""
    from training import published

    published._PlainLoader = published.yaml.UnsafeLoader


def take_any_set_name() -> None:
    """the names of sets are not checked"""
    from dataset import common

    common._require_plain_name = lambda name: None


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


def tensor_of(key: str, shape: tuple[int, ...], stride: tuple[int, ...], numel: int) -> bytes:
    """Return the pickle of a state dict {key: tensor} whose storage claims `numel` floats."""
    import torch

    storage = _Storage(("storage", torch.FloatStorage, "0", "cpu", numel))
    rebuilt = Calls(torch._utils._rebuild_tensor_v2, (storage, 0, shape, stride, False, {}))
    file = io.BytesIO()
    _StatePickler(file, 2).dump({key: rebuilt})
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
