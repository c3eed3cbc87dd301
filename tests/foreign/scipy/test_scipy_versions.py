"""Rules of SciPy's functions hold for the version they were written for; others are refused by name, and only these."""

import importlib
import types
import warnings

import numpy as np
import pytest
import scipy
import scipy.linalg

import ampi
import ampi.base.versions
from ampi.foreign.scipy import PARTS, bindings, known_parameters, known_sources
from ampi.foreign.scipy.guards import refuse
from ampi.interception import hooks as libraries
from ampi.rules import definitions, trials


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


def test_the_sources_of_this_version_are_known():
    if not any(environment["scipy"] == scipy.__version__ for environment in ampi.base.versions.TESTED):
        pytest.skip("not one of the tested releases: its functions are tried at their first call")
    places = {
        f"{found.original.__module__}:{found.original.__qualname__}": found.original
        for found in libraries.all_hooks()
        if found.handle not in (None, refuse) and (getattr(found.original, "__module__", "") or "").startswith("scipy.")
    }
    others = ".sparse", "scipy.io."  # objects with rules of their own, and what is written to files
    places = {p: f for p, f in places.items() if p in known_sources.SOURCES or not any(name in p for name in others)}
    unknown = {
        place: bindings.source_of(f)
        for place, f in places.items()
        if place not in bindings._HOLDING_VALUES and not bindings.is_tested(place, f)
    }
    assert len(places) > 50 and not unknown, "look at what has changed, then list the digest in known_sources"


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


@pytest.mark.parametrize("function, why", [(twice_and_more, "does not know .mode."), (other, "requests 'assume'")])
def test_rules_of_another_signature_are_refused_by_name(of_twice, function, why):
    np.testing.assert_array_equal(ampi.grad(lambda x: np.sum(twice(x, 1)))(np.ones(3)), 2.0)
    with ampi.Tape() as tape:
        x = tape.watch(np.ones(3))
        np.testing.assert_array_equal(function(np.ones(3), 1), 2.0)
        with pytest.raises(ampi.ActivityError, match=rf"{function.__name__} .* in SciPy {scipy.__version__}.*{why}"):
            function(x, 1)


def triangle(a, b):
    """Stands for a function of which another release leaves something else beside the documented result."""
    return np.triu(a) * b + np.tril(a, -1)


def kinked(a, b):
    return np.abs(a) * b


def noisy(a, b):
    return 3.0 * a + np.random.default_rng().uniform()


def called_back(a, b):
    return b(a) * 2.0


def raising(a, b):
    raise ValueError("not of these")


of_triangle = lambda g, b: np.triu(g) * b + np.tril(g, -1)
SQUARE = np.array([[1.0, 2.0], [0.5, -3.0]])
TRIED = {
    "the old rule of a new function": (triangle, lambda g, b: np.triu(g) * b, SQUARE, 2.0, False),
    "complex": (triangle, lambda g, b: np.triu(g) * b, SQUARE * (1 + 2j), 2.0, False),
    "in single precision": (triangle, lambda g, b: np.triu(g) * b, SQUARE.astype("f"), 2.0, False),
    "a sign": (triangle, lambda g, b: -of_triangle(g, b), SQUARE, 2.0, False),
    "a rule that loses everything": (triangle, lambda g, b: np.zeros_like(g), SQUARE, 2.0, False),
    "the right rule": (triangle, of_triangle, SQUARE, 2.0, True),
    "of complex numbers": (triangle, of_triangle, SQUARE * (1 + 2j), 2.0, True),
    "at a kink": (kinked, lambda g, a, b: np.where(a < 0, -b, b) * g, np.zeros((2, 2)), 2.0, True),
    "random numbers": (noisy, lambda g: 2.0 * g, SQUARE, 2.0, None),
    "functions of the program": (called_back, lambda g: g, SQUARE, np.sin, None),
    "an error": (raising, lambda g: g, SQUARE, 2.0, None),
    "nothing": (triangle, of_triangle, np.zeros((0, 2)), 2.0, None),
}


