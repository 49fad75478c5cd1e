"""Watch a model think, on a page of this machine: python scripts/viewer.py [CHECKPOINT ...]."""

import sys

from apps.viewer.command import main

if __name__ == "__main__":
    sys.exit(main())
