"""Time what scripts/gpu_programme.py asks for: our code, the published code, the machine."""

import sys

from apps.bench.gpu_speed import main

if __name__ == "__main__":
    main(sys.argv[1:])
