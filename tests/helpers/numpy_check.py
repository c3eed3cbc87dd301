"""Compares a NumPy program with the same program on ampi's arrays, idle and recording: bitwise values, dtypes, shapes,
strides, flags, which arrays share memory; also the gradient with differences, and the other modes with the gradient."""

import itertools
import re
import sys
import warnings

import numpy as np
from numpy_programs import NARROW, WIDE, run, starts
from second_check import products

import ampi
import ampi.numpy
from ampi.base.structures import leaves
from ampi.memory.storages import is_record, is_scalar

STEP = 2.0**-17
SINGULAR = re.compile(r"cbrt|\*\*|power")
"""Functions whose derivative may be nan: the cube root of x - x adds two infinite ones of opposite sign, and a power of
a negative number has none with respect to its exponent."""


class Refused(Exception):
    """ampi has raised an error because it cannot differentiate the program."""


class Alone:
    """Programs on one rank, and the names that they use besides NumPy."""

    alone = True
    differs = True  # whether to compare derivatives with differences of NumPy's results

    def __init__(self, names=None):
        self.plain = self.ours = names or {}

    def starts(self):
        """The independents on this rank."""
        return starts()

    def any(self, flag):
        """Return whether something is true on any rank."""
        return flag

    def sum(self, x):
        """The sum over all ranks."""
        return x


ALONE = Alone()


def examine(lines, world=ALONE):
    """What is wrong with a program, as a list of sentences.

    Raises
    ------
    Refused
        ampi raised an error instead of computing something wrong.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        expected = run(lines, np, {**NARROW, **world.plain}, world.starts())
        idle = run(lines, ampi.numpy, {**NARROW, **world.ours}, tracked(world))
        recorded, _ = record(lines, NARROW, world)
        found = compared(expected, idle, recorded, {})
        if world.any(found) and world.any(is_unsteady(lines, world)):
            found = compared(expected, idle, recorded, rounding_errors(lines, expected, world))
        if world.any(found):
            return found or ["on another rank"]
        if not world.differs:
            return []
        found = gradient_problems(lines, world)
        return mode_problems(lines, world) if found == [] and world.alone else found or []


def tracked(world):
    return {n: ampi.numpy.array(v) for n, v in world.starts().items()}


def compared(expected, idle, recorded, errors):
    """How the values of both runs differ from NumPy's by more than rounding errors."""
    found = [f"idle: {p}" for p in differences(expected, idle, errors)]
    return found + [f"recording: {p}" for p in differences(expected, recorded, errors)]


def record(lines, dtypes, world=ALONE, prepare=lambda tape: None, moved=0.0):
    """The variables at the end of a recorded program, and the gradient of a weighted sum of the differentiable ones."""
    values = started(world, dtypes, moved)
    with ampi.Tape() as tape:
        prepare(tape)
        independents = {n: tape.watch(v) for n, v in values.items()}
        copies = {n: v.copy() for n, v in independents.items()}
        try:
            names = run(lines, ampi.numpy, {**dtypes, **world.ours}, copies)
        except ampi.AmpiError as error:
            raise Refused(error) from error
    outputs, seeds = [], []
    for value, seed in zip(names.values(), weights(names)):
        if isinstance(value, ampi.ndarray):
            for field in value.dtype.names or (None,):
                part = value if field is None else value[...][field]
                if part.dtype.kind in "fc":
                    outputs.append(part)
                    seeds.append(seed[field] if field else seed)
    before = {n: plain(v).tobytes() for n, v in names.items()}
    gradient = tape.gradient(outputs, list(independents.values()), seed=seeds)
    seeds = [np.stack([0.5 * s, s]) for s in seeds]  # halves are exact
    together = tape.gradient(outputs, list(independents.values()), seeds=seeds) if outputs else ()
    assert all(np.array_equal(a[1], b, equal_nan=True) for a, b in zip(together, gradient)), "vector mode differs"
    assert {n: plain(v).tobytes() for n, v in names.items()} == before, "a sweep changes the program's arrays"
    return names, dict(zip(independents, gradient))


def widened(values, dtypes):
    wide = dtypes["F4"] is np.float64
    return {n: v.astype(np.float64) if wide and v.dtype == np.float32 else v for n, v in values.items()}


