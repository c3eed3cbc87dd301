"""SciPy's special functions in kernels, by their addresses in ``cython_special``, as packages pass them to Numba.

Arguments are drawn from the ranges below.  Values equal SciPy's, derivatives are compared with differences of SciPy's
values, and second derivatives with differences of first ones.
"""

import importlib
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from derivative_check import difference
from numba import float64
from numba.extending import get_cython_function_address
from numba.types import WrapperAddressProtocol
from special_values import COMPILED, FUNCTIONS, errors_of, exact, moving, point_of

import ampi

special = pytest.importorskip("scipy.special")
special_table = importlib.import_module("ampi.partials.special")
scipy_distributions = importlib.import_module("ampi.kernel.frontend.scipy.distributions")
cython_special = pytest.importorskip("scipy.special.cython_special")

ANY, POSITIVE, INSIDE = (-2.0, 2.0), (0.2, 5.0), (0.05, 0.95)
ORDER = None
"""An argument without a derivative."""
RANGES = {
    "xlogy": (POSITIVE, POSITIVE),
    "xlog1py": (POSITIVE, POSITIVE),
    "expit": (ANY,),
    "log_expit": (ANY,),
    "logit": (INSIDE,),
    "entr": (POSITIVE,),
    "rel_entr": (POSITIVE, POSITIVE),
    "kl_div": (POSITIVE, POSITIVE),
    "huber": (POSITIVE, (-6.0, 6.0)),
    "pseudo_huber": (POSITIVE, ANY),
    "boxcox": (POSITIVE, ANY),
    "boxcox1p": ((-0.5, 2.0), ANY),
    "inv_boxcox": ((-0.4, 0.4), ANY),
    "inv_boxcox1p": ((-0.4, 0.4), ANY),
    "cosm1": (ANY,),
    "sindg": ((-400.0, 400.0),),
    "cosdg": ((-400.0, 400.0),),
    "tandg": ((-60.0, 60.0),),
    "cotdg": ((20.0, 160.0),),
    "exp10": (ANY,),
    "ndtr": (ANY,),
    "gammaln": (POSITIVE,),
    "psi": (POSITIVE,),
    "rgamma": (POSITIVE,),
    "beta": (POSITIVE, POSITIVE),
    "betaln": (POSITIVE, POSITIVE),
    "poch": (POSITIVE, POSITIVE),
    "binom": ((4.2, 8.0), (0.2, 4.0)),
    "erf": (ANY,),
    "erfinv": ((-0.9, 0.9),),
    "erfcinv": ((0.1, 1.9),),
    "erfcx": ((-1.0, 9.0),),
    "erfi": (ANY,),
    "dawsn": (ANY,),
    "ndtri": (INSIDE,),
    "log_ndtr": ((-9.0, 2.0),),
    "ndtri_exp": ((-9.0, -0.1),),
    "owens_t": (ANY, ANY),
    "voigt_profile": (ANY, POSITIVE, POSITIVE),
    "gammainc": (POSITIVE, POSITIVE),
    "gammaincc": (POSITIVE, POSITIVE),
    "gammaincinv": ((0.3, 5.0), INSIDE),
    "gammainccinv": ((0.3, 5.0), INSIDE),
    "betainc": (POSITIVE, POSITIVE, INSIDE),
    "betaincc": (POSITIVE, POSITIVE, INSIDE),
    "betaincinv": (POSITIVE, POSITIVE, INSIDE),
    "chdtr": (POSITIVE, POSITIVE),
    "chdtrc": (POSITIVE, POSITIVE),
    "chdtri": (POSITIVE, INSIDE),
    "gdtr": (POSITIVE, POSITIVE, POSITIVE),
    "gdtrc": (POSITIVE, POSITIVE, POSITIVE),
    "pdtr": (ORDER, POSITIVE),
    "pdtrc": (ORDER, POSITIVE),
    "fdtr": (POSITIVE, POSITIVE, POSITIVE),
    "fdtrc": (POSITIVE, POSITIVE, POSITIVE),
    "fdtri": (POSITIVE, POSITIVE, INSIDE),
    "stdtr": ((0.5, 40.0), (-4.0, 4.0)),
    "stdtrit": ((0.5, 40.0), INSIDE),
    "chndtr": (POSITIVE, POSITIVE, POSITIVE),
    "chndtrix": (INSIDE, POSITIVE, POSITIVE),
    **dict.fromkeys(("i0", "i1", "i0e", "i1e", "j0", "j1"), (ANY,)),
    **dict.fromkeys(("y0", "y1", "k0", "k1", "k0e", "k1e"), (POSITIVE,)),
    **dict.fromkeys(("iv", "ive", "kv", "kve"), ((-3.0, 3.0), POSITIVE)),
    **dict.fromkeys(("jv", "yv"), (ORDER, POSITIVE)),
    **dict.fromkeys(("yn", "kn"), (ORDER, POSITIVE)),
    "ellipk": ((-2.0, 0.9),),
    "ellipe": ((-2.0, 0.9),),
    "ellipkm1": ((0.1, 3.0),),
    "ellipkinc": ((-9.0, 9.0), (-2.0, 0.9)),
    "ellipeinc": ((-9.0, 9.0), (-2.0, 0.9)),
    "elliprc": (POSITIVE, POSITIVE),
    "elliprd": (POSITIVE, POSITIVE, POSITIVE),
    "elliprf": (POSITIVE, POSITIVE, POSITIVE),
    "exp1": (POSITIVE,),
    "expi": (POSITIVE,),
    "expn": (ORDER, POSITIVE),
    "exprel": (ANY,),
    "spence": (POSITIVE,),
    "hyp0f1": (ORDER, ANY),
    "hyp1f1": (ORDER, ORDER, ANY),
    "hyperu": (ORDER, ORDER, POSITIVE),
    "hyp2f1": (ORDER, ORDER, ORDER, (-0.9, 0.9)),
    "eval_legendre": (ORDER, (-0.9, 0.9)),
}
TWICE_UNKNOWN = {"iv", "ive", "kv", "kve"}  # with respect to their orders
AT = {
    "xlogy": [(0.0, 2.0)],
    "xlog1py": [(0.0, 2.0)],
    "expit": [(-30.0,)],
    "log_expit": [(-30.0,), (40.0,)],
    "ndtr": [(-3.0,)],
    "ndtri": [(1e-2,)],
    "gammainc": [(3.0, 40.0), (900.0, 880.0), (0.02, 0.3)],
    "betainc": [(0.1, 30.0, 0.4), (30.0, 2.0, 0.97)],
    "betaincinv": [(0.3, 9.0, 0.7)],
    "gammaincc": [(12.0, 30.0)],
    "gammaincinv": [(25.0, 0.97), (1.0, 0.5), (7.0, 1e-3)],
    "ellipk": [(0.0,), (1e-9,)],
    "ellipe": [(0.0,), (1e-9,)],
    "stdtr": [(3.0, 0.0), (1e5, 0.3), (0.7, -30.0)],
    "chndtr": [(70.0, 3.0, 60.0), (0.1, 3.0, 60.0)],
    "boxcox": [(2.0, 0.0)],
    "inv_boxcox": [(0.5, 0.0)],
    "i0e": [(0.0,)],
    "j1": [(0.0,)],
    "iv": [(2.0, 30.0)],
    "exprel": [(1e-5,), (0.0,)],
    "spence": [(1.0,)],
    "voigt_profile": [(0.3, 0.5, 0.0)],
}
"""Points at the ends of formulas' domains."""


