"""scipy.special: every elementwise function is differentiated, or an error that names it."""

import warnings

import numpy as np
import pytest
import scipy.special as sp
from scipy_check import check

import ampi

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


@pytest.mark.parametrize("name", UFUNCS)
def test_ufunc_in_each_argument(name):
    ufunc = getattr(sp, name)
    values = arguments(name, ufunc.nin)
    right = 0
    for k in range(ufunc.nin):
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
    from ampi.scipy_rules import special

    if name in special.PARTIALS:
        assert right >= sum(entry is not ... for entry in special.PARTIALS[name])


@pytest.mark.parametrize("axis", [None, 0, -1])
def test_sums_of_exponentials(axis):
    x = np.random.default_rng(1).normal(size=(3, 4))
    check(lambda x: sp.logsumexp(x, axis=axis), x)
    check(lambda x, b: sp.logsumexp(x, axis=axis, b=b, keepdims=True), x, x * x + 0.1)
    check(lambda x, b: sp.logsumexp(x, axis=axis, b=b, return_sign=True), x, -x * x - 0.1)
    check(lambda x: sp.softmax(x, axis=axis), x)
    check(lambda x: sp.log_softmax(x, axis=axis), np.asfortranarray(x))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: sp.polygamma(2, x),
        lambda x: sp.multigammaln(x + 3, 3),
        lambda x: sp.zeta(2.5, x),
        lambda x: sp.lambertw(x),
        lambda x: sp.spherical_jn(2, x),
        lambda x: sp.spherical_yn(np.array([[1], [2]]), x),
    ],
)
def test_other_functions(function):
    check(function, np.array([0.4, 1.7, 2.3]))
