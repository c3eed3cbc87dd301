"""Elementwise functions of arguments of several dtypes: derivatives are computed in the precision of the result."""

import numpy as np
import pytest
import scipy.special as sp

import ampi
import ampi.numpy as anp

OTHERS = ("bool", "uint8", "int8", "uint16", "int64", "float16", "float32")
N = np.array([1, 3, 1])
X = np.array([0.81, 0.26, 0.39])
FUNCTIONS = {
    "inv_boxcox": sp.inv_boxcox,
    "inv_boxcox1p": sp.inv_boxcox1p,
    "boxcox": lambda x, k: sp.boxcox(k, x),
    "xlogy": sp.xlogy,
    "xlogy of the other": lambda x, k: sp.xlogy(k, x),
    "xlog1py": sp.xlog1py,
    "stdtr": lambda x, k: sp.stdtr(k, x),
    "huber": lambda x, k: sp.huber(k, x - 3),
    "powm1": lambda x, k: sp.powm1(k, x),
    "rel_entr": lambda x, k: sp.rel_entr(k, x),
    "kl_div": lambda x, k: sp.kl_div(k, x),
    "owens_t": lambda x, k: sp.owens_t(k, x),
    "power": lambda x, k: np.power(k, x),
    "power of x": np.power,
    "float_power": lambda x, k: np.float_power(k, x),
    "divide": lambda x, k: k / x,
    "divide by": lambda x, k: x / k,
    "remainder": lambda x, k: np.remainder(k, x),
    "hypot": lambda x, k: np.hypot(k, x),
    "arctan2": lambda x, k: np.arctan2(k, x),
    "logaddexp": lambda x, k: np.logaddexp(k, x),
    "logaddexp2": lambda x, k: np.logaddexp2(x, k),
    "copysign": lambda x, k: np.copysign(x, k),
    "maximum": lambda x, k: np.maximum(x, k),
}


def in_all_modes(f, x):
    """Gradient, derivative along ones, and second derivative along ones."""
    loss = lambda x: np.sum(f(x))
    ones = np.ones_like(x)
    return ampi.grad(loss)(x), ampi.jvp(f, x, ones)[1], ampi.hvp(loss, x, ones)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_in_double_precision(name):
    function = FUNCTIONS[name]
    for kind in OTHERS:
        other = N.astype(kind)
        exact = other.astype(float)
        for given, wanted, x in (
            (other, exact, X),
            (np.repeat(other, 40), np.repeat(exact, 40), np.repeat(X, 40)),
            (other[1], exact[1], X),
            (other[1], exact[1], X[1]),
            (other, exact, X[1]),
        ):
            try:
                want = in_all_modes(lambda x, k=wanted: function(x, k), x)
                found = in_all_modes(lambda x, k=given: function(x, k), x)
            except TypeError:
                assert kind == "bool"  # NumPy has no such function of booleans
                continue
            for f, w in zip(found, want):
                np.testing.assert_allclose(f, w, rtol=1e-12, atol=1e-12, err_msg=f"{name} with {kind}")


def test_integers_that_set_the_dtype():
    """``ldexp`` of an integer, ``**`` of small integers, and arrays of single precision with numbers of double."""
    g = ampi.grad(lambda x: np.sum(np.ldexp(x, np.array([3, 20, -20], np.int8))))(np.ones(3))
    np.testing.assert_array_equal(g, [8.0, 2.0**20, 2.0**-20])
    g = ampi.grad(lambda x: np.sum(np.uint8(200) ** x))(np.array([1.5]))
    np.testing.assert_allclose(g, np.log(200.0) * 200.0**1.5, rtol=1e-14)
    single = np.array([0.3, 0.7], np.float32)
    g = ampi.grad(lambda x: np.sum(np.power(single, x)))(np.array([20.0, 0.1]))
    np.testing.assert_allclose(g, np.log(single.astype(float)) * single.astype(float) ** [20.0, 0.1], rtol=1e-14)
    g = ampi.grad(lambda x: np.sum(np.arctan2(x, np.int64(2**31))))(np.ones(2, np.float32))
    np.testing.assert_allclose(g, 2.0**-31, rtol=1e-6)


QUICK = ("gammainc", "boxcox1p", "power")  # the others compile for seconds
BOTH = {
    **{name: (getattr(sp, name), 0.6, 0.4) for name in ("gammainc", "gammaincc", "stdtr", "kv", "ive", "chdtr")},
    "boxcox1p": (sp.boxcox1p, 0.6, 0.4),
    "pseudo_huber": (sp.pseudo_huber, 0.6, 0.4),
    "ellipkinc": (sp.ellipkinc, 0.6, 0.4),
    "power": (np.power, 0.6, 0.4),
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in QUICK)) for n in BOTH])
def test_two_numbers_that_are_both_active(name):
    function, a, b = BOTH[name]
    point, h = np.array([a, b]), 1e-6
    wanted = [(function(*(point + d)) - function(*(point - d))) / (2 * h) for d in h * np.eye(2)]
    np.testing.assert_allclose(ampi.grad(lambda z: function(z[0], z[1]) * 1.0)(point), wanted, rtol=1e-7)
    np.testing.assert_allclose(ampi.grad(lambda z: np.sum(function(z[:1], z[1:])))(point), wanted, rtol=1e-7)
    first = ampi.grad(lambda z: function(z[0], z[1]) * 1.0)
    if name in ("kv", "ive"):
        return
    second = [(first(point + d) - first(point - d)) / (2 * h) for d in h * np.eye(2)]
    found = [ampi.hvp(lambda z: function(z[0], z[1]) * 1.0, point, v) for v in np.eye(2)]
    np.testing.assert_allclose(found, second, rtol=1e-6, atol=1e-8)


def test_a_number_whose_derivative_is_not_known():
    with pytest.raises(ampi.ActivityError, match=r"jv has no derivative rule with respect to argument 0"):
        ampi.grad(lambda z: sp.jv(z[0], z[1]) * 1.0)(np.array([0.6, 0.4]))


@ampi.kernel
def power(x, y):
    z = np.empty(len(x))
    for i in range(len(x)):
        z[i] = x[i] ** y[i]
    return z


@pytest.mark.parametrize("f", [lambda x, y: x**y, power], ids=["arrays", "kernel"])
def test_second_derivatives_of_powers_with_exponent_zero(f):
    found = ampi.hvp(lambda x, y: anp.sum(f(x, y)), (np.array([2.0]), np.zeros(1)), (np.zeros(1), np.ones(1)))
    np.testing.assert_allclose(found[0], [0.5])
    np.testing.assert_allclose(found[1], [np.log(2.0) ** 2])
