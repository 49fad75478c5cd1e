"""torchrun, with the exit code of its ranks: python scripts/launch.py [TORCHRUN OPTION ...] SCRIPT
[KEY=VALUE ...].

torchrun itself ends with 1 whatever its ranks ended with, so that a scheduler could not tell a run
that was preempted and saved (75) from one that failed. Here it is the code of this machine's ranks.
"""

import os
import signal
import sys
import tempfile
from pathlib import Path

from runtime.errors import EXIT_PREEMPTED, EXIT_RANK
from runtime.process import EXIT_CODES_FOLDER, PARENT_PID, common_exit_code, end_with_parent


def main(arguments: list[str]) -> int:
    """Run torchrun in this process, which receives its signals; returns the exit code.

    After SIGTERM it is EXIT_PREEMPTED also where no rank was left, or there yet, to say so.
    """
    # Until torchrun has handlers of its own. An exception could get lost in what is being imported.
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(EXIT_PREEMPTED))
    end_with_parent()
    if PARENT_PID in os.environ:
        os.environ[PARENT_PID] = str(os.getpid())  # The ranks end with this process.
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError

    preempted = False
    with tempfile.TemporaryDirectory() as folder:
        os.environ[EXIT_CODES_FOLDER] = folder
        try:
            run.main(arguments)
        except SignalException as error:
            preempted = error.sigval == signal.SIGTERM
            code = EXIT_PREEMPTED if preempted else 128 + error.sigval
        except (ChildFailedError, RendezvousError) as error:
            # A rank failed; or the node that keeps the store is gone.
            sys.stderr.write(f"{error.__cause__ or error}\n")
            code = 1
        else:
            return 0
        common = common_exit_code(Path(folder))
    return code if common is None or (preempted and common == EXIT_RANK) else common


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
