"""Lists and tuples with active numbers and arrays in them, which NumPy makes arrays of: it computes the same, and the
derivative is right or there is a warning or an error."""

import collections
import operator
import warnings

import numpy
import pytest

import ampi
import ampi.numpy
from ampi.arrays import losses as outside

X0 = numpy.array([0.7, 1.3, 0.45])
A = numpy.array([[2.0, -1.0, 0.5], [0.25, 1.5, 3.0], [1.0, 1.0, -2.0]])
H = 1e-6

NUMBERS = (*numpy.typecodes["AllInteger"], *numpy.typecodes["AllFloat"], "?")
OPERATORS = {
    **{name: getattr(operator, name) for name in "add sub mul truediv floordiv mod pow".split()},
    "divmod": lambda a, b: divmod(a, b)[1],
}
LISTS = {
    "list": lambda x: [x[0], 2.0, x[2]],
    "tuple": lambda x: (x[1], 1, x[0]),
    "nested": lambda x: [[x[0], 1.0, 3], (2.0, x[1], x[2])],
    "arrays": lambda x: [x, 2 * x],
    "one in a list": lambda x: [[x[0]]],
}


def weighted(result):
    """A sum of the numbers with different weights."""
    return (result * numpy.cos(numpy.arange(result.size)).reshape(result.shape)).sum()


def examine(program):
    """The warning or error of a recorded program; None if there was none, and values and gradient are right."""
    outside._warned.clear()
    expected = program(numpy, X0)
    with warnings.catch_warnings(record=True) as caught, numpy.errstate(all="ignore"):
        warnings.simplefilter("always")
        try:
            with ampi.Tape() as tape:
                x = tape.watch(X0)
                y = program(ampi.numpy, x)
                total = weighted(y).real
        except ampi.AmpiError as error:
            return str(error)
    said = [str(w.message) for w in caught if w.category is ampi.ActivityWarning]
    if said:
        return said[0]
    numpy.testing.assert_array_equal(numpy.asarray(y), numpy.asarray(expected))
    assert numpy.asarray(y).dtype == numpy.asarray(expected).dtype
    assert not isinstance(expected, numpy.ndarray) or isinstance(y, ampi.ndarray)
    moved = [weighted(program(numpy, X0 + h)) for e in numpy.eye(3) for h in (H * e, -H * e)]
    gradient = [(right - left).real / (2 * H) for right, left in zip(moved[::2], moved[1::2])]
    found = tape.gradient(total, x)
    numpy.testing.assert_allclose(found, gradient, rtol=1e-6, atol=1e-7)
    return None


@pytest.mark.parametrize("made", LISTS.values(), ids=LISTS)
@pytest.mark.parametrize("compute", OPERATORS.values(), ids=OPERATORS)
@pytest.mark.parametrize("code", NUMBERS)
@pytest.mark.filterwarnings("ignore::ampi.errors.ActivityWarning")
def test_numbers_of_numpy_and_lists(code, compute, made):
    if numpy.lib.NumpyVersion(numpy.__version__) < "2.4.0":
        if code == "g" and compute is operator.pow:
            pytest.skip("the first power of an array is a copy, in its own precision")
        if code == "?" and compute is operator.mul:
            pytest.skip("a list is repeated once, which is deprecated")
    number = numpy.dtype(code).type(1)
    for program in (lambda np, x: compute(number, made(x)), lambda np, x: compute(made(x), number)):
        try:
            with numpy.errstate(all="ignore"):
                expected = program(numpy, X0)
        except TypeError:
            continue  # NumPy does not compute it
        if isinstance(expected, numpy.ndarray):
            assert examine(program) is None
        else:  # as often as the integer says
            with ampi.Tape() as tape:
                found = program(numpy, tape.watch(X0))
            assert type(found) is type(expected) and len(found) == len(expected)


