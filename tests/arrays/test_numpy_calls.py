"""Every function of NumPy that has a rule, with every parameter of its signature: drawn arrays of all layouts and
precisions, one or several of them active.  The derivative is that of finite differences, or the function is refused by
name."""

import inspect
import zlib

import numpy as np
import pytest
from drawn_calls import decided, given_by, one_of
from numpy_calls import CALLS

import ampi
import ampi.numpy as anp
from ampi.arrays import ufuncs
from ampi.rules import functions, inplace, known_parameters

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")

FUNCTIONS = {
    known_parameters.place(f): f
    for f in (*functions.COMPOSITE, *functions.RULES, *inplace.WRITERS)
    if f.__module__.partition(".")[0] == "numpy"
}


def named(name):
    return FUNCTIONS.get(name.partition(" ")[0])


# ------------------------------------------------------------------------------------------------------------ the tests


def test_every_function_is_called():
    called = {name.partition(" ")[0] for name in CALLS}
    assert sorted(set(FUNCTIONS) - called) == []
    gone = {name for name in called - set(FUNCTIONS) if hasattr(np, name)}
    assert not gone, "functions that have lost their rule"


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_every_parameter_is_given(name):
    """A parameter that a new NumPy adds is used by the rule, changes nothing, or is refused: `CALLS` states which."""
    try:
        parameters = list(inspect.signature(FUNCTIONS[name]).parameters.values())
    except ValueError:
        pytest.skip("this version of NumPy does not tell")
    calls = [call for key, call in CALLS.items() if key.partition(" ")[0] == name]
    known = set().union(*[given_by(call) for call in calls])
    count = max(len(call.positional) for call in calls)
    several = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    rest = [p for p in parameters[count:] if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    assert several or [p.name for p in rest if p.name not in known and p.name not in OPTIONAL.get(name, ())] == []


def test_the_parameters_of_every_rule_are_known():
    """Without an entry in the table, a parameter that a new NumPy adds would be ignored."""
    rules = {known_parameters.place(f) for f in (*functions.RULES, *inplace.WRITERS)}
    assert sorted(name for name in rules & set(FUNCTIONS) if name not in known_parameters.PARAMETERS) == []


OPTIONAL = {"clip": ("a_min", "a_max"), "reshape": ("newshape",)}


@pytest.mark.parametrize("name", CALLS)
def test_each_parameter_is_differentiated_or_refused(name):
    function, call = named(name), CALLS[name]
    if function is None:
        pytest.skip("this version of NumPy does not have it")
    wrong, outcomes = [], {}
    cases = [(None, None)] + [(key, x) for key, values in given_by(call).items() for x in values]
    for key, x in cases:
        rng = np.random.default_rng(zlib.crc32(f"{name} {key}".encode()))
        for kinds in (0, -1, None) if key is None else (0, -1):
            program, found = decided(
                function, rng, call, {} if key is None else {key: x}, kinds=kinds, forward=not kinds
            )
            outcomes.setdefault(key, set()).add(found)
            if found not in ("right", "refused", None):
                wrong.append(f"{key}={x!r}, {program.given}, active {program.active}: {found}")
    assert not wrong, "\n".join(wrong)
    if name == "intersect1d":
        return  # drawn arrays have no number in common
    if "right" not in set().union(*outcomes.values()):
        pytest.fail(f"is right for nothing: {outcomes}")
    undecided = [key for key, found in outcomes.items() if found == {None} and takes(function, key)]
    assert not undecided, "tells nothing about these parameters"


def takes(function, key):
    try:
        return key is None or key in inspect.signature(function).parameters
    except ValueError:
        return True


@pytest.mark.parametrize("seed", [0, *[pytest.param(k, marks=pytest.mark.slow) for k in range(1, 60)]])
def test_drawn_calls(seed):
    wrong, right = [], 0
    for name, call in CALLS.items():
        function = named(name)
        if function is None:
            continue
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        chance = rng.choice([0.2, 0.5, 0.9])
        keywords = {key: one_of(rng, values) for key, values in call.may.items() if rng.random() < chance}
        program, found = decided(function, rng, call, keywords, precise=False)
        right += found == "right"
        if found not in ("right", "refused", None):
            wrong.append(f"{name}: {program.given}, active {program.active}: {found}")
    assert right > len(CALLS) / 3
    assert not wrong, "\n".join(wrong)


# ------------------------------------------------------------------------------------------------- another NumPy


@pytest.mark.parametrize(
    "name, call",
    [
        ("sort", lambda x: np.sort(x, stable=True)),
        ("roll", lambda x: np.roll(x, shift=1)),
        ("fft.fft", lambda x: np.fft.fft(x, norm="ortho")),
        ("linalg.norm", lambda x: np.linalg.norm(x, ord=1)),
        ("fill_diagonal", lambda x: np.fill_diagonal(anp.zeros((2, 2)), x[0], wrap=True)),
    ],
)
def test_a_parameter_that_the_rule_does_not_know_is_refused_by_name(monkeypatch, name, call):
    known = known_parameters.PARAMETERS[name].split()
    given = {"sort": "stable", "roll": "shift", "fft.fft": "norm", "linalg.norm": "ord", "fill_diagonal": "wrap"}[name]
    text = " ".join(token for token in known if token.partition("=")[0] != given)
    monkeypatch.setitem(known_parameters.PARAMETERS, name, text)
    monkeypatch.setattr(known_parameters, "_known", {})
    with ampi.Tape() as tape, pytest.raises(ampi.ActivityError, match=rf"{name} .* in NumPy .* argument {given}"):
        call(tape.watch(np.arange(3.0)))
    call(anp.arange(3.0))


@pytest.mark.parametrize("method", ["__call__", "reduce", "accumulate", "reduceat"])
def test_an_unknown_option_of_a_ufunc_is_refused_by_name(method):
    more = ([0, 1],) if method == "reduceat" else (1.0,) if method == "__call__" else ()
    with ampi.Tape() as tape, pytest.raises(ampi.ActivityError, match=r"numpy\.add .* in NumPy .* argument mode"):
        ufuncs.apply(np.add, method, (tape.watch(np.arange(3.0)), *more), {"mode": "new"})


def turned(a, axis=0):
    return np.flip(a, axis)


turned.__module__ = "numpy"


@pytest.mark.parametrize(
    "known, rule, why",
    [
        ("a axis=0", lambda a, axis=0: a[::-1] * 1.0, None),
        ("a axis=0 more", lambda a, axis=0: a[::-1] * 1.0, None),
        ("a axis=-1", lambda a, axis=0: a[::-1] * 1.0, "for the parameters a axis=-1"),
        ("axis=0 a", lambda a, axis=0: a[::-1] * 1.0, "for the parameters axis=0 a"),
        ("a axis=0", lambda a, axis=0: a * 1.0, "its derivative differs from"),
    ],
)
def test_in_an_untested_release_rules_are_tried(monkeypatch, known, rule, why):
    monkeypatch.setitem(known_parameters.PARAMETERS, "turned", known)
    seeing = known_parameters.checked_first(turned, rule)
    monkeypatch.setattr(np, "__version__", "2.99.0")
    assert list(known_parameters.for_this_numpy({turned: rule})) == [turned]
    assert known_parameters.for_this_numpy({turned: rule})[turned] is not rule
    with ampi.Tape() as tape:
        x = tape.watch(np.arange(3.0))
        for _ in range(2):
            if why is None:
                y = seeing(x, axis=0)
            else:
                with pytest.raises(ampi.ActivityError, match=rf"turned .* in NumPy 2\.99\.0 .*{why}"):
                    seeing(x, axis=0)
    if why is None:
        np.testing.assert_array_equal(tape.gradient(y, x, seed=[1.0, 2.0, 3.0]), [3.0, 2.0, 1.0])


def test_methods_take_the_parameters_of_this_numpy():
    lacking = []
    for name, method in vars(ampi.ndarray).items():
        theirs = getattr(np.ndarray, name, None)
        if name.startswith("_") or not inspect.isfunction(method) or theirs is None:
            continue
        try:
            wanted = [p for p in inspect.signature(theirs).parameters.values() if p.kind is not p.VAR_KEYWORD]
        except ValueError:
            continue
        own = inspect.signature(method).parameters
        if not any(p.kind is p.VAR_KEYWORD for p in own.values()):
            several = any(p.kind is p.VAR_POSITIONAL for p in own.values())
            lacking += [
                f"{name}: {p.name}" for p in wanted if p.name not in own and (not several or p.kind is p.KEYWORD_ONLY)
            ]
    assert lacking == []


@pytest.mark.parametrize("name", ["median", "nanmedian", "nanpercentile", "nanquantile", "percentile", "quantile"])
@pytest.mark.parametrize("way", ["by name", "by place"])
def test_no_argument_is_overwritten_while_a_tape_records(name, way):
    x = np.array([3.0, 1.0, 2.0, 5.0, 4.0, 0.0])
    q = () if name.endswith("median") else (30.0,) if "percentile" in name else (0.3,)

    def total(y, *places, **names):
        m = getattr(np, name)(y, *q, *places, **names)
        return m * m + np.sum(y * np.arange(6.0))

    given = ((None, None, True), {}) if way == "by place" else ((), {"overwrite_input": True})
    found = ampi.grad(lambda y: total(y, *given[0], **given[1]))(x)
    np.testing.assert_array_equal(found, ampi.grad(total)(x))
    np.testing.assert_array_equal(x, [3.0, 1.0, 2.0, 5.0, 4.0, 0.0])
