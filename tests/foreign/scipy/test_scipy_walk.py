"""All public functions of SciPy, called with active arrays as far as NumPy's arrays suit them: a right derivative, or
an error that names the function; a value that has lost its derivative without a word is a failure."""

import functools
import importlib
import inspect
import io
import re
import signal
import types
import warnings
from contextlib import redirect_stdout

import numpy as np
import pytest
import scipy.optimize
from scipy_check import STEP, flat, scalar_of

import ampi
from ampi.foreign.scipy import PARTS

LEFT_OUT = {
    "scipy.linalg.blas",  # thousands of functions that differ in letters: a few by hand
    "scipy.linalg.lapack",
    "scipy.stats.sampling",
}
SLOW = {
    "test",
    "distance_transform_cdt",  # crashes on other arguments than it expects
    "brute",
    "dual_annealing",
    "differential_evolution",
    "shgo",
    "direct",
    "basinhopping",
    "milp",
    "qmc_quad",
    "bootstrap",
    "permutation_test",
    "monte_carlo_test",
    "power",
    "goodness_of_fit",
    "tanhsinh",
    "nsum",
    "fit",
    "gaussian_kde",
    "optimize_",
    "ellip_harm",
    "ellip_harm_2",
    "ellip_normal",
    "stirling2",
    "kolmogn",
    "binary_propagation",
    "cubature",
    "cg",  # of symmetric matrices, which differences do not keep so
    "minres",
}
CALLERS = {"f", "fun", "func", "function", "func1d", "ufunc", "objective", "fcn"}
RANDOM = re.compile(
    r"random|rand|rvs|perturb|clarkson|kmeans|johnson_lindenstrauss|sketch|interpolative|estimate_|svds|"
    r"eigs|lobpcg|id_dist"
)


def public(part):
    module = importlib.import_module(part)
    names = getattr(module, "__all__", None) or [n for n in dir(module) if not n.startswith("_")]
    for name in names:
        found = getattr(module, name, None)
        if (
            name in SLOW
            or RANDOM.search(name)
            or isinstance(found, (types.ModuleType, np.ufunc))
            or not callable(found)
        ):
            continue
        if isinstance(found, type) or (part == "scipy.stats" and not isinstance(found, types.FunctionType)):
            continue  # objects are looked at below
        yield name, found


def drawn(rng):
    """Arguments of many kinds: places in (0, 1), matrices, both with whole numbers beside them."""
    x = rng.uniform(0.2, 0.8, 6).cumsum()
    a = rng.uniform(0.2, 0.8, (4, 4))
    a = a @ a.T + 2 * np.eye(4)
    y, b = rng.uniform(0.3, 0.7, 6), rng.uniform(0.3, 0.7, 4)
    return [
        (x,),
        (a,),
        (x, y),
        (a, b),
        (a, a + 1),
        (x, 2),
        (2, x),
        (a, 2),
        (x, y, y),
        (a, b, b),
        (2, y, y),
        (2, 3, y),
        (y, y, y, y),
        (0.4, y),
        (y, 3, 2),
        (0.5, 1.5, y),
        ((1, 1), a[:3], b),
        (b, a[:, 0], a[1]),
    ]


def call(function, arguments):
    with warnings.catch_warnings(), np.errstate(all="ignore"), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        try:
            return function(*arguments)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


def too_long(*_):
    raise TimeoutError


def numbers(result):
    """Whether a result has floating-point numbers."""
    return any(np.asarray(ampi.value(x)).dtype.kind in "fc" and np.size(x) for x in flat(result))


def verdict(function, arguments):
    """None where NumPy's arrays do not suit the function, "right", "refused" with the message, or what is wrong."""
    try:
        plain = call(function, arguments)
        again = call(function, arguments)
    except BaseException:
        return None
    if not numbers(plain) or not np.array_equal(scalar_of(plain), scalar_of(again)):
        return None
    arrays = [k for k, x in enumerate(arguments) if isinstance(x, np.ndarray)]
    said = []
    with ampi.Tape() as tape:
        given = [tape.watch(x) if k in arrays else x for k, x in enumerate(arguments)]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                with np.errstate(all="ignore"), redirect_stdout(io.StringIO()):
                    result = function(*given)
                    total = scalar_of(result)
            except ampi.AmpiError as error:
                return "refused", str(error)
        said = [w for w in caught if issubclass(w.category, ampi.ActivityWarning)]
    if said:
        return "refused", str(said[0].message)
    watched = [given[k] for k in arrays]
    if not isinstance(total, ampi.ndarray):
        gradient = [np.zeros(a.shape) for a in watched]
    else:
        try:
            gradient = tape.gradient(total, watched)
        except ampi.AmpiError as error:
            return "refused", str(error)
    rng = np.random.default_rng(11)
    moves = [rng.uniform(-1, 1, arguments[k].shape) for k in arrays]

    def along(h):
        moved = list(arguments)
        for k, m in zip(arrays, moves):
            moved[k] = arguments[k] + h * m
        return scalar_of(call(function, moved))

    try:
        near, far = [(along(h) - along(-h)) / (2 * h) for h in (STEP, 2 * STEP)]
    except BaseException:
        return None
    value = sum(np.vdot(g, m).real for g, m in zip(gradient, moves))
    scale = max(1.0, abs(near))
    if not np.isfinite(near) or abs(near - far) > 1e-4 * scale:
        return None  # a kink, a jump, or nothing at all
    if abs(value - near) >= 1e-3 * scale:
        return f"gives {value}, differences {near}"
    forward = tangent(function, arguments, arrays, moves)
    return "right" if abs(forward - near) < 1e-3 * scale else f"gives {forward} in forward mode, differences {near}"