@pytest.mark.parametrize("made", LISTS.values(), ids=LISTS)
@pytest.mark.parametrize("compute", OPERATORS.values(), ids=OPERATORS)
@pytest.mark.filterwarnings("ignore::ampi.errors.ActivityWarning")
def test_arrays_of_numpy_and_lists(compute, made):
    array = numpy.array([1.55, 0.27, 2.3])
    assert examine(lambda np, x: compute(array, made(x))) is None
    assert examine(lambda np, x: compute(made(x), array)) is None
    assert examine(lambda np, x: compute(numpy.array(2.5), made(x))) is None


FUNCTIONS = {
    "dot": lambda np, x: np.dot(A, [x[0], 1.0, x[1]]),
    "dot of nested": lambda np, x: np.dot(A, [[x[0], 1.0], [2.0, x[1]], [x[2], 0.5]]),
    "dot of arrays": lambda np, x: np.dot([x, 2 * x], A),
    "dot by name": lambda np, x: np.dot(A, b=[x[0], 1.0, x[1]]),
    "inner": lambda np, x: np.inner(A, [[x[0], 1.0, x[1]], [x[2], x[2], x[0]]]),
    "vdot": lambda np, x: np.vdot(A, [x, x, 3 * x]),
    "matmul": lambda np, x: np.matmul(A, [x[0], 1.0, x[1]]),
    "outer": lambda np, x: np.outer(A, [x[0], 1.0, x[1]]),
    "kron": lambda np, x: np.kron(A, [[x[0], 1.0], [x[1], 2.0]]),
    "tensordot": lambda np, x: np.tensordot(A, [x, x * x], (0, 1)),
    "cross": lambda np, x: np.cross(A, [x[0], 1.0, x[1]]),
    "einsum": lambda np, x: np.einsum("ij,j", A, [x[0], 1.0, x[1]]),
    "where": lambda np, x: np.where([True, False], [x[0], 1.0], [2.0, x[1]]),
    "bincount": lambda np, x: np.bincount([0, 1, 0], weights=[x[0], 3.0, x[1]]),
    "concatenate": lambda np, x: np.concatenate([[x[0]], [2.0, x[1]]]),
    "concatenate nested": lambda np, x: np.concatenate(([[x[0], 1.0]], [[2.0, x[1]]])),
    "stack": lambda np, x: np.stack([[x[0], 1.0], [x[1], x[2]]]),
    "vstack": lambda np, x: np.vstack([[x[0], 1.0], [x[1], x[2]]]),
    "hstack": lambda np, x: np.hstack([[x[0], 1.0], [x[1], x[2], 4.0]]),
    "column_stack": lambda np, x: np.column_stack([[x[0], 1.0], [x[1], x[2]]]),
    "block": lambda np, x: np.block([[x[0], 1.0], [2.0, x[1]]]),
    "append": lambda np, x: np.append([x[0], 1.0], [[x[1]]]),
    "insert": lambda np, x: np.insert(A, 1, [x[0], 1.0, x[1]], axis=0),
    "select": lambda np, x: np.select([[True, False], [True, True]], [[x[0], 1.0], [2.0, x[1]]]),
    "choose": lambda np, x: np.choose([0, 1], [[x[0], 1.0], [2.0, x[1]]]),
    "correlate": lambda np, x: np.correlate([1.0, 2.0, 0.5], [x[0], x[1]]),
    "convolve": lambda np, x: np.convolve([1.0, 2.0, 0.5], [x[0], x[1]]),
    "interp": lambda np, x: np.interp([0.2, 0.7], [0.0, 0.5, 1.0], [x[0], x[1], 2.0]),
    "norm": lambda np, x: np.linalg.norm([[x[0], 1.0], [x[1], 2.0]]),
    "norm of arrays": lambda np, x: np.linalg.norm([x, 2 * x], axis=1),
    "det": lambda np, x: np.linalg.det([[x[0], 1.0], [x[1], 2.0]]),
    "inv": lambda np, x: np.linalg.inv([[x[0], 1.0], [x[1], 2.0]]),
    "solve": lambda np, x: np.linalg.solve(A, [x[0], 1.0, x[1]]),
    "multi_dot": lambda np, x: np.linalg.multi_dot([[[x[0], 1.0, x[1]]], A, A]),
    "sum": lambda np, x: np.sum([[x[0], 1.0], [x[1], 2.0]], axis=0),
    "prod": lambda np, x: np.prod([x[0], 1.5, x[1]]),
    "mean": lambda np, x: np.mean([x, 2 * x], axis=0),
    "var": lambda np, x: np.var([x[0], 1.5, x[1]]),
    "median": lambda np, x: np.median([x[0], 1.5, x[1]]),
    "max": lambda np, x: np.max([x, 2 * x]),
    "cumsum": lambda np, x: np.cumsum([x[0], 1.5, x[1]]),
    "clip": lambda np, x: np.clip([x[0], 1.5, x[1]], [0.5, 0.5, x[2]], 1.0),
    "diff": lambda np, x: np.diff([x[0], 1.5, x[1]]),
    "trapezoid": lambda np, x: np.trapezoid([x[0], 1.5, x[1]]),
    "average": lambda np, x: np.average([x[0], 1.5, x[1]], weights=[1.0, x[2], 0.5]),
    "sort": lambda np, x: np.sort([x[0], 0.5, x[1]]),
    "take": lambda np, x: np.take([x[0], 0.5, x[1]], [2, 0]),
    "repeat": lambda np, x: np.repeat([x[0], 0.5, x[1]], 2),
    "roll": lambda np, x: np.roll([x[0], 0.5, x[1]], 1),
    "pad": lambda np, x: np.pad([x[0], 0.5, x[1]], 1),
    "pad with an active number": lambda np, x: np.pad(A, 1, constant_values=x[0]),
    "pad with active numbers": lambda np, x: np.pad(A, ((1, 2), (0, 1)), constant_values=((x[0], 2.0), (x[1], x[2]))),
    "full": lambda np, x: np.full((2, 2), [x[0], 0.5]),
    "fft": lambda np, x: np.fft.fft([x[0], 0.5, x[1]]).real,
    "polyval": lambda np, x: np.polyval([x[0], 0.5, x[1]], [0.5, 1.5]),
    **{
        f"{name} of arrays": lambda np, x, name=name, more=more: getattr(np, name)([x, 2 * x], *more)
        for name, *more in (
            ("transpose",),
            ("reshape", (3, 2)),
            ("swapaxes", 0, 1),
            ("repeat", 2),
            ("cumsum",),
            ("cumprod", 1),
            ("diagonal",),
            ("trace",),
            ("ravel",),
            ("squeeze",),
            ("take", [2, 3]),
            ("percentile", 40.0),
            ("average", 0),
            ("nan_to_num",),
            ("flip", 0),
            ("rot90",),
            ("tile", 2),
            ("unwrap",),
            ("diff",),
            ("partition", 1),
            ("ediff1d",),
            ("unique",),
            ("delete", 1, 1),
            ("resize", (4, 2)),
            ("moveaxis", 0, 1),
            ("broadcast_to", (2, 2, 3)),
            ("expand_dims", 1),
            ("tril",),
            ("triu",),
            ("linspace", A[:2], 3),
            ("geomspace", [[1.0, 2.0, 3.0]] * 2, 3),
            ("logspace", [[1.0, 2.0, 3.0]] * 2, 3),
            ("atleast_3d",),
            ("real",),
            ("std",),
            ("cov",),
            ("quantile", 0.3, 1),
        )
    },
    "array": lambda np, x: np.array([[x, 2 * x], [A[0], x]]),
    "vectorize": lambda np, x: np.vectorize(lambda a, b: a * b)([x[0], 0.5, x[1]], A),
    "ufunc": lambda np, x: np.arctan2([x[0], 0.5, x[1]], [[x[2]], [2.0]]),
    "ufunc.outer": lambda np, x: np.multiply.outer([1.0, 2.0], [x[0], 0.5]),
    "ufunc.reduce": lambda np, x: np.add.reduce([[x[0], 0.5], [x[1], 1.0]]),
    "ufunc.accumulate": lambda np, x: np.multiply.accumulate([x[0], 0.5, x[1]]),
    "ufunc.reduceat": lambda np, x: np.add.reduceat([x[0], 0.5, x[1]], [0, 2]),
    "bins of different lengths": lambda np, x: np.histogramdd(A, bins=[2, 3, np.sort(x)])[1][2],
    "item assignment": lambda np, x: _assigned(np, [[x[0], 0.5], [x[1], 1.0]]),
}
SAID = {
    "piecewise": lambda np, x: np.piecewise(A, [A > 0, A <= 0], [x[0], 1.0]),
    "sum from an active number": lambda np, x: np.sum(A, initial=x[0]),
}


