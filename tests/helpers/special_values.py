"""Special functions in mpmath: values and derivatives to many digits, and points where derivatives are difficult.

An entry of `FUNCTIONS` has the function in mpmath and the domain of each argument: a list of single points and of
intervals (``(low, high)``, or ``("log", low, high)`` on a logarithmic scale: of both signs if only ``low`` is negative,
negative if both are); `Whole` or `Fixed` numbers for an argument, such as an order, that is not differentiated.
"""

import dataclasses
from collections.abc import Callable

import mpmath as mp
import numpy as np

DIGITS = 90
LARGE, SMALL = ("log", 1e1, 1e8), ("log", 1e-12, 1e-1)
BOTH_SMALL = ("log", -1e-12, 1e-1)
BOTH_LARGE = ("log", -1e1, 1e8)
ANY, POSITIVE, INSIDE = (-5.0, 5.0), (0.05, 9.0), (0.01, 0.99)


@dataclasses.dataclass
class Whole:
    """Integer values of an argument that is not differentiated."""

    points: tuple


@dataclasses.dataclass
class Fixed:
    """Real values of an argument that is not differentiated."""

    points: tuple


ORDERS = Whole((0, 1, 2, 3, 5, 12))
REAL_ORDERS = Fixed((0.0, 0.5, 1.0, 1.3, 2.0, 3.7, 10.0, 25.5))


def _boxcox(x, y):
    return mp.log(x) if y == 0 else mp.expm1(y * mp.log(x)) / y


def _inv_boxcox(x, y):
    return mp.exp(x) if y == 0 else mp.exp(mp.log1p(y * x) / y)


def _elliprd(x, y, z):
    return mp.elliprd(x, y, z)


def _ellipkinc(x, m):
    return mp.ellipf(x, m)


def _erfcx(x):
    if x > 1e4:
        w, term, total = 1 / (2 * x * x), mp.mpf(1), mp.mpf(1)
        for k in range(1, 40):
            term *= -(2 * k - 1) * w
            total += term
            if abs(term) < mp.eps:
                break
        return total / (x * mp.sqrt(mp.pi))
    return mp.exp(x * x) * mp.erfc(x)


def _dawsn(x):
    if abs(x) > 1e3:
        w, term, total = 1 / (2 * x * x), mp.mpf(1), mp.mpf(1)
        for k in range(1, 60):
            term *= (2 * k - 1) * w
            total += term
            if abs(term) < mp.eps:
                break
        return total / (2 * x)
    return x * mp.hyp1f1(1, 1.5, -x * x)


def _log_ndtr(x):
    return mp.log(_erfcx(-x / mp.sqrt(2)) / 2) - x * x / 2 if x < 0 else mp.log1p(-mp.erfc(x / mp.sqrt(2)) / 2)


def _scaled(kind):
    if kind == "i":
        return lambda v, x: mp.exp(-abs(x)) * mp.besseli(v, x)
    return lambda v, x: mp.exp(x) * mp.besselk(v, x)


def _of_order(function, order):
    return lambda x: function(order, x)


def _betainc(a, b, x):
    return mp.betainc(a, b, 0, x, regularized=True)


def _gammainc(a, x):
    return mp.gammainc(a, 0, x, regularized=True)


def _gammaincc(a, x):
    return mp.gammainc(a, x, mp.inf, regularized=True)


def _stdtr(v, t):
    tail = mp.betainc(v / 2, mp.mpf(1) / 2, 0, v / (v + t * t), regularized=True) / 2
    return 1 - tail if t > 0 else tail


def _spence(x):
    return mp.polylog(2, 1 - x).real


def _elliprc(x, y):
    return mp.elliprc(x, y)


def _xlogy(x, y):
    return x * mp.log(y)


def _huber(d, r):
    return r * r / 2 if abs(r) <= d else d * (abs(r) - d / 2)


def _degrees(function):
    return lambda x: function(x * mp.pi / 180)