def tangent(function, arguments, arrays, moves):
    """That of the weighted sum of all results, in forward mode."""

    def total(*active):
        given = dict(zip(arrays, active))
        return scalar_of(call(function, [given.get(k, x) for k, x in enumerate(arguments)]))

    try:
        return ampi.jvp(total, tuple(arguments[k] for k in arrays), tuple(moves))[1]
    except ampi.AmpiError:
        return np.nan  # what has a gradient has a tangent


QUICK = {"scipy.fft", "scipy.linalg"}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "part",
    [pytest.param(p, marks=() if p in QUICK else pytest.mark.slow) for p in PARTS if p not in LEFT_OUT],
)
def test_no_function_of_scipy_loses_a_derivative_in_silence(part):
    signal.signal(signal.SIGALRM, too_long)
    rng, wrong, outcomes = np.random.default_rng(1), [], {"right": 0, "refused": 0}
    for name, function in public(part):
        tried = 0
        for arguments in drawn(rng):
            if isinstance(function, type) or not _takes(function, len(arguments)):
                continue
            found = verdict(function, arguments)
            if found is None:
                continue
            tried += 1
            kind = found if isinstance(found, str) else found[0]
            if kind not in outcomes:
                wrong.append(f"{part}.{name}{[np.shape(x) for x in arguments]}: {kind}")
            else:
                outcomes[kind] += 1
            if kind == "refused" and not _named(name, found[1]):
                wrong.append(f"{part}.{name}: says {found[1]}")
            if tried == 2:
                break
    print(part, outcomes)
    assert not wrong, "\n".join(wrong)


def _named(name, message):
    return "test_scipy_walk.py:" in message or "scipy" in message or name in message


@functools.cache
def _takes(function, n):
    try:
        signature = inspect.signature(function)
        if CALLERS.intersection(signature.parameters):
            return False  # of functions, which are not drawn
        signature.bind(*[None] * n)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


@pytest.mark.parametrize(
    "f",
    [
        lambda x: scipy.optimize.minimize(lambda z: ((z - x[0]) ** 2).sum(), np.zeros(3)),
        lambda x: scipy.optimize.minimize(lambda z: (z**2).sum(), x[0]),
        lambda x: scipy.optimize.root(functools.partial(lambda p, z: z - p, x[0]), np.zeros(3)),
        lambda x: scipy.optimize.least_squares(lambda z, p: z - p, np.zeros(3), args=(x[0],)),
        lambda x: scipy.optimize.brentq(lambda z: z - x[0, 0], 0, 1),
    ],
)
def test_optimization_points_to_implicit_differentiation(f):
    with ampi.Tape() as tape:
        x = tape.watch(np.full((3, 3), 0.4))
        with pytest.raises(ampi.ActivityError, match=r"test_scipy_walk\.py:.*scipy\.optimize\..*custom_vjp"):
            f(x)


@pytest.mark.filterwarnings("ignore:.*assignment into a plain:ampi.ActivityWarning")  # it is an error afterwards
@pytest.mark.parametrize("lost", [1.0, 0.2])
def test_an_adjoint_that_loses_a_part_in_plain_arrays_has_no_tangent(lost):
    module = types.ModuleType("a_library")
    module.twice = lambda x: 2.0 * x

    def adjoint(g):
        bar = np.zeros(g.shape)
        bar[:] = lost * g
        return (2.0 - lost) * g + bar

    ampi.rules.define(module.twice, adjoint={"x": adjoint})
    x = np.arange(1.0, 4.0)
    np.testing.assert_allclose(ampi.grad(lambda x: np.sum(module.twice(x)))(x), 2.0)
    with pytest.raises(ampi.ActivityError, match="no tangent"):
        ampi.jvp(lambda x: np.sum(module.twice(x)), (x,), (np.ones(3),))


def test_fortran_and_objects_of_scipy():
    import scipy.linalg.blas
    import scipy.linalg.lapack
    import scipy.spatial
    import scipy.stats

    x0 = np.random.default_rng(2).uniform(0.3, 0.7, (3, 3))
    for f in (
        lambda x: scipy.linalg.blas.dgemm(1.0, x, x),
        lambda x: scipy.linalg.lapack.dgesv(x, x),
        lambda x: scipy.linalg.get_blas_funcs("gemm", (x,)),
        lambda x: scipy.spatial.KDTree(x),
        lambda x: scipy.stats.norm(x[0, 0]).pdf(0.2),
        lambda x: scipy.stats.norm.logpdf(x),
        lambda x: scipy.stats.gaussian_kde(x),
        lambda x: scipy.stats.multivariate_normal.pdf(x[0], x[1]),
    ):
        with ampi.Tape() as tape:
            x = tape.watch(x0)
            with pytest.raises(ampi.ActivityError, match=r"test_scipy_walk\.py:.*scipy\."):
                f(x)
