"""pretrain.py whose ranks kill themselves: -m harness.dying FOLDER RANK:STEP,... KEY=VALUE ...

Each rank named dies before that step, once: FOLDER keeps account. For torchrun, which starts a
command and no function.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from harness.processes import pretrain
from training.launch import env_rank
from training.trainer import Trainer


def main(folder: Path, deaths: list[str], overrides: list[str]) -> None:
    """Arm this process and train."""
    train_step = Trainer._train_step

    def mortal(trainer: Trainer, batch: Any) -> None:
        death = f"{env_rank()}:{trainer.progress.step + 1}"
        if death in deaths and not (folder / death).exists():
            (folder / death).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        train_step(trainer, batch)

    Trainer._train_step = mortal
    pretrain(*overrides)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2].split(","), sys.argv[3:])
