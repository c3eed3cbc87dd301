"""Checks of random kernels: adjoint against tangent, tangent against differences, with analyses switched off."""

import ast
import os
from unittest import mock

import numba
import numpy as np
import random_lists
from by_python import Apart, apart, recursive  # noqa: F401 (of programs)
from forward_check import check_seeds, is_drawn
from hostile_names import draw, require_the_same
from kernel_checks import Check, copies, derivative, ir_for, kernel_ir, load, pairing, run
from numba import types
from numba.core import inline_closurecall
from numba.core.errors import NumbaError
from numba.extending import overload, register_jitable
from random_kernels import SIZE
from written import written

import ampi
from ampi.kernel import ANALYSES, pipeline
from ampi.kernel.options import Options
from ampi.kernel.runtime import threads
from ampi.kernel.runtime.random_state import Generators

PATTERNS = [("a", "b", "c", "u", "v"), ("a",), ("u", "c")]
SWITCHES = [Options(), *(Options(without=frozenset({n})) for n in ANALYSES)]
HEADER = "import math\nimport numba\nimport numpy as np\nfrom numba import njit, prange\nfrom numba.typed import List\n"


@numba.njit
def total(x, c):
    s = 0.0
    for i in range(x.shape[0]):
        s += math_free(x[i], c) * x[-1 - i]
    return s


@numba.njit
def math_free(x, c):
    return 0.5 * x / (1.0 + c * c)


@numba.njit
def spread(x, out, c):
    for i in range(1, x.shape[0]):
        out[i] = 0.5 * x[i] * x[i - 1] + 0.25 * c * out[i - 1]


@numba.njit
def renewal(x, c):
    new = np.empty_like(x)
    for i in range(x.shape[0]):
        new[i] = 0.5 * x[i] + 0.25 * c * x[i - 1] * x[i]
    return new


@numba.stencil
def smoothed(x):
    return 0.5 * x[0] + 0.3 * x[-1] * x[1]


@numba.stencil(cval=0.25)
def upwind(x, c):
    return x[0] - c * (x[0] - x[-1]) if c > 0.3 else x[0] * x[1]


@numba.vectorize
def limited(x, y):
    s = x
    for _ in range(2):
        s = 0.5 * s * y + 0.1
    return s


@numba.njit
def several(c, *values):
    s = c
    for v in values:
        s = 0.5 * s * v + v
    return s


@register_jitable
def registered(x, c):
    s = c
    for i in range(x.shape[0]):
        s = 0.5 * s * x[i] + 0.1
    return s


@register_jitable
def applied(function, x, y, c):
    s = c
    for i in range(x.shape[0]):
        s = 0.5 * function(s, x[i] * y[i]) + 0.1
    return s


def declared(x, y):
    return np.tanh(x) * y if isinstance(x, np.ndarray) else 0.5 * x * y - x


@overload(declared)
def _declared(x, y):
    if isinstance(x, types.Array):
        return lambda x, y: np.tanh(x) * y
    return lambda x, y: 0.5 * x * y - x


@numba.njit
def noisy(x):
    return x + 0.3 * np.random.normal(0.0, x * x)  # noqa: NPY002


@numba.njit
def seed_numba(seed):
    np.random.seed(seed)  # noqa: NPY002


shifted = numba.njit(lambda x, y=0.3: math_free(x, y) + y * y)
HELPERS = (
    "total",
    "spread",
    "renewal",
    "smoothed",
    "upwind",
    "limited",
    "several",
    "registered",
    "applied",
    "declared",
    "shifted",
    "noisy",
    "recursive",
)


IN_PYTHON = {"smoothed": numba.njit(lambda x: smoothed(x)), "upwind": numba.njit(lambda x, c: upwind(x, c))}
"""Replacements of stencils for kernels run by Python, where Numba would compile a stencil in each call."""


def in_python(text, seed):
    """The kernel of a program's text, run by Python; it may be called often."""
    tree = Apart().visit(ast.parse(HEADER + text))
    namespace = names() | IN_PYTHON | {"apart": apart}
    exec(compile(tree, f"<random kernel {seed} in Python>", "exec"), namespace)
    return namespace["kernel"]


def names():
    """The globals of the programs."""
    return {"__name__": __name__} | {name: globals()[name] for name in HELPERS}


