"""pretrain.py whose ranks kill themselves: -m harness.dying FOLDER RANK:STEP,... KEY=VALUE ...

Each rank named dies before that step, once: FOLDER keeps account. For torchrun, which starts a
command and no function. And a rank that looks for the others and does no more.
"""

import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

from harness.processes import pretrain
from harness.steps import before_step
from runtime.process import env_rank, env_world_size


def main(folder: Path, deaths: list[str], overrides: list[str]) -> None:
    """Arm this process and train."""

    def die(death: str, trainer: Any) -> None:
        if not (folder / death).exists():
            (folder / death).touch()
            os.kill(os.getpid(), signal.SIGKILL)

    for death in deaths:
        rank, step = map(int, death.split(":"))
        if rank == env_rank():
            before_step(step, partial(die, death))
    pretrain(*overrides)


def meet_at(port: int, timeout: float) -> None:
    """Meet the other ranks in a store on this machine, and print their prefix, or why not."""
    from torch.distributed import TCPStore

    from runtime.errors import RankError
    from runtime.ranks import meet

    store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    try:
        sys.stdout.write(meet(store, env_rank(), env_world_size(), timeout))
    except RankError as error:
        sys.stdout.write(str(error))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2].split(","), sys.argv[3:])
