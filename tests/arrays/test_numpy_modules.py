"""``ampi.numpy.fft`` and the other namespaces below `ampi.numpy` are modules, in whatever way they are imported."""

import subprocess
import sys

import numpy
import pytest
from patience import patience

import ampi
import ampi.numpy as np

SPELLINGS = [
    "import ampi.numpy.fft",
    "from ampi.numpy.fft import fft",
    "from ampi.numpy import fft, linalg",
    "import ampi.numpy.linalg",
    "import ampi.numpy.linalg as la, ampi.numpy.lib.stride_tricks",
    "from ampi.numpy.linalg import *; from ampi.numpy.random import *",
    "import ampi.numpy.polynomial.polynomial; from ampi.numpy import *",
    "import importlib; importlib.import_module('ampi.numpy.linalg'); import numpy.linalg",
    "import ampi.numpy.testing, ampi.numpy.typing, ampi.numpy.exceptions, ampi.numpy.random.mtrand",
]

CHECK = """
import sys
import numpy
{spelling}
import ampi
import ampi.numpy as np
import ampi.numpy.linalg as la
from ampi.numpy.fft import fft as transform

x = numpy.array([3.0, 4.0])
assert numpy.allclose(ampi.grad(lambda x: np.linalg.norm(x))(x), [0.6, 0.8])
assert numpy.allclose(ampi.grad(lambda x: la.norm(x))(x), [0.6, 0.8])
assert numpy.allclose(ampi.grad(lambda x: numpy.linalg.norm(x))(x), [0.6, 0.8])
assert numpy.allclose(ampi.grad(lambda x: np.sum(np.abs(transform(x)) ** 2))(x), 4 * x)
assert sys.modules["ampi.numpy.linalg"] is np.linalg
compiled = [name for name in sys.modules if name.startswith("ampi.numpy.") and name.rpartition(".")[2][0] == "_"]
assert not compiled, compiled
"""


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_derivatives_are_right_after_any_import(spelling):
    command = [sys.executable, "-c", CHECK.format(spelling=spelling)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=patience(60), check=False)
    assert result.returncode == 0, result.stderr


def test_names_of_the_star_are_numpys():
    assert set(np.__all__) == set(numpy.__all__)
    assert np.__version__ == numpy.__version__


def test_what_numpy_has_not_is_not_found():
    with pytest.raises(ModuleNotFoundError, match=r"ampi\.numpy\.nothing"):
        __import__("ampi.numpy.nothing")
    with pytest.raises(AttributeError):
        _ = np.__wrapped__


def test_modules_are_numpys_in_kernels():
    @ampi.kernel
    def solve(a, b):
        return np.linalg.solve(a, b)

    a, b = numpy.array([[2.0, 1.0], [0.5, 3.0]]), numpy.array([1.0, 2.0])
    found = ampi.grad(lambda b: np.sum(solve(a, b)))(b)
    assert numpy.allclose(found, numpy.linalg.inv(a).sum(axis=0))
