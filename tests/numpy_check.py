"""Holds a NumPy program against itself with ampi's arrays, idle and recording: values bit by bit, dtypes, shapes,
strides, flags, who shares memory with whom, and the gradient against differences."""

import itertools
import warnings

import numpy as np
from numpy_programs import NARROW, WIDE, run, starts

import ampi
import ampi.numpy
from ampi.memory import is_record, is_scalar

STEP = 2.0**-17
SINGULAR = "cbrt"
"""A function with an infinite derivative at zero: the cube root of x - x has one of either sign, and their sum is not a
number."""


class Refused(Exception):
    """ampi says that it cannot differentiate the program."""


def examine(lines):
    """What is wrong with a program, as a list of sentences.

    Raises
    ------
    Refused
        With the error: loudly refused is not wrong.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        expected = run(lines, np, NARROW, starts())
        idle = run(lines, ampi.numpy, NARROW, {n: ampi.numpy.array(v) for n, v in starts().items()})
        found = [f"idle: {p}" for p in differences(expected, idle)]
        recorded, _ = record(lines, NARROW)
        found += [f"recording: {p}" for p in differences(expected, recorded)]
        return found or gradient_problems(lines)


def record(lines, dtypes):
    """The names at the end of a recorded program, and the gradient of a weighted sum of all that has derivatives."""
    with ampi.Tape() as tape:
        independents = {n: tape.watch(v) for n, v in widened(starts(), dtypes).items()}
        copies = {n: v.copy() for n, v in independents.items()}
        try:
            names = run(lines, ampi.numpy, dtypes, copies)
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
    gradient = tape.gradient(outputs, list(independents.values()), seed=seeds)
    return names, dict(zip(independents, gradient))


def widened(values, dtypes):
    return {n: v.astype(np.float64) if v.dtype == np.float32 and dtypes is WIDE else v for n, v in values.items()}


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


def differences(expected, found):
    """How the values of a run differ from NumPy's."""
    problems = []
    for name, value in expected.items():
        problems += [f"{name}: {what}" for what in different(value, found[name])]
    arrays = [(n, v) for n, v in expected.items() if isinstance(v, np.ndarray) and v.size]
    for (n, a), (m, b) in itertools.combinations(arrays, 2):
        if np.shares_memory(a, b) != np.shares_memory(plain(found[n]), plain(found[m])):
            problems.append(
                f"{n} and {m} share memory {'with NumPy only' if np.shares_memory(a, b) else 'with ampi only'}"
            )
    return problems


def plain(x):
    return x.view(np.ndarray) if isinstance(x, ampi.ndarray) else x


def different(a, b):
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
    if a.tobytes() != plain(b).tobytes() and not same_numbers(a, plain(b)):
        found.append(f"NumPy gives {a!r}, ampi {b!r}")
    if isinstance(a, np.ndarray) and a.size:
        if [s for s, n in zip(a.strides, a.shape) if n > 1] != [s for s, n in zip(b.strides, b.shape) if n > 1]:
            found.append(f"NumPy gives strides {a.strides}, ampi {b.strides}")
        if a.flags.writeable != b.flags.writeable:
            found.append(f"NumPy gives writeable={a.flags.writeable}, ampi {b.flags.writeable}")
    return found


def same_numbers(a, b):
    # Arithmetic of two NumPy scalars takes another way through the C library than that of arrays.
    if isinstance(a, np.ndarray) or a.dtype.kind not in "fc":
        return False
    return bool(np.abs(a - b) <= 2 * np.finfo(a.dtype).eps * np.abs(a))


# --------------------------------------------------------------------------------------------------------- gradients


def gradient_problems(lines):
    """How the gradient differs from differences, where those agree among themselves; all in double precision."""
    try:
        values = [weighted_sum(lines, h) for h in (-2 * STEP, -STEP, 0.0, STEP, 2 * STEP)]
    except Exception:
        return []  # NumPy itself does not run it everywhere near by
    left, right = (values[2] - values[1]) / STEP, (values[3] - values[2]) / STEP
    near, far = (values[3] - values[1]) / (2 * STEP), (values[4] - values[0]) / (4 * STEP)
    scale = max(1.0, abs(near))
    if not np.isfinite(near) or abs(near - far) > 1e-5 * scale or abs(left - right) > 0.02 * scale:
        return []  # a kink, a jump, or too curved
    _, gradient = record(lines, WIDE)
    directions = dict(zip(gradient, moves()))
    total = sum(np.vdot(gradient[n], directions[n]).real for n in gradient)
    if abs(total - near) <= 2e-4 * scale or (np.isnan(total) and any(SINGULAR in line for line in lines)):
        return []
    return [f"gradient: ampi gives {total}, differences {near} (and {far})"]


def moves():
    rng = np.random.default_rng(7)
    for value in starts().values():
        made = rng.uniform(-1, 1, value.shape)
        yield made + 1j * rng.uniform(-1, 1, value.shape) if value.dtype.kind == "c" else made


def weighted_sum(lines, h):
    """The weighted sum of NumPy's results, with the independents moved."""
    values = widened(starts(), WIDE)
    values = {n: v + h * d for (n, v), d in zip(values.items(), moves())}
    names = run(lines, np, WIDE, values)
    total = 0.0
    for value, weight in zip(names.values(), weights(names)):
        for field in weight.dtype.names or (None,):
            part, w = (value, weight) if field is None else (value[field], weight[field])
            if part.dtype.kind in "fc":
                total += np.vdot(w, part).real
    return total
