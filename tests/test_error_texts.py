"""Errors and warnings as users see them: no exceptions of ampi's own before them, and the program's line."""

import math
import traceback
import warnings

import numpy
import pytest
from mpi4py import MPI

import ampi
import ampi.numpy as np
from ampi.base import checks

intercepting = pytest.mark.skipif(not checks.intercepts, reason="nothing is redirected")


@ampi.kernel
def unknown_call(x):
    return open(x)


@ampi.kernel
def wrong_arguments(x):
    return np.sum(x, 1, 2, 3, 4, 5, 6)


@ampi.kernel
def wrong_dtype(x):
    return np.zeros(3, dtype=x)


def twice(x, y):
    return x + y


@ampi.kernel
def wrong_call(x):
    return np.sum(twice(x))


@ampi.kernel
def of_anything(x):
    return x


def assigned(target, key, value):
    target[key] = value
    return np.sum(target)


def truncated(x):
    comm, y = ampi.COMM_SELF, np.zeros(1)
    request = comm.Irecv(y, 0)
    comm.Send(x, 0)
    request.Wait()
    return np.sum(y)


ERRORS = {
    "read past the end": lambda x: x[7],
    "element that is no index": lambda x: x["a"],
    "read by too many indices": lambda x: x[0, 1],
    "write past the end": lambda x: assigned(x * 1.0, 7, x[0]),
    "write by too many indices": lambda x: assigned(x * 1.0, (0, 1), x[0]),
    "write of another shape": lambda x: assigned(x * 1.0, slice(2), x),
    "write of a text": lambda x: assigned(x * 1.0, 0, "a"),
    "write into a number": lambda x: assigned(np.sum(x), (), x[0]),
    "write into a plain array": lambda x: numpy.multiply(x, x, out=numpy.zeros(3)),
    "write into an array for integers": lambda x: assigned(np.zeros((2, 3)), 0, x.reshape(1, 3, 1)),
    "shapes that do not fit": lambda x: x + x[:2],
    "products that do not fit": lambda x: x @ np.ones((2, 2)),
    "no rule": lambda x: numpy.roots(x)[0],
    "no rule for these arguments": lambda x: np.linalg.svd(np.outer(x, x[:2]))[0][0, 0],
    "random numbers": lambda x: numpy.random.default_rng(0).normal(x),
    "a container without a number": lambda x: {}[x[0]],
    "an attribute that is not there": lambda x: x.nothing,
    "a function of the tape after its end": lambda x: ampi.Tape().gradient(x, x),
    "watched outside": lambda x: ampi.Tape().watch(x),
    "kernel: a call": lambda x: unknown_call(x),
    "kernel: arguments of NumPy's function": lambda x: wrong_arguments(x),
    "kernel: a dtype": lambda x: wrong_dtype(x),
    "kernel: arguments of a function": lambda x: wrong_call(x),
    "kernel: an argument": lambda x: of_anything(object()),
    "kernel: an object array": lambda x: of_anything(numpy.array([None])),
    "communicator of mpi4py": lambda x: MPI.COMM_SELF.allreduce(x),
    "message that is cut": truncated,
    "message in a dtype": lambda x: ampi.COMM_SELF.Allreduce([x, MPI.INT], np.zeros(3)),
    "message to nobody": lambda x: ampi.COMM_SELF.Send(x, 17),
    "a list of active numbers of odd shapes": lambda x: np.array([x, x[:2]]),
    "seeds": lambda x: ampi.vjp(np.sin, x)[1](numpy.ones(7)),
    "jvp of another shape": lambda x: ampi.jvp(np.sin, (ampi.value(x),), (numpy.ones(7),)),
    "custom rule without an adjoint": lambda x: ampi.custom_vjp(np.sin)(x),
    "integer to watch": lambda x: ampi.grad(np.sum)(numpy.arange(3)),
    "second derivative that is not known": lambda x: ampi.hvp(
        lambda y: numpy.roots(y)[0], ampi.value(x), numpy.ones(3)
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_no_other_exceptions_before_an_error(name):
    """Causes that tell the user something would be chained on purpose (``from``), as an OSError is."""
    with pytest.raises(Exception) as raised:
        ampi.grad(ERRORS[name])(numpy.array([0.7, 1.3, 2.1]))
    text = "".join(traceback.format_exception(raised.value))
    assert "During handling of the above exception" not in text, text
    assert "The above exception was the direct cause" not in text, text
    assert any(frame.filename == __file__ for frame in traceback.extract_tb(raised.value.__traceback__))


def test_an_error_of_a_loop_is_that_of_its_step():
    step = lambda state: {"u": state["u"] * state["v"][9]}
    program = lambda x: np.sum(ampi.timeloop(step, {"u": x, "v": np.ones(2)}, 3)["u"])
    with pytest.raises(IndexError) as raised:
        ampi.grad(program)(numpy.ones(2))
    assert "During handling" not in "".join(traceback.format_exception(raised.value))


def plain_assignment(x):
    numpy.zeros(3)[:] = x
    return x[0]


def single_elements(x):
    total = 0.0
    for k in range(60_000):
        total = total + x[k % 3] * 1e-6
    return total


WARNINGS = {
    "float": lambda x: float(x[0]) + x[1],
    "item": lambda x: x[0].item() + x[1],
    "math": lambda x: math.sin(x[0]) + x[1],
    "bytes": lambda x: len(x.tobytes()) + x[1],
    "list in a call of NumPy's Python code": lambda x: numpy.linspace(0.0, 1.0, int(x[1])).sum() + x[1],
    "constant": lambda x: np.sum(np.zeros(3)),
    "many elements": single_elements,
    "plain assignment": pytest.param(plain_assignment, marks=intercepting),
    "conversion": pytest.param(lambda x: numpy.sum(numpy.asarray(x)) + x[1], marks=intercepting),
}
CASES = [
    pytest.param(*f.values, marks=f.marks, id=name) if hasattr(f, "values") else pytest.param(f, id=name)
    for name, f in WARNINGS.items()
]


@pytest.mark.parametrize("f", CASES)
def test_a_warning_names_the_line_of_the_program(f):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        ampi.grad(f)(numpy.array([0.7, 1.3, 2.1]))
    said = [w for w in said if issubclass(w.category, (ampi.ActivityWarning, ampi.PerformanceWarning))]
    assert said and all(w.filename == __file__ for w in said), [f"{w.filename}:{w.lineno}: {w.message}" for w in said]
