"""scipy.sparse: all methods of its matrices, of active entries: a right derivative, or an error or warning."""

import warnings

import numpy
import numpy as np
import pytest
import scipy.sparse as ss
import scipy.sparse.csgraph
import scipy.sparse.linalg
from scipy_check import scalar_of

import ampi

N, STEP = 4, 1e-6
START = numpy.random.default_rng(0).uniform(0.5, 1.5, 3 * N - 2)
OTHER = numpy.random.default_rng(1).normal(size=(N, N))
ARGUMENTS = {
    "nothing": lambda x, matrix: (),
    "active number": lambda x, matrix: (x[0],),
    "two": lambda x, matrix: (2,),
    "one": lambda x, matrix: (1,),
    "zero": lambda x, matrix: (0,),
    "vector": lambda x, matrix: (x[:N],),
    "dense": lambda x, matrix: (OTHER,),
    "sparse": lambda x, matrix: (ss.csr_array(OTHER),),
    "itself": lambda x, matrix: (matrix,),
    "shape": lambda x, matrix: ((2, 2 * N),),
    "place": lambda x, matrix: ((1, 1),),
    "number at a place": lambda x, matrix: ((1, 1), x[0]),
    "row": lambda x, matrix: (1, x[:N]),
    "format": lambda x, matrix: ("csc",),
}
LEFT_OUT = {"__round__", "__hash__", "__init__", "__new__", "__class__"}
"""Differences see steps of what is rounded; the others make no use of entries."""


def methods(cls):
    for name in dir(cls):
        is_public = not name.startswith("_") or (name.startswith("__") and name.endswith("__"))
        if is_public and name not in LEFT_OUT and not name.endswith(("attr__", "state__", "class__", "hook__")):
            yield name


def dense(x):
    if isinstance(x, (tuple, list)):
        return [dense(item) for item in x]
    x = x.toarray() if ss.issparse(x) else x
    return x.A if isinstance(x, (np.matrix, ampi.ndarray)) and hasattr(x, "A1") else x


FORMATS = ["csr", "csc", "coo", "dia", "bsr"]


@pytest.mark.parametrize(
    "format, kind",
    [
        pytest.param(name, kind, marks=[pytest.mark.slow] * (k % 2 != (kind == "matrix")))
        for k, name in enumerate(FORMATS)
        for kind in ("array", "matrix")
    ],
)
def test_no_method_loses_a_derivative_in_silence(format, kind):
    cls = getattr(ss, f"{format}_{kind}")
    move = numpy.random.default_rng(5).normal(size=START.size)
    wrong, right = [], 0
    for name in methods(cls):
        for given, make in ARGUMENTS.items():

            def total(x, name=name, make=make):
                matrix = cls(ss.diags([x[:N] + 2, x[N : 2 * N - 1], x[2 * N - 1 :]], [0, 1, -1]))
                member = getattr(matrix, name)
                found = member(*make(x, matrix)) if callable(member) else member
                return scalar_of(dense([list(found) if hasattr(found, "__next__") else found, matrix]))

            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                try:
                    value = total(START.copy())
                    expected = (total(START + STEP * move) - total(START - STEP * move)) / (2 * STEP)
                except Exception:
                    continue  # not what the method takes
                if not np.isfinite(value) or not np.isfinite(expected):
                    continue
                warnings.simplefilter("error", ampi.ActivityWarning)
                try:
                    with ampi.Tape() as tape:
                        x = tape.watch(START)
                        y = total(x)
                except (ampi.AmpiError, ampi.ActivityWarning, TypeError):
                    continue
                warnings.simplefilter("ignore")
                gradient = tape.gradient(y, x) if isinstance(y, ampi.ndarray) else 0 * START
            if abs(gradient @ move - expected) > 1e-5 * max(1, abs(expected)) or abs(y - value) > 1e-9 * abs(value):
                wrong.append((name, given, gradient @ move, expected))
            right += 1
    assert not wrong and right > 400


READING = {
    "== a number": lambda m, x: m == 2,
    "== an active number": lambda m, x: m == x[0],
    ">=": lambda m, x: m >= 2,
    "== a matrix": lambda m, x: m == m.T,
    "<": lambda m, x: m < m.T,
    "max": lambda m, x: m.max(axis=0),
    "argmax": lambda m, x: m.argmax(),
    "argmin": lambda m, x: m.argmin(axis=1),
    "count_nonzero": lambda m, x: m.count_nonzero(),
    "has_canonical_format": lambda m, x: m.has_canonical_format,
    "nonzero": lambda m, x: m.nonzero(),
    "find": lambda m, x: ss.find(m),
    "multiply": lambda m, x: m.multiply(m),
    "maximum": lambda m, x: m.maximum(m),
    "an element": lambda m, x: m[0, 1],
    "todia": lambda m, x: m.todia(),
    "tocoo": lambda m, x: m.tocoo(),
    "sorted_indices": lambda m, x: m.sorted_indices(),
    "str": lambda m, x: str(m),
    "spsolve": lambda m, x: scipy.sparse.linalg.spsolve(m, np.ones(2)),
    "inv": lambda m, x: scipy.sparse.linalg.inv(m),
    "norm": lambda m, x: scipy.sparse.linalg.norm(m),
    "expm": lambda m, x: scipy.sparse.linalg.expm(m),
    "components": lambda m, x: scipy.sparse.csgraph.connected_components(m),
    "rank": lambda m, x: scipy.sparse.csgraph.structural_rank(m),
}


@pytest.mark.parametrize("cls", [ss.csc_matrix, ss.csr_array, ss.coo_array, ss.bsr_array], ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("twice", [False, True], ids=["unsorted", "unsorted, one twice"])
def test_reading_leaves_a_matrix_with_its_entries(cls, twice):
    """Many functions that only read a matrix sort and sum its entries in place before."""
    weights = np.array([[1.0, 2.0], [3.0, 4.0]])
    places = np.array([1, 0, 0 if twice else 1, 0])

    def objective(x, read):
        if cls is ss.coo_array:
            matrix = cls((x * 1.0, (np.array([0, 0, 1, 1]), places.copy())), shape=(2, 2))
        else:
            data = x.reshape(4, 1, 1) * 1.0 if cls is ss.bsr_array else x * 1.0
            matrix = cls((data, places.copy(), np.array([0, 2, 4])), shape=(2, 2))
        read(matrix, x)
        return (matrix.toarray() * weights).sum()

    x = np.array([0.5, 1.5, 2.5, 3.5])
    expected = (weights.T if cls is ss.csc_matrix else weights)[[0, 0, 1, 1], places]
    checked = 0
    for name, read in READING.items():
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                objective(x, read)
                gradient = ampi.grad(objective)(x, read)
            except (ampi.ActivityError, NotImplementedError, TypeError, AttributeError, RuntimeError):
                continue  # not for this format
        numpy.testing.assert_allclose(gradient, expected, err_msg=name)
        checked += 1
    assert checked > 12
