"""Take a trained model out of Python: python scripts/export.py RUN out.onnx"""

import sys

from apps.export.exporting import main

if __name__ == "__main__":
    sys.exit(main())
