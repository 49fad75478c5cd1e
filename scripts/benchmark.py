"""Measure training, evaluation, data loading and the optimizers on the device at hand."""

from apps.bench.benchmark import main

if __name__ == "__main__":
    main()
