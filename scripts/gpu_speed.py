"""Time the train step of the published code, beside scripts/benchmark.py."""

import sys

from apps.bench.gpu_speed import main

if __name__ == "__main__":
    main(sys.argv[1:])
