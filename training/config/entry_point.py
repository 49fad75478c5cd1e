"""Run an entry point on its command line, and turn errors for users into one line."""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Container
from textwrap import fill
from typing import Any, NoReturn

from omegaconf import OmegaConf

from runtime.errors import EXIT_INTERRUPTED, EXIT_PREEMPTED, ConfigError, Preempted, exit_code
from runtime.output import guard_output
from runtime.process import end_with_parent, launched, leave, note_code, note_start, print_error
from runtime.progress import Bar
from runtime.schema import Schema
from training.config.composition import compose_runs
from training.config.overrides import flags_parser, parse_arguments, with_checkpoint
from training.config.source import CONFIG_DIR, source_of


def run_entry_point(
    schema: type[Schema],
    config_name: str,
    main: Callable[[list[str]], object],
    usage: str,
    sweep: Callable[[], Any] | None = None,
    own_settings: Container[str] = (),
) -> None:
    """Run `main` on the command line, and exit with a code of `runtime.errors`. An error that is
    meant for users is printed as one line.

    Args:
        schema: the schema of the settings.
        config_name: the main file in `config/`.
        main: takes the command line.
        usage: the beginning of `--help`.
        sweep: loads the function for `-m`, which takes the command line and `say`, and returns the
            exit code. None: the command takes no `-m`.
        own_settings: keys that `main` reads beside those of `schema`. `--help` and `--cfg` leave
            them out.
    """
    guard_output()
    note_start()
    end_with_parent()
    if launched():
        # torch reports a lost peer with a stack of C++ frames. Our message names the peer.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        arguments = with_checkpoint(schema, sys.argv[1:])
        args = parse_arguments(arguments)
        if args.help or args.cfg:
            shared = (o for o in args.overrides if o.partition("=")[0] not in own_settings)
            args.overrides = list(shared)
            sys.stdout.write(_answer(schema, config_name, args, usage))
            sys.stdout.flush()
        elif args.multirun:
            if sweep is None:
                raise ConfigError("-m: this command makes one run at a time")
            leave(sweep()(arguments, say))
        else:
            main(arguments)
            leave(0)
    except (Exception, KeyboardInterrupt, Preempted) as error:
        _fail(error)


def _answer(schema: type[Schema], config_name: str, args: argparse.Namespace, usage: str) -> str:
    """Return the configuration; for `--help` with the flags and the groups above it."""
    source = source_of(config_name, args)
    (config,) = compose_runs(schema, source, [args.overrides])
    if args.cfg:
        return OmegaConf.to_yaml(config)
    flags = flags_parser().format_help().partition("options:\n")[2]
    groups = [f"  {name}: {', '.join(all)}" for name, all in sorted(source.groups.items())]
    listed = "\n".join(fill(line, 100, subsequent_indent="      ") for line in groups)
    return (
        f"{usage.rstrip()}\n\nFlags:\n{flags}\n"
        f"Groups and their choices, as GROUP=CHOICE:\n{listed}\n\n"
        f"Settings, as KEY=VALUE (the files in {CONFIG_DIR} explain them):\n\n"
        f"{OmegaConf.to_yaml(config)}"
    )


def _fail(error: BaseException) -> NoReturn:
    """Print an error that is meant for users and exit. Raise any other again."""
    code = EXIT_INTERRUPTED if isinstance(error, KeyboardInterrupt) else exit_code(error)
    if code is None:
        note_code(1)
        raise error
    if code == EXIT_PREEMPTED:
        # A scheduler signals all processes, and a launcher passes its signal on once more.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print_error("interrupted" if code == EXIT_INTERRUPTED else str(error))
    leave(code)


def say(line: str) -> None:
    """Print a line at once, above any progress bar."""
    with Bar.external_write_mode():
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
