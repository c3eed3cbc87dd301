"""Loops of textbooks, courses and small codes: compiled, or left in Python for a stated reason."""

import itertools
import linecache
import math
import pathlib
import types
import warnings

import loops_of_others
import numpy as np
import pytest
import simulations_of_others
from loop_programs import alike, at_once, unchecked

import ampi
import ampi.numpy
from ampi.programs.numbers import make_math
from ampi.programs.outlining.compiled_loops import with_compiled_loops

_count = itertools.count()
FILES = [pathlib.Path(module.__file__) for module in (loops_of_others, simulations_of_others)]


def copies(active=False):
    """A new copy of the modules in one, for active arrays if requested."""
    module = types.ModuleType("loops_of_others")
    name = f"<loops of others {next(_count)}>"
    text = "".join(file.read_text() for file in FILES).replace("import math\n", "").replace("import numpy as np\n", "")
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    vars(module).update(np=ampi.numpy if active else np, math=make_math() if active else math)
    exec(compile(text, name, "exec"), vars(module))
    return module


rng = lambda: np.random.default_rng(7)
uniform = lambda *shape: rng().uniform(0.4, 1.6, shape)
dominant = lambda n: rng().uniform(-0.5, 0.5, (n, n)) + n * np.eye(n)
positive = lambda n: (lambda a: a @ a.T + np.eye(n))(uniform(n, n))
bits = lambda *shape: rng().integers(0, 2, shape)
zeros = np.zeros

# name: the arguments, and which of them are differentiated
CASES = {
    "ludcmp": (lambda m: (dominant(5)[::-1].copy(), 5, zeros(5, int)), (0,)),
    "tridag": (lambda m: (uniform(6), uniform(6) + 3, uniform(6), uniform(6), zeros(6)), (0, 1, 2, 3)),
    "cholesky": (lambda m: (positive(5), zeros((5, 5))), (0,)),
    "conjugate_gradient": (lambda m: (positive(5), uniform(5), zeros(5), 3, 1e-12), (0, 1)),
    "jacobi": (lambda m: (uniform(6, 7), uniform(6, 7), uniform(6, 7), 0.1, 4), (0, 1, 2)),
    "sor": (lambda m: (uniform(6, 7), 1.3, 4), (0, 1)),
    "power_iteration": (lambda m: (positive(4), uniform(4), 3), (0, 1)),
    "gram_schmidt": (lambda m: (uniform(5, 4), zeros((4, 4))), (0,)),
    "matmul_triple": (lambda m: (uniform(3, 4), uniform(4, 3), zeros((3, 3))), (0, 1)),
    "matrix_chain": (lambda m: (uniform(7), zeros((6, 6)), zeros((6, 6), int)), (0,)),
    "dynamic_time_warping": (lambda m: (uniform(6), uniform(5) ** 2, zeros((7, 6))), (0, 1)),
    "longest_common": (lambda m: (bits(8), bits(9)[::-1].copy(), zeros((9, 10), int)), ()),
    "knapsack": (lambda m: (uniform(6), rng().integers(1, 5, 6), 9, zeros(10)), (0,)),
    "floyd_warshall": (lambda m: (uniform(5, 5) + 4 * bits(5, 5),), (0,)),
    "binomial_tree": (lambda m: (1.0, 1.1, 0.03, 0.3, 1.0, 12, zeros(13)), (0, 1, 2, 3, 4)),
    "nbody": (lambda m: (m.Body(4), uniform(4), 0.01, 3), (1, 2)),
    "lennard_jones": (lambda m: (uniform(6, 3) * 2, 1.5), (0,)),
    "rk4": (lambda m: (uniform(4), 0.7, 0.05, 6), (0, 1, 2)),
    "game_of_life": (lambda m: (bits(6, 6), zeros((6, 6), int), 3), ()),
    "rule_automaton": (lambda m: (bits(6, 9), 110, 5), ()),
    "heat_rod": (lambda m: (uniform(9), 0.4, 0.5, 0.1, 6), (0, 1, 2, 3)),
    "burgers": (lambda m: (uniform(9) - 0.9, 0.07, 0.3, 0.05, 5), (0, 1, 2, 3)),
    "ising": (lambda m: (2 * bits(5, 5) - 1.0, 0.8, 0.5, 42, 3), ()),
    "monte_carlo_pi": (lambda m: (200, 12345), ()),
    "mc_option": (lambda m: (1.0, 0.9, 0.02, 0.3, 1.0, uniform(8, 6) - 1), (0, 1, 2, 3, 4, 5)),
    "bisect": (lambda m: (1.2, 1.0, 2.0, 1e-10), ()),
    "newton_all": (lambda m: (uniform(5), zeros(5)), (0,)),
    "trapzd": (lambda m: (0.2, 1.7, 40), (0, 1)),
    "horner": (lambda m: (uniform(6), uniform(5)), (0, 1)),
    "mandelbrot": (lambda m: (np.linspace(-2, 0.5, 9), np.linspace(-1, 1, 8), zeros((8, 9), int), 30), ()),
    "histogram": (lambda m: (uniform(80), 0.5, 1.5, 7, zeros(7, int)), ()),
    "kernel_density": (lambda m: (uniform(9), np.linspace(0.2, 1.8, 7), 0.3, zeros(7)), (0, 1, 2)),
    "bubble_sort": (lambda m: (uniform(8),), (0,)),
    "insertion_sort": (lambda m: (uniform(8),), (0,)),
    "find_pattern": (lambda m: (bits(60), np.array([1, 0, 1]), zeros(60, int)), ()),
    "sieve": (lambda m: (np.ones(60, int),), ()),
    "blur": (lambda m: (uniform(7, 8), uniform(3, 3), zeros((7, 8))), (0, 1)),
    "slow_fourier": (lambda m: (uniform(6), uniform(6) - 1, zeros(6), zeros(6)), (0, 1)),
    "kmeans": (lambda m: (uniform(9, 2), uniform(3, 2) + 0.1, zeros(9, int), 3), (0,)),
    "csr_matvec": (
        lambda m: (uniform(7), np.array([0, 2, 1, 3, 0, 2, 3]), np.array([0, 2, 4, 5, 7]), uniform(4), zeros(4)),
        (0, 3),
    ),
    "hmm_forward": (
        lambda m: (uniform(3, 3) / 3, uniform(3, 2) / 2, uniform(3) / 3, bits(6), zeros((6, 3))),
        (0, 1, 2),
    ),
    "collatz": (lambda m: (np.arange(1, 30), zeros(29, int)), ()),
}


