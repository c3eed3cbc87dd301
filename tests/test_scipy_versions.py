"""Rules of SciPy's functions hold for the version they were written for; others are refused by name, and only these."""

import importlib
import warnings

import numpy as np
import pytest
import scipy
import scipy.linalg

import ampi
from ampi import libraries
from ampi.scipy_rules import PARTS, bindings, known_parameters
from ampi.scipy_rules.guards import refuse


@pytest.fixture(autouse=True)
def with_rules():
    for part in PARTS:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # parts that SciPy is about to drop
                importlib.import_module(part)
        except ImportError:
            continue
    with ampi.Tape():
        pass


def test_all_rules_fit_this_version():
    assert not bindings.problems, "rules of these parts of SciPy could not be put in"
    assert not bindings.unfit, (
        f"rules that do not fit SciPy {scipy.__version__}; look at each, then list its parameters"
    )


def test_every_known_function_has_a_rule_or_is_absent():
    bound, absent = set(), []
    for found in libraries.all_hooks():
        if found.handle is not None and found.handle is not refuse:
            bound.add(f"{getattr(found.original, '__module__', None)}:{getattr(found.original, '__qualname__', None)}")
    for place in set(known_parameters.PARAMETERS) - bound - ELSEWHERE:
        module, _, path = place.partition(":")
        found = None
        try:
            found = importlib.import_module(module)
            for name in path.split("."):
                found = vars(found).get(name)
        except (ImportError, TypeError, AttributeError):
            pass
        if callable(found):
            absent.append(place)
    assert len(bound) > 300 and not absent, "functions that are there and have lost their rule"


ELSEWHERE = {"scipy.interpolate._interpolate:_PPolyBase.__call__", "scipy.linalg._matfuncs:sqrtm"}
"""Which one version has as a helper of the function that programs call."""


def twice(a, b):
    return 2.0 * a


def twice_and_more(a, b, mode=None):
    return 2.0 * a


def other(a, b):
    return 2.0 * a


@pytest.fixture
def of_twice(monkeypatch):
    monkeypatch.setitem(bindings.PARAMETERS, f"{__name__}:twice", "a b")
    monkeypatch.setitem(bindings.PARAMETERS, f"{__name__}:twice_and_more", "a b")
    with bindings.bound("none"):
        ampi.rules.define(twice_and_more, adjoint={"a": lambda g: 2.0 * g})
        ampi.rules.define(other, adjoint={"a": lambda g, assume: 2.0 * g})
        ampi.rules.define(twice, adjoint={"a": lambda g: 2.0 * g})
    yield
    for name in ("twice_and_more", "other"):
        bindings.unfit.pop(f"{__name__}.{name}", None)


@pytest.mark.parametrize("function, why", [(twice_and_more, "does not know .mode."), (other, "asks for 'assume'")])
def test_rules_of_another_signature_are_refused_by_name(of_twice, function, why):
    np.testing.assert_array_equal(ampi.grad(lambda x: np.sum(twice(x, 1)))(np.ones(3)), 2.0)
    with ampi.Tape() as tape:
        x = tape.watch(np.ones(3))
        np.testing.assert_array_equal(function(np.ones(3), 1), 2.0)
        with pytest.raises(ampi.ActivityError, match=rf"{function.__name__} .* in SciPy {scipy.__version__}.*{why}"):
            function(x, 1)


def test_a_part_whose_rules_cannot_be_put_in_keeps_nothing_from_working():
    with bindings.bound("nowhere"):
        raise AttributeError("module 'scipy.fft' has no attribute '_basic_backend'")
    assert str(bindings.problems.pop("nowhere")).startswith("module 'scipy.fft'")


def test_what_cho_factor_leaves_in_the_other_triangle():
    a = np.array([[4.0, 1.0], [0.5, 3.0]])
    of = lambda a: np.sum(scipy.linalg.cho_factor(a)[0] * np.array([[1.0, 2.0], [3.0, 4.0]]))
    step = 1e-6 * np.array([[1.0, -2.0], [0.7, 3.0]])
    np.testing.assert_allclose(np.sum(ampi.grad(of)(a) * step), (of(a + step) - of(a - step)) / 2, rtol=1e-6)
