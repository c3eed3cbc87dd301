"""Programs as they stand: gradients of scripts without an edit, against finite differences and closed forms."""

import io
import sys
import textwrap

import numpy
import pytest
from mpi4py import MPI

import ampi
from ampi.arrays import losses as outside
from ampi.programs.differences import compare
from ampi.programs.gradients import Differentiation
from ampi.programs.results import describe
from ampi.programs.runs import Program

pytestmark = pytest.mark.mpi
WORLD = ampi.COMM_WORLD


@pytest.fixture
def program(tmp_path_factory):
    """``program(source, {file: source})``: the path of a script beside other modules, the same on all ranks."""

    def write(source, modules=()):
        folder = None
        if WORLD.rank == 0:
            folder = tmp_path_factory.mktemp("program")
            files = {"prog.py": source, **dict(modules)}
            for name, text in files.items():
                path = folder / name
                path.parent.mkdir(exist_ok=True)
                path.write_text(textwrap.dedent(text))
        return MPI.COMM_WORLD.bcast(folder) / "prog.py"

    return write


def check(path, wrt, of, objective="sum", arguments=(), also=()):
    """The gradients of a script, after they were compared with finite differences."""
    problem = Differentiation(Program("file", str(path), list(arguments)), wrt, of, also, objective)
    with ampi.mpi.installed():
        found = problem.gradients()
        described = describe(problem, found)
        compared = compare(problem, found)
        problem.runner.forget()
    assert all(f"{name} = " in described for name in of) and "it is zero" not in described
    for one in compared:
        assert one.passed, str(one)
        assert one.exact != 0, str(one)
    return found


RING = """
    import {how}
    from mpi4py import MPI
    comm = MPI.COMM_WORLD
    k = 0.5
    x = {np}.arange(3.0) + comm.rank + 1
    left = {np}.zeros(1)
    comm.Sendrecv(x[-1:], (comm.rank + 1) % comm.size, recvbuf=left, source=(comm.rank - 1) % comm.size)
    energy = k * {np}.sum({np}.diff({np}.concatenate([left, x])) ** 2)
"""


def ring(x, k):
    """The same with ampi."""
    left = ampi.numpy.zeros(1)
    WORLD.Sendrecv(x[-1:], (WORLD.rank + 1) % WORLD.size, recvbuf=left, source=(WORLD.rank - 1) % WORLD.size)
    return k * ampi.numpy.sum(ampi.numpy.diff(ampi.numpy.concatenate([left, x])) ** 2)


@pytest.mark.parametrize("how, np", [("numpy as np", "np"), ("numpy", "numpy"), ("numpy.linalg, numpy as _", "_")])
def test_gradient_is_that_of_the_program_with_other_names(program, how, np):
    path = program(RING.format(how=how, np=np))
    value, (x_bar, k_bar) = ampi.trace(path, wrt=("x", "k"), of="energy")
    x0 = numpy.arange(3.0) + WORLD.rank + 1
    own, expected = ampi.value_and_grad(ring, argnums=(0, 1))(x0, 0.5)
    assert value == pytest.approx(WORLD.allreduce(float(own)), rel=1e-14)
    numpy.testing.assert_array_equal(x_bar, expected[0])
    assert k_bar == expected[1]
    assert type(x_bar) is numpy.ndarray and MPI.COMM_WORLD is not ampi.COMM_WORLD


