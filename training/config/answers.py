"""Answer the flags that ask for something else than a run, by Hydra itself where it can."""

import argparse
import io
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from textwrap import fill
from typing import Any

from hydra import compose
from omegaconf import OmegaConf

from runtime.errors import ConfigError
from runtime.schema import Schema
from training.config.composition import opened_hydra
from training.config.describe import about, settings_of
from training.config.explain import unknown_key
from training.config.overrides import hydra_parser, parse_overrides
from training.config.source import Source, source_of


def answer(
    schema: type[Schema], config_name: str, args: argparse.Namespace, usage: str
) -> str | None:
    """Return the answer to `--help`, `--hydra-help`, `--cfg`, `--info` or `--shell-completion`;
    None where none of them is given.

    Raises:
        ConfigError: an override, a flag's value, or a file is wrong.
    """
    if args.shell_completion:
        return _completion(config_name, args)
    if not (args.help or args.hydra_help or args.cfg or args.info):
        return None
    source, out, err = source_of(config_name, args), io.StringIO(), io.StringIO()
    with opened_hydra(schema, source, parse_overrides(args.overrides)) as (hydra, lines):
        try:
            with redirect_stdout(out), redirect_stderr(err):
                _ask(hydra, schema, source, lines, args, usage)
        except SystemExit:
            raise ConfigError(err.getvalue().strip()) from None
    sys.stderr.write(err.getvalue())
    return out.getvalue()


def _ask(
    hydra: Any,
    schema: type[Schema],
    source: Source,
    lines: list[str],
    args: argparse.Namespace,
    usage: str,
) -> None:
    """Print the answer."""
    name, all_lines = source.config_name, [*source.usual_lines(), *lines]
    if args.topics:
        values = OmegaConf.to_container(compose(name, lines), resolve=True)
        sys.stdout.write(_topics(args.topics, source, schema, values))
    elif args.help:
        sys.stdout.write(_help(usage, source))
        hydra.show_cfg(name, lines, "job", None, args.resolve)
    elif args.hydra_help:
        args.overrides = [line for line in lines if line.startswith("hydra")]
        hydra.hydra_help(name, hydra_parser(), args)
    elif args.cfg:
        shown = lines if args.cfg == "job" else all_lines
        hydra.show_cfg(name, shown, args.cfg, args.package, args.resolve)
    else:
        hydra.show_info(args.info, name, all_lines)


def _help(usage: str, source: Source) -> str:
    """Return the beginning of `--help`."""
    flags = hydra_parser().format_help().partition("options:\n")[2]
    groups = [f"  {name}: {', '.join(all)}" for name, all in sorted(source.groups.items())]
    listed = "\n".join(fill(line, 100, subsequent_indent="      ") for line in groups)
    return (
        f"{usage.rstrip()}\n\nFlags, as Hydra has them:\n{flags}\n"
        f"Groups and their choices, as GROUP=CHOICE:\n{listed}\n\n"
        "Settings and their defaults, as KEY=VALUE. What they do is told by --help KEY\n"
        "and --help GROUP, such as --help lr, --help arch.\n\n"
    )


def _topics(topics: Sequence[str], source: Source, schema: type[Schema], values: Any) -> str:
    """Return what `--help KEY` and `--help GROUP` tell of settings."""
    groups, told = source.groups, []
    for topic in topics:
        found = about(settings_of(schema, values), topic) or about(settings_of(schema, None), topic)
        if topic in groups:
            told.append(fill(f"{topic}: {', '.join(groups[topic])}", 100, subsequent_indent="    "))
        elif not found:
            raise ConfigError(unknown_key(schema, topic, groups=groups))
        told += map(str, found)
    return "\n".join(told) + "\n"


def _completion(config_name: str, args: argparse.Namespace) -> str:
    """Return what Hydra prints for a shell: the script to install, or the words that can follow."""
    is_query = any(override.startswith("query=") for override in args.overrides)
    source, out = source_of(config_name, args), io.StringIO()
    try:
        with source.hydra() as hydra, redirect_stdout(out), redirect_stderr(io.StringIO()):
            hydra.shell_completion(source.config_name, args.overrides)
    except (Exception, SystemExit) as error:
        if is_query:
            return ""  # What is being typed need not make sense yet, and the shell shows all else.
        raise ConfigError(f"--shell-completion: {' '.join(str(error).split())}") from None
    return out.getvalue()
