"""Run an entry point on its command line: whatever goes wrong in a run becomes one clear line."""

import os
import signal
import sys
from collections.abc import Callable

from runtime.errors import EXIT_PREEMPTED, ConfigError, Preempted, exit_code
from runtime.process import launched, leave, note_start, print_error
from runtime.schema import Schema
from training.config.composition import composed_yaml


def run_entry_point(
    schema: type[Schema], config_name: str, main: Callable[[list[str]], None], usage: str
) -> None:
    """Run `main` on the command line's overrides and exit with a code of `runtime.errors`: an error
    that is meant for people is one line. `--help` explains, `--cfg` prints the configuration.
    """
    note_start()
    arguments = sys.argv[1:]
    options = [argument for argument in arguments if argument.startswith("-")]
    overrides = [argument for argument in arguments if not argument.startswith("-")]
    if launched():
        # Its sentences about a peer that has gone come with a stack of C++ frames; ours says who.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        if options and options[0] in ("-h", "--help"):
            settings = composed_yaml(schema, config_name, overrides)
            sys.stdout.write(f"{usage}\n\nSettings and their defaults:\n\n{settings}")
        elif options == ["--cfg"]:
            sys.stdout.write(composed_yaml(schema, config_name, overrides))
        elif options:
            hint = "settings are given as key=value; see --help"
            raise ConfigError(f"unknown option {options[0]}: {hint}")
        else:
            main(overrides)
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
