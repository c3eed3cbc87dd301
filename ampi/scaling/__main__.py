"""``python -m ampi.scaling study.toml``."""

import sys

from ampi.scaling.command import main

if __name__ == "__main__":
    sys.exit(main())
