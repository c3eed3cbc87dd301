"""How much ampi checks while a program runs: the setting of the environment variable ``AMPI_CHECK``.

Not set: what can be seen at next to no cost.  ``full``: everything that is known to be checkable, whatever it costs.
``off``: nothing that NumPy and Python do not show by themselves (nothing outside ampi is changed then).
"""

import os

from .errors import AmpiError

FULL, DEFAULT, OFF = "full", "", "off"


def read_level(text: str | None) -> str:
    """The level of checks that a value of ``AMPI_CHECK`` asks for.

    Raises
    ------
    AmpiError
        The value is none of those that there are.
    """
    found = (text or "").strip().lower()
    if found not in (FULL, DEFAULT, OFF):
        raise AmpiError(f"the environment variable AMPI_CHECK is {text!r}; it can be 'full' or 'off', or not be set")
    return found


def read_switch(text: str | None) -> bool:
    """Whether NumPy's C functions are redirected, by a value of ``AMPI_INTERCEPT``.

    Raises
    ------
    AmpiError
        The value is none of those that there are.
    """
    found = (text or "").strip().lower()
    if found not in ("", "on", "off"):
        raise AmpiError(f"the environment variable AMPI_INTERCEPT is {text!r}; it can be 'off', or not be set")
    return found != "off"


level = read_level(os.environ.get("AMPI_CHECK"))
strict = level == FULL
"""Whether a derivative that is dropped where an array leaves for plain NumPy is an error, and not a warning."""

intercepts = read_switch(os.environ.get("AMPI_INTERCEPT"))
"""Whether C functions of NumPy and of other packages are redirected while a tape records (see `interception`)."""

whole = False
"""Whether the program is differentiated as it stands: ``x.item()`` keeps derivatives then, and where a number would
lose its derivative is an error."""


def is_full() -> bool:
    """Whether everything is to be checked."""
    return level == FULL
