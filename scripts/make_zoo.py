"""Make a model of the zoo, see `apps.zoo.making`: python -m scripts.make_zoo NAME."""

import sys

from apps.zoo.making import main

if __name__ == "__main__":
    sys.exit(main())
