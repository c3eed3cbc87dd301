"""Derivatives of special functions of arrays and of numbers, against mpmath's to many digits: over whole
domains, near limits and far out, in first and second order."""

import numpy as np
import pytest
import scipy.special as sp
from special_values import COMPILED, FUNCTIONS, errors_of, exact, mixed, moving, point_of

import ampi
import ampi.numpy as anp

FIRST, SECOND = 1e-10, 1e-7
"""How far derivatives may be off, in proportion."""


def in_place_of(function, point, k):
    return lambda x: function(*[x if j == k else v for j, v in enumerate(point)])


def gradient_and_product(f, x):
    """First and second derivative with respect to a number, or to the only element of an array."""
    loss = lambda x: np.sum(f(x)) * 1.0
    g, h = ampi.grad(loss)(x), ampi.hvp(loss, x, np.ones_like(x))
    assert np.shape(g) == np.shape(h) == np.shape(x) and np.asarray(g).dtype == np.asarray(x).dtype
    j = ampi.jvp(f, x, np.ones_like(x))[1]
    np.testing.assert_allclose(np.sum(j), np.sum(g), rtol=1e-12 if np.asarray(x).dtype == float else 1e-5, atol=1e-300)
    return float(np.sum(g)), float(np.sum(h))


def value_error(function, point, wanted):
    """The relative error of SciPy's own value, with which derivatives are computed."""
    return 10 * abs(float(function(*point)) - wanted[0]) / abs(wanted[0]) if abs(wanted[0]) > 1e-290 else 0.0


def hold(name, point, k, x, first=FIRST, second=SECOND):
    wanted = exact(name, point, k)
    if wanted is None:
        return
    off = errors_of(gradient_and_product(in_place_of(getattr(sp, name), point, k), x), wanted)
    own = value_error(getattr(sp, name), point, wanted)
    assert off[0] < first + own and off[1] < second + own, (name, point, k, off, wanted)


def known(name, compiled):
    return [k for k in moving(name) if (k in COMPILED.get(name, ())) == compiled]


@pytest.mark.parametrize("seed", [0, *[pytest.param(s, marks=pytest.mark.slow) for s in range(1, 6)]])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_drawn_points(name, seed):
    if not hasattr(sp, name):
        pytest.skip("not in this version of SciPy")
    generator = np.random.default_rng([seed, *map(ord, name)])
    for n in range(10 if seed else 1):
        point = point_of(name, generator)
        for k in known(name, False):
            hold(name, point, k, np.array(point[k]) if n % 2 else np.array([point[k]]))


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n != "gammainc")) for n in COMPILED])
def test_parameters_that_kernels_know(name):
    generator = np.random.default_rng(1)
    for n in range(6):
        point = point_of(name, generator)
        for k in known(name, True):
            hold(name, point, k, np.array(point[k]) if n % 2 else np.array([point[k]]), 1e-7, 1e-4)


def some_of(names):
    """Some of the cases; the others are slow tests."""
    return [pytest.param(name, marks=[pytest.mark.slow] * (n % 4 != 0)) for n, name in enumerate(names)]


PAIRS = [n for n in FUNCTIONS if len(known(n, False)) > 1 and n != "huber"]


@pytest.mark.parametrize("seed", [0, *[pytest.param(s, marks=pytest.mark.slow) for s in range(1, 4)]])
@pytest.mark.parametrize("name", some_of(PAIRS))
def test_two_active_arguments(name, seed):
    """Mixed second derivatives, of arrays and of numbers, and of an active array with an active number."""
    generator = np.random.default_rng([seed, 3, *map(ord, name)])
    function = getattr(sp, name)
    for _ in range(10 if seed else 1):
        point = point_of(name, generator)
        j, k = known(name, False)[:2]
        of_j, of_k, both = exact(name, point, j), exact(name, point, k), mixed(name, point, j, k)
        if of_j is None or of_k is None or not 1e-250 < abs(both) < 1e250:
            continue
        if name == "poch" and point[0] <= 0:
            continue  # x + y is rounded next to a pole
        own = value_error(function, point, of_j)

        def f(a, b, j=j, k=k, point=point):
            return np.sum(function(*[a if i == j else b if i == k else v for i, v in enumerate(point)])) * 1.0

        a, b = [(np.array(x)[()], np.array([x]))[generator.integers(2)] for x in (point[j], point[k])]
        g = ampi.grad(f, argnums=(0, 1))(a, b)
        first = ampi.hvp(f, (a, b), (np.ones_like(a), np.zeros_like(b)))
        second = ampi.hvp(f, (a, b), (np.zeros_like(a), np.ones_like(b)))
        assert abs(np.sum(g[0]) - of_j[1]) <= (FIRST + own) * abs(of_j[1]) + 1e-14 * abs(of_j[2] * point[j])
        assert abs(np.sum(g[1]) - of_k[1]) <= (FIRST + own) * abs(of_k[1]) + 1e-14 * abs(of_k[2] * point[k])
        size = abs(both) + 1e-6 * abs(of_j[1] / (point[k] or 1.0)) + 1e-6 * abs(of_k[1] / (point[j] or 1.0))
        assert abs(np.sum(first[1]) - both) < (SECOND + own) * size, (name, point, first, both)
        assert abs(np.sum(second[0]) - both) < (SECOND + own) * size, (name, point, second, both)