IMPORTS = {
    "import numpy as np": "np.linalg.norm(np.fft.fft(np.exp(x)).real)",
    "import numpy": "numpy.linalg.norm(numpy.fft.fft(numpy.exp(x)).real)",
    "from numpy import *": "linalg.norm(fft.fft(exp(x)).real)",
    "from numpy.fft import fft as f; from numpy.linalg import norm; import numpy": "norm(f(numpy.exp(x)).real)",
    "import numpy.linalg, numpy.fft": "numpy.linalg.norm(numpy.fft.fft(numpy.exp(x)).real)",
    "import numpy.linalg as np, numpy.fft as ampi; from numpy import exp": "np.norm(ampi.fft(exp(x)).real)",
    "import importlib; np = importlib.import_module('numpy')": "np.linalg.norm(np.fft.fft(np.exp(x)).real)",
    "np = __import__('numpy'); from numpy import linalg": "linalg.norm(np.fft.fft(np.exp(x)).real)",
    "exec('import numpy as np')": "np.linalg.norm(np.fft.fft(np.exp(x)).real)",
    "from far import np": "np.linalg.norm(np.fft.fft(np.exp(x)).real)",
    "import pack.inner; np = pack.inner.np": "np.linalg.norm(np.fft.fft(np.exp(x)).real)",
    "from pack import inner; np = inner.np": "np.linalg.norm(inner.transformed(x))",
}


@pytest.mark.parametrize("how", IMPORTS)
def test_numpy_is_ours_in_every_spelling(program, how):
    path = program(
        f"""
        {how}
        from numpy import array
        x = array([0.5, 0.25, -1.0])
        y = {IMPORTS[how]}
        """,
        {
            "far.py": "import numpy as np",
            "pack/__init__.py": "",
            "pack/inner.py": "import numpy as np\ndef transformed(x): return np.fft.fft(np.exp(x)).real",
        },
    )
    check(path, ["x"], ["y"])
    assert "far" not in sys.modules and "pack" not in sys.modules


def test_packages_that_import_themselves_are_loaded_anew(program):
    path = program(
        "import pack\nk = 0.5\ny = pack.inner.half(k) * pack.pack.whole",
        {
            "pack/__init__.py": "import pack\nfrom pack import inner\nwhole = 2.0",
            "pack/inner.py": "half = lambda x: x / 2",
        },
    )
    check(path, ["k"], ["y"])
    assert not [name for name in sys.modules if name.partition(".")[0] == "pack"]


ASSIGNMENTS = {
    "k = 0.5": "k",
    "k: float = 0.5": "k",
    "j = k = 0.5": "k",
    "j, (k, *l) = 1, (0.5, 2, 3)": "k",
    "for k in [0.5]: pass": "k",
    "for k in [0.5, 0.5]: pass": "k",
    "j = (k := 0.5) * 2": "k",
    "j = [k := 0.5 for _ in range(2)]": "k",
    "with context(0.5) as k: pass": "k",
    "with context(0.5) as (k): j = k": "k",
    "if True: k = 0.5\nelse: k = 0.7": "k",
    "if False: k = 0.7\nelse: k = 0.5": "k",
    "match [0.5, 2]:\n    case [k, _]: pass": "k",
    "from constants import k": "k",
    "from constants import *": "k",
    "def set_k():\n    global k\n    k = 0.5\nset_k()": "k",
    "k = 0.25; k += 0.25": "k@9",
    "k = numpy.float64(0.5)": "k",
    "k = numpy.array(0.5)": "k",
    "_ = 0.5; k = _": "_",
    "o = types.SimpleNamespace(k=0.5); k = o.k": "o.k",
    "o = {'k': 0.5, 'n': 3}; k = o['k']": "o['k']",
    "o = [0.5, 3]; k = o[0]": "o[0]",
    "o = types.SimpleNamespace(); o.k = 0.5; k = o.k": "o.k",
    "class C:\n    k = 0.5\nk = C.k": "C:k",
    "class C:\n    k = 0.5\nk = C().k ": "C.k",
    "class C:\n    def __init__(self): self.k = 0.5\nk = C().k": "C.__init__:self.k",
    "class C:\n    def f(self): self.__k = 0.5; return self.__k\nk = C().f()": "C.f:self.__k",
    "P = collections.namedtuple('P', 'n k'); o = P(3, 0.5); k = o.k": "o.k",
    "P = collections.namedtuple('P', 'n k'); o = types.SimpleNamespace(p=P(3, 0.5)); k = o.p.k": "o.p.k",
    "P = collections.namedtuple('P', 'n k'); o = P(3, 0.5); k = o[1]": "o[1]",
    "o = 3, 0.5; k = o[1]": "o[-1]",
    "P = dataclasses.make_dataclass('P', ['k'], frozen=True); o = P(0.5); k = o.k": "o.k",
    "def f(k=0.5): return k\nk = f()": "f:k",
    "def f(*, k): return k\nk = f(k=0.5)": "f:k",
    "def f():\n    'text'\n    k = 0.5\n    return k\nk = f()": "f:k",
    "def f():\n    def g(k): return k\n    return g(0.5)\nk = f()": "f.g:k",
    "async def f(k): return k\nk = asyncio.run(f(0.5))": "f:k",
    "def f():\n    k = 0.5\n    yield k\nk, = f()": "f:k",
    "@functools.lru_cache\ndef f(n):\n    k = 0.5\n    return k\nk = f(1)": "f:k",
    "import constants\nk = constants.f()": "constants:f:h",
    "import constants\nk = constants.k ": "constants::k",
    "import constants\nk = constants.C().k": "constants:C.__init__:self.k",
    "k = 0.5\nfloat = lambda x: 2 * x; k = float(k)": "k",
    "k = float(np.float64(0.5))\nk = np.float64(k); k = float(k)": "k",
    "k = 0.5; j = math.sin(k); k = k + math.hypot(k, 1) * j": "k",
    "k = np.array([0.5]).item() + 0.0": "k",
}


