"""The GPU programme: tests and speed on a CUDA device in one command, `make gpu`."""

import signal
import sys

from apps.bench.gpu_programme import main, stop

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)
    sys.exit(main())
