"""Watch a model solve puzzles, on a local web page: python scripts/viewer.py [CHECKPOINT ...].

CHECKPOINT is a run's folder, a checkpoint in it, a published `step_N` file, zoo:NAME, or a folder
with runs in it (default: checkpoints and the zoo). The command prints an address, which only a
browser on this machine can open. Nothing leaves the machine.
"""

import argparse
import os
import sys
import webbrowser
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from apps.zoo.address import SCHEME, names
from dataset.command_line import integer
from runtime.errors import EXIT_CONFIG, CheckpointError
from runtime.text import many, run_named
from training.checkpoint.addresses import parse_address


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve the page until Ctrl-C; return the exit code."""
    options = _parser().parse_args(arguments)
    from apps.viewer.server import Server
    from apps.viewer.shelf import find

    try:
        for path in (*options.checkpoints, *(options.data or [])):
            if not path.exists() and parse_address(path) is None:
                return _refuse(f"{path}: no such file or folder")
    except CheckpointError as error:
        return _refuse(str(error))
    checkpoints, data = options.checkpoints, options.data or [Path("data")]
    if not checkpoints:
        checkpoints = [Path(f"{SCHEME}{name}") for name in names()]
        if (usual := Path("checkpoints")).is_dir():
            checkpoints.insert(0, usual)
    look = partial(find, checkpoints, data)
    shelf = look()
    if not shelf.models:
        places = ", ".join(map(str, options.checkpoints)) or "checkpoints"
        return _refuse(f"{places}: no run found; train one (make demo), or name a run's folder")
    try:
        server = Server(look, options.port)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        return _refuse(f"--port {options.port}: {reason}; --port 0 takes any free one")
    folders = len({each.folder for each in shelf.data})
    found = f"{many(len(shelf.models), 'checkpoint')}, {many(folders, 'data set')}"
    address = "http://{}:{}".format(*server.server_address)
    sys.stdout.write(f"{found}\n{address} (Ctrl-C ends it)\n")
    sys.stdout.flush()
    if options.open:
        webbrowser.open(address)
    with server, suppress(KeyboardInterrupt):
        server.serve_forever()
    return 0


def _parser() -> argparse.ArgumentParser:
    summary = str(__doc__).partition("\n\n")[0]
    parser = argparse.ArgumentParser(prog="viewer.py", description=summary)
    what = "runs, checkpoints, or folders with runs (default: checkpoints, and the zoo)"
    parser.add_argument("checkpoints", nargs="*", type=run_named, metavar="CHECKPOINT", help=what)
    folders = "a folder with data sets; can be repeated (default: data)"
    parser.add_argument("--data", action="append", type=Path, metavar="FOLDER", help=folders)
    port = "port on the loopback address (default: 8765; 0: any free port)"
    parser.add_argument("--port", type=integer(0, 65535), default=8765, metavar="N", help=port)
    parser.add_argument("--open", action="store_true", help="open the page in the usual browser")
    return parser


def _refuse(reason: str) -> int:
    sys.stderr.write(f"error: {reason}\n")
    return EXIT_CONFIG