def started(world, dtypes, h=0.0):
    """The independents, moved by ``h`` along `moves`."""
    values = widened(world.starts(), dtypes)
    return {n: v + h * d for (n, v), d in zip(values.items(), moves())} if h else values


def weights(names):
    """A weight for each number of each value, the same in all runs of a program."""
    rng = np.random.default_rng(5)
    for value in names.values():
        value = np.asarray(value)
        made = np.zeros(value.shape, value.dtype)
        for part in [made[n] for n in made.dtype.names] if made.dtype.names else [made]:
            if part.dtype.kind in "fc":
                draw = rng.uniform(0.5, 1.5, part.shape) + 1j * rng.uniform(0.5, 1.5, part.shape)
                part[...] = draw if part.dtype.kind == "c" else draw.real
        yield made


# ------------------------------------------------------------------------------------------------------ primal values


def is_unsteady(lines, world):
    """Return whether a program computes with complex numbers, or powers of scalars.

    NumPy rounds products and absolute values of complex numbers, and powers, differently with vector instructions than
    without, which depends on whether operands are scalars and on where they are in memory.
    """
    found = [re.search(r"\*\*|power", "\n".join(lines))]  # scalars too, which are NumPy's own without a tape

    def note(frame, event, _):
        if event == "call" and frame.f_code in APPLYING:
            function, *arguments = (frame.f_locals[n] for n in frame.f_code.co_varnames[: frame.f_code.co_argcount])
            numbers = [np.asarray(ampi.value(x)) for x in leaves(arguments) if isinstance(x, NUMBERS)]
            found.append(
                any(x.dtype.kind == "c" for x in numbers) or (function in POWERS and not max(map(np.ndim, numbers)))
            )

    sys.setprofile(note)  # and no wrapper: these functions look at their callers
    try:
        names = run(lines, ampi.numpy, {**NARROW, **world.ours}, tracked(world))
    finally:
        sys.setprofile(None)
    return any(found) or any(np.iscomplexobj(value) for value in names.values())


NUMBERS = (np.ndarray, np.number, int, float, complex)
POWERS = (np.power, np.float_power)
APPLYING = (ampi.arrays.ufuncs.apply.__code__, ampi.rules.functions.apply.__code__)


def rounding_errors(lines, expected, world):
    """Bounds on the rounding errors of NumPy's results, estimated from runs with perturbed independents."""
    errors = {}
    for name, value in expected.items():
        value = np.asarray(value)
        if value.dtype.kind in "fc":
            largest = max(1.0, float(np.max(np.abs(value), initial=0)))
            errors[name] = np.full(value.shape, 16 * np.finfo(value.dtype).eps * largest)
    for seed in range(6):
        rng = np.random.default_rng(seed)
        rounded = {
            n: v * (1 + np.finfo(v.dtype).eps * rng.uniform(-2, 2, v.shape)).astype(v.dtype)
            for n, v in world.starts().items()
        }
        try:
            found = run(lines, np, {**NARROW, **world.plain}, rounded)
        except Exception:
            continue
        for name, error in errors.items():
            if np.shape(found[name]) == error.shape:
                np.maximum(error, 4 * np.abs(found[name] - expected[name]), out=error)
    return errors


def differences(expected, found, errors):
    """How the values of a run differ from NumPy's by more than the given rounding errors."""
    problems = []
    for name, value in expected.items():
        problems += [f"{name}: {what}" for what in different(value, found[name], errors.get(name, 0.0))]
    arrays = [(n, v) for n, v in expected.items() if isinstance(v, np.ndarray) and v.size]
    for (n, a), (m, b) in itertools.combinations(arrays, 2):
        if np.shares_memory(a, b) != np.shares_memory(plain(found[n]), plain(found[m])):
            problems.append(
                f"{n} and {m} share memory {'with NumPy only' if np.shares_memory(a, b) else 'with ampi only'}"
            )
    return problems


def plain(x):
    return x.view(np.ndarray) if isinstance(x, ampi.ndarray) else x


