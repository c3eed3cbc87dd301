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
    double = f"__pyx_fuse_{0 if name in ('expit', 'logit') else 1}{name}"  # of those of one name
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
}


def kernel_of(function, count):
    if count == 1:
        return ampi.kernel(lambda x, y: function(x) * y)
    return ampi.kernel(lambda x, y: function(x, y))


@pytest.mark.parametrize("name, point", [(name, point) for name, points in CASES.items() for point in points])
def test_values_and_derivatives(name, point):
    function = getattr(special, name)

    def plain(x, y):
        return function(x) * y if len(point) == 1 else function(x, y)

    x, y = (*point, 1.5)[:2]
    value, gradient = ampi.value_and_grad(kernel_of(by_address(name, len(point)), len(point)), argnums=(0, 1))(x, y)
    assert value == pytest.approx(plain(x, y), rel=1e-13)
    h = 1e-6
    expected = [(plain(x + h, y) - plain(x - h, y)) / (2 * h), (plain(x, y + h) - plain(x, y - h)) / (2 * h)]
    np.testing.assert_allclose(gradient, expected, rtol=1e-7, atol=1e-10)


def test_a_function_without_a_derivative_is_refused_by_its_name():
    function = by_address("gammainc", 2)

    @ampi.kernel
    def kernel(a, x):
        return function(a, x)

    with pytest.raises(ampi.KernelError, match=r"scipy\.special\.gammainc is not known(.|\n)*outside of the kernel"):
        ampi.grad(kernel)(2.0, 0.5)