# by name: the reasons for which some of its loops stay in Python
IN_PYTHON = {
    "ludcmp": {"raise in the loop"},
    "jacobi": {"'u' is an array of shape (6, 7) and dtype float64, and is assigned in the loop"},
    "power_iteration": {"np.zeros(n), whose length is not in the source"},
    "rule_automaton": {"2 ** pattern, a power of an integer"},
    "burgers": {"un[:], an array of 9 elements, in an expression"},
    "newton_all": {"raise in the loop"},
    "horner": {"slices whose lengths are not all the same, or not in the source"},
    "histogram": {"a call of int()"},
    "sieve": {"range() of large integers"},
    "kmeans": {"'total' is a list", "a list in the loop"},
}
WITHOUT_ANY = {"rule_automaton", "newton_all", "horner", "histogram", "sieve"}


def run(name, active, **how):
    """Call a function with compiled loops: its result, its arguments, the lines compiled, and why others are not."""
    module, loops = copies(active), []
    arguments = CASES[name][0](module)
    with at_once(**how):
        found = with_compiled_loops(getattr(module, name), loops)(*arguments)
    compiled = [one for one in loops if any(form.kernel is not None for form in one.forms.values())]
    static = {one.loop.refusal[1] for one in loops if one.loop.refusal}
    return (
        found,
        arguments,
        compiled,
        static | {form.refusal.reason for one in loops for form in one.forms.values() if form.refusal},
    )


@pytest.mark.parametrize("name", CASES)
def test_values_and_reasons(name):
    module = copies()
    arguments = CASES[name][0](module)
    expected = getattr(module, name)(*arguments)
    found, given, compiled, reasons = run(name, active=False, interpreted=True)
    assert alike(found, expected)
    arrays = [(a, b) for a, b in zip(given, arguments) if isinstance(a, np.ndarray)]
    assert all(alike(a, b) for a, b in arrays)
    assert not unchecked
    assert reasons == IN_PYTHON.get(name, set())
    assert bool(compiled) == (name not in WITHOUT_ANY)


def gradients(name, compiled):
    module = copies(active=True)
    arguments, active = CASES[name][0](module), CASES[name][1]
    arguments = [ampi.numpy.array(a) if isinstance(a, np.ndarray) and a.dtype == float else a for a in arguments]
    function = getattr(module, name)

    def of(*chosen):
        given = list(arguments)
        for k, value in zip(active, chosen):
            given[k] = value.copy() if isinstance(value, np.ndarray) and value.ndim else value
        return function(*given)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ampi.PerformanceWarning)
        if not compiled:
            return ampi.grad(of, argnums=tuple(range(len(active))))(*(arguments[k] for k in active))
        with at_once(interpreted=False):
            with_compiled_loops(function)
            return ampi.grad(of, argnums=tuple(range(len(active))))(*(arguments[k] for k in active))


DIFFERENTIATED = [name for name, (_, active) in CASES.items() if active]
QUICK = ("tridag", "insertion_sort", "csr_matvec")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in DIFFERENTIATED]
)
def test_gradients(name):
    for found, expected in zip(gradients(name, True), gradients(name, False), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)
