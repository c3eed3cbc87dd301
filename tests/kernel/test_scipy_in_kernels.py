"""SciPy's special functions in kernels, by their addresses in ``cython_special``, as packages pass them to Numba."""

import numpy as np
import pytest
from numba import float64
from numba.extending import get_cython_function_address
from numba.types import WrapperAddressProtocol

import ampi

special = pytest.importorskip("scipy.special")
cython_special = pytest.importorskip("scipy.special.cython_special")


def by_address(name, count):
    """A function object that Numba takes for one of ``count`` numbers."""
    names = cython_special.__pyx_capi__
    double = f"__pyx_fuse_{0 if name in ('expit', 'logit', 'betainc') else 1}{name}"  # of those of one name
    address = get_cython_function_address(cython_special.__name__, double if double in names else name)

    class Function(WrapperAddressProtocol):
        def __wrapper_address__(self):
            return address

        def signature(self):
            return float64(*[float64] * count)

    return Function()


CASES = {
    "xlogy": [(0.7, 1.3), (0.0, 2.0)],
    "xlog1py": [(0.7, 0.3), (0.0, 2.0)],
    "expit": [(0.7,), (-30.0,)],
    "logit": [(0.3,)],
    "ndtr": [(0.4,), (-3.0,)],
    "gammaln": [(2.4,)],
    "erf": [(0.4,)],
    "ndtri": [(0.3,), (0.97,), (1e-5,)],
    "log_ndtr": [(0.4,), (-3.0,)],
    "erfcx": [(0.4,), (7.5,)],
    "gammainc": [(2.4, 0.7), (1.3, 5.0), (0.3, 0.2)],
    "gammaincc": [(2.4, 0.7), (1.3, 5.0), (12.0, 30.0)],
    "gammaincinv": [(2.4, 0.7), (0.5, 0.2), (0.3, 0.9), (25.0, 0.97), (1.0, 0.5), (7.0, 1e-3)],
    "betainc": [(2.4, 0.7, 0.3), (1.3, 5.0, 0.8), (0.5, 0.5, 0.5)],
}


def kernel_of(function, count):
    if count == 1:
        return ampi.kernel(lambda x: function(x) * 1.5)
    if count == 2:
        return ampi.kernel(lambda x, y: function(x, y))
    return ampi.kernel(lambda x, y, z: function(x, y, z))


@pytest.mark.parametrize("name, point", [(name, point) for name, points in CASES.items() for point in points])
def test_values_and_derivatives(name, point):
    function, scale = getattr(special, name), 1.5 if len(point) == 1 else 1.0

    def plain(*point):
        return function(*point) * scale

    kernel = kernel_of(by_address(name, len(point)), len(point))
    value, gradient = ampi.value_and_grad(kernel, argnums=tuple(range(len(point))))(*point)
    assert value == pytest.approx(plain(*point), rel=1e-13)
    steps = np.maximum(np.abs(point), 1e-4) * 1e-5 * np.eye(len(point))
    expected = [(plain(*(point + h)) - plain(*(point - h))) / (2 * h.sum()) for h in steps]
    np.testing.assert_allclose(gradient, expected, rtol=1e-7, atol=1e-10)


def test_derivatives_at_the_ends():
    """Of incomplete gamma and beta functions, where these are x and x^2 and 1 - (1 - x)^3."""
    gammainc, betainc = by_address("gammainc", 2), by_address("betainc", 3)
    slope = lambda f, x: ampi.grad(ampi.kernel(f))(x)
    assert slope(lambda x: gammainc(1.0, x), 0.0) == pytest.approx(1.0, rel=1e-13)
    beta = ampi.grad(ampi.kernel(lambda x, a, b: betainc(a, b, x)))
    assert beta(0.0, 2.0, 1.0) == 0.0
    assert beta(1.0, 2.0, 1.0) == pytest.approx(2.0, rel=1e-13)
    assert beta(0.0, 1.0, 3.0) == pytest.approx(3.0, rel=1e-13)


def test_a_function_without_a_derivative_is_refused_by_its_name():
    function = by_address("kv", 2)

    @ampi.kernel
    def kernel(a, x):
        return function(a, x)

    with pytest.raises(ampi.KernelError, match=r"scipy\.special\.kv is not known(.|\n)*outside of the kernel"):
        ampi.grad(kernel)(2.0, 0.5)