def different(a, b, error):
    if isinstance(a, np.ndarray):
        if not isinstance(b, np.ndarray) or is_scalar(b):  # a ufunc of lists gives a plain array
            return [f"NumPy gives an array, ampi {type(b)}"]
    elif type(a) is not type(b) and not (
        (is_scalar(b) and isinstance(a, np.inexact)) or (is_record(b) and a.dtype.names)
    ):
        return [f"NumPy gives {type(a)}, ampi {type(b)}"]
    if a.dtype != b.dtype or a.shape != b.shape:
        return [f"NumPy gives {a.dtype} of shape {a.shape}, ampi {b.dtype} of shape {b.shape}"]
    found = []
    if a.tobytes() != plain(b).tobytes() and not same_numbers(a, plain(b), error):
        found.append(f"NumPy gives {a!r}, ampi {b!r}")
    if isinstance(a, np.ndarray) and a.size:
        if [s for s, n in zip(a.strides, a.shape) if n > 1] != [s for s, n in zip(b.strides, b.shape) if n > 1]:
            found.append(f"NumPy gives strides {a.strides}, ampi {b.strides}")
        if a.flags.writeable != b.flags.writeable:
            found.append(f"NumPy gives writeable={a.flags.writeable}, ampi {b.flags.writeable}")
    return found


def same_numbers(a, b, error):
    return a.dtype.kind in "fc" and np.any(error) and bool(np.all(np.abs(a - b) <= error))


# --------------------------------------------------------------------------------------------------------- gradients


def gradient_problems(lines, world):
    """How the gradient differs from differences, in double precision; None if these do not agree among themselves."""
    try:
        values = [weighted_sum(lines, h, world) for h in (-2 * STEP, -STEP, 0.0, STEP, 2 * STEP)]
    except Exception:
        if not world.alone:
            raise
        return None  # NumPy itself does not run it at all points nearby, or not in double precision
    if world.any(None in values):
        return None
    values = [world.sum(value) for value in values]
    left, right = (values[2] - values[1]) / STEP, (values[3] - values[2]) / STEP
    near, far = (values[3] - values[1]) / (2 * STEP), (values[4] - values[0]) / (4 * STEP)
    scale = max(1.0, abs(near))
    if not np.isfinite(near) or abs(near - far) > 1e-5 * scale or abs(left - right) > 0.02 * scale:
        return None  # a kink, a jump, or too curved
    total = slope(lines, world)
    if abs(total - near) <= 2e-4 * scale:
        return []
    if np.isnan(total) and any(map(SINGULAR.search, lines)):
        return None
    if not smooth(lines, world, values[2], near):
        return None  # a kink, or only rounding errors: the five values agree by chance
    if slope(lines, world) == total and abs(slope(lines, world, 1e-12) - total) > 1e-3 * scale:
        return None  # the derivative of rounding errors: reproducible, but different very close by
    return [f"gradient: ampi gives {total}, differences {near} (and {far})"]


