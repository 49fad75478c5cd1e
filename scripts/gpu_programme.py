"""The GPU programme: tests and speed on a CUDA device in one command, `make gpu`."""

import signal
import sys

from apps.bench.gpu_programme import main

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # It ends the part that runs, too.
    sys.exit(main())