def by_address(name, count):
    """A function object that Numba accepts as a function of ``count`` real numbers."""
    declared = {n: str(c).partition('"')[2].partition("int __pyx")[0] for n, c in cython_special.__pyx_capi__.items()}
    wanted = f"double ({'double, ' * count}"
    spelled = re.compile(rf"(__pyx_fuse_\d(_\d)?)?{name}")
    symbol = next(n for n, d in declared.items() if d == wanted and spelled.fullmatch(n))
    address = get_cython_function_address(cython_special.__name__, symbol)

    class Function(WrapperAddressProtocol):
        def __wrapper_address__(self):
            return address

        def signature(self):
            return float64(*[float64] * count)

    return Function()


def points():
    random = np.random.default_rng(14)
    for name, ranges in RANGES.items():
        drawn = [tuple(float(random.integers(1, 6)) if r is ORDER else random.uniform(*r) for r in ranges)]
        yield from ((name, tuple(point)) for point in drawn + AT.get(name, []))


def kernel_of(function, count):
    if count == 1:
        return ampi.kernel(lambda x: function(x) * 1.5)
    if count == 2:
        return ampi.kernel(lambda x, y: function(x, y))
    if count == 3:
        return ampi.kernel(lambda x, y, z: function(x, y, z))
    return ampi.kernel(lambda x, y, z, w: function(x, y, z, w))


TWICE = {*special_table.PARTIALS, *scipy_distributions.__all__}
"""Functions that are also compared in second order."""


@pytest.mark.parametrize("name, point", [pytest.param(*of, id=f"{of[0]}-{k}") for k, of in enumerate(points())])
def test_derivatives(name, point):
    function, scale = getattr(special, name), 1.5 if len(point) == 1 else 1.0
    active = tuple(k for k, r in enumerate(RANGES[name]) if r is not ORDER)
    twice = active if name not in TWICE_UNKNOWN else (1,)
    kernel = kernel_of(by_address(name, len(point)), len(point))
    value, found = ampi.value_and_grad(kernel, argnums=active)(*point)
    assert value == pytest.approx(scale * function(*point), rel=1e-13)

    def along(k, f, h):
        return np.array(f(*(np.array(point) + h * np.eye(len(point))[k])))

    def slope(k, f):
        return difference(lambda h: along(k, f, h), max(abs(point[k]), 1e-2) * 2e-4)

    expected = [scale * slope(k, function) for k in active]
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9)
    if point in AT.get(name, ()) or name not in TWICE:
        return
    varied = lambda q: kernel(*(q[twice.index(k)] if k in twice else x for k, x in enumerate(point)))
    second = ampi.hessian(varied, np.array([point[k] for k in twice]))
    first = ampi.grad(kernel, argnums=twice)
    expected = [[slope(k, lambda *p, i=i: first(*p)[i]) for k in twice] for i in range(len(twice))]
    np.testing.assert_allclose(np.array(second), expected, rtol=1e-6, atol=1e-8)


