"""Build a test set from Pencil Puzzle Bench: those of its 300 puzzles ("golden_300") that are
Sudokus or Light Up puzzles of one size.

    python dataset/build_pencil_puzzle_bench_dataset.py --kind sudoku --output-dir data/bench
    python dataset/build_pencil_puzzle_bench_dataset.py --kind light_up --output-dir data/akari

The puzzles are in the wheel of the package ppbench, which pip downloads. Only this one file of it
is read; nothing of it is installed.
"""

import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from dataset.command_line import Parser, command_of, flag, integer, run_tool
from dataset.format.files import file_sha256, write_json
from dataset.format.schema import BLANK_NAME, IDENTIFIERS_NAME
from dataset.format.writing import atomic_build, write_manifest, write_puzzles
from dataset.kinds.base import kind_named
from runtime.errors import DatasetError
from runtime.text import many, shown

PACKAGE, CONTENT = "ppbench==0.1.0", "ppbench/bundled/golden_300.jsonl"
_KINDS = {"sudoku": ("sudoku", 9), "light_up": ("lightup", 10)}
"""Our kinds: their names in the benchmark, and the usual size."""
_RUNS = "ghijklmnopqrstuvwxyz"
"""In the addresses of puzz.link: g stands for one cell with nothing, h for two, ..."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and build; return the exit code."""
    return run_tool(lambda: make(arguments))


def make(arguments: Sequence[str] | None) -> str:
    """Build with this command line and return a summary.

    Raises:
        DatasetError: the wheel cannot be downloaded or read, or none of its puzzles fits.
    """
    parser = Parser(prog=Path(__file__).name, description=str(__doc__).partition("\n\n")[0])
    parser.add_argument("--output-dir", **flag("folder to write", Path), required=True)
    parser.add_argument("--kind", **flag("sudoku or light_up", default="sudoku"), choices=_KINDS)
    parser.add_argument("--size", **flag("rows (default: 9; of light_up 10)", integer(1)))
    parser.add_argument("--source", **flag(f"the wheel of {PACKAGE} (default: pip downloads it)"))
    options = parser.parse_all(arguments)
    name, size = _KINDS[options.kind][0], options.size or _KINDS[options.kind][1]
    kind = kind_named(options.kind)
    if size not in kind.sizes:
        sizes = ", ".join(map(str, kind.sizes))
        parser.error(f"--size {size}; accepted for {options.kind}: {sizes}")
    with tempfile.TemporaryDirectory() as folder:
        wheel = Path(options.source) if options.source else downloaded(Path(folder))
        sources, links = {wheel.name: file_sha256(wheel)}, [*puzzles_of(wheel, name)]
    questions, answers = [], []
    for link in links:
        rows = board_of(link)
        if len(rows) == size and all(len(row) == size for row in rows):
            puzzle = kind.parse("\n".join(rows))
            answer = kind.solution(puzzle.question)
            if answer is None:
                raise DatasetError(f"{link}: it has no solution by the rules of {kind.name}")
            questions.append(puzzle.tokens)
            answers.append(kind.to_tokens(answer))
    if not questions:
        raise DatasetError(f"none of the {len(links)} has {size} x {size} cells")
    with atomic_build(options.output_dir) as directory:
        write_puzzles(
            directory / "test",
            np.stack(questions),
            np.stack(answers),
            vocab_size=kind.vocab_size(size),
            kind=options.kind,
        )
        write_json(directory / IDENTIFIERS_NAME, [BLANK_NAME])
        counts = {"test": {"puzzles": len(questions), "in_benchmark": len(links)}}
        command = command_of(parser.prog, options)
        write_manifest(directory, command=command, seed=0, sources=sources, counts=counts)
    of_benchmark = f"of the benchmark's {len(links)} {kind.name} puzzles"
    return f"{options.output_dir}: {many(len(questions), 'test puzzle')} {of_benchmark} written\n"


def downloaded(folder: Path) -> Path:
    """Let pip download the wheel into a folder; return its path."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", PACKAGE]
    done = subprocess.run(
        [*command, "--dest", str(folder)], capture_output=True, text=True, check=False
    )
    if found := [*folder.glob("*.whl")]:
        return found[0]
    raise DatasetError(f"pip could not download {PACKAGE}: {shown(done.stderr.strip(), 300)}")


def puzzles_of(wheel: Path, name: str) -> Iterator[str]:
    """Yield the addresses of the puzzles with this name; raise DatasetError for a bad file."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            lines = archive.read(CONTENT).decode().splitlines()
        puzzles = [json.loads(line) for line in lines]
        yield from (one["puzzlink_url"] for one in puzzles if one["pid"] == name)
    except (OSError, zipfile.BadZipFile, KeyError, ValueError, TypeError) as error:
        raise DatasetError(f"{wheel}: not the wheel of {PACKAGE}: {error}") from error


def board_of(link: str) -> list[str]:
    """Return the rows of a Sudoku or Light Up puzzle of puzz.link, as our kinds read them.

    The address ends in KIND/COLUMNS/ROWS/CELLS. In CELLS g to z stand for 1 to 20 cells with
    nothing. Sudoku: a digit is itself. Light Up: `.` is a wall; 0 to 4 a wall with this number, 5
    to 9 one with the number minus 5 and then a white cell, a to e the numbers again and two.

    Raises:
        DatasetError: the address is of another form, or has too few or too many cells.
    """
    found = re.search(r"\?(sudoku|akari)/(\d+)/(\d+)/([0-9a-z.]*)/?$", link, re.ASCII)
    if found is None:
        raise DatasetError(f"{shown(link)}: not the address of a Sudoku or Light Up puzzle")
    kind, columns, rows, text = found[1], int(found[2]), int(found[3]), found[4]
    cells = ""
    for letter in text:
        if letter in _RUNS:
            cells += "." * (1 + _RUNS.index(letter))
        elif kind == "sudoku":
            cells += letter
        elif letter == ".":
            cells += "#"
        else:
            empty, number = divmod(int(letter, 16), 5)
            cells += f"{number}{'.' * empty}"
    number = rows * columns
    if cells[number:].strip(".") or not number:  # Cells with nothing may go on after the end.
        raise DatasetError(f"{shown(link)}: {len(cells)} cells for {rows} x {columns}")
    cells = cells[:number].ljust(number, ".")
    return [cells[start : start + columns] for start in range(0, number, columns)]


if __name__ == "__main__":
    sys.exit(main())
