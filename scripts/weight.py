"""Weigh the project: python -m scripts.weight [--json FILE]."""

import sys

import pretrain
from apps.bench.weight import main

if __name__ == "__main__":
    sys.exit(main(pretrain.main))
