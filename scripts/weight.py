"""Weigh the project: python -m scripts.weight."""

import pretrain
from apps.bench.weight import main

if __name__ == "__main__":
    main(pretrain.main)
