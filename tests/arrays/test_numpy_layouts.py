"""What a function records has NumPy's values and NumPy's strides, whatever the layout of the arrays that it is given.

The layout of a result decides on what a later view shares memory with, and on the order of a later sum.
"""

import numpy as np
import pytest
from numpy_check import different
from numpy_rule_cases import CASES

import ampi


def _broadcast(*axes):
    """Of elements that are the same ones along these axes."""

    def laid_out(x):
        kept = tuple(slice(1) if k in axes or k - x.ndim in axes else slice(None) for k in range(x.ndim))
        return np.broadcast_to(x[kept], x.shape) if x.ndim else x

    return laid_out


LAYOUTS = {
    "Fortran": lambda x: x.copy(order="F"),
    "last axis first": lambda x: np.moveaxis(np.moveaxis(x, -1, 0).copy(order="C"), 0, -1) if x.ndim else x,
    "reversed": lambda x: np.flip(np.flip(x).copy()) if x.ndim else x,
    "every other": lambda x: np.repeat(x, 2, -1)[..., ::2] if x.ndim else x,
    "broadcast": _broadcast(-1),
    "broadcast twice": _broadcast(0, 2),
}


def _flat(result):
    if isinstance(result, (tuple, list)):
        return [part for r in result for part in _flat(r)]
    return [result]


@pytest.mark.parametrize("kind", ["f", "c"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CASES)
def test_recorded_values_and_strides_are_numpys(name, layout, kind):
    for case in CASES[name]:
        if kind not in case.kinds:
            continue
        given = [LAYOUTS[layout](x) for x in case.arguments(np.float64 if kind == "f" else np.complex128)]
        try:
            expected = _flat(case.f(*given))
        except (np.linalg.LinAlgError, RuntimeWarning):  # broadcast matrices are singular, their rows all alike
            continue
        with ampi.Tape() as tape:
            watched = [x.view(ampi.numpy.ndarray) for x in given]
            for x in watched:
                tape.watch(x)
            got = _flat(case.f(*watched))
        assert len(got) == len(expected)
        for a, b in zip(expected, got):
            assert different(a, b, 0) == []