FUNCTIONS: dict[str, tuple[Callable, tuple]] = {
    # exponentials and logarithms
    "expit": (lambda x: 1 / (1 + mp.exp(-x)), ([ANY, (-150.0, 150.0), 43.126],)),
    "log_expit": (lambda x: -mp.log1p(mp.exp(-x)), ([ANY, (-700.0, 700.0)],)),
    "logit": (lambda x: mp.log(x) - mp.log1p(-x), ([INSIDE, SMALL],)),
    "exprel": (lambda x: mp.expm1(x) / x if x else mp.mpf(1), ([ANY, BOTH_SMALL, (-600.0, 600.0), 0.0],)),
    "expm1": (mp.expm1, ([ANY, BOTH_SMALL],)),
    "log1p": (mp.log1p, ([POSITIVE, BOTH_SMALL, LARGE],)),
    "exp2": (lambda x: mp.mpf(2) ** x, ([ANY],)),
    "exp10": (lambda x: mp.mpf(10) ** x, ([ANY],)),
    "cbrt": (lambda x: mp.sign(x) * mp.cbrt(abs(x)), ([ANY, BOTH_LARGE, BOTH_SMALL],)),
    "cosm1": (lambda x: mp.cos(x) - 1, ([ANY, BOTH_SMALL],)),
    "sindg": (_degrees(mp.sin), ([(-400.0, 400.0)],)),
    "cosdg": (_degrees(mp.cos), ([(-400.0, 400.0)],)),
    "tandg": (_degrees(mp.tan), ([(-400.0, 400.0)],)),
    "cotdg": (_degrees(mp.cot), ([(-400.0, 400.0)],)),
    "boxcox": (_boxcox, ([POSITIVE, 1.0, LARGE, SMALL], [ANY, BOTH_SMALL, 0.0])),
    "boxcox1p": (lambda x, y: _boxcox(1 + x, y), ([POSITIVE, BOTH_SMALL, LARGE], [ANY, BOTH_SMALL, 0.0])),
    "inv_boxcox": (_inv_boxcox, ([(-0.15, 5.0), BOTH_SMALL], [(0.05, 5.0), BOTH_SMALL, 0.0])),
    "inv_boxcox1p": (lambda x, y: _inv_boxcox(x, y) - 1, ([(-0.15, 5.0), BOTH_SMALL], [(0.05, 5.0), BOTH_SMALL, 0.0])),
    "powm1": (lambda x, y: x**y - 1, ([POSITIVE, LARGE, SMALL, 1.0], [ANY, BOTH_SMALL, 0.0])),
    "xlogy": (_xlogy, ([ANY, BOTH_LARGE, 0.0], [POSITIVE, LARGE, SMALL, 1.0])),
    "xlog1py": (lambda x, y: x * mp.log1p(y), ([ANY, BOTH_LARGE, 0.0], [POSITIVE, LARGE, BOTH_SMALL, (-0.9, -0.1)])),
    "entr": (lambda x: -x * mp.log(x), ([POSITIVE, SMALL, LARGE],)),
    "rel_entr": (lambda x, y: x * mp.log(x / y), ([POSITIVE, SMALL, LARGE], [POSITIVE, SMALL, LARGE])),
    "kl_div": (lambda x, y: x * mp.log(x / y) - x + y, ([POSITIVE, SMALL, LARGE, 2.0], [POSITIVE, SMALL, LARGE, 2.0])),
    "huber": (_huber, ([POSITIVE], [ANY, BOTH_LARGE])),
    "pseudo_huber": (
        lambda d, r: d * d * (mp.sqrt(1 + (r / d) ** 2) - 1),
        ([POSITIVE, SMALL, LARGE], [ANY, BOTH_LARGE, BOTH_SMALL, 0.0]),
    ),
    # error functions
    "erf": (mp.erf, ([ANY, BOTH_SMALL],)),
    "erfc": (mp.erfc, ([ANY, (5.0, 20.0)],)),
    "erfcx": (_erfcx, ([(-5.0, 9.0), LARGE, (29.0, 31.0), 873272.5519810647],)),
    "erfi": (mp.erfi, ([ANY, BOTH_SMALL],)),
    "dawsn": (_dawsn, ([ANY, BOTH_LARGE, (29.0, 31.0), BOTH_SMALL],)),
    "ndtr": (mp.ncdf, ([ANY, (-30.0, 5.0)],)),
    "log_ndtr": (_log_ndtr, ([ANY, (-40.0, 8.0), ("log", -1e1, -1e8), -44938.01931454744],)),
    "owens_t": (
        lambda h, a: mp.quad(lambda t: mp.exp(-h * h * (1 + t * t) / 2) / (1 + t * t), [0, a]) / (2 * mp.pi),
        ([(-3.0, 3.0)], [(-3.0, 3.0)]),
    ),
    # elliptic integrals
    "ellipk": (mp.ellipk, ([(-5.0, 0.99), BOTH_SMALL, ("log", -1e1, -1e8), 0.0, -6.5e-14, 1e-6],)),
    "ellipe": (mp.ellipe, ([(-5.0, 0.99), BOTH_SMALL, ("log", -1e1, -1e8), 0.0, -2.8e-13],)),
    "ellipkm1": (lambda p: mp.ellipk(1 - p), ([(0.01, 5.0), SMALL, LARGE, 1.0],)),
    "ellipkinc": (_ellipkinc, ([(-1.5, 1.5), BOTH_SMALL, (2.0, 9.0)], [(-5.0, 0.95), BOTH_SMALL, 0.0])),
    "ellipeinc": (mp.ellipe, ([(-1.5, 1.5), BOTH_SMALL, (2.0, 9.0)], [(-5.0, 0.95), BOTH_SMALL, 0.0])),
    "elliprc": (_elliprc, ([POSITIVE, 1.0], [POSITIVE, 1.0, LARGE])),
    "elliprf": (mp.elliprf, ([POSITIVE, 1.0], [POSITIVE, 1.0, LARGE], [POSITIVE, 1.0])),
    "elliprd": (_elliprd, ([POSITIVE, 1.0], [POSITIVE, 1.0, LARGE], [POSITIVE, 1.0])),
    # Bessel functions
    "j0": (_of_order(mp.besselj, 0), ([ANY, (-50.0, 50.0), BOTH_SMALL, 0.0],)),
    "j1": (_of_order(mp.besselj, 1), ([ANY, (-50.0, 50.0), BOTH_SMALL, 0.0],)),
    "y0": (_of_order(mp.bessely, 0), ([POSITIVE, SMALL, (1.0, 50.0)],)),
    "y1": (_of_order(mp.bessely, 1), ([POSITIVE, SMALL, (1.0, 50.0)],)),
    "i0": (_of_order(mp.besseli, 0), ([ANY, BOTH_SMALL, (-100.0, 100.0), 0.0],)),
    "i1": (_of_order(mp.besseli, 1), ([ANY, BOTH_SMALL, (-100.0, 100.0), 0.0],)),
    "k0": (_of_order(mp.besselk, 0), ([POSITIVE, SMALL, (1.0, 100.0)],)),
    "k1": (_of_order(mp.besselk, 1), ([POSITIVE, SMALL, (1.0, 100.0)],)),
    "i0e": (_of_order(_scaled("i"), 0), ([ANY, BOTH_SMALL, BOTH_LARGE, (90.0, 110.0)],)),
    "i1e": (_of_order(_scaled("i"), 1), ([ANY, BOTH_SMALL, BOTH_LARGE, (400.0, 600.0)],)),
    "k0e": (_of_order(_scaled("k"), 0), ([POSITIVE, SMALL, LARGE],)),
    "k1e": (_of_order(_scaled("k"), 1), ([POSITIVE, SMALL, LARGE],)),
    "jv": (mp.besselj, (REAL_ORDERS, [POSITIVE, SMALL, (1.0, 60.0)])),
    "jve": (mp.besselj, (REAL_ORDERS, [POSITIVE])),
    "jn": (mp.besselj, (ORDERS, [POSITIVE, ANY])),
    "yv": (mp.bessely, (REAL_ORDERS, [POSITIVE, SMALL, (1.0, 60.0)])),
    "yn": (mp.bessely, (ORDERS, [POSITIVE])),
    "iv": (mp.besseli, (REAL_ORDERS, [POSITIVE, SMALL, (1.0, 60.0)])),
    "ive": (_scaled("i"), (REAL_ORDERS, [POSITIVE, SMALL, LARGE])),
    "kv": (mp.besselk, (REAL_ORDERS, [POSITIVE, SMALL, (1.0, 60.0)])),
    "kve": (_scaled("k"), (REAL_ORDERS, [POSITIVE, SMALL, LARGE])),
    "kn": (mp.besselk, (ORDERS, [POSITIVE])),
    # gamma functions
    "gamma": (mp.gamma, ([POSITIVE, ANY, SMALL, (20.0, 150.0)],)),
    "gammaln": (lambda x: mp.log(abs(mp.gamma(x))), ([POSITIVE, ANY, SMALL, LARGE],)),
    "loggamma": (mp.loggamma, ([POSITIVE, SMALL, LARGE],)),
    "psi": (lambda x: mp.psi(0, x), ([POSITIVE, ANY, SMALL, LARGE],)),
    "rgamma": (mp.rgamma, ([POSITIVE, ANY, SMALL, 0.0, -1.0, -2.0, -3.0 + 1e-9, (20.0, 150.0)],)),
    "beta": (mp.beta, ([POSITIVE, SMALL, LARGE], [POSITIVE, SMALL, (10.0, 40.0)])),
    "betaln": (lambda a, b: mp.log(mp.beta(a, b)), ([POSITIVE, SMALL, LARGE], [POSITIVE, SMALL, LARGE])),
    "poch": (mp.rf, ([POSITIVE, SMALL, 0.0, -2.0, (-3.0, -0.1), ("log", 1e1, 1e5)], [POSITIVE, SMALL])),
    "binom": (mp.binomial, ([POSITIVE, (10.0, 40.0), 3.0], [POSITIVE, SMALL])),
    "hyp0f1": (mp.hyp0f1, (Fixed((0.5, 1.0, 2.7)), [ANY, BOTH_SMALL, 0.0])),
    "hyp1f1": (mp.hyp1f1, (Fixed((0.5, 1.0, 2.7)), Fixed((1.5, 2.0)), [ANY, BOTH_SMALL, 0.0])),
    "hyp2f1": (mp.hyp2f1, (Fixed((0.5, 1.0)), Fixed((1.5, 2.0)), Fixed((2.5,)), [(-3.0, 0.9), BOTH_SMALL, 0.0])),
    "hyperu": (mp.hyperu, (Fixed((0.5, 1.0)), Fixed((1.5, 2.5)), [POSITIVE])),
    # polynomials
    "eval_chebyt": (mp.chebyt, (ORDERS, [(-1.0, 1.0), (1.0, 3.0), 1.0])),
    "eval_chebyu": (mp.chebyu, (ORDERS, [(-0.99, 0.99), 1.0])),
    "eval_legendre": (mp.legendre, (ORDERS, [(-1.0, 1.0), 1.0, -1.0, 0.0, (1.0, 3.0)])),
    "eval_hermite": (mp.hermite, (ORDERS, [ANY, 0.0])),
    "eval_hermitenorm": (
        lambda n, x: mp.mpf(2) ** (-mp.mpf(n) / 2) * mp.hermite(n, x / mp.sqrt(2)),
        (ORDERS, [ANY, 0.0]),
    ),
    "eval_laguerre": (
        lambda n, x: mp.laguerre(n, 0, x),
        (Fixed((0.0, 0.5, 0.2, -0.5, 1.0, 2.0, 3.7)), [POSITIVE, 0.5]),
    ),
    "eval_genlaguerre": (mp.laguerre, (ORDERS, Fixed((0.0, 0.5, 2.0)), [POSITIVE])),
    "eval_gegenbauer": (mp.gegenbauer, (ORDERS, Fixed((0.5, 2.0)), [(-0.99, 0.99)])),
    # exponential integrals
    "exp1": (mp.e1, ([POSITIVE, SMALL, (1.0, 100.0)],)),
    "expi": (mp.ei, ([POSITIVE, SMALL, (-50.0, 50.0)],)),
    "expn": (mp.expint, (ORDERS, [POSITIVE, (1.0, 50.0)])),
    "spence": (_spence, ([(0.01, 4.0), 1.0, 1.0 + 1e-9, LARGE, SMALL],)),
    # distributions
    "gammainc": (_gammainc, ([POSITIVE, (15.0, 30.0), ("log", 1e1, 1e4)], [POSITIVE, (10.0, 40.0), SMALL])),
    "gammaincc": (_gammaincc, ([POSITIVE, (15.0, 30.0)], [POSITIVE, (10.0, 40.0)])),
    "betainc": (_betainc, ([POSITIVE, (15.0, 60.0)], [POSITIVE, (15.0, 60.0)], [INSIDE, SMALL])),
    "betaincc": (lambda a, b, x: 1 - _betainc(a, b, x), ([POSITIVE], [POSITIVE], [INSIDE])),
    "chdtr": (lambda v, x: _gammainc(v / 2, x / 2), ([POSITIVE], [POSITIVE])),
    "chdtrc": (lambda v, x: _gammaincc(v / 2, x / 2), ([POSITIVE], [POSITIVE])),
    "stdtr": (_stdtr, ([POSITIVE, ("log", 1e1, 1e5)], [ANY])),
}
"""The functions by their names in SciPy."""