def kernel_of(text, seed):
    """The kernel of a program's text, with source that the parser finds, and its arguments."""
    namespace = written(HEADER + text, f"random kernel {seed}", **names())
    rng = np.random.default_rng(seed)
    vectors = [rng.uniform(-1, 1, SIZE) for _ in range(3)]
    return namespace["kernel"], [*vectors, rng.integers(0, SIZE, SIZE), *rng.uniform(-1, 1, 2), SIZE]


def examine(text, seed):
    """Raise if derivatives of a program are wrong."""
    kernel, arguments = kernel_of(text, seed)
    code = kernel_ir(kernel, arguments)
    kernel = in_python(text, seed)
    check = Check(kernel, arguments, PATTERNS[0], code=code)
    direction = check.direction()
    try:
        with np.errstate(over="raise"):
            tangents = check.tangents(direction)
    except FloatingPointError:
        return  # an infinite value may be overwritten without being used, and its adjoint is nan
    if not all(np.all(np.isfinite(tangent)) for tangent in tangents):
        return
    tolerance = max(1e-10, 100 * rounding(check, direction, tangents))
    if seed // 8 % 8 == 0:  # it takes as long as the rest
        examine_second(check, tolerance)
    for k, active in enumerate(PATTERNS):
        switches = SWITCHES[(seed + k) % len(SWITCHES)]
        other = check if k == 0 and seed % 2 else Check(kernel, arguments, active, switches, code=code)
        other.compare(tolerance, against_differences=False, values=True)
    require_slopes(check, direction, tangents)


def require_slopes(check, direction, tangents):
    """Raise unless tangents equal differences wherever these agree among themselves, so that no kink is nearby."""
    near, far = check.differences(direction, 1e-4), check.differences(direction, 2e-4)
    for computed, a, b in zip(tangents, near, far):
        if np.allclose(a, b, rtol=1e-5, atol=1e-6):
            np.testing.assert_allclose(computed, a, rtol=1e-4, atol=1e-5)


def examine_lists(text, seed):
    """`examine` for a program with lists among its arguments."""
    kernel, _ = kernel_of(text, seed)
    code, arguments = ir_for(kernel, random_lists.TYPES), random_lists.arguments_of(seed)
    everything = ("first", "second", "numbers", "a", "u")
    for k, active in enumerate((everything, ("second",), ("numbers", "a"))):
        options = SWITCHES[(seed + k) % len(SWITCHES)]
        check = Check(random_lists.with_lists(in_python(text, seed)), arguments, active, options, code=code)
        check.compare(1e-9, against_differences=False, values=True)
        if active == everything:
            direction = check.direction()
            require_slopes(check, direction, check.tangents(direction))
            if seed // 8 % 8 == 0:
                examine_second(check, 1e-9)


def examine_second(check, tolerance):
    """Raise unless ⟨u, H v⟩ = ⟨H u, v⟩, and H v equals differences of adjoints where these agree among themselves.

    H is the Hessian of a randomly weighted sum of all arrays after the call and all results.
    """
    seeds = check.seeds()
    u, v = check.direction(), check.direction()
    hu, hv = (second_products(check, *seeds, d) for d in (u, v))
    if not all(np.all(np.isfinite(x)) for x in (*hu.values(), *hv.values())):
        return
    size = 1.0 + sum(float(np.sum(np.abs(a[n]) * np.abs(b[n]))) for a, b in ((u, hv), (hu, v)) for n in u)
    there, back = (pairing([a[n] for n in u], [b[n] for n in u]) for a, b in ((u, hv), (hu, v)))
    assert abs(there - back) <= tolerance * size, ("H is not symmetric", there, back)

    def adjoint(h):
        moved = [x + h * v[n] if n in v else x for n, x in zip(check.names, check.arguments)]
        return check.at(moved).adjoints(*seeds)

    near, far = (slopes(adjoint(h), adjoint(-h), 2 * h) for h in (1e-4, 2e-4))
    largest = max(np.max(np.abs(near[n]), initial=0.0) for n in v)
    for n in v:
        if np.allclose(near[n], far[n], rtol=1e-5, atol=1e-6 * (1.0 + largest)):  # no kink nearby
            np.testing.assert_allclose(hv[n], near[n], rtol=1e-4, atol=1e-5 * (1.0 + largest), err_msg=f"H v: {n}")


def slopes(there, back, step):
    return {n: (there[n] - back[n]) / step for n in there}


