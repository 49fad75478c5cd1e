"""Reading and writing the JSON and `.npy` files of data sets.

Equal values give equal bytes. No file is trusted when it is read, and none is unpickled or
evaluated: numpy parses the `.npy` header as a literal, only integer arrays are accepted, and the
file's size must match its header.
"""

import hashlib
import json
import os
import stat
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from runtime.errors import DatasetError, disk_errors
from runtime.files import flush, open_regular, read_bounded, sha256, write_bytes
from runtime.text import shown

_MAX_JSON_BYTES = 2**29  # The names of a million puzzles take 40 MB.


def is_folder(path: Path) -> bool:
    """Return whether a folder exists; raise DatasetError if the disk refuses to say."""
    with disk_errors(path, DatasetError):
        try:
            return stat.S_ISDIR(path.stat().st_mode)  # Path.is_dir hides the reason from 3.14 on.
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return False


def map_array(path: Path) -> np.ndarray:
    """Map an integer `.npy` file read-only; the size check avoids a SIGBUS for a truncated file.

    Raises:
        DatasetError: the file is missing, unreadable, damaged or not an integer array.
    """
    with disk_errors(path, DatasetError), open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            with warnings.catch_warnings(action="ignore"):  # Damaged literals cause warnings.
                mapped = npy.open_memmap(path, mode="r")
        except OSError:
            raise
        except Exception as error:  # A damaged header may raise anything in numpy.
            reason = shown(str(error) or type(error).__name__, 200)
            raise DatasetError(f"{path}: the file is damaged ({reason})") from None
    if mapped.dtype.kind not in "iu":
        raise DatasetError(f"{path}: dtype {shown(mapped.dtype)}, expected an integer type")
    promised = mapped.offset + mapped.nbytes
    if size != promised:
        found = f"{size} bytes, but its header says {promised}"
        raise DatasetError(f"{path}: {found}; the file is damaged")
    return mapped.view(np.ndarray)


def write_array(path: Path, array: np.ndarray, dtype: type[np.integer]) -> None:
    """Write integers as a `.npy` file, and fsync it.

    Raises:
        DatasetError: a value does not fit `dtype`.
    """
    limits = np.iinfo(dtype)
    if array.dtype != dtype:
        if array.size and (array.min() < limits.min or array.max() > limits.max):
            found = f"values from {array.min()} to {array.max()}"
            raise DatasetError(f"{path}: {found} do not fit {np.dtype(dtype)}")
        array = array.astype(dtype)
    with open(path, "wb") as file:
        npy.write_array(file, np.ascontiguousarray(array), (1, 0), allow_pickle=False)
        flush(file)


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        DatasetError: the file is missing, unreadable, larger than 512 MiB or not JSON.
    """
    with disk_errors(path, DatasetError):
        text = read_bounded(path, _MAX_JSON_BYTES)
    try:
        return json.loads(text)
    except RecursionError:
        raise DatasetError(f"{path}: not JSON: nested too deeply") from None
    except ValueError as error:
        raise DatasetError(f"{path}: not JSON: {error}") from None


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON file; raise DatasetError if it is invalid or does not hold an object."""
    values = read_json(path)
    if not isinstance(values, dict):
        raise DatasetError(f"{path}: {type(values).__name__}, expected a JSON object")
    return values


def write_json(path: Path, value: Any, *, compact: bool = False) -> None:
    """Write and fsync a JSON file with sorted keys: equal values give equal bytes.

    File names that are not UTF-8 are escaped. `compact` omits white space, for large files.
    """
    layout: dict[str, Any] = {"separators": (",", ":")} if compact else {"indent": 2}
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, **layout)
    # For a lone surrogate, backslashreplace writes the escape that JSON has for it.
    write_bytes(path, (text + "\n").encode("utf-8", "backslashreplace"))


def json_sha256(values: Mapping[str, Any]) -> str | None:
    """Return the sha256 (hex) of JSON values in a fixed layout; None if nested too deeply."""
    try:
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    except RecursionError:
        return None


def file_sha256(path: Path) -> str:
    """Return the sha256 (hex) of a file; raise DatasetError if it cannot be read."""
    with disk_errors(path, DatasetError):
        return sha256(path)