CONSTANTS = """
k = 0.5
def f():
    h = 0.5
    return h
class C:
    def __init__(self): self.k = 0.5
"""


@pytest.mark.parametrize("statement", ASSIGNMENTS)
def test_independents_are_watched_wherever_they_are_assigned(program, statement):
    source = textwrap.dedent("""
        import asyncio, collections, contextlib, dataclasses, functools, math, types
        import numpy, numpy as np
        from mpi4py import MPI
        @contextlib.contextmanager
        def context(value): yield value

    """)
    source += f"\n{statement}\n" + "y = k * k * (MPI.COMM_WORLD.rank + 2)\n"
    path = program(source, {"constants.py": CONSTANTS})
    check(path, [ASSIGNMENTS[statement]], ["y"])


DEPENDENTS = {
    "y = k * k": ["y", "y@6"],
    "y = np.array([k, 2 * k])": ["y"],
    "y = [k, 2 * k]": ["y"],
    "y = k; y *= k": ["y", "y@6"],
    "for i in range(3): y = k ** i": ["y", "y@6"],
    "def f(): return k * k\nf()": ["f:return"],
    "def f():\n    y = k * k\n    return 1\nf()": ["f:y"],
    "def f():\n    y = k * k\n    try: return 1\n    finally: y *= 2\nf()": ["f:y"],
    "def f():\n    if k: return k\n    return k * k\nf(); k *= 3; f()": ["f:return"],
    "class C:\n    def f(self):\n        self.y = k * k\nc = C(); c.f()": ["C.f:self.y", "c.y"],
    "async def f():\n    y = k * k\n    return y\nasyncio.run(f())": ["f:y", "f:return"],
    "def f():\n    global y\n    y = k * k\nf()": ["y", "f:y"],
    "def f(o): o['y'] = k * k\no = {}; f(o)": ["f:o['y']", "o['y']"],
    "y = k * k; sys.exit()": ["y"],
    "y = k * k; MPI.Finalize()": ["y"],
    "def f():\n    for i in range(3):\n        y = k * i\n        yield y\nlist(f())": ["f:y"],
}


@pytest.mark.parametrize("statement", DEPENDENTS)
def test_dependents_are_read_where_their_scope_ends(program, statement):
    header = "import asyncio, sys\nimport numpy as np\nfrom mpi4py import MPI\nk = 0.5 + MPI.COMM_WORLD.rank\n\n"
    check(program(header + statement + "\n"), ["k"], DEPENDENTS[statement])