COMPILED = {
    "gammainc": (0,),
    "gammaincc": (0,),
    "chdtr": (0,),
    "chdtrc": (0,),
    "betainc": (0, 1),
    "betaincc": (0, 1),
    "stdtr": (0,),
    "elliprd": (0, 1, 2),
}
"""Arguments whose derivatives are computed by kernels, for arrays as well, which have to be compiled for this."""


def drawn(generator, places):
    place = places[generator.integers(len(places))]
    if not isinstance(place, tuple):
        return float(place)
    if place[0] == "log":
        _, low, high = place
        size = float(np.exp(generator.uniform(*np.log(np.abs([low, high])))))
        if high < 0:
            return -size
        return size if low > 0 or generator.random() < 0.5 else -size
    return float(generator.uniform(*place))


def point_of(name, generator):
    """Random arguments for a function; `Whole` numbers are integers."""
    point = []
    for places in FUNCTIONS[name][1]:
        if isinstance(places, (Whole, Fixed)):
            point.append(places.points[generator.integers(len(places.points))])
        else:
            point.append(drawn(generator, places))
    return tuple(point)


def moving(name):
    """The indices of the arguments that are differentiated."""
    return [k for k, places in enumerate(FUNCTIONS[name][1]) if not isinstance(places, (Whole, Fixed))]


