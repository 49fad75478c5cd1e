"""Train for some minutes, save and stop; the same command goes on: `make gpu-train`."""

import sys

from apps.bench.gpu_train import main

if __name__ == "__main__":
    sys.exit(main())