def test_hostile_names(program):
    path = program("""
        import numpy as ampi, math as np
        from mpi4py import MPI as float
        __ampi = numpy = 2.0
        _ = ampi.arange(3.0) * numpy + float.COMM_WORLD.rank + 1
        def step(ampi, __ampi_watch__, *, self=2.0):
            step = ampi * self
            class __ampi_read__:
                step = __ampi_watch__
            return step * __ampi_read__.step
        watch = step(_, __ampi)
        step = np.exp(ampi.sum(watch) / 100)
    """)
    check(path, ["_", "__ampi", "step:self"], ["step"])


def test_decorated_functions_keep_what_decorators_see(program):
    path = program("""
        import functools, inspect
        import numpy as np
        seen = []
        def keep(function):
            seen.append((function.__name__, function.__doc__, inspect.signature(function)))
            assert "def " in inspect.getsource(function)
            @functools.wraps(function)
            def call(*arguments):
                return function(*arguments)
            return call
        class Solver:
            @keep
            def __init__(self, k):
                "Doc."
                self.k = k
            @property
            def energy(self):
                energy = self.k ** 2
                return energy
            @staticmethod
            @keep
            def cube(k): return k ** 3
            @classmethod
            def make(cls, k): return cls(k)
        y = Solver.make(0.5).energy + Solver.cube(2.0)
        assert seen[0][:2] == ("__init__", "Doc.")
    """)
    found = check(path, ["Solver.__init__:k", "Solver.cube:k"], ["y", "Solver.energy:energy"][:1])
    assert found.parts[0][0] == pytest.approx(WORLD.size * 0 + 1.0)
    assert found.parts[0][1] == pytest.approx(12.0)


def test_objectives(program):
    path = program("""
        import numpy as np
        from mpi4py import MPI
        comm = MPI.COMM_WORLD
        x = np.arange(2.0) + comm.rank + 1
        total = comm.allreduce(np.sum(x ** 2))
        mine = np.sum(x ** 2) if comm.rank == 0 else None
    """)
    x = numpy.arange(2.0) + WORLD.rank + 1
    assert numpy.array_equal(ampi.trace(path, "x", "total")[1], 2 * x * WORLD.size)
    assert numpy.array_equal(ampi.trace(path, "x", "total", objective="replicated")[1], 2 * x)
    assert numpy.array_equal(ampi.trace(path, "x", "total", objective="root")[1], 2 * x)
    assert numpy.array_equal(ampi.trace(path, "x", "mine")[1], 2 * x * (WORLD.rank == 0))
    values, (of_total, of_mine) = ampi.trace(path, ["x"], ["total", "mine"])
    assert values == (WORLD.size * WORLD.allreduce(float(x @ x)), 5.0)
    assert numpy.array_equal(of_total[0], 2 * x * WORLD.size) and numpy.array_equal(
        of_mine[0], 2 * x * (WORLD.rank == 0)
    )
    if WORLD.size > 1:
        with pytest.raises(ampi.ProgramError, match="mine is None"):
            ampi.trace(path, "x", "mine", objective="replicated")


def test_declared_variables(program):
    path = program("""
        import ampi
        import numpy as np
        k = ampi.independent(0.5, name="stiffness")
        x = ampi.independent(np.arange(3.0), name="place")
        z = x.copy()
        energy = ampi.dependent(k * np.sum((x + z) ** 2), name="energy")
    """)
    values, gradients = ampi.trace(path)
    assert values == {"energy": WORLD.size * 10.0}
    assert gradients["energy"]["stiffness"] == 20.0
    assert numpy.array_equal(gradients["energy"]["place"], 4 * numpy.arange(3.0))
    assert ampi.trace(path, "stiffness", "energy")[1] == 20.0
    assert ampi.independent(3) == 3 and ampi.dependent("x", name="y") == "x"


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