def second_products(check, array_seeds, result_seeds, direction):
    """H v for the active arguments, by the tangent of the adjoint."""
    code, of_kernel = check.adjoint.function, check.tangents(direction)
    after = dict(zip(check.tangent.shadows, of_kernel))
    changed = dict(zip(check.names, run(check.function, check.arguments)[0])) if check.adjoint.after else {}
    given = [*copies(check.arguments), *copies(list(array_seeds.values())), *copies(result_seeds)]
    given += [changed[n] for n in check.adjoint.after]
    dots = [np.array(direction[n]) if n in direction else np.zeros_like(x) for n, x in zip(check.names, given)]
    dots += [np.zeros_like(x) for x in given[len(dots) : len(given) - len(check.adjoint.after)]]
    dots += [np.array(after.get(n, np.zeros_like(changed[n]))) for n in check.adjoint.after]
    given += [threads.distinct(check.value[n]) for n in check.adjoint.distinct] + [False for _ in check.adjoint.new]
    names = [a.name for a in code.arguments]
    active = [a.name for a in code.arguments if a.name in check.active or a.is_a("shadow") or a.is_a("seed")]
    active += [a.name for a in code.arguments if a.is_a("after")]
    second = derivative(pipeline.build_second, code, active, Options())
    dot = dict(zip(names, dots))
    arrays = {n: dot[n] for n in second.shadows}
    found = load(second.function)(*given, *arrays.values(), *(dot[n][()] for n in second.scalars))
    rest = iter(found[len(check.adjoint.scalars) :])
    scalars = {n: next(rest) if moves else 0.0 for n, moves in zip(check.adjoint.scalars, second.result_active)}
    shadows = dict(zip(array_seeds, names[len(check.names) :]))
    return {n: scalars[n] if n in scalars else arrays.get(shadows[n], np.zeros_like(check.value[n])) for n in direction}


def run_by_python(text, seed):
    """A program's arguments after the call, and its results."""
    _, arguments = kernel_of(text, seed)
    kernel = in_python(text, seed)
    if has_lists(text):
        kernel, arguments = random_lists.with_lists(kernel), random_lists.arguments_of(seed)
    arguments = copies(arguments)
    return arguments, kernel(*arguments)


def has_lists(text):
    """Return whether a program has lists among its arguments."""
    return "def kernel(l, m, s," in text


def draws(text):
    """Return whether a program draws random numbers, itself or in functions it calls."""
    return "np.random." in text or "noisy(" in text


def is_refusal(error):
    """Return whether an error refuses a kernel, at compile time or at run time, rather than show a bug."""
    return isinstance(error, ampi.KernelError) or (
        isinstance(error, ValueError) and "changes its size in a loop" in str(error)
    )


def examine_all(text, seed):
    """Examine a program of any kind, and check that generated programs do not depend on its names."""
    if draws(text):
        return examine_drawn(text, seed)
    if has_lists(text):
        return examine_lists(text, seed)
    examine(text, seed)
    kernel, arguments = kernel_of(text, seed)
    require_the_same(kernel, arguments, draw(kernel, seed), "other")


BY_TAPES = "split,ends,new,chains"


def examine_recorded(text, seed):
    """Raise unless recorded calls have the same values and gradients with and without analyses that only tapes use;
    return whether the kernel's own run saved something."""
    function, arguments = kernel_of(text, seed)
    found = [recorded(ampi.kernel(function, without=without), arguments, seed) for without in ("", BY_TAPES)]
    require_alike(*found)
    return found[0][2] > 0


def require_alike(one, other):
    """Raise unless two results of `recorded` have the same values, and gradients up to rounding."""
    for found, expected in zip(one[0], other[0], strict=True):
        np.testing.assert_array_equal(found, expected)
    for found, expected in zip(one[1], other[1], strict=True):
        size = np.max(np.abs(expected), initial=0.0)
        if np.isfinite(size):
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9 * max(size, 1e-3))