def derivatives(function, point, k):
    """Value, first, second and third derivative with respect to argument k, computed in mpmath's precision."""
    with mp.workdps(DIGITS):
        at = [mp.mpf(x) for x in point]
        scale = abs(at[k]) or mp.mpf(1)
        h = scale * mp.mpf(10) ** -14

        def f(steps):
            moved = list(at)
            moved[k] = at[k] + steps * h
            return mp.re(function(*moved))

        values = {s: f(s) for s in (-2, -1, 0, 1, 2)}
        first = (8 * (values[1] - values[-1]) - (values[2] - values[-2])) / (12 * h)
        second = (16 * (values[1] + values[-1]) - (values[2] + values[-2]) - 30 * values[0]) / (12 * h * h)
        third = (values[2] - values[-2] - 2 * (values[1] - values[-1])) / (2 * h**3)
        return [float(x) for x in (values[0], first, second, third)]


def errors_of(found, wanted):
    """Relative errors of a first and a second derivative, beyond those that rounding the argument causes."""
    (first, second), (value, exact_first, exact_second, third, x) = found, wanted
    scale = abs(x) or 1.0
    off = []
    for f, w, next_one, previous, ulps in (
        (first, exact_first, exact_second, value, 3e-15),
        (second, exact_second, third, exact_first, 1e-14),
    ):
        rounding = ulps * scale * abs(next_one) + 1e-18 * abs(previous) / scale + 1e-20 * max(abs(value), 1e-200)
        off.append(max(abs(f - w) - rounding, 0.0) / abs(w) if w else float(abs(f - w) > rounding))
        if np.isnan(f):
            off[-1] = np.inf
    return off


def exact(name, point, k):
    """Value, derivatives and argument for `errors_of`; None where they overflow."""
    values = derivatives(FUNCTIONS[name][0], point, k)
    if not all(np.isfinite(values)) or max(map(abs, values[:3])) > 1e290:
        return None
    return (*values, point[k])


def mixed(name, point, j, k):
    """The mixed second derivative with respect to arguments j and k."""
    function = FUNCTIONS[name][0]
    with mp.workdps(DIGITS):
        at = [mp.mpf(x) for x in point]
        steps = [(abs(x) or mp.mpf(1)) * mp.mpf(10) ** -16 for x in at]

        def f(a, b):
            moved = list(at)
            moved[j] += a * steps[j]
            moved[k] += b * steps[k]
            return mp.re(function(*moved))

        corners = f(1, 1) - f(1, -1) - f(-1, 1) + f(-1, -1)
        return float(corners / (4 * steps[j] * steps[k]))