@pytest.mark.parametrize("handler", ["except Exception:", "except (ValueError, Exception) as e:", "except:"])
def test_errors_of_lost_derivatives_are_not_caught(program, handler):
    path = program(f"""
        import numpy as np
        x = np.arange(3.0)
        try:
            y = np.roots(x).real.sum()
        {handler}
            y = 2.0 * x[0]
    """)
    with pytest.raises(ampi.ActivityError, match=r"prog.py:5: numpy.roots has no derivative rule"):
        ampi.trace(path, "x", "y")


def test_errors_of_the_program_are_caught_as_ever(program):
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
    "y = math.lgamma(x[1])": "lgamma has no derivative rule",
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


ERRORS = {
    ("missing", "y"): "missing is never assigned at the top level of the script; assigned there: ",
    ("f:missing", "y"): "missing is never assigned at f\\(\\) of the script; assigned there: k",
    ("g:k", "y"): "it is assigned elsewhere: write f:k",
    ("Class.mthod:self.q", "y"): "write Class.method:self.q",
    ("method:self.q", "y"): "write Class.method:self.q",
    ("x", "missing"): "missing is not there at the end of the top level",
    ("x", "f:missing"): "f:missing",
    ("x", "never:z"): "the end of never\\(\\) of the script is never reached",
    ("never:z", "y"): "never:z: the program does not assign z at never\\(\\)",
    ("x", "text"): "text is a str, and no number",
    ("x", "nothing"): "nothing is None",
    ("x", "passive"): "passive does not depend on x",
    ("x", "c"): "c is complex",
    ("n", "y"): "n .*prog.py:6.* is the integer 3: integers have no derivative",
    ("ns", "y"): "ns .* is an array of shape \\(3,\\) and dtype int64: integers",
    ("Class.mthod:w", "y"): "there is no Class.mthod in it, did you mean Class.method",
    ("nothing", "y"): "nothing is None wherever the program assigns nothing",
    ("text", "y"): "text .* is a str, and no number",
    ("o", "y"): "o .* no number; it has the attributes o.a",
    ("x@99", "y"): "line 99 of the script has no statement in a scope that assigns x",
    ("k k", "y"): "names no variable",
    ("x", "return"): "the top level returns nothing",
    ("lib:f:x", "y"): "does not import a module lib of its own",
}


@pytest.mark.parametrize("wrt, of", ERRORS)
def test_errors_have_names(program, wrt, of):
    path = program("""
        import types
        import numpy as np
        x = np.arange(3.0); y = np.sum(x ** 2)
        o = types.SimpleNamespace(a=1.0); text = "t"; nothing = None
        n = 3; ns = np.arange(3); passive = 2.0; c = y * 1j
        def f():
            k = 2.0
            return k
        def never(z): return z
        class Class:
            def method(self): self.q = 1.0
        f()
    """)
    with pytest.raises(ampi.ProgramError, match=ERRORS[wrt, of]):
        ampi.trace(path, wrt, of)


@pytest.mark.parametrize("whole", ["0:3", ":2"])
def test_why_a_gradient_is_zero(program, whole):
    """An array that is filled after it has been made: the lines that do so are named."""
    source = """
        import numpy as np
        x = np.full(3, np.nan)
        x[{all}] = 2.0
        x.flat = [1.0, 2.0, 3.0]; x *= 2
        energy = np.sum(x ** 2)
    """
    path = program(source.replace("{all}", whole))
    problem = Differentiation(Program("file", str(path), []), ["x"], ["energy"])
    hint = "x is that of line 3 here; lines 4, 5 assign or change it: x@4 is what it is after line 4"
    with ampi.mpi.installed():
        try:
            found = problem.gradients()
        except ampi.ProgramError as error:
            assert "energy does not depend on x" in str(error) and hint in str(error)
        else:
            assert f"it is zero: energy does not change with it. {hint}" in describe(problem, found)
            (compared,) = compare(problem, found)
            assert compared.exact == 0 and compared.passed  # nan is displaced by numbers
        problem.runner.forget()
    found = check(path, ["x@5"], ["energy"])
    numpy.testing.assert_allclose(found.parts[0][0], [4.0, 8.0, 12.0], rtol=1e-14)


