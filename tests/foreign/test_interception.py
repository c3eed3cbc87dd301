"""AMPI_INTERCEPT=off and unknown layouts: arrays have the same derivatives, and what Python can see draws warnings."""

import os
import pathlib
import subprocess
import sys

import pytest

import ampi

PROGRAM = """
import warnings
import numpy
import ampi, ampi.numpy as np
from ampi.foreign.numpy_in_c import redirected

x0 = numpy.array([0.7, 1.3, 2.1])
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    with ampi.Tape():
        pass
unknown = [str(w.message) for w in said]
assert not redirected.is_working


def program(x):
    y = np.zeros((2, 3))
    y[0], y[1, ::2] = numpy.sin(x), x[:2] * x[0]
    z = numpy.concatenate([y.ravel(), numpy.where(x > 1.0, x, x * x)])
    z[1:] *= z[:-1]
    return numpy.sum(numpy.linalg.norm(z) * numpy.einsum("i,i", z, z)) + numpy.add.reduce(z[::2])


ampi.testing.taylor_test(program, x0)
ampi.testing.dot_test(program, x0)


def warned(f):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = ampi.grad(f)(x0)
    return found, [w for w in said if issubclass(w.category, ampi.ActivityWarning)]


def put(x):
    plain = numpy.zeros(3)
    plain[0] = x[0]
    return np.sum(plain) + x[1]


for f in (put, lambda x: float(x[0]) + x[1], lambda x: x.tolist()[0] + x[1], lambda x: numpy.float64(x[0]) + x[1]):
    found, said = warned(f)
    assert found.tolist() == [0.0, 1.0, 0.0], found
    assert [w.filename for w in said] == [__file__], [str(w.message) for w in said]


def assign(x):
    plain = numpy.zeros(3)
    plain[:] = x
    return np.sum(plain) + x[1]


found, said = warned(assign)  # which only the C code sees
assert found.tolist() == [0.0, 1.0, 0.0] and not said

for f in (lambda x: numpy.multiply(x, x, out=numpy.zeros(3)), lambda x: numpy.random.default_rng(0).normal(x)):
    try:
        ampi.grad(f)(x0)
    except ampi.ActivityError:
        continue
    raise AssertionError("no error")

from mpi4py import MPI

try:
    ampi.grad(lambda x: MPI.COMM_SELF.allreduce(x)[0])(x0)
except ampi.ActivityError as error:
    assert "ampi.COMM_WORLD" in str(error)
else:
    raise AssertionError("no error")
print(unknown)
"""
UNKNOWN = """
import ampi.interception.entry_points as known  # before the modules that use it


def fail(*_):
    raise known.Unknown("the buffer protocol")


known.buffer_slot = fail
"""


@pytest.mark.parametrize("why", ["switched off", "unknown layout"])
def test_without_interception(why, tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM if why == "switched off" else UNKNOWN + PROGRAM)
    env = {name: value for name, value in os.environ.items() if "PMI" not in name and name != "AMPI_CHECK"}
    env.pop("AMPI_INTERCEPT", None)
    env["PYTHONPATH"] = str(pathlib.Path(ampi.__file__).parents[1])
    if why == "switched off":
        env["AMPI_INTERCEPT"] = "off"
    done = subprocess.run([sys.executable, str(path)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if why == "switched off":
        assert done.stdout.splitlines()[-1] == "[]"
    else:
        assert "unknown layout: the buffer protocol" in done.stdout and "AMPI_INTERCEPT=off" in done.stdout


def test_other_values_of_the_variable_are_errors():
    env = {**os.environ, "AMPI_INTERCEPT": "no"}
    done = subprocess.run([sys.executable, "-c", "import ampi"], env=env, capture_output=True, text=True)
    assert done.returncode and "the environment variable AMPI_INTERCEPT is 'no'; it can be 'off'" in done.stderr
