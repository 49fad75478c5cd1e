"""What the command lines of the builders share: one-line answers and exit codes."""

import argparse
import difflib
import errno
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from dataset.common import DatasetError
from dataset.sudoku import NoPuzzleError

EXIT_CONFIGURATION, EXIT_DATA, EXIT_INTERRUPTED = 2, 3, 130


class Parser(argparse.ArgumentParser):
    """A parser that answers a mistake with one line and exit code 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_CONFIGURATION, f"error: {message} (--help lists the flags)\n")

    def parse(self, arguments: Sequence[str] | None) -> argparse.Namespace:
        """Parse all arguments; for an unknown one the nearest flag is named."""
        namespace, unknown = self.parse_known_args(arguments)
        if unknown:
            flags = re.findall(r"--[a-z0-9-]+", self.format_usage())
            nearest = difflib.get_close_matches(unknown[0].split("=")[0], flags, n=1)
            hint = f"; nearest: {nearest[0]}" if nearest else ""
            self.error(f"unknown argument {unknown[0]!r}{hint}")
        return namespace


def integer(low: int, high: int | None = None) -> Callable[[str], int]:
    """Return a parser of integers from `low` to `high`, for an argument's `type`."""
    accepted = f"{low} or more" if high is None else f"{low} to {high}"

    def parse(text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,20}", text, re.ASCII):
            raise argparse.ArgumentTypeError(f"{text!r} is no integer; accepted: {accepted}")
        value = int(text)
        if value < low or (high is not None and value > high):
            raise argparse.ArgumentTypeError(f"{value}; accepted: {accepted}")
        return value

    return parse


def run_build(build: Callable[[], str], output_dir: Path, smaller: str) -> int:
    """Run a build and print the summary it returns, or else one line on stderr that says why not.

    Args: smaller: how to ask for a smaller data set, where memory does not suffice.

    Returns: the exit code.
    """
    try:
        summary = build()
    except DatasetError as error:
        return _fail(EXIT_DATA, error)
    except NoPuzzleError as error:
        return _fail(EXIT_CONFIGURATION, error)
    except MemoryError as error:
        return _fail(EXIT_DATA, f"{error}; {smaller}")
    except OSError as error:
        refused = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
        return _fail(EXIT_CONFIGURATION if refused else EXIT_DATA, f"{output_dir}: {error}")
    except KeyboardInterrupt:
        return _fail(EXIT_INTERRUPTED, f"interrupted; {output_dir} is as it was")
    sys.stdout.write(summary + "\n")
    return 0


def _fail(code: int, reason: object) -> int:
    sys.stderr.write(f"error: {reason}\n")
    return code