@pytest.mark.parametrize("name", TRIED)
def test_a_rule_is_tried_against_differences(name):
    function, adjoint, a, b, expected = TRIED[name]
    found = libraries.Hook(function, f"lib.{function.__name__}", None)
    rule = definitions.Adjoint({"a": adjoint})
    rule.prepare(found)
    with ampi.Tape() as tape:
        x = tape.watch(a)
        before = x.copy()
        of = lambda tape, arguments, keywords: rule(found, tape, arguments, keywords)
        assert trials.agrees(function, of, tape, (x,), {"b": b}) is expected
        np.testing.assert_array_equal(x, before)
        y = (x * 2.0).sum()
    np.testing.assert_array_equal(tape.gradient(y, x), np.full(a.shape, 2.0))


def known(monkeypatch, name):
    """`triangle` again, as a function of a known place and known parameters."""
    made = types.FunctionType(triangle.__code__, globals(), name)
    made.__qualname__ = name
    monkeypatch.setitem(bindings.PARAMETERS, f"{__name__}:{name}", "a b")
    return made


@pytest.mark.parametrize("version", [scipy.__version__, "1.99.0", "0.1"])
@pytest.mark.parametrize("kind", ["adjoint", "formula"])
def test_what_has_changed_without_its_signature_is_refused_by_name(monkeypatch, version, kind):
    monkeypatch.setattr(scipy, "__version__", version)
    changed, kept = (known(monkeypatch, f"{name}_{kind}") for name in ("changed", "kept"))
    with bindings.bound("none"):
        if kind == "adjoint":
            ampi.rules.define(changed, adjoint={"a": lambda g, b: np.triu(g) * b})
            ampi.rules.define(kept, adjoint={"a": of_triangle})
        else:
            ampi.rules.define(changed, lambda a, b: np.triu(a) * b)
            ampi.rules.define(kept, lambda a, b: np.triu(a) * b + np.tril(a, -1))
    for _ in range(2):
        with ampi.Tape() as tape:
            x = tape.watch(SQUARE)
            with pytest.raises(ampi.ActivityError, match=rf"changed_{kind} .* in SciPy {version} .*its derivative"):
                changed(x, 2.0)
            np.testing.assert_array_equal(changed(SQUARE, 2.0), triangle(SQUARE, 2.0))
            y = kept(x, 2.0).sum()
        np.testing.assert_array_equal(tape.gradient(y, x), [[2.0, 2.0], [1.0, 2.0]])
    bindings.unfit.pop(f"{__name__}.changed_{kind}")


def test_an_inconclusive_trial_is_repeated(monkeypatch):
    function = known(monkeypatch, "tried_again")
    with bindings.bound("none"):
        ampi.rules.define(function, adjoint={"a": lambda g, b: np.triu(g) * b})
    with ampi.Tape() as tape:
        function(tape.watch(np.zeros((0, 2))), 2.0)
        with pytest.raises(ampi.ActivityError, match="tried_again"):
            function(tape.watch(SQUARE), 2.0)
    bindings.unfit.clear()


def test_removed_functions_do_not_affect_other_rules(tmp_path, monkeypatch):
    (tmp_path / "some_rules.py").write_text(
        "import scipy.linalg as sl\nimport ampi\nampi.rules.define(sl.gone, adjoint={'x': lambda g: g})\n"
        "ampi.rules.define(sl.gone_too, lambda x: x)\nREACHED = True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    bindings.install("scipy.linalg", ["some_rules"])
    assert importlib.import_module("some_rules").REACHED and not hasattr(scipy.linalg, "gone")
    assert {"scipy.linalg.gone", "scipy.linalg.gone_too"} <= bindings.absent and not bindings.problems


def test_a_part_whose_rules_fail_does_not_affect_others():
    with bindings.bound("nowhere"):
        raise AttributeError("module 'scipy.fft' has no attribute '_basic_backend'")
    assert str(bindings.problems.pop("nowhere")).startswith("module 'scipy.fft'")


def test_what_cho_factor_leaves_in_the_other_triangle():
    a = np.array([[4.0, 1.0], [0.5, 3.0]])
    of = lambda a: np.sum(scipy.linalg.cho_factor(a)[0] * np.array([[1.0, 2.0], [3.0, 4.0]]))
    step = 1e-6 * np.array([[1.0, -2.0], [0.7, 3.0]])
    np.testing.assert_allclose(np.sum(ampi.grad(of)(a) * step), (of(a + step) - of(a - step)) / 2, rtol=1e-6)