def recorded(kernel, arguments, seed):
    """Values after two calls, gradients of those after the second one, and the number of bytes that the tape kept."""
    *vectors, index, u, v, n = arguments
    rng = np.random.default_rng(seed)
    with ampi.Tape() as tape:
        watched = [tape.watch(x) for x in (*vectors, np.array(u), np.array(v))]
        arrays = [ampi.numpy.zeros(n) if seed % 3 == k else x * 1.0 for k, x in enumerate(watched[:3])]
        for array in arrays:
            array[seed % 2 :] = array[seed % 2 :] * 1.0 if seed % 5 else 0.5
        results = []
        for _ in range(2):
            result = kernel(*arrays, index, *watched[3:], n)
            results += result if isinstance(result, tuple) else [] if result is None else [result]
        outputs = [x for x in (*arrays, *results) if ampi.numpy.shape(x) or isinstance(x, ampi.ndarray)]
        outputs = [x for x in outputs if tape.is_active(x)]
    seeds = [rng.standard_normal(x.shape) for x in outputs]
    values = [np.array(x) for x in (*arrays, *results)]
    if not outputs:
        return values, [], tape.kept_bytes
    gradients = tape.gradient(tuple(outputs), watched, seed=tuple(seeds))
    searching = "PYTEST_CURRENT_TEST" not in os.environ
    if searching or is_drawn(1):
        vectors = searching or is_drawn(1, 9)  # instead of one direction after another
        check_seeds(tape, outputs, watched, 5 if vectors else 2, rounding=1e-9 if vectors else 0.0)
    return values, gradients, tape.kept_bytes


def examine_drawn(text, seed):
    """Raise unless a kernel draws the same random numbers as Numba from the same seed, once, with a tape and without,
    and its derivatives for these numbers agree with differences."""
    function, arguments = kernel_of(text, seed)
    plain, kernel = numba.njit(function, error_model="numpy"), ampi.kernel(function)
    *vectors, index, u, v, n = arguments
    point = [*vectors, np.array(u), np.array(v)]
    rng = np.random.default_rng(seed)
    direction = [rng.standard_normal(np.shape(x)) for x in point]

    def run(call, values):
        seed_numba(seed % 1000)
        arrays = [x * 1.0 for x in values[:3]]
        result = call(*arrays, index, *values[3:], n)
        return [*arrays, *(result if isinstance(result, tuple) else () if result is None else (result,))]

    def by_numba(values):
        return run(lambda *given: plain(*given[:4], float(given[4]), float(given[5]), n), values)

    try:
        with mock.patch.object(inline_closurecall, "enable_inline_arraycall", False):  # where Numba loses elements
            expected, state = by_numba(point), Generators().own
    except (NumbaError, NotImplementedError):
        return  # not for Numba either

    def check(found):
        assert Generators().own == state, "the generator is in another state"
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(ampi.value(a), b)

    check(run(lambda *given: kernel(*given[:4], float(given[4]), float(given[5]), n), point))
    if not all(np.all(np.isfinite(x)) for x in expected):
        return
    weights = [rng.standard_normal(np.shape(x)) for x in expected]
    with ampi.Tape() as tape:
        watched = [tape.watch(x) for x in point]
        found = run(kernel, watched)
        check(found)
        outputs = [(x, w) for x, w in zip(found, weights) if isinstance(x, ampi.ndarray) and tape.is_active(x)]
    if not outputs:
        return
    gradients = tape.gradient(tuple(x for x, _ in outputs), watched, seed=tuple(w for _, w in outputs))
    assert Generators().own == state, "the sweep has drawn"
    slope = sum(np.sum(g * d) for g, d in zip(gradients, direction))
    size = 1e-9 * (1.0 + sum(np.sum(np.abs(g * d)) for g, d in zip(gradients, direction)))

    def loss(*values):
        found = run(kernel, values)
        check(found)
        return sum(ampi.numpy.sum(x * w) for x, w in zip(found, weights))

    _, tangent = ampi.jvp(loss, tuple(point), tuple(direction))
    np.testing.assert_allclose(tangent, slope, atol=size, rtol=0)

    def difference(h):
        ends = [by_numba([x + s * h * d for x, d in zip(point, direction)]) for s in (1.0, -1.0)]
        return sum(np.sum(w * (a - b)) for w, a, b in zip(weights, *ends)) / (2 * h)

    near, far = difference(1e-5), difference(2e-5)
    if np.allclose(near, far, rtol=1e-6, atol=1e-7):  # no kink nearby, and the same ways
        np.testing.assert_allclose(slope, near, rtol=1e-4, atol=1e-5)


def rounding(check, direction, tangents):
    """The relative change of the tangents if arguments change in their last digits: programs may be ill-conditioned,
    such as sines of large numbers."""
    moved = [x * (1 + 1e-15) if np.asarray(x).dtype.kind == "f" else x for x in check.arguments]
    others = check.at(moved).tangents(direction)
    sizes = [np.max(np.abs(a)) for a in tangents]
    changes = [np.max(np.abs(np.subtract(a, b))) for a, b in zip(tangents, others)]
    return max(changes) / max(sizes) if max(sizes) > 0 and np.isfinite(max(changes)) else 0.0