READING = """
    import sys
    import numpy as np
    from mpi4py import MPI
    comm = MPI.COMM_WORLD
    n = int(input("How many? "))
    x = np.array([float(word) for word in sys.stdin.readline().split()]) * 1.0
    rest = [line for line in sys.stdin]
    assert len(rest) == n == int(sys.argv[1]), rest
    energy = comm.allreduce(np.sum(x ** 2)) * sum(map(float, rest))
"""


@pytest.mark.parametrize("rest", [0, 1, 3])
def test_what_is_read_from_the_standard_input_is_the_same_in_all_runs(program, rest, monkeypatch):
    lines = [str(rest), "1.5 -2.5 0.5", *["0.75"] * rest]
    text = io.TextIOWrapper(io.BytesIO("\n".join(lines).encode()), "utf-8")
    monkeypatch.setattr(sys, "stdin", text)
    if rest:
        check(program(READING), ["x"], ["energy"], arguments=[str(rest)])
    else:
        assert ampi.trace(program(READING), "x", "energy", [str(rest)])[0] == 0
    assert sys.stdin is text and text.read() == ""


def test_files_are_untouched_and_lines_are_kept(program):
    path = program("""
        import numpy as np
        from mpi4py import MPI
        x = np.arange(3.0)
        def f(z):
            y = z * 2
            raise ValueError("here") if len(z) == 3 else y
        y = f(2 * x)
    """)
    before = path.read_text()
    with pytest.raises(ValueError) as caught:
        ampi.trace(path, ["x", "f:z"], "f:y")
    lines = [entry.lineno for entry in caught.traceback if str(entry.path) == str(path)]
    assert [number + 1 for number in lines] == [8, 7]
    assert path.read_text() == before and not list(path.parent.rglob("*.pyc"))


def test_one_array_under_two_names(program):
    path = program("import numpy as np\nx = np.arange(3.0)\ndef f(z): return z * 2\ny = np.sum(f(x))\n")
    with pytest.raises(ampi.ProgramError, match=r"f:z \(.*prog.py:3\) is the array that x is \(.*prog.py:2\)"):
        ampi.trace(path, ["x", "f:z"], "y")


def test_unseeded_randomness_is_the_same_in_all_runs(program):
    path = program("""
        import random
        import numpy as np
        x = np.arange(3.0) + 1
        w = np.random.default_rng().random(3) + np.random.rand(3) + random.random()
        y = np.sum(w * x ** 2)
    """)
    check(path, ["x"], ["y"])


def test_two_precisions(program):
    path = program("""
        import numpy as np
        x = np.arange(3, dtype=np.float32) + 1
        y = np.sum(np.sqrt(x))
        z = np.array([1 + 2j, 3j])
        w = np.sum(np.abs(z) ** 2)
    """)
    found = check(path, ["x"], ["y"])
    assert found.parts[0][0].dtype == numpy.float32
    found = check(path, ["z"], ["w"])
    numpy.testing.assert_allclose(found.parts[0][0], [2 + 4j, 6j])


VERDICTS = {
    "sys.exit": "sys.exit('wrong')",
    "exit without a status": "sys.exit()",
    "assert": "assert False, 'wrong'",
    "Abort": "comm.Abort()",
    "Abort with a status": "comm.Abort(3)",
}


