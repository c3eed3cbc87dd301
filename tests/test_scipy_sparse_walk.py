"""scipy.sparse: all methods of its matrices, of active entries: a right derivative, or an error or warning."""

import warnings

import numpy
import numpy as np
import pytest
import scipy.sparse as ss
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
