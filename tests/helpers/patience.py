"""Time limits after which tests count a program as hung; scaled for slow or busy machines.

``AMPI_TEST_PATIENCE=4`` makes all limits four times as long.
"""

import os

FACTOR = float(os.environ.get("AMPI_TEST_PATIENCE", "1"))


def patience(seconds):
    """A time limit for a quiet machine, scaled to this one."""
    return seconds * FACTOR
