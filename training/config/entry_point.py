"""Run an entry point on its command line: whatever goes wrong in a run becomes one clear line."""

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from hydra._internal.utils import get_args_parser

from runtime.errors import EXIT_PREEMPTED, ConfigError, Preempted, exit_code
from runtime.process import end_with_parent, launched, leave, note_start, print_error
from runtime.schema import Schema
from training.config.composition import (
    composed_yaml,
    explained,
    hydra_lines,
    parse_arguments,
    parse_overrides,
    source_of,
)

if TYPE_CHECKING:
    from sweeps.run import Program


def run_entry_point(
    schema: type[Schema],
    config_name: str,
    main: Callable[[list[str]], None],
    usage: str,
    program: "Program | None" = None,
) -> None:
    """Run `main` on the command line and exit with a code of `runtime.errors`: an error that is
    meant for people is one line.

    The flags are Hydra's: `--help`, `--cfg`, `--info`, `--multirun` and so on.

    Args:
        schema: of the settings.
        config_name: file of `config/` that Hydra begins with.
        main: takes the command line.
        usage: the beginning of `--help`.
        program: how the entry point is swept; None: it cannot be.
    """
    note_start()
    end_with_parent()
    arguments = sys.argv[1:]
    if launched():
        # Its sentences about a peer that has gone come with a stack of C++ frames; ours says who.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        args = parse_arguments(arguments)
        if args.experimental_rerun:
            raise ConfigError(
                "--experimental-rerun reads a pickle, which may run anything: refused"
            )
        if args.help:
            sys.stdout.write(_help(schema, config_name, arguments, usage))
        elif args.cfg or args.info or args.hydra_help or args.shell_completion:
            _ask_hydra(schema, config_name, arguments)
        elif args.multirun:
            leave(_sweep(schema, config_name, arguments, program))
        else:
            main(arguments)
            leave(0)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        leave(130)
    except (Exception, Preempted) as error:
        code = exit_code(error)
        if code is None:
            raise
        if code == EXIT_PREEMPTED:
            # A scheduler asks all processes, and a launcher passes on what it was asked.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print_error(str(error))
        leave(code)


def _help(schema: type[Schema], config_name: str, arguments: list[str], usage: str) -> str:
    flags = get_args_parser().format_help().partition("options:")[2]
    shown = [a for a in arguments if a not in ("-h", "--help")]
    settings = composed_yaml(schema, config_name, shown)
    return (
        f"{usage}\n\nFlags, as Hydra has them:\n{flags}\nSettings and their defaults:\n\n{settings}"
    )


def _ask_hydra(schema: type[Schema], config_name: str, arguments: list[str]) -> None:
    """Let Hydra itself answer `--cfg`, `--info`, `--hydra-help` and `--shell-completion`."""
    args = parse_arguments(arguments)
    source = source_of(config_name, args)
    with explained(source), source.hydra() as hydra:
        if args.shell_completion:
            hydra.shell_completion(source.config_name, args.overrides)
            return
        lines = hydra_lines(schema, source, parse_overrides(args.overrides))
        if args.cfg:
            hydra.show_cfg(source.config_name, lines, args.cfg, args.package, args.resolve)
        elif args.info:
            hydra.show_info(args.info, source.config_name, lines)
        else:
            args.overrides = lines
            hydra.hydra_help(source.config_name, get_args_parser(), args)


def _sweep(
    schema: type[Schema], config_name: str, arguments: list[str], program: "Program | None"
) -> int:
    if program is None:
        raise ConfigError("-m: this command makes one run at a time")
    from sweeps.run import plan_of, run_sweep

    return run_sweep(program, plan_of(schema, config_name, arguments), partial(print, flush=True))
