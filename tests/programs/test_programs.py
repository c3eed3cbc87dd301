"""Unmodified programs: gradients of scripts against finite differences and closed forms."""

import sys
import textwrap

import numpy
import pytest
from mpi4py import MPI
from program_runs import check

import ampi
from ampi.programs.differences import compare
from ampi.programs.gradients import Differentiation
from ampi.programs.results import describe
from ampi.programs.runs import Program

pytestmark = pytest.mark.mpi
WORLD = ampi.COMM_WORLD


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
    "def f(): return 0.5\nk = f()": "f:return",
    "def f(n):\n    if n: return 0.5\n    return\nj = f(0); k = f(1)": "f:return",
    "class C:\n    def f(self): return 0.5\nk = C().f()": "C.f:return",
    "def f():\n    def g(): return 0.5\n    return g() * 2\nk = f()": "f.g:return",
    "async def f(): return 0.5\nk = asyncio.run(f())": "f:return",
    "import constants\nk = constants.f() ": "constants:f:return",
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
    ("f.k", "y"): "of the script \\(or f.k cannot be found there; a variable of a function is written function:name\\)",
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
    ("never:return", "y"): "never\\(\\) of the script is never called",
    ("empty:return", "y"): "empty\\(\\) of the script returns None",
    ("Class.method:return", "y"): "the script has no function Class.method that returns something",
    ("f:return@10", "y"): "write f:return",
    ("x", "f:return@10"): "write f:return",
    ("x", "never:return"): "no return statement of never\\(\\) of the script is reached",
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
        def empty(): return
        class Class:
            def method(self): self.q = 1.0
        f(); empty()
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


FIRST = [
    "x[0:3] = 2.0",
    "x[:2] = j",
    "x[:] = 1.0",
    "x[0] = j",
    "x[0:2] = x[1:3]",
    "x[0:2] += 1.0",
    "x.fill(j)",
    "x -= j",
]


@pytest.mark.parametrize("write", FIRST)
def test_writes_before_anything_is_watched(program, write):
    """They may come before the first record of the tape."""
    path = program(f"import numpy as np\nx = np.ones(3); j = 0.3\n{write}\nk = 0.7\nenergy = k * np.sum(x ** 2)\n")
    check(path, ["k"], ["energy"])


def test_complex_numbers_are_made_of_two_parts(program):
    text = "import numpy as np\nx = np.array([1.0, 2.0, 3.0])\n"
    check(program(text + "energy = abs(complex(x[0], x[1]) * complex(2, x[2]))\n"), ["x"], ["energy"])
    by_name = "energy = abs(complex(real=x[0], imag=x[1]) * complex(2, imag=x[2]) + complex(imag=x[1]))\n"
    check(program(text + by_name), ["x"], ["energy"])


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
def test_properties_that_compute_are_an_error_with_advice(program, name):
    with pytest.raises(ampi.errors.ProgramError, match=f"options.{name} .*is a property that cannot be assigned"):
        ampi.trace(program(COMPUTED), [f"options.{name}"], "energy")