QUICK = ("ellipk", "boxcox")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in QUICK)) for n in FUNCTIONS])
def test_derivatives_to_many_digits(name):
    """First and second derivatives equal mpmath's over whole domains, near limits and far out."""
    try:
        function = by_address(name, len(FUNCTIONS[name][1]))
    except StopIteration:
        pytest.skip("not in this version of SciPy, or not of real numbers")
    kernel = kernel_of(function, len(FUNCTIONS[name][1]))
    scale = 1.5 if len(FUNCTIONS[name][1]) == 1 else 1.0
    generator = np.random.default_rng([7, *map(ord, name)])
    for _ in range(12):
        point = tuple(map(float, point_of(name, generator)))
        for k in moving(name):
            wanted = exact(name, point, k)
            if wanted is None:
                continue
            f = lambda x, k=k, point=point: kernel(*[x if j == k else v for j, v in enumerate(point)])
            off = errors_of((ampi.grad(f)(point[k]) / scale, ampi.hvp(f, point[k], 1.0) / scale), wanted)
            first, second = (1e-7, 1e-4) if k in COMPILED.get(name, ()) else (1e-9, 1e-7)
            assert off[0] < first and off[1] < second, (name, point, k, off, wanted)


def test_derivatives_at_the_ends():
    """Incomplete gamma and beta functions at the ends of their domains, for parameters with known derivatives."""
    gammainc, betainc = by_address("gammainc", 2), by_address("betainc", 3)
    slope = lambda f, x: ampi.grad(ampi.kernel(f))(x)
    assert slope(lambda x: gammainc(1.0, x), 0.0) == pytest.approx(1.0, rel=1e-13)
    beta = ampi.grad(ampi.kernel(lambda x, a, b: betainc(a, b, x)))
    assert beta(0.0, 2.0, 1.0) == 0.0
    assert beta(1.0, 2.0, 1.0) == pytest.approx(2.0, rel=1e-13)
    assert beta(0.0, 1.0, 3.0) == pytest.approx(3.0, rel=1e-13)


def test_a_function_without_a_derivative_is_refused_by_its_name():
    function = by_address("lpmv", 3)

    @ampi.kernel
    def kernel(a, x):
        return function(1.0, a, x)

    with pytest.raises(ampi.KernelError, match=r"scipy\.special\.lpmv is not known(.|\n)*outside of the kernel"):
        ampi.grad(kernel)(2.0, 0.5)


def test_an_order_that_carries_derivatives_is_refused():
    jv, kv = by_address("jv", 2), by_address("kv", 2)

    @ampi.kernel
    def of_order(x, v):
        v = v + 1.0
        return x * jv(v, x)

    @ampi.kernel
    def known(v, x):
        return kv(v, x)

    message = r"test_scipy_in_kernels\.py:\d+(.|\n)*scipy\.special\.jv has no derivative(.|\n)*argument 1(.|\n)*argnums"
    for transform in (ampi.grad(of_order, argnums=(0, 1)), lambda x, v: ampi.jvp(of_order, (x, v), (0.0, 1.0))):
        with pytest.raises(ampi.ActivityError, match=message):
            transform(0.5, 1.0)
    assert ampi.grad(of_order)(0.5, 1.0) == pytest.approx(special.jv(2, 0.5) + 0.5 * special.jvp(2, 0.5))
    with pytest.raises(ampi.ActivityError, match=r"scipy\.special\.kv"):
        ampi.hessian(lambda q: known(q[0], q[1]), np.array([1.3, 0.5]))


PROGRAM = """
import sys
from test_scipy_in_kernels import by_address
import ampi
kv, owens_t = by_address("kv", 2), by_address("owens_t", 2)

@ampi.kernel
def kernel(v, x):
    return kv(v, x) * owens_t(v, 0.2)

print(*ampi.grad(kernel, argnums=(0, 1))(1.3, 0.7))
"""


def test_another_process_takes_them_from_the_cache(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    folders = [os.path.dirname(__file__), *sys.path]
    environment = {**os.environ, "AMPI_CACHE_DIR": str(tmp_path / "kept"), "PYTHONPATH": os.pathsep.join(folders)}
    run = lambda: subprocess.run(
        [sys.executable, tmp_path / "program.py"], env=environment, capture_output=True, text=True, check=True
    )
    first, second = run().stdout, run().stdout
    assert first == second
    slope = difference(lambda h: special.kv(1.3, 0.7 + h) * special.owens_t(1.3, 0.2), 1e-4)
    assert float(first.split()[1]) == pytest.approx(slope, rel=1e-8)
