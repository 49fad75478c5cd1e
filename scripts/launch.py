"""torchrun, with the exit code of its ranks: python scripts/launch.py [TORCHRUN OPTION ...] SCRIPT
[KEY=VALUE ...].

torchrun itself ends with 1 whatever its ranks ended with, and after a signal too, so that a
scheduler could not tell a run that was preempted and saved (75) from one that failed. Here it is
the code with which the ranks of this machine left.
"""

import os
import sys
import tempfile
from pathlib import Path

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from training.launch import EXIT_CODES_FOLDER, common_exit_code


def main(arguments: list[str]) -> int:
    """Run torchrun in this process, which receives its signals; returns the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ[EXIT_CODES_FOLDER] = folder
        try:
            run.main(arguments)
        except SignalException as error:
            code = 128 + error.sigval
        except ChildFailedError as error:
            sys.stderr.write(f"{error}\n")
            code = 1
        else:
            return 0
        common = common_exit_code(Path(folder))
        return code if common is None else common


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
