"""The setting ``AMPI_CHECK``: how much ampi checks while a program runs.

Not set: the checks that cost next to nothing.  ``full``: all checks, whatever they cost.  ``off``: only the checks that
change nothing outside ampi.
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
        The values to which it may be set.
    what : str
        These values in words, for the error.

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
"""True if dropping a derivative, where an array becomes a plain NumPy array, is an error and not a warning."""

intercepts = setting("AMPI_INTERCEPT", ("on", "off"), "'off', or not be set") != "off"
"""True if C functions of NumPy and of other packages are redirected while a tape records (see `interception`)."""

whole = False
"""True if the program is differentiated unmodified: ``x.item()`` then keeps derivatives, and a number that would lose
its derivative raises an error."""


def is_full() -> bool:
    """Return whether all checks are switched on."""
    return level == FULL
