"""The setting ``AMPI_CHECK``: how much ampi checks while a program runs.

Not set: what can be seen at next to no cost.  ``full``: everything that is known to be checkable, whatever it costs.
``off``: nothing that NumPy and Python do not show by themselves (nothing outside ampi is changed then).
"""

import os
from collections.abc import Collection

from ..errors import AmpiError

FULL, DEFAULT, OFF = "full", "", "off"


def setting(name: str, values: Collection[str], what: str) -> str:
    """Return the value of an environment variable in lower case; empty if it is not set.

    Parameters
    ----------
    name : str
    values : collection of str
        What it may be set to.
    what : str
        The same in words, for the error.

    Raises
    ------
    AmpiError
        The value is none of these.
    """
    text = os.environ.get(name, "")
    found = text.strip().lower()
    if found and found not in values:
        raise AmpiError(f"the environment variable {name} is {text!r}; it can be {what}")
    return found


def read_level() -> str:
    """Return the level of checks that ``AMPI_CHECK`` asks for."""
    return setting("AMPI_CHECK", (FULL, OFF), "'full' or 'off', or not be set")


level = read_level()
strict = level == FULL
"""True if a derivative that is dropped where an array leaves for plain NumPy is an error, and not a warning."""

intercepts = setting("AMPI_INTERCEPT", ("on", "off"), "'off', or not be set") != "off"
"""True if C functions of NumPy and of other packages are redirected while a tape records (see `interception`)."""

whole = False
"""True if the program is differentiated unmodified: ``x.item()`` keeps derivatives then, and where a number would
lose its derivative is an error."""


def is_full() -> bool:
    """Return whether everything is to be checked."""
    return level == FULL
