"""The shared parts of the builders' command lines: flags, error messages, exit codes."""

import argparse
import difflib
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from runtime.errors import EXIT_CONFIG, EXIT_DATA, EXIT_INTERRUPTED, ConfigError, exit_code
from runtime.output import guard_output
from runtime.text import shown

Flags = Mapping[str, Mapping[str, Any]]
"""The keyword arguments of `add_argument` by flag."""


class Parser(argparse.ArgumentParser):
    """A parser that answers a mistake with a one-line error and exit code 2, the effect of a
    ConfigError.
    """

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"error: {message} (--help lists the flags)\n")
        raise SystemExit(EXIT_CONFIG) from ConfigError(message)

    def parse_all(self, arguments: Sequence[str] | None) -> argparse.Namespace:
        """Parse all arguments; the error for an unknown one suggests the nearest flag."""
        options, unknown = self.parse_known_args(arguments)
        if unknown:
            flags = re.findall(r"--[a-z0-9-]+", self.format_usage())
            hint = nearest(unknown[0].split("=")[0], flags)
            self.error(f"unknown argument {unknown[0]!r}{hint}")
        return options


def nearest(name: str, known: Iterable[str]) -> str:
    """Return "; nearest: NAME", the known name most like `name`, or "" if none is like it."""
    return "".join(f"; nearest: {one}" for one in difflib.get_close_matches(name, known, n=1))


def flag(
    text: str, type: Callable[[str], Any] = str, default: Any = None, **more: Any
) -> Mapping[str, Any]:
    """Return the arguments of `add_argument` for a flag with a value; `text` describes it."""
    ending = "" if default is None else f" (default: {default})"
    return {"help": text + ending, "type": type, "default": default, **more}


def integer(low: int, high: int | None = None) -> Callable[[str], int]:
    """Return a parser of integers from `low` to `high` for a flag."""
    accepted = f"{low} or more" if high is None else f"{low} to {high}"

    def parse(text: str) -> int:
        is_integer = re.fullmatch(r"-?[0-9]{1,20}", text, re.ASCII)
        if not is_integer or not low <= int(text) <= (math.inf if high is None else high):
            raise argparse.ArgumentTypeError(f"{text!r}; accepted: an integer, {accepted}")
        return int(text)

    return parse


SEED = integer(0, 2**64 - 1)


def given_flags(options: argparse.Namespace) -> dict[str, Any]:
    """Return all flags that have a value (True for a switch), except --output-dir, in order."""
    return {
        f"--{name.replace('_', '-')}": value
        for name, value in vars(options).items()
        if name != "output_dir" and value is not None and value is not False
    }


def command_of(program: str, options: argparse.Namespace) -> list[str]:
    """Return the command for a manifest: the program and the flags that affect the bytes."""
    flags = given_flags(options).items()
    return [program, *(name if value is True else f"{name}={value}" for name, value in flags)]


def run_tool(work: Callable[[], str], name: str = "error") -> int:
    """Do a tool's work and return its exit code; print its summary, or one error line on stderr,
    which begins with `name`.
    """
    guard_output()
    try:
        sys.stdout.write(work())
        return 0
    except KeyboardInterrupt:
        code, reason = EXIT_INTERRUPTED, "interrupted"
    except MemoryError as error:
        code, reason = EXIT_DATA, f"not enough memory: {error}"
    except Exception as error:
        if (code := exit_code(error)) is None:
            raise
        reason = str(error)
    sys.stderr.write(f"{name}: {shown(reason, 10_000)}\n")
    return code