def mode_problems(lines, world):
    """How forward mode differs from the gradient, and the Hessian from its transpose and from differences of gradients;
    in double precision, on one rank."""
    started_from = started(world, WIDE)
    made = list(weights(run(lines, np, {**WIDE, **world.plain}, started(world, WIDE))))
    u, v = (dict(zip(started_from, moves(seed))) for seed in (7, 8))

    def results(*x):
        copies = {n: a.copy() for n, a in zip(started_from, x)}
        try:
            names = run(lines, ampi.numpy, {**WIDE, **world.ours}, copies)
        except ampi.AmpiError as error:
            raise Refused(error) from error
        for value, weight in zip(names.values(), made):
            if isinstance(value, ampi.ndarray) and value.dtype.kind in "fc":
                yield value, weight

    def objective(*x):
        total = 0.0
        for y, w in results(*x):
            total = total + ((w.real * y * y.conj()).real + (w.conj() * y).real).sum()
        return total

    def gradient(h):
        return ampi.grad(objective, tuple(range(len(v))))(*(a + h * v[n] for n, a in started_from.items()))

    try:
        x = tuple(started_from.values())
        value, rate = ampi.jvp(objective, x, tuple(v.values()))
        bars = gradient(0.0)
        hu, hv = products(objective, x, u.values(), v.values())
        bars_near = {h: gradient(h) for k in (1, 2) for h in (k * STEP, -k * STEP)}
    except ampi.AmpiError as error:
        raise Refused(error) from error
    found = []
    expected, scale = inner(bars, v.values()), size(bars, v.values())

    def is_noise(difference, *computations):
        """Return whether a difference is rounding: scaled directions or functions change the results as much."""
        noise = 0.0
        for computed in computations:
            once, *others = (computed(factor) / factor for factor in (1.0, 3.0, 0.7, 1.1))
            noise = max(noise, *(abs(other - once) for other in others))
        return abs(difference) <= 100 * noise

    def multiple(factor):
        return lambda *x: factor * objective(*x)

    def rate_along(factor):
        return ampi.jvp(objective, x, tuple(factor * d for d in v.values()))[1]

    def rate_of(factor):
        return inner(ampi.grad(multiple(factor), tuple(range(len(v))))(*x), v.values())

    def curvature(a, b):
        yield lambda factor: inner(ampi.hvp(objective, x, tuple(factor * d for d in a.values())), b.values())
        yield lambda factor: inner(ampi.hvp(multiple(factor), x, tuple(a.values())), b.values())

    off = rate - expected
    if (
        np.isfinite(scale)
        and not abs(off) <= 1e-9 * max(scale, abs(value), 1.0)
        and not is_noise(off, rate_along, rate_of)
    ):
        found.append(f"forward: ampi.jvp gives {rate}, the gradient {expected}")
    there, back = inner(hv, u.values()), inner(hu, v.values())
    scale = max(size(hv, u.values()), size(hu, v.values()), 1.0)
    if not np.isfinite(scale):
        return found
    off = there - back
    if not abs(off) <= 1e-9 * scale and not is_noise(off, *curvature(v, u), *curvature(u, v)):
        found.append(f"second order: H is not symmetric, {there} and {back}")
    middle = inner(bars, u.values())
    at = {h: inner(some, u.values()) for h, some in bars_near.items()}
    near, far = ((at[h] - at[-h]) / (2 * h) for h in (STEP, 2 * STEP))
    left, right = (middle - at[-STEP]) / STEP, (at[STEP] - middle) / STEP
    scale = max(scale, abs(near))
    if np.isfinite(near) and abs(near - far) <= 1e-6 * scale and abs(left - right) <= 0.02 * scale:
        if abs(there - near) > 1e-3 * scale:
            found.append(f"second order: ampi.hvp gives {there}, differences of gradients {near} (and {far})")
    return found


def inner(a, b):
    return sum(np.vdot(x, y).real for x, y in zip(a, b))


def size(a, b):
    return sum(float(np.sum(np.abs(x) * np.abs(y))) for x, y in zip(a, b))


def slope(lines, world, moved=0.0):
    """The directional derivative along `moves`, by the gradient."""
    _, gradient = record(lines, WIDE, world, moved=moved)
    directions = dict(zip(gradient, moves()))
    return world.sum(sum(np.vdot(gradient[n], directions[n]).real for n in gradient))


def smooth(lines, world, value, rate):
    """Return whether the weighted sum follows its tangent at other points nearby."""
    for h in STEP * np.random.default_rng(11).uniform(-2, 2, 8):
        found = weighted_sum(lines, h, world)
        if world.any(found is None):
            return False
        if not abs(world.sum(found) - value - h * rate) <= 0.02 * STEP * max(1.0, abs(rate)):
            return False
    return True


def moves(seed=7):
    rng = np.random.default_rng(seed)
    for value in starts().values():
        made = rng.uniform(-1, 1, value.shape)
        yield made + 1j * rng.uniform(-1, 1, value.shape) if value.dtype.kind == "c" else made


def weighted_sum(lines, h, world):
    """The weighted sum of NumPy's results, with the independents moved; None if some are of lower precision."""
    values = started(world, WIDE, h)
    names = run(lines, np, {**WIDE, **world.plain}, values)
    if any(np.asarray(value).dtype.char in "efF" for value in names.values()):
        return None  # NumPy computes them from small integers
    total = 0.0
    for value, weight in zip(names.values(), weights(names)):
        value = np.asarray(value)
        for field in weight.dtype.names or (None,):
            part, w = (value, weight) if field is None else (value[field], weight[field])
            if part.dtype.kind in "fc":
                total += np.vdot(w, part).real
    return total
