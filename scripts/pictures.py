"""Make the pictures of the README and the docs: python scripts/pictures.py."""

import sys

from apps.upkeep.pictures import main

if __name__ == "__main__":
    sys.exit(main())
