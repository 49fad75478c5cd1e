"""List all runs, or watch active ones: python scripts/runs.py [FOLDER] [--watch [RUN]]."""

import sys

from apps.reports.runs import main

if __name__ == "__main__":
    sys.exit(main())
