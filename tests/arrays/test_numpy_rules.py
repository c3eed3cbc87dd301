"""Every derivative rule of NumPy's functions against finite differences, real and complex, in double and single
precision.

A rule without a case here fails by name.
"""

import numpy as np
import pytest
from derivative_check import check_adjoint, pulled_back
from numpy_rule_cases import ALL, CASES

import ampi
from ampi.arrays import elementwise, fast_calls, fast_writes, reductions, ufuncs
from ampi.rules import functions, inplace, linear_algebra


def _name(function):
    module = getattr(function, "__module__", None) or "numpy"
    prefix = "linalg." if "linalg" in module else "fft." if "fft" in module else ""
    return prefix + function.__name__


def test_every_rule_has_a_case():
    numpys = set(map(id, vars(np).values()))  # SciPy's have rules once a program has imported it
    rules = {"absolute" if u is np.absolute else u.__name__ for u in elementwise.RULES if id(u) in numpys}
    rules |= {u.__name__ for u in (*ufuncs._REWRITTEN, *linear_algebra.GENERALIZED)}
    rules |= {f"{u.__name__}.reduce" for u in reductions._REDUCTIONS}
    rules |= {f"{u.__name__}.accumulate" for u in reductions._ACCUMULATIONS}
    known = (*functions.COMPOSITE, *functions.RULES, *inplace.WRITERS)
    rules |= {_name(f) for f in known if not (getattr(f, "__module__", None) or "").startswith("scipy")}
    assert sorted(rules - set(CASES)) == []


@pytest.fixture(params=["few", "many", "any"], autouse=True)
def elements(request, monkeypatch):
    """Calls are recorded in the way of arrays with few elements, in that of all usual calls, and in the general one."""
    monkeypatch.setattr(fast_calls, "MOST_ELEMENTS", 64 if request.param == "few" else 0)
    if request.param == "any":
        monkeypatch.setattr(fast_writes, "LARGEST", 0)


@pytest.mark.parametrize("kind", ["f", "c"])
@pytest.mark.parametrize(("name", "k"), ALL, ids=[f"{name}-{k}" for name, k in ALL])
def test_adjoint_against_finite_differences(name, k, kind):
    c = CASES[name][k]
    if kind not in c.kinds:
        pytest.skip("NumPy or the rule is for the other kind of numbers")
    check_adjoint(c.f, c.arguments(np.float64 if kind == "f" else np.complex128), c.tolerance)


@pytest.mark.parametrize("kind", ["f", "c"])
@pytest.mark.parametrize("name", list(CASES))
def test_single_precision_stays_single_and_agrees(name, kind):
    c = CASES[name][0]
    if kind not in c.kinds:
        pytest.skip("NumPy or the rule is for the other kind of numbers")
    single, double = (np.float32, np.float64) if kind == "f" else (np.complex64, np.complex128)
    x = c.arguments(single)
    _, y_bar, x_bar, *_ = pulled_back(c.f, x, generator=np.random.default_rng(1))
    _, _, expected, *_ = pulled_back(c.f, [a.astype(double) for a in x], y_bar=y_bar)
    for got, want in zip(x_bar, expected):
        assert got.dtype == single
        np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-4 * max(1.0, np.abs(want).max(initial=0)))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: np.meshgrid(x, np.arange(2.0)),
        lambda x: np.meshgrid(np.arange(2.0), x, indexing="ij", sparse=True),
        lambda x: np.broadcast_arrays(np.ones((2, 3)), x),
        lambda x: np.atleast_2d(np.ones(3), x),
    ],
)
def test_some_of_several_results_may_be_constants(function):
    x0 = np.array([1.0, 2.5, 3.0])
    total = lambda x: sum((r * r * np.arange(r.size).reshape(r.shape)).sum() for r in function(x))
    differences = [(total(x0 + d) - total(x0 - d)) / 2e-6 for d in 1e-6 * np.eye(3)]
    np.testing.assert_allclose(ampi.grad(total)(x0), differences, rtol=1e-7)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("package", ["numpy", "scipy"])
def test_eigenvalues_that_lapack_orders_otherwise_without_vectors(package, seed):
    """As OpenBLAS does with most matrices of this size."""
    eigvals = np.linalg.eigvals if package == "numpy" else pytest.importorskip("scipy.linalg").eigvals
    generator = np.random.default_rng(seed)
    a, a_dot, y_bar = generator.normal(size=(150, 150)), generator.normal(size=(150, 150)), generator.normal(size=150)
    values, vectors = np.linalg.eig(a)
    y_dot = np.diag(np.linalg.solve(vectors, a_dot @ vectors))
    order = np.abs(values - eigvals(a)[:, None]).argmin(axis=1)
    x_bar = ampi.grad(lambda x: np.sum(eigvals(x).real * y_bar))(a)
    assert np.vdot(x_bar, a_dot) == pytest.approx(np.vdot(y_bar, y_dot[order].real), rel=1e-8)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (100,), (9000,)])
@pytest.mark.parametrize("dtype", ["f", "d", "F", "D"])
def test_not_a_number_is_found_without_a_warning_of_large_numbers(shape, dtype):
    x = np.full(shape, np.finfo(dtype).max, dtype)
    assert not elementwise.has_nan(x) or dtype in "FD"  # their squares are looked into
    assert not elementwise.has_nan(np.full(shape, np.inf, np.finfo(dtype).dtype))
    if x.size:
        x[(-1,) * x.ndim] = np.nan
        assert elementwise.has_nan(x)
