"""Export a trained model to ONNX: python scripts/export.py RUN out.onnx"""

import sys

from apps.export.exporting import main

if __name__ == "__main__":
    sys.exit(main())