def _assigned(np, values):
    made = np.zeros((2, 2))
    made[...] = values
    return made


@pytest.mark.parametrize("program", FUNCTIONS.values(), ids=FUNCTIONS)
def test_functions_given_lists(program):
    assert examine(program) is None


@pytest.mark.parametrize("program", SAID.values(), ids=SAID)
def test_what_has_no_rule_is_an_error(program):
    assert examine(program)


@pytest.mark.parametrize("program", [*FUNCTIONS.values(), *SAID.values()], ids=[*FUNCTIONS, *SAID])
def test_functions_of_plain_numpy_given_lists(program):
    """They are right, or there is a warning or an error."""
    examine(lambda np, x: program(numpy, x))


METHODS = {
    "dot": lambda a, x: a.dot([x[0], 1.0, x[1]]),
    "matmul": lambda a, x: a @ [x[0], 1.0, x[1]],
    "fill": lambda a, x: a.fill(x[0]) or a,
    "put": lambda a, x: a.put([0, 1], [x[0], 1.0]) or a,
    "item assignment": lambda a, x: a.__setitem__(0, [x[0], 1.0, x[1]]) or a,
    "clip": lambda a, x: a.clip(-0.5, [x[0], 1.0, x[1]]),
    "choose": lambda a, x: (a > 0).astype(int).choose([[x[0], 1.0, 2.0], 0.5]),
    "sum": lambda a, x: a.sum(initial=x[0]),
    "in-place operator": lambda a, x: operator.iadd(a, [x[0], 1.0, x[1]]),
    "max": lambda a, x: a.max(initial=x[0]),
}


