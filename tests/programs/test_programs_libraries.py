"""Gradients of scripts that use Numba and other libraries, and derivatives that would be lost there."""

import sys

import numpy
import pytest
from mpi4py import MPI
from program_runs import check

import ampi
from ampi.arrays import losses as outside

pytestmark = pytest.mark.mpi
WORLD = ampi.COMM_WORLD


def test_numba_functions_are_kernels(program):
    path = program("""
        import numba
        import numpy as np
        from numba import njit, prange, jit
        @njit
        def square(v): return v * v
        @numba.njit(parallel=True, cache=True)
        def energy(x):
            s = 0.0
            for i in prange(len(x)):
                s += square(x[i])
            return s
        @jit("float64(float64[:])", nopython=True)
        def largest(x):
            return np.sin(x).max()
        def plain(x): return np.sqrt(x[0]) + float(len(x))
        root = njit(plain)
        @numba.jit(nopython=True)
        def fill(out, x):
            for i in range(len(x)):
                out[i] = x[i] ** 3
        x = np.array([0.5, 0.25, 2.0])
        out = np.empty(3)
        fill(out, x)
        y = energy(x) + largest(x) + root(x) + out.sum()
    """)
    check(path, ["x"], ["y"])


@pytest.mark.mpi(max_size=1)  # Numba compiles dictionaries for ten seconds
def test_numba_functions_that_cannot_be_differentiated(program):
    path = program("""
        import warnings
        import numpy as np
        from numba import njit
        @njit
        def named(n):
            found = {"a": 1}
            found["b"] = n
            return len(found)
        @njit
        def words(n):
            s = ""
            for _ in range(n): s += "x"
            return len(s)
        x = np.arange(3.0)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            y = np.sum(x ** 2) * named(10) * words(3) * words(3)
        told = [str(w.message) for w in seen if "is compiled by Numba and not differentiated" in str(w.message)]
        assert len(told) == 2 and "'named'" in told[0] and "prog.py:5" in told[0], told
    """)
    check(path, ["x"], ["y"])


def test_numbas_own_functions_refuse_derivatives(program):
    path = program("""
        import numpy as np
        from numba import njit
        @njit
        def twice(x):
            names = {"a": 2.0}
            return x * names["a"]
        x = np.arange(3.0)
        y = np.sum(twice(x))
    """)
    with pytest.warns(ampi.ActivityWarning, match="'twice' is compiled by Numba"):
        with pytest.raises(ampi.ActivityError, match=r"(?s)prog.py:4: 'twice' is given arrays .* cannot be"):
            ampi.trace(path, "x", "y")


def test_other_libraries_have_numpys_own(program, tmp_path_factory, monkeypatch):
    folder = None
    if WORLD.rank == 0:
        folder = tmp_path_factory.mktemp("elsewhere")
        (folder / "somelib.py").write_text("import numpy as np\ndef double(x):\n    return np.asarray(x) * 2.0\n")
    folder = MPI.COMM_WORLD.bcast(folder)
    monkeypatch.syspath_prepend(str(folder))
    path = program("""
        import numpy as np
        import somelib
        x = np.arange(3.0)
        assert somelib.np is not np
        y = np.sum(somelib.double(x))
    """)
    with pytest.raises(ampi.ActivityError, match=r"somelib.py:3.*numpy.asarray"):
        ampi.trace(path, "x", "y")
    sys.modules.pop("somelib", None)
    MPI.COMM_WORLD.Barrier()
    if WORLD.rank == 0:
        path.write_text(path.read_text().replace("assert somelib.np is not np", ""))
    MPI.COMM_WORLD.Barrier()
    check(path, ["x"], ["y"], also=["somelib"])


LIBRARY = """
import numpy as np

class Table:  # keeps what it is given in arrays of its own
    def __init__(self, x): self.x = np.empty(len(x)); self.x[:] = x

def by_float(x): return sum(float(v) for v in x)
def by_array(x): return np.array(x).sum()
def by_buffer(x): return float(sum(memoryview(x)))
def by_table(x): return Table(x).x.sum()
def by_ratio(x): return x[0].as_integer_ratio()[0] * 1.0
def by_list(x): return sum(v * v for v in x)
"""


