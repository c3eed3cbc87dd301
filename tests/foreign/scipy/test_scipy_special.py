"""scipy.special: every elementwise function is differentiated, or an error that names it."""

import importlib
import warnings

import numpy as np
import pytest
import scipy.special as sp
from scipy_check import check

import ampi
from ampi.arrays.elementwise import RULES
from ampi.partials import special as special_table

special = importlib.import_module("ampi.foreign.scipy.special")
knows_derivatives = importlib.import_module("ampi.kernel.frontend.scipy.special").knows_derivatives
UFUNCS = sorted(n for n in sp.__all__ if isinstance(getattr(sp, n), np.ufunc))
# Where a function is not defined around (0.2 … 0.7), or takes whole numbers.
AT = {
    "eval_hermite*": [2],
    "eval_*": [2.0],
    "wofz": [0.3 + 0.2j],
    "loggamma": [1.3 + 0.4j],
    "hankel*": [1.0, 0.7 + 0.1j],
    "ndtri_exp": [-0.7],
    "expn": [2.0],
    "kn": [2.0],
    "yn": [2.0],
    "jn": [2.0],
}


def arguments(name, nin):
    found = [0.35 + 0.11 * k for k in range(nin)]
    for key, given in AT.items():
        if name == key or (key.endswith("*") and name.startswith(key[:-1])):
            found[: len(given)] = given
            break
    return found


def entries_of(name):
    """What the table has for each argument; ``...`` where a kernel may know the derivative."""
    ufunc = getattr(sp, name)
    if name not in special.PARTIALS and name not in special.BY_KERNELS:
        return (None,) * ufunc.nin
    unknown = RULES[ufunc].unknown
    return tuple(... if k in unknown else "known" for k in range(ufunc.nin))


def right_arguments(name, positions):
    """How many of these arguments have the derivative that differences have; the others are refused by name."""
    ufunc = getattr(sp, name)
    values = arguments(name, ufunc.nin)
    right = 0
    for k in positions:
        x = np.array([values[k], values[k] * 1.01])

        def f(x, k=k):
            return ufunc(*[x if j == k else v for j, v in enumerate(values)])

        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                f(x)
            except TypeError:
                continue  # of whole numbers only
            try:
                check(f, x, rtol=1e-4)
                right += 1
            except ampi.ActivityError as error:
                assert ufunc.__name__ in str(error)
    return right


@pytest.mark.parametrize("name", UFUNCS)
def test_ufunc_in_each_argument(name):
    known = [k for k, entry in enumerate(entries_of(name)) if not (entry is ... and knows_derivatives(name, (k,)))]
    right = right_arguments(name, known)
    if name in special.PARTIALS:
        assert right >= sum(entries_of(name)[k] is not ... for k in known)


BY_KERNELS = [n for n in UFUNCS if any(e is ... and knows_derivatives(n, (k,)) for k, e in enumerate(entries_of(n)))]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (k % 8 != 0)) for k, n in enumerate(BY_KERNELS)]
)
def test_arguments_that_kernels_know(name):
    known = [k for k, entry in enumerate(entries_of(name)) if entry is ... and knows_derivatives(name, (k,))]
    assert right_arguments(name, known) == len(known)


def test_parameters_of_distributions():
    """Arguments that are broadcast, that are the same array, of single precision, and derivatives of second order."""
    x = np.array([[0.3, 0.5, 0.7], [1.1, 2.0, 4.0]])
    check(lambda a, x: sp.gammainc(a, x), np.array([0.7, 1.5, 3.0]), x)
    check(lambda x: sp.betainc(x, 2.5, x / 5), x)
    check(lambda v, x: sp.stdtr(v[:, None], x), np.array([1.5, 30.0]), x - 1)
    check(lambda a: sp.kv(a, np.float32(0.7)) * sp.gammaincinv(a, 0.2), np.array([0.4, 2.3]))
    check(lambda a, x: sp.gdtr(1.5, a, x, where=x > 0.4, out=np.ones_like(x)), x, x)
    assert ampi.grad(lambda a: sp.gammainc(a, np.float32(0.5)))(np.float32(1.5)).dtype == np.float32
    second = ampi.hessian(lambda p: np.sum(sp.stdtr(p[0], p[1:])), np.array([2.5, 0.3, -0.8]))
    step = np.eye(3) * 1e-4
    first = ampi.grad(lambda p: np.sum(sp.stdtr(p[0], p[1:])))
    slopes = [(first(np.array([2.5, 0.3, -0.8]) + h) - first(np.array([2.5, 0.3, -0.8]) - h)) / 2e-4 for h in step]
    np.testing.assert_allclose(second, slopes, rtol=1e-6, atol=1e-9)


def test_an_order_whose_derivative_is_not_known():
    with pytest.raises(ampi.ActivityError, match=r"jv has no derivative rule with respect to argument 0"):
        ampi.grad(lambda v: sp.jv(v, 0.5))(1.5)


@pytest.mark.parametrize("axis", [None, 0, -1])
def test_sums_of_exponentials(axis):
    x = np.random.default_rng(1).normal(size=(3, 4))
    check(lambda x: sp.logsumexp(x, axis=axis), x)
    check(lambda x, b: sp.logsumexp(x, axis=axis, b=b, keepdims=True), x, x * x + 0.1)
    check(lambda x, b: sp.logsumexp(x, axis=axis, b=b, return_sign=True), x, -x * x - 0.1)
    check(lambda b: sp.logsumexp([0.3, 1.0], axis, b), np.array([0.7, 0.4]))
    check(lambda b: sp.logsumexp([0.3, b[0]], axis, [b[1], 0.5]), np.array([0.7, 0.4]))
    check(lambda x: sp.softmax(x, axis=axis), x)
    check(lambda x: sp.log_softmax(x, axis=axis), np.asfortranarray(x))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: sp.polygamma(2, x),
        lambda x: sp.multigammaln(x + 3, 3),
        lambda x: sp.zeta(2.5, x),
        lambda x: sp.lambertw(x),
        lambda x: sp.gammasgn(x) * x,
        lambda x: sp.spherical_jn(2, x),
        lambda x: sp.spherical_yn(np.array([[1], [2]]), x),
    ],
)
def test_other_functions(function):
    check(function, np.array([0.4, 1.7, 2.3]))


def test_refusals_name_the_functions_that_programs_call():
    names = {*special_table.FORMULAS, *special_table.PARTIALS}
    own = {name for name in names if not hasattr(sp, name)} - {"wofz_real", "wofz_imag"}
    assert len(own) > 30
    for name in own:
        said = special_table.in_words(name)
        assert name not in said and all(hasattr(sp, word) for word in said.partition("special.")[2].split(" or "))
    x = np.array([1.3, 2.2])
    with pytest.raises(ampi.ActivityError, match=r"the derivative of scipy\.special\.iv or ive has no derivative"):
        ampi.hvp(lambda x: np.sum(sp.ive(x, 3.0)), (x,), (np.ones(2),))
