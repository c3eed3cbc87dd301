"""The environment variable AMPI_CHECK."""

import os
import subprocess
import sys

import pytest

from ampi import AmpiError, checks


@pytest.mark.parametrize(
    ("text", "level"), [(None, ""), ("", ""), ("full", "full"), (" FULL ", "full"), ("off", "off")]
)
def test_levels(text, level):
    assert checks.read_level(text) == level


def test_a_value_that_does_not_exist_is_an_error_which_names_the_variable():
    with pytest.raises(AmpiError, match="AMPI_CHECK is 'ful'; it can be 'full' or 'off'"):
        checks.read_level("ful")
    done = subprocess.run(
        [sys.executable, "-c", "import ampi"], env={**os.environ, "AMPI_CHECK": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ampi.errors.AmpiError: the environment variable AMPI_CHECK is '1'")