ENDS = [
    *[("ellipk", (x,)) for x in (0.0, -6.5e-14, 1e-6)],
    *[("ellipe", (x,)) for x in (0.0, -2.8e-13)],
    ("ellipkm1", (1.0,)),
    *[("ellipkinc", (x, m)) for x, m in ((0.7, 0.0), (2.3, 1e-13))],
    *[("boxcox", (x, y)) for x, y in ((2.0, 0.0), (2.0, 1e-12), (1.0, 0.5), (1e8, -1e-9))],
    ("boxcox1p", (1.0, 0.0)),
    ("inv_boxcox", (0.7, 0.0)),
    ("exprel", (0.0,)),
    ("spence", (1.0,)),
    ("erfcx", (873272.5519810647,)),
    ("dawsn", (81709.76744041081,)),
    ("log_ndtr", (-44938.01931454744,)),
    ("expit", (43.126,)),
    ("i0e", (3e7,)),
    *[("ive", (v, 2e6)) for v in (0.0, 2.5)],
    ("eval_legendre", (2, 1.0)),
    ("eval_legendre", (3, -1.0)),
    ("eval_laguerre", (0.5, 1.0)),
    *[("rgamma", (x,)) for x in (0.0, -2.0, -3.0)],
    ("poch", (0.0, 2.5)),
    ("elliprc", (1.0, 1.0)),
    ("xlogy", (0.0, 2.0)),
    ("xlog1py", (0.0, 2.0)),
    ("pseudo_huber", (1.5, 0.0)),
    ("gammainc", (1e4, 1.001e4)),
    ("betainc", (3e3, 2e3, 0.601)),
    ("stdtr", (1e6, 0.7)),
    ("betaln", (1e8, 0.3)),
]


@pytest.mark.parametrize("name, point", [pytest.param(*of, id=f"{of[0]}-{k}") for k, of in enumerate(ENDS)])
def test_limits_and_large_arguments(name, point):
    for k in known(name, False):
        hold(name, point, k, np.array([point[k]]))


