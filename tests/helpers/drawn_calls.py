"""Random calls of functions, with arrays of all layouts and precisions, some of them active, and checks of them."""

import warnings
from typing import NamedTuple

import numpy as np
from scipy_check import flat, scalar_of

import ampi
import ampi.numpy as anp
from ampi.arrays import losses as outside
from ampi.rules import inplace

STEP = 2.0**-15
OUT = "a fresh output"


class Array(NamedTuple):
    """A specification of an array, which may be active and have any layout and precision."""

    shape: tuple = (3, 4)
    kinds: str = "fc"
    low: float = 0.3
    high: float = 0.9
    special: str = ""


class Call(NamedTuple):
    """Values to choose from for each parameter; those in ``must`` are always given."""

    must: dict
    may: dict = {}
    positional: tuple = ()


def of(*arrays, **may):
    """A call whose first parameters are these arrays, passed by position."""
    return Call({}, may, arrays)


def given_by(call):
    return {**call.must, **call.may}


# ------------------------------------------------------------------------------------------------------ what is drawn


def numbers(rng, spec, dtype):
    """Random values of an array, away from kinks and ties."""
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
        case "triangular":
            x = np.tril(x) + 2.0 * np.eye(len(x))
        case "steep":  # has full rank as a matrix
            flat = x.reshape(len(x), -1) if x.ndim < 3 or len(x) > 2 else x.reshape(-1, x.shape[-1])
            x = (flat + 3.0 * np.eye(*flat.shape)).reshape(x.shape)
        case "larger":
            x = x + 3.0
        case special if special.startswith("row "):
            x[int(special[4:])] += 4.0
        case "sorted":
            x = np.sort(x)
        case "ends":
            x[[0, -1]] = 0.0
        case "almost real":
            x = x.real + 1e-15j * x.imag
    return x.astype(dtype)


def laid_out(x, way):
    """The same values in another memory layout."""
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
    """A value in which each `Array` is replaced by a random array."""
    if isinstance(x, Array):
        kind = x.kinds[rng.integers(len(x.kinds)) if kinds is None else kinds]
        dtype = {"f": "fd", "c": "FD"}[kind][1 if precise else rng.integers(2)]
        return numbers(rng, x, dtype)
    if isinstance(x, (list, tuple)):
        return type(x)([drawn(rng, item, precise, kinds) for item in x])
    return x


def one_of(rng, x):
    return x[rng.integers(len(x))] if isinstance(x, list) else x


def replaced(x, function):
    """A value in which each floating-point array is replaced by a function of it."""
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
        """The active arrays, each in its memory layout."""
        return tuple([laid_out(x, self.layouts[k]) for x, k in zip(self.values, self.active)])


def ampi_is_used(values):
    return any(isinstance(x, ampi.ndarray) for x in values)


def verdict(program, forward=True):
    """ "right", "refused", a description of what is wrong, or None where the call fails with NumPy's arrays."""
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
            total = scalar_of(found)
        except (ampi.ActivityError, ampi.ActivityWarning) as error:
            others = ("method reduce with", "a plain numpy array", "float() of an active array")
            named_so = any(words in str(error) for words in (name, *others))
            return "refused" if named_so else f"refused in other words: {error}"
        except Exception as error:
            return f"{type(error).__name__}: {error}"
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
    """A random direction that keeps zeros zero and almost real numbers almost real."""
    found = rng.uniform(-1, 1, x.shape) * (x != 0)
    if x.dtype.kind != "c":
        return found
    return found + 1j * rng.uniform(-1, 1, x.shape) * (abs(x.imag) > 1e-9)


def derivatives_agree(program, gradient, expected, forward):
    rng = np.random.default_rng(3)
    moves = [move(rng, x) for x in program.values]
    program.in_double = True
    precise = [x.astype("D" if x.dtype.kind == "c" else "d") for x in program.values]
    single = any(x.dtype.char in "fF" for x in (*program.arrays, *expected))
    rough = any(np.asarray(x).dtype.char in "fF" for x in flat(program(*precise)))  # single precision for any input
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


def decided(function, rng, call, keywords, precise=True, kinds=None, forward=True):
    arguments = [drawn(rng, one_of(rng, x), precise, kinds) for x in call.positional]
    given = {key: drawn(rng, one_of(rng, call.must[key]), precise, kinds) for key in call.must}
    given.update({key: drawn(rng, x, precise, kinds) for key, x in keywords.items()})
    several = rng.integers(3)
    program = Program(function, arguments, given, lambda k: several or rng.integers(2), rng)
    return program, verdict(program, forward)
