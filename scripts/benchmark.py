"""Measure training, evaluation, data loading and the optimizers on the device at hand."""

import sys

from apps.bench.benchmark import main

if __name__ == "__main__":
    sys.exit(main())
