"""The environment variable AMPI_CHECK."""

import os
import subprocess
import sys

import pytest

from ampi import AmpiError
from ampi.base import checks


@pytest.mark.parametrize(
    ("text", "level"), [(None, ""), ("", ""), ("full", "full"), (" FULL ", "full"), ("off", "off")]
)
def test_levels(text, level, monkeypatch):
    monkeypatch.delenv("AMPI_CHECK", raising=False)
    if text is not None:
        monkeypatch.setenv("AMPI_CHECK", text)
    assert checks.read_level() == level


@pytest.mark.parametrize("name, value", [("AMPI_CHECK", "ful"), ("AMPI_INTERCEPT", "none"), ("AMPI_ABORT", "no")])
def test_values_that_do_not_exist(name, value):
    environment = {key: one for key, one in os.environ.items() if not key.startswith(("PMI", "HYDRA", "OMPI"))}
    done = subprocess.run(
        [sys.executable, "-c", "import ampi.mpi"], env={**environment, name: value}, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert f"AmpiError: the environment variable {name} is {value!r}; it can be " in done.stderr.splitlines()[-1]


def test_a_value_that_does_not_exist_is_an_error_which_names_the_variable(monkeypatch):
    with pytest.raises(AmpiError, match="AMPI_CHECK is 'ful'; it can be 'full' or 'off'"):
        monkeypatch.setenv("AMPI_CHECK", "ful")
        checks.read_level()
    monkeypatch.undo()
    done = subprocess.run(
        [sys.executable, "-c", "import ampi"], env={**os.environ, "AMPI_CHECK": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ampi.errors.AmpiError: the environment variable AMPI_CHECK is '1'")


CHAINS = """
import numpy
import ampi, ampi.numpy as np

draw = numpy.random.default_rng(0)
for f in (
    lambda x: np.linalg.norm(x),
    lambda x: np.linalg.norm(x.reshape(2, 4), axis=1),
    lambda x: np.interp(x, x, x * x),
    lambda x: np.linalg.slogdet(np.outer(x, x) + np.eye(8))[1],
    lambda x: np.std(x) + np.var(x) + np.prod(x),
    lambda x: np.trapezoid(x, x * x),
):
    for _ in range(20):
        x = draw.uniform(0.5, 2.0, 8)
        value, found = ampi.value_and_grad(lambda x: np.sum(f(x) * 1.5))(x)
        assert value == numpy.sum(numpy.asarray(f(x)) * 1.5)
        moved = [numpy.sum(f(x + s * 1e-6)) * 1.5 for s in (1, -1)]
        assert abs(sum(found) - (moved[0] - moved[1]) / 2e-6) < 1e-6 * (1 + abs(sum(found)))
"""


def test_values_that_are_numpys_and_not_the_formulas_are_no_change_by_others():
    done = subprocess.run(
        [sys.executable, "-c", CHAINS], env={**os.environ, "AMPI_CHECK": "full"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
