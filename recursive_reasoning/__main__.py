"""The command `recursive-reasoning`: passes its arguments on to an entry point of the project."""

import runpy
import sys

from runtime.errors import EXIT_CONFIG

_COMMANDS = {
    "train": ("pretrain", "train a model, or resume a run"),
    "evaluate": ("evaluate", "measure a trained model on puzzles"),
    "solve": ("scripts.solve", "solve single puzzles with a trained model"),
    "adapt": ("scripts.adapt", "adapt a model to ARC tasks that it has not seen, and answer them"),
    "view": ("scripts.viewer", "watch a model think, on a page on this machine"),
    "report": ("scripts.report", "write a report of one or more runs"),
    "build": ("scripts.build_dataset", "build a data set"),
}


def main() -> None:
    """Run the entry point named first on the command line with the other arguments."""
    command, *sys.argv[1:] = sys.argv[1:] or ["--help"]
    if command in _COMMANDS:
        runpy.run_module(_COMMANDS[command][0], run_name="__main__", alter_sys=True)
    elif command in ("-h", "--help"):
        lines = "".join(f"  {name:9} {text}\n" for name, (_, text) in _COMMANDS.items())
        usage = "usage: recursive-reasoning COMMAND [ARGUMENT ...]"
        sys.stdout.write(f"{usage}\n\n{lines}\nCOMMAND --help explains a command.\n")
    else:
        from training.config.explain import did_you_mean

        hint = did_you_mean(command, _COMMANDS) or f"; accepted: {', '.join(_COMMANDS)}"
        sys.stderr.write(f"recursive-reasoning: there is no command {command!r}{hint}\n")
        sys.exit(EXIT_CONFIG)


if __name__ == "__main__":
    main()