@pytest.mark.parametrize("way", ["float", "array", "buffer", "table", "ratio"])
@pytest.mark.filterwarnings("ignore::ampi.errors.ActivityWarning")
def test_what_crosses_to_a_library_is_an_error_with_the_programs_line(program, way, tmp_path_factory, monkeypatch):
    folder = None
    if WORLD.rank == 0:
        folder = tmp_path_factory.mktemp("elsewhere")
        (folder / "alib.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(str(MPI.COMM_WORLD.bcast(folder)))
    path = program(f"""
        import numpy as np
        import alib
        x = np.arange(3.0) + 1
        z = alib.by_list(x)
        z = z + alib.by_{way}(x)
        y = z * 1.0
    """)
    with pytest.raises(ampi.ActivityError, match=r"prog.py:6 \(in .*alib.py:\d+\): .* of an active array drops"):
        ampi.trace(path, "x", "y")
    if way != "buffer":
        outside.SHOWING.add("alib")
    try:
        if way in ("float", "array", "table"):  # it only shows what it is given
            assert numpy.array_equal(ampi.trace(path, "x", "y")[1], [2.0, 4.0, 6.0])
    finally:
        outside.SHOWING.discard("alib")
        sys.modules.pop("alib", None)


@pytest.mark.parametrize("way", ["decimal.Decimal", "Decimal", "Decimal.from_float"])
def test_a_decimal_number_of_an_active_one_is_an_error_that_says_so(program, way):
    """It was Python's TypeError, which names neither the derivative nor a remedy."""
    path = program(f"""
        import decimal
        from decimal import Decimal
        import numpy as np
        x = np.arange(3.0) + 1
        c = np.array([2.0, 0.5])
        z = {way}(float(c[0])) + {way}(1.5) + Decimal("0.5")
        z = z + {way}(x[1])
        y = x[0] * float(z)
    """)
    with pytest.raises(ampi.ActivityError, match=r"prog.py:8: decimal.Decimal\(\) of an active array drops"):
        ampi.trace(path, "x", "y")


@pytest.mark.parametrize("handler", ["except Exception:", "except (ValueError, Exception) as e:", "except:"])
def test_errors_of_lost_derivatives_are_not_caught(program, handler):
    path = program(f"""
        import numpy as np
        x = np.arange(3.0)
        try:
            y = np.spacing(x).sum()
        {handler}
            y = 2.0 * x[0]
    """)
    with pytest.raises(ampi.ActivityError, match=r"prog.py:5: (numpy.)?spacing has no derivative rule"):
        ampi.trace(path, "x", "y")


def test_errors_of_the_program_are_caught_as_usual(program):
    path = program("""
        import sys
        import numpy as np
        x = np.arange(3.0)
        try:
            try:
                raise KeyError("a")
            except KeyError as error:
                seen = error
                raise ValueError("b") from error
            finally:
                x = x * 2
        except (ValueError, TypeError) as error:
            assert isinstance(error.__cause__, KeyError) and sys.exc_info()[1] is error
            y = np.sum(x)
        else:
            y = 0.0
    """)
    check(path, ["x"], ["y"])


@pytest.mark.parametrize("how", ["functools.lru_cache", "functools.lru_cache(maxsize=2, typed=True)", "cache"])
@pytest.mark.parametrize("order", ["f(k) + 3 * f(2.0)", "3 * f(2.0) + f(k)", "f(n=k) + f(n=2.0)", "f(k) * f(k)"])
def test_caches_of_values_keep_nothing_that_carries_derivatives(program, how, order):
    path = program(f"""
        import functools
        from functools import cache
        k = 2.0
        calls = []
        @{how}
        def f(n):
            calls.append(n)
            return n ** 3
        y = {order} + f(5.0) + f(5.0)
        assert f.cache_info().hits >= 1 and len(calls) <= 3
        f.cache_clear()
    """)
    check(path, ["k"], ["y"])


LOSSES = {
    "y = np.sum(x) * 0 + statistics.fmean([x[0], x[1]])": "float\\(\\) of an active array",
    "y = math.remainder(x[1], 2.0)": "remainder has no derivative rule",
    "y = math.exp(x)": "length-1",
    "z = array.array('d', x); y = z[0]": "float\\(\\) of an active array",
}


@pytest.mark.parametrize("statement", LOSSES)
def test_what_loses_a_derivative_is_an_error(program, statement):
    path = program(f"import array, math, statistics\nimport numpy as np\nx = np.arange(3.0) + 1\n{statement}\n")
    with pytest.raises((ampi.ActivityError, TypeError), match=LOSSES[statement]):
        ampi.trace(path, "x", "y")


def test_numbers_may_be_shown(program, capfd):
    path = program("""
        import logging
        import numpy as np
        x = np.arange(3.0)
        y = np.sum(x ** 2)
        form = "%.2f"
        print("%.1f" % y, form % y, "{:.3f}".format(y), f"{y:g}", str(y), "%s" % y, form % x[1])
        logging.getLogger("a").warning("%.3f", y)
        numbers = [v + 1 for v in x.tolist()]
        y = y + numbers[1] * x.item(1)
    """)
    assert numpy.array_equal(ampi.trace(path, "x", "y")[1], [0.0, 2.0 + 1 + 2, 4.0])
