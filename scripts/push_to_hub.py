"""Share a model on the Hugging Face Hub: python scripts/push_to_hub.py RUN OWNER/NAME."""

import sys

from apps.hub.pushing import main

if __name__ == "__main__":
    sys.exit(main())
