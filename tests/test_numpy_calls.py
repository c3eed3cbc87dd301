"""Every function of NumPy that has a rule, with every parameter of its signature: drawn arrays of all layouts and
precisions, one or several of them active.  The derivative is that of finite differences, or the function is refused by
name."""

import inspect
import warnings
import zlib

import numpy as np
import pytest
from numpy_calls import CALLS, OUT, Array
from scipy_check import flat, scalar_of

import ampi
import ampi.numpy as anp
from ampi import functions, outside
from ampi.rules import inplace, known_parameters

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")

FUNCTIONS = {
    known_parameters.place(f): f
    for f in (*functions.COMPOSITE, *functions.RULES, *inplace.WRITERS)
    if f.__module__.partition(".")[0] == "numpy"
}
STEP = 2.0**-15


def named(name):
    return FUNCTIONS.get(name.partition(" ")[0])


def given_by(call):
    return {**call.must, **call.may}


# ------------------------------------------------------------------------------------------------------ what is drawn


def numbers(rng, spec, dtype):
    """Values of an array, apart from kinks and ties."""
    x = rng.uniform(spec.low, spec.high, spec.shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.uniform(0.2, 0.7, spec.shape)
    match spec.special:
        case "nan" | "inf":
            x[0, 1] = x[2, 3] = np.nan
            if spec.special == "inf":
                x[1, 0], x[1, 2] = np.inf, -np.inf
        case "regular":
            x = x + 3.0 * np.diag(np.arange(1.0, x.shape[-1] + 1))
        case "positive":
            x = x @ np.conj(x.T) + np.diag(np.arange(1.0, x.shape[-1] + 1))
        case "sorted":
            x = np.sort(x)
        case "ends":
            x[[0, -1]] = 0.0
        case "almost real":
            x = x.real + 1e-15j * x.imag
    return x.astype(dtype)


def laid_out(x, way):
    """The same values in memory of another layout."""
    if not x.ndim:
        return x.copy()
    if way == 1:
        return np.asfortranarray(x)
    if way == 2:
        return x[::-1].copy()[::-1]
    if way == 3:
        wide = np.zeros([2 * n for n in x.shape], x.dtype)
        inner = wide[tuple([slice(1, None, 2)] * x.ndim)]
        inner[...] = x
        return inner
    if way == 4:
        return np.moveaxis(np.moveaxis(x, 0, -1).copy(), -1, 0)
    return x.copy()


def drawn(rng, x, precise, kinds=None):
    """A value, with an array in the place of each `Array` in it."""
    if isinstance(x, Array):
        kind = x.kinds[rng.integers(len(x.kinds)) if kinds is None else kinds]
        dtype = {"f": "fd", "c": "FD"}[kind][1 if precise else rng.integers(2)]
        return numbers(rng, x, dtype)
    if isinstance(x, list):
        return [drawn(rng, item, precise, kinds) for item in x]
    return x


def one_of(rng, x):
    return x[rng.integers(len(x))] if isinstance(x, list) else x


def replaced(x, function):
    """A value with a function of each array of floating-point numbers in its place."""
    if isinstance(x, np.ndarray) and x.dtype.kind in "fc":
        return function(x)
    if isinstance(x, (list, tuple)):
        return type(x)([replaced(item, function) for item in x])
    if isinstance(x, dict):
        return {name: replaced(item, function) for name, item in x.items()}
    return x


# ----------------------------------------------------------------------------------------------- what becomes of a call


class Program:
    """One call, as a function of its active arrays."""

    def __init__(self, function, arguments, keywords, active, rng):
        self.function = function
        self.given = (arguments, keywords)
        self.arrays = []
        replaced(self.given, self.arrays.append)
        self.active = [k for k in range(len(self.arrays)) if active(k)] or [0][: len(self.arrays)]
        self.layouts = [rng.integers(6) for _ in self.arrays]
        self.values = [self.arrays[k] for k in self.active]
        self.output = None
        self.in_double = False

    def __call__(self, *values):
        chosen = dict(zip(self.active, values))
        places = iter(range(len(self.arrays)))

        def own(x):
            k = next(places)
            x = chosen.get(k, x)
            if self.in_double and x.dtype.char in "fF":
                x = x.astype({"f": "d", "F": "D"}[x.dtype.char])
            return x if isinstance(x, ampi.ndarray) else laid_out(x, self.layouts[k])

        arguments, keywords = replaced(self.given, own)
        if self.function in inplace.WRITERS:
            target = anp.array(arguments[0], order="K") if ampi_is_used(values) else arguments[0].copy(order="K")
            self.function(target, *arguments[1:], **keywords)
            return target * 1.0
        if self.in_double:
            keywords = {key: x for key, x in keywords.items() if x is not OUT}
        if keywords.get("out") is OUT:
            like = self.output
            keywords["out"] = anp.zeros(like.shape, like.dtype) if ampi_is_used(values) else np.zeros_like(like)
        return self.function(*arguments, **keywords)

    def laid_out(self):
        """The active arrays, in memory of their layouts."""
        return tuple([laid_out(x, self.layouts[k]) for x, k in zip(self.values, self.active)])


def ampi_is_used(values):
    return any(isinstance(x, ampi.ndarray) for x in values)


def verdict(program, forward=True):
    """ "right", "refused", what is wrong, or None where NumPy's arrays do not suit the function."""
    name = program.function.__name__
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("error", RuntimeWarning)
            warnings.simplefilter("error", np.exceptions.ComplexWarning)
            if program.given[1].get("out") is OUT:
                keywords = program.given[1]
                program.given = (program.given[0], {k: x for k, x in keywords.items() if k != "out"})
                program.output = np.asarray(program(*program.values))
                program.given = (program.given[0], keywords)
            plain = program(*program.values)
    except Exception:
        return None
    expected = [np.asarray(x) for x in flat(plain)]
    if not any(x.dtype.kind in "fc" for x in expected):
        return None
    with ampi.Tape() as tape, np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("error", ampi.ActivityWarning)
        outside._warned.clear()
        watched = [tape.watch(x) for x in program.laid_out()]
        try:
            found = program(*watched)
        except (ampi.ActivityError, ampi.ActivityWarning) as error:
            others = ("method reduce with", "a plain numpy array", "float() of an active array")
            named_so = any(words in str(error) for words in (name, *others))
            return "refused" if named_so else f"refused in other words: {error}"
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        total = scalar_of(found)
    made = [np.asarray(ampi.value(x)) for x in flat(found)]
    for x, y in zip(expected, made, strict=True):
        rtol = 1e-5 if x.dtype.char in "fF" else 1e-12
        if x.dtype != y.dtype or x.shape != y.shape or not np.allclose(x, y, rtol, rtol, equal_nan=True):
            return f"other values: {y!r} and not {x!r}"
    if not isinstance(total, ampi.ndarray) or not tape.is_active(total):
        gradient = [np.zeros(x.shape) for x in program.values]
    else:
        gradient = tape.gradient(total, watched)
    return derivatives_agree(program, gradient, expected, forward)


def move(rng, x):
    """A direction in which zeros stay zeros, and almost real numbers almost real."""
    found = rng.uniform(-1, 1, x.shape) * (x != 0)
    if x.dtype.kind != "c":
        return found
    return found + 1j * rng.uniform(-1, 1, x.shape) * (abs(x.imag) > 1e-9)


def derivatives_agree(program, gradient, expected, forward):
    rng = np.random.default_rng(3)
    moves = [move(rng, x) for x in program.values]
    program.in_double = True
    precise = [x.astype("D" if x.dtype.kind == "c" else "d") for x in program.values]
    single = any(x.dtype.char in "fF" for x in (*program.values, *expected))
    rough = any(x.dtype.char in "fF" for x in flat(program(*precise)))  # whatever it is given
    h = 2.0**-7 if rough else STEP

    def along(h):
        return float(scalar_of(program(*[x + h * m for x, m in zip(precise, moves)])))

    with np.errstate(all="ignore"):
        near, far = [(along(h) - along(-h)) / (2 * h) for h in (h, 2 * h)]
    value = float(sum(np.sum(np.conj(g) * m).real for g, m in zip(gradient, moves)))
    size = max(1.0, abs(near), *[float(np.abs(g * m).sum()) for g, m in zip(gradient, moves)])
    program.in_double = False
    if not np.isfinite(near) or abs(near - far) > (1e-2 if rough else 1e-5) * size:
        return None  # a kink
    tolerance = 3e-2 if rough else 1e-3 if single else 1e-6
    if not abs(value - (4 * near - far) / 3) <= tolerance * size:
        return f"the gradient gives {value}, differences {near}"
    if not forward:
        return "right"
    try:
        forward = float(ampi.jvp(lambda *x: scalar_of(program(*x)), program.laid_out(), tuple(moves))[1])
    except ampi.ActivityError as error:
        return f"no tangent: {error}"
    if not abs(forward - value) <= (1e-4 if single else 1e-9) * size:
        return f"forward mode gives {forward}, the gradient {value}"
    return "right"


# ------------------------------------------------------------------------------------------------------------ the tests


def test_every_function_is_called():
    called = {name.partition(" ")[0] for name in CALLS}
    assert sorted(set(FUNCTIONS) - called) == []
    gone = {name for name in called - set(FUNCTIONS) if hasattr(np, name)}
    assert not gone, "functions that have lost their rule"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_parameter_is_given(name):
    """A parameter that a new NumPy adds is used by the rule, changes nothing, or is refused: say which in `CALLS`."""
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


OPTIONAL = {"clip": ("a_min", "a_max"), "reshape": ("newshape",)}


def decided(name, rng, call, keywords, precise=True, kinds=None, forward=True):
    function = named(name)
    arguments = [drawn(rng, one_of(rng, x), precise, kinds) for x in call.positional]
    given = {key: drawn(rng, one_of(rng, call.must[key]), precise, kinds) for key in call.must}
    given.update({key: drawn(rng, x, precise, kinds) for key, x in keywords.items()})
    several = rng.integers(3)
    program = Program(function, arguments, given, lambda k: several or rng.integers(2), rng)
    return program, verdict(program, forward)


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
            program, found = decided(name, rng, call, {} if key is None else {key: x}, kinds=kinds, forward=not kinds)
            outcomes.setdefault(key, set()).add(found)
            if found not in ("right", "refused", None):
                wrong.append(f"{key}={x!r}, {program.given}, active {program.active}: {found}")
    assert not wrong, "\n".join(wrong)
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
        if named(name) is None:
            continue
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        chance = rng.choice([0.2, 0.5, 0.9])
        keywords = {key: one_of(rng, values) for key, values in call.may.items() if rng.random() < chance}
        program, found = decided(name, rng, call, keywords, precise=False)
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
        ("a axis=0", lambda a, axis=0: a * 1.0, "its derivative is not that"),
    ],
)
def test_in_an_untested_release_rules_are_tried(monkeypatch, known, rule, why):
    monkeypatch.setitem(known_parameters.PARAMETERS, "turned", known)
    seeing = known_parameters.seeing_first(turned, rule)
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
