"""JSON and `.npy` files of data sets: written so that their bytes depend on the values alone, and
read without believing anything that they say.

Nothing here unpickles or evaluates a file: numpy parses the `.npy` header as a literal, only
integer arrays are accepted, and a file's size is compared with its header before it is mapped.
"""

import hashlib
import io
import json
import math
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy

from runtime.errors import DatasetError, disk_errors
from runtime.files import flush, open_regular, read_bounded, sha256, write_bytes
from runtime.text import shown

_READ_NPY_HEADER = {
    (1, 0): npy.read_array_header_1_0,
    (2, 0): npy.read_array_header_2_0,
    (3, 0): npy.read_array_header_2_0,  # Different for names of fields alone.
}
_MAX_HEADER_BYTES = 10_000
_MAX_DIMENSIONS = 8
_MAX_ARRAY_BYTES = 2**48  # More than a process can map; a smaller product overflows nowhere.
_MAX_JSON_BYTES = 64 * 2**20
_MAX_NAMES_BYTES = 2**29  # The names of a million puzzles take 40 MB.


def map_array(path: Path) -> np.ndarray:
    """Map an integer `.npy` file read-only; the size check keeps a cut file from being a SIGBUS.

    Raises:
        DatasetError: missing, unreadable, damaged or of another kind; names it.
    """
    with disk_errors(path, DatasetError), open_regular(path) as file:
        dtype, shape, fortran_order, offset = _read_npy_header(file, path)
        size = os.fstat(file.fileno()).st_size
        expected = offset + dtype.itemsize * math.prod(shape)
        if size != expected:
            found = f"{size} bytes, but its header promises {expected}"
            raise DatasetError(f"{path}: {found}; the file is damaged")
        if math.prod(shape) == 0:
            return np.zeros(shape, dtype)
        mapped = np.memmap(file, dtype, "r", offset, shape, order="F" if fortran_order else "C")
        return mapped.view(np.ndarray)


def write_array(path: Path, array: np.ndarray, dtype: type[np.integer]) -> None:
    """Write integers as a `.npy` file, and fsync it.

    Raises:
        DatasetError: a value does not fit `dtype`; names the file.
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


def _read_npy_header(file: BinaryIO, path: Path) -> tuple[np.dtype, tuple[int, ...], bool, int]:
    """Return dtype, shape, whether the order is Fortran's, and where the values begin."""
    # A header may claim 4 GiB: numpy gets the first bytes alone.
    start = io.BytesIO(file.read(_MAX_HEADER_BYTES))
    try:
        with warnings.catch_warnings(action="ignore"):  # Of what damage makes of a literal.
            read = _READ_NPY_HEADER[npy.read_magic(start)]
            shape, fortran_order, dtype = read(start, max_header_size=_MAX_HEADER_BYTES)
    except Exception as error:  # Whatever a damaged literal raises in numpy's parser.
        reason = shown(str(error) or type(error).__name__, 200)
        problem = f"its .npy header cannot be read; the file is damaged ({reason})"
        raise DatasetError(f"{path}: {problem}") from None
    if dtype.kind not in "iu":
        raise DatasetError(f"{path}: dtype {shown(dtype)}, expected an integer type")
    if len(shape) > _MAX_DIMENSIONS or not all(type(n) is int and n >= 0 for n in shape):
        raise DatasetError(f"{path}: the shape in its .npy header is none; the file is damaged")
    # Where one side is 0 the file's size says nothing about the others.
    if dtype.itemsize * math.prod(max(n, 1) for n in shape) > _MAX_ARRAY_BYTES:
        raise DatasetError(f"{path}: the shape in its .npy header fits no file; it is damaged")
    return dtype, shape, fortran_order, start.tell()


def read_json(path: Path) -> Any:
    """Read a JSON file of names or tasks.

    Raises:
        DatasetError: missing, unreadable, larger than 512 MiB or no JSON; names it.
    """
    with disk_errors(path, DatasetError):
        return _parse_json(read_bounded(path, _MAX_NAMES_BYTES), path)


def read_small_file(path: Path) -> bytes:
    """Read a file.

    Raises:
        DatasetError: missing, unreadable or larger than 64 MiB; names it.
    """
    with disk_errors(path, DatasetError):
        return read_bounded(path, _MAX_JSON_BYTES)


def parse_json_object(text: str | bytes, source: str | Path) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        DatasetError: it is none; names `source`.
    """
    values = _parse_json(text, source)
    if not isinstance(values, dict):
        raise DatasetError(f"{source}: {type(values).__name__}, expected a JSON object")
    return values


def _parse_json(text: str | bytes, source: str | Path) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise DatasetError(f"{source}: not JSON: nested too deep") from None
    except ValueError as error:
        raise DatasetError(f"{source}: not JSON: {error}") from None


def write_json(path: Path, value: Any, *, compact: bool = False) -> None:
    """Write a JSON file whose bytes depend on `value` alone (keys sorted), and fsync it.

    Names of files that are no UTF-8 are written as JSON's escapes. `compact` leaves out white space
    and is for files that are large and not for reading.
    """
    layout: dict[str, Any] = {"separators": (",", ":")} if compact else {"indent": 2}
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, **layout)
    # In a string of JSON that is the escape of the same lone surrogate.
    write_bytes(Path(path), (text + "\n").encode("utf-8", "backslashreplace"))


def json_sha256(values: Mapping[str, Any]) -> str | None:
    """sha256 (hex) of JSON values, however they are laid out; None if they are nested too deep."""
    try:
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    except RecursionError:
        return None


def file_sha256(path: Path) -> str:
    """sha256 (hex) of a file's content.

    Raises:
        DatasetError: the file cannot be read; names it.
    """
    with disk_errors(path, DatasetError):
        return sha256(path)