class Text(list):
    """A list that something is written to."""

    def write(self, text):
        self.append(text)


@pytest.mark.parametrize("recording", [False, True])
def test_objects_of_classes_derived_from_list_are_themselves(recording):
    text = Text()
    with ampi.Tape() if recording else ampi.passive():
        ampi.numpy.savetxt(text, ampi.numpy.eye(2))
    assert len(text) == 2


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_methods_of_plain_arrays_given_lists(method):
    examine(lambda np, x: method(A.copy(), x))


class Vectors(list):
    """A list, as programs derive them."""


Pair = collections.namedtuple("Pair", "a b")


def assigned(np, pair):
    found = np.zeros((2, 3))
    found[...] = pair
    return found * found


@pytest.mark.parametrize("pair", [Pair, lambda *x: Vectors(x)], ids=["named tuple", "derived list"])
@pytest.mark.parametrize("plain", [True, False], ids=["numpy", "ampi.numpy"])
@pytest.mark.parametrize(
    "compute",
    [
        lambda np, x: np.sin(x),
        lambda np, x: np.add(x, x),
        lambda np, x: np.sum(x, axis=0) ** 2,
        lambda np, x: np.add.reduce(x) ** 2,
        lambda np, x: A[:2, :2] @ np.stack(x) + np.array(x) ** 2,
        lambda np, x: np.concatenate(x) * np.dot(np.ones(2), x).sum(),
        lambda np, x: np.where([[True], [False]], x, 1.0) * A[:2] @ np.transpose(x),
        lambda np, x: np.exp(x) * A[:2] + x,
        assigned,
    ],
)
def test_classes_derived_from_lists_and_tuples_are_lists_and_tuples(compute, plain, pair):
    def program(np, x):
        return compute(numpy if plain else np, pair(x * x, x))

    said = examine(program)
    assert said is None or (plain and "test_lists.py" in said and "an active array" in said), said
