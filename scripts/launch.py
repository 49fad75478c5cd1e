"""Run torchrun and exit with its ranks' exit code: python scripts/launch.py [TORCHRUN OPTION ...]
SCRIPT [KEY=VALUE ...].

torchrun itself exits with 1 after any failure, so a scheduler could not tell a preempted run that
has saved (75) from a failed one. This script exits with the code of this machine's ranks.
"""

import os
import signal
import sys
import tempfile
from pathlib import Path

from runtime.errors import EXIT_PREEMPTED, EXIT_RANK
from runtime.process import EXIT_CODES_FOLDER, PARENT_PID, common_exit_code, end_with_parent


def main(arguments: list[str]) -> int:
    """Run torchrun in this process, which receives its signals, and return the exit code. After
    SIGTERM it is EXIT_PREEMPTED even if no rank has started or none is left.
    """
    # Until torchrun sets its own handlers. An exception could get lost in an import.
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
            # A rank failed, or the node that keeps the store is gone.
            sys.stderr.write(f"{error.__cause__ or error}\n")
            code = 1
        else:
            return 0
        common = common_exit_code(Path(folder))
    return code if common is None or (preempted and common == EXIT_RANK) else common


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
