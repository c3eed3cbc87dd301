"""How much ampi checks while a program runs: the setting of the environment variable ``AMPI_CHECK``.

Not set: what can be seen at next to no cost.  ``full``: everything that is known to be checkable, whatever it costs.
``off``: nothing that NumPy and Python do not show by themselves (nothing outside ampi is changed then).
"""

import os
from collections.abc import Collection

from ..errors import AmpiError

FULL, DEFAULT, OFF = "full", "", "off"


def setting(name: str, values: Collection[str], what: str) -> str:
    """The value of an environment variable, in small letters; empty if it is not set.

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
    """The level of checks that ``AMPI_CHECK`` asks for."""
    return setting("AMPI_CHECK", (FULL, OFF), "'full' or 'off', or not be set")


level = read_level()
strict = level == FULL
"""Whether a derivative that is dropped where an array leaves for plain NumPy is an error, and not a warning."""

intercepts = setting("AMPI_INTERCEPT", ("on", "off"), "'off', or not be set") != "off"
"""Whether C functions of NumPy and of other packages are redirected while a tape records (see `interception`)."""

whole = False
"""Whether the program is differentiated as it stands: ``x.item()`` keeps derivatives then, and where a number would
lose its derivative is an error."""


def is_full() -> bool:
    """Whether everything is to be checked."""
    return level == FULL
