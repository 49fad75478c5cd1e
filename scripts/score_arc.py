"""Score saved answers to ARC tasks: python scripts/score_arc.py PREDICTIONS.npz... TASKS.json"""

import sys

from apps.reports.score_arc import main

if __name__ == "__main__":
    sys.exit(main())
