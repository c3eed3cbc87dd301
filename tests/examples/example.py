"""Helpers of the tests of the examples: programs are loaded, started, and compared with NumPy on one rank."""

import importlib.util
import pathlib
import sys

import numpy
import pytest
from mpi4py import MPI

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def load(name, folder=""):
    """The module ``examples/NAME/NAME.py``, or that in a folder of another name."""
    path = EXAMPLES / (folder or name) / f"{name}.py"
    sys.path.insert(0, str(path.parent))  # where Python puts what a program imports beside it
    try:
        spec = importlib.util.spec_from_file_location(f"example_{name}", path)
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # where pickle looks for functions
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


def complex_step(function, x, step=1e-30):
    """The gradient of a real function of a real array that NumPy computes with complex numbers as well."""
    x = numpy.asarray(x)
    gradient = numpy.zeros(x.shape)
    for index in numpy.ndindex(x.shape):
        moved = x.astype(complex)
        moved[index] += 1j * step
        gradient[index] = function(moved).imag / step
    return gradient


def few_ranks(most=2):
    """Skip the test on more ranks than cores, where a sequence of many gradients takes long."""
    if MPI.COMM_WORLD.size > most:
        pytest.skip(f"on {most} ranks at most; gradients are compared on more of them")


def started(mpiexec, ranks, name, folder, picture, *options, timeout=300):
    """What a program prints under ``python -m ampi.run``, once it has drawn its picture."""
    options = [str(option) for option in options]
    program = EXAMPLES / folder / f"{name}.py"
    done = mpiexec(ranks, "-m", "ampi.run", program, *options, "--picture", picture, timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert picture.stat().st_size > 3000 and picture.read_bytes().startswith(b"\x89PNG")
    assert "Warning" not in done.stderr, done.stderr
    return done.stdout