@pytest.mark.parametrize("ends_on", ["all", "the first"])
@pytest.mark.parametrize("verdict", VERDICTS)
def test_what_a_program_says_of_displaced_results_is_no_error(program, capfd, verdict, ends_on):
    path = program(
        f"""
        import sys
        import numpy as np
        from mpi4py import MPI
        comm = MPI.COMM_WORLD
        def main():
            k = 0.5
            y = comm.allreduce(np.sin(k) * (comm.rank + 1))
            size = comm.size * (comm.size + 1) / 2
            if abs(y - np.sin(0.5) * size) > 1e-12 and (comm.rank == 0 or {ends_on == "all"}):
                {VERDICTS[verdict]}
        main()
        """
    )
    problem = Differentiation(Program("file", str(path), []), ["main:k"], ["main:y"], objective="replicated")
    with ampi.mpi.installed():
        found = problem.gradients()
        (compared,) = compare(problem, found)
        problem.runner.forget()
    assert compared.passed and compared.exact
    said = [*problem.verdicts]
    if verdict != "exit without a status" and (ends_on == "all" or WORLD.rank == 0):
        assert len(said) == 1 and f"{path}:11: " in said[0]
    else:
        assert not said
    assert MPI.COMM_WORLD.Abort.__qualname__.startswith("Comm.")


@pytest.mark.parametrize("verdict", ["sys.exit('wrong')", "assert False, 'wrong'"])
def test_a_program_that_ends_before_its_results_are_there_is_an_error(program, verdict):
    path = program(
        f"""
        import sys
        def main():
            k = 0.5
            y = k * k
            if k != 0.5:
                {verdict}
            return y
        main()
        """
    )
    problem = Differentiation(Program("file", str(path), []), ["main:k"], ["main:return"])
    with ampi.mpi.installed():
        found = problem.gradients()
        with pytest.raises((SystemExit, AssertionError), match="wrong"):
            compare(problem, found)
        problem.runner.forget()


def test_what_is_computed_in_single_precision_between_is_compared_so(program):
    path = program(
        """
        import numpy as np
        k = 0.5
        x = np.full(20, k, np.float32)
        for _ in range(30):
            x = np.sin(x) + np.float32(0.1) * x
        y = x.astype(float).sum() * 1.0
        """
    )
    check(path, ["k"], ["y"])


def test_sums_that_cancel_are_compared_as_exactly_as_they_can_be(program):
    path = program("""
        import numpy as np
        k = 0.5
        x = np.sin(np.linspace(-3.0, 3.0, 41) * k) * 1e3
    """)
    problem = Differentiation(Program("file", str(path), []), ["k"], ["x"])
    with ampi.mpi.installed():
        (found,) = compare(problem, problem.gradients())
        problem.runner.forget()
    assert abs(found.exact) < 1e-9 and found.passed and "kink" not in str(found), str(found)
    assert "all of it rounding" in str(found)


KINDS = "float complex int np.ndarray np.generic np.floating np.float64 np.float32 numbers.Real object Sequence".split()
KINDS += ["(int, float)", "(list, np.ndarray)"]
VALUES = "k k*2 a a[0] a.sum() np.float32(k) np.array(k) hadamard(2) 1 [k] a.size".split()


def test_classes_are_those_of_the_program_by_itself(program):
    source = f"""
        import numbers
        from collections.abc import Sequence
        import numpy as np
        from scipy.linalg import hadamard
        k = np.float64(0.5)
        a = np.ones(3) * k
        found = [[isinstance(x, kind) for kind in ({", ".join(KINDS)})] for x in ({", ".join(VALUES)})]
        found = [*found, isinstance(k, float | np.ndarray), isinstance(float(k), float)]
        y = a.sum()
    """
    space = {}
    exec(textwrap.dedent(source), space)
    path = program(source)
    problem = Differentiation(Program("file", str(path), []), ["k"], ["y"])
    with ampi.mpi.installed():
        problem.gradients()
        found = problem.runner.namespace["found"]
        problem.runner.forget()
    assert found == space["found"]


def test_compiled_functions_may_return_their_arguments(program):
    path = program(
        """
        import numba
        import numpy as np

        @numba.njit
        def twice(x, y):
            for i in range(len(x)):
                y[i] = 2 * x[i]
            return x, y

        k = 0.5
        x, y = twice(np.ones(3) * k, np.zeros(3))
        z = (x * y).sum()
        """
    )
    check(path, ["k"], ["z"])


