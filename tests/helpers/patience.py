"""Time limits of tests for what should not take long: longer ones on slow or busy machines.

``AMPI_TEST_PATIENCE=4`` waits four times as long for everything before it counts as hung.
"""

import os

FACTOR = float(os.environ.get("AMPI_TEST_PATIENCE", "1"))


def patience(seconds):
    """Seconds that a quiet machine would need at most, as many as it takes on this one."""
    return seconds * FACTOR
