"""Watch a model solve puzzles, on a local web page: python scripts/viewer.py [CHECKPOINT ...]."""

import sys

from apps.viewer.command import main

if __name__ == "__main__":
    sys.exit(main())
