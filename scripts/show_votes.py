"""Print the votes for some ARC test inputs: python scripts/show_votes.py ARC_TASKS TASKS."""

import sys

from apps.reports.votes import main

if __name__ == "__main__":
    sys.exit(main())
