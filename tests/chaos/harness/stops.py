"""pretrain.py with ranks that die or wait before some steps; a command, because launchers need one:

    -m harness.stops FOLDER die RANK:STEP,... MUTANT KEY=VALUE ...
    -m harness.stops FOLDER wait STEP,... MUTANT KEY=VALUE ...

A rank dies once at each of its places, which FOLDER records. A waiting rank leaves a file
`STEP RANK PID` there, and goes on when a file `go STEP` appears.
"""

import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

from harness import mutants
from harness.processes import pretrain
from harness.steps import before_step, wait_for
from runtime.process import env_rank, env_world_size


def _die(file: Path, trainer: Any) -> None:
    if not file.exists():
        file.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def _wait(folder: Path, step: int, trainer: Any) -> None:
    (folder / f"{step} {env_rank()} {os.getpid()}").touch()
    wait_for(folder / f"go {step}")


def main(folder: Path, what: str, places: str, mutant: str, *overrides: str) -> None:
    """Arm this process and train."""
    for place in places.split(","):
        rank, _, step = place.rpartition(":")
        if what == "wait":
            before_step(int(step), partial(_wait, folder, int(step)))
        elif rank == str(env_rank()):
            before_step(int(step), partial(_die, folder / place))
    if mutant:
        mutants.take_out(mutant)
    pretrain(*overrides)


def meet_at(port: int, timeout: float) -> None:
    """Meet the other ranks in a store on this machine, and print their prefix or the error."""
    from torch.distributed import TCPStore

    from runtime.errors import RankError
    from runtime.ranks import agree_on_prefix

    store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    try:
        sys.stdout.write(agree_on_prefix(store, env_rank(), env_world_size(), timeout))
    except RankError as error:
        sys.stdout.write(str(error))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
