"""List all runs, or follow those at work: python scripts/runs.py [FOLDER] [--watch [RUN]]."""

import sys

from apps.reports.runs import main

if __name__ == "__main__":
    sys.exit(main())