AT_EDGES = {  # where mpmath's differences would leave the domain
    "gammainc(1, 0)": (lambda x: sp.gammainc(1.0, x), 0.0, 1.0, -1.0),
    "gammainc(2, 0)": (lambda x: sp.gammainc(2.0, x), 0.0, 0.0, 1.0),
    "betainc(2, 2, 0)": (lambda x: sp.betainc(2.0, 2.0, x), 0.0, 0.0, 6.0),
    "betainc(2, 1, 1)": (lambda x: sp.betainc(2.0, 1.0, x), 1.0, 2.0, 2.0),
    "betainc(1, 3, 0)": (lambda x: sp.betainc(1.0, 3.0, x), 0.0, 3.0, -6.0),
    "boxcox(0, y)": (lambda y: sp.boxcox(0.0, y), 0.5, 4.0, -16.0),
    "elliprd(x, 1, 1)": (lambda x: sp.elliprd(x, 1.0, 1.0), 1.0, -0.3, 9 / 28),
    "elliprf(x, 1, 1)": (lambda x: sp.elliprf(x, 1.0, 1.0), 1.0, -1 / 6, 0.15),
    "sinc": (np.sinc, 0.0, 0.0, -(np.pi**2) / 3),
    "sinc near zero": (np.sinc, 1e-8, -1e-8 * np.pi**2 / 3, -(np.pi**2) / 3),
    "sinc of one half": (np.sinc, 0.5, -4 / np.pi, 16 / np.pi - 2 * np.pi),
    "i0": (np.i0, 0.0, 0.0, 0.5),
    "i0 far out": (np.i0, -9.0, -sp.i1(9.0), 0.5 * (sp.i0(9.0) + sp.iv(2, 9.0))),
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * ("ellipr" in n)) for n in AT_EDGES])
def test_at_edges(name):
    f, x, first, second = AT_EDGES[name]
    for at in (np.array([x]), np.array(x)[()], np.full((2, 40), x)):
        g, h = gradient_and_product(f, at)
        np.testing.assert_allclose([g, h], np.size(at) * np.array([first, second]), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", some_of(n for n in FUNCTIONS if known(n, False)))
def test_single_precision(name):
    generator = np.random.default_rng(list(map(ord, name)))
    function = getattr(sp, name)
    point = tuple(float(np.float32(x)) if isinstance(x, float) else x for x in point_of(name, generator))
    for k in known(name, False):
        wanted = exact(name, point, k)
        if wanted is None or not 1e-12 < min(map(abs, wanted[:2])) or max(map(abs, wanted[:3])) > 1e12:
            continue
        f = in_place_of(function, point, k)
        found = float(np.sum(ampi.grad(lambda x, f=f: np.sum(f(x)))(np.array([point[k]], np.float32))))
        sensitivity = abs(point[k] * wanted[2]) + abs(wanted[1])
        assert abs(found - wanted[1]) < 2e-5 * sensitivity, (name, point, k, found, wanted)


COMPLEX = {
    "ive": lambda z: sp.ive(1.3, z),
    "jve": lambda z: sp.jve(1.3, z),
    "yve": lambda z: sp.yve(1.3, z),
    "psi": sp.psi,
    "elliprf": lambda z: sp.elliprf(z, 1.0, 2.0),
    "gamma": sp.gamma,
    "loggamma": sp.loggamma,
    "rgamma": sp.rgamma,
    "kve": lambda z: sp.kve(1.3, z),
    "hankel1": lambda z: sp.hankel1(1.3, z),
    "hankel1e": lambda z: sp.hankel1e(1.3, z),
    "hankel2e": lambda z: sp.hankel2e(1.3, z),
    "jv": lambda z: sp.jv(1.3, z),
    "yv": lambda z: sp.yv(1.3, z),
    "iv": lambda z: sp.iv(1.3, z),
    "kv": lambda z: sp.kv(1.3, z),
    "erf": sp.erf,
    "erfc": sp.erfc,
    "erfi": sp.erfi,
    "erfcx": sp.erfcx,
    "dawsn": sp.dawsn,
    "wofz": sp.wofz,
    "ndtr": sp.ndtr,
    "log_ndtr": sp.log_ndtr,
    "exp1": sp.exp1,
    "expi": sp.expi,
    "expm1": sp.expm1,
    "log1p": sp.log1p,
    "spence": sp.spence,
    "wrightomega": sp.wrightomega,
    "xlogy": lambda z: sp.xlogy(z, 1.5) + sp.xlogy(2.0, z),
    "xlog1py": lambda z: sp.xlog1py(z, -1.5) + sp.xlog1py(0.5, z),
    "hyp0f1": lambda z: sp.hyp0f1(1.3, z),
    "hyp1f1": lambda z: sp.hyp1f1(0.5, 1.3, z),
    "hyp2f1": lambda z: sp.hyp2f1(0.5, 1.3, 2.1, z),
    "eval_legendre": lambda z: sp.eval_legendre(2.5, z),
    "eval_chebyt": lambda z: sp.eval_chebyt(3.0, z),
    "eval_laguerre": lambda z: sp.eval_laguerre(2.5, z),
}


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_arguments(name):
    """Derivatives in first and second order as differences, or an error that names the function; no wrong number."""
    function = COMPLEX[name]

    def f(x, np=np):
        return np.angle(function((x[0] + 1j * x[1]) * 1.0))

    for x in (np.array([0.71, 0.43]), np.array([0.3, -1.2]), np.array([-0.4, 0.6])):
        moved = [(f(x + h * e) - f(x - h * e)) / (2 * h) for e in np.eye(2) for h in [1e-6]]
        try:
            g = ampi.grad(lambda x: f(x, anp))(x)
        except ampi.ActivityError as error:
            assert name in str(error) and "complex" in str(error)
            continue
        np.testing.assert_allclose(g, moved, rtol=1e-6, atol=1e-7)
        first = ampi.grad(lambda x: f(x, anp))
        try:
            h = ampi.hvp(lambda x: f(x, anp), x, np.array([0.3, 0.8]))
        except ampi.ActivityError as error:
            assert "psi" in str(error) and name in ("gamma", "loggamma", "rgamma")
            continue
        step = 1e-6 * np.array([0.3, 0.8])
        np.testing.assert_allclose(h, (first(x + step) - first(x - step)) / 2e-6, rtol=1e-5, atol=1e-6)


def test_complex_functions_far_out():
    """Where terms would cancel: two terms of the asymptotic series are exact there."""
    for function, z, factor, sign in ((sp.wofz, 2e4 + 3e3j, -1j, 1), (sp.erfcx, 4e4 - 2e3j, -1, -1)):
        wanted = factor / np.sqrt(np.pi) / z**2 * (1 + sign * 1.5 / z**2)
        _, dot = ampi.jvp(function, np.array([z]), np.array([1.0 + 0j]))
        np.testing.assert_allclose(dot[0], wanted, rtol=1e-12)