KINKS = {
    "a kink": ("x = np.zeros(1)\ny = np.where(x >= 0.0, 3.0 * x, x) + 0.1 * x**2\n", "ward alone: here is a kink"),
    "a threshold": ("x = np.zeros(3)\nz = np.where(abs(x) < 1e-7, 0.0, x)\ny = 5.0 + np.sin(z) + z**2\n", "1e-08"),
    "a near threshold": (
        "x = np.ones(3)\nz = np.where(abs(x - 1.0) < 1e-10, 1.0, x)\ny = np.sin(z) + x**2\n",
        "1e-11",
    ),
    "several kinks": ("x = np.zeros(4)\ny = np.where(x >= 0.0, 3.0 * x, x)\n", "here is a kink"),
    "a small kink": ("x = np.ones(4)\ny = 1e3 * np.sum(np.sin(x)) + np.sum(np.abs(x - 1))\n", "here is a kink"),
    "nothing": ("x = np.ones(3)\ny = np.sin(ampi.value(x)) + x**2\n", "FAIL"),
    "nothing, in single precision": (
        "x = np.ones(3)\ny = np.sin(ampi.value(x).astype('f')).astype('d') + 0.0 * x\n",
        "FAIL",
    ),
}


@pytest.mark.parametrize("name", KINKS)
def test_check_at_kinks_and_thresholds(name, program):
    """A derivative of one side, and one at a point that no threshold is near enough to, are right."""
    text, expected = KINKS[name]
    path = program(f"import ampi\nimport numpy as np\n{text}")
    problem = Differentiation(Program("file", str(path), []), ["x"], ["y"])
    with ampi.mpi.installed():
        (found,) = compare(problem, problem.gradients())
        problem.runner.forget()
    assert found.passed == (name in ("a kink", "a threshold", "a near threshold")), str(found)
    assert expected in str(found)


@pytest.mark.parametrize("given", ["", "float", "copy=True"])
def test_classes_of_the_programs_may_ask_for_the_array_below(given, program):
    path = program(
        f"""
        import numpy as np

        class Field(np.ndarray):
            @property
            def v(self):
                return self.__array__({given})

        x = np.arange(3.0)
        f = np.zeros(3).view(Field)
        f[:] = x
        assert type(f.v) is np.ndarray and np.shares_memory(f, f.v) == {"copy" not in given}
        y = np.sum(f.v[1:] ** 2) + f.v[0]
        """
    )
    check(path, ["x"], ["y"])


COMPUTED = """
    import numpy as np
    class Options:
        def __init__(self):
            self._alpha = np.array([0.5, 1.5])
            self.u = np.arange(6.0)
        @property
        def alpha(self):
            return self._alpha
        @property
        def inner(self):
            return self.u[1:-1]
        @property
        def twice(self):
            return 2 * self._alpha
        @property
        def first(self):
            return float(self._alpha[0])
    options = Options()
    energy = np.sum(options.alpha**2 * 3) + np.sum(options.inner**3) + options.first + np.sum(options.twice)
"""


@pytest.mark.parametrize("name, expected", [("alpha", [6.0, 11.0]), ("inner", [3.0, 12.0, 27.0, 48.0])])
def test_arrays_that_properties_give_are_watched_where_they_are(program, name, expected):
    path = program(COMPUTED)
    (gradient,) = ampi.trace(path, [f"options.{name}"], "energy")[1]
    numpy.testing.assert_allclose(gradient, expected)
    check(path, [f"options.{name}"], ["energy"])


@pytest.mark.parametrize("name", ["twice", "first"])
def test_properties_that_compute_are_an_error_that_says_what_to_name(program, name):
    with pytest.raises(ampi.errors.ProgramError, match=f"options.{name} .*is a property that cannot be assigned"):
        ampi.trace(program(COMPUTED), [f"options.{name}"], "energy")
