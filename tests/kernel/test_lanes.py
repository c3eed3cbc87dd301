"""Adjoints in several directions at once, whose derivatives are vectors, compared with adjoints in one direction.

The programs of the whole corpus run in Python, with NumPy arrays as vectors; compiled programs are compared for some
kernels, for random ones (`scripts/fuzz --kernels`) and for LULESH's.
"""

import collections
import dataclasses

import numpy as np
import pytest
from forward_check import check_seeds, check_tangents
from test_corpus import CORPUS, make_check

import ampi
import ampi.numpy as anp
from ampi.kernel import programs
from ampi.kernel.codegen import emit
from ampi.kernel.codegen.in_lanes import NotInLanes
from ampi.kernel.options import Options
from ampi.kernel.runtime import threads

COUNT = 3
OPTIONS = Options(without=programs.OF_NUMBERS)


class Row(np.ndarray):
    """Numbers for several directions, immutable like scalars: ``+=`` makes a new value."""

    __iadd__ = np.ndarray.__add__


def row(function):
    return lambda *given: np.asarray(function(*given)).view(Row)


def stored(array, index, lanes):
    array[index] = lanes


def added(array, index, lanes):
    array[index] += lanes


BY_PYTHON = {
    "added": added,
    "any_of": lambda a: bool(a.any()),
    "both": row(np.logical_and),
    "chosen": row(np.where),
    "converted": row(lambda a, bits: a.astype(f"f{bits // 8}")),
    "each": tuple,
    "equal": row(np.equal),
    "inverse": row(np.logical_not),
    "loaded": row(lambda array, index, count: array[index].copy()),
    "multiplied_and_added": row(lambda x, y, z: x * y + z),
    "one_of": row(np.logical_or),
    "spread": row(lambda x, count: np.full(count, x)),
    "stored": stored,
    "unequal": row(np.not_equal),
}


def by_python(function):
    assert set(BY_PYTHON) == set(emit.LANES)
    (function,) = emit.spelled(function)
    namespace = dict(function.constants)
    exec(compile(f"{emit.HEADER}\n{emit.source(function)}", "<lanes>", "exec"), namespace)
    namespace.update(BY_PYTHON)
    return namespace[function.name]


def several(values):
    """Stack values of several directions along a new last axis."""
    return np.stack([np.asarray(v) for v in values], axis=-1)


def compare(name, dtype):
    """Raise unless all directions have the adjoints that each has alone; `NotInLanes` if there is no such program."""
    check = make_check(name, dtype, options=OPTIONS)
    together = make_check(name, dtype, options=dataclasses.replace(OPTIONS, lanes=COUNT))
    seeds = [check.seeds() for _ in range(COUNT)]
    for array in seeds[1][0].values():
        array[...] = 0  # what is skipped in this direction must not be skipped in others
    alone = [check.adjoints(*given) for given in seeds]
    derivative = together.adjoint
    run = by_python(derivative.function)
    shadows = {n: several([given[0][n] for given in seeds]) for n in derivative.shadows}
    results = [several(parts) for parts in zip(*(given[1] for given in seeds))]
    flags = [threads.distinct(together.value[n]) for n in derivative.distinct] + [False for _ in derivative.new]
    arguments = [a.copy() if isinstance(a, np.ndarray) else a for a in together.arguments]
    with np.errstate(all="ignore"):
        out = run(*arguments, *shadows.values(), *results, *flags)
    found = {**shadows, **dict(zip(derivative.scalars, map(np.array, out)))}
    assert set(found) == set(alone[0])
    for n, each in found.items():
        for k, expected in enumerate(alone):
            np.testing.assert_array_equal(each[..., k], expected[n], err_msg=f"{n} in direction {k}")


REAL = [n for n in CORPUS if np.float64 in CORPUS[n].dtypes]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if k % 6 else []) for k, name in enumerate(REAL)]
)
def test_each_direction_has_what_it_has_alone(name):
    try:
        compare(name, np.float64)
    except NotInLanes as why:
        pytest.skip(f"once for each direction: {why}")


def compare_tangents(name, dtype):
    """The same for tangents."""
    check = make_check(name, dtype, options=OPTIONS)
    together = make_check(name, dtype, options=dataclasses.replace(OPTIONS, lanes=COUNT))
    directions = [check.direction() for _ in range(COUNT)]
    for n, a in directions[1].items():
        directions[1][n] = a * 0
    alone = [check.tangents(direction) for direction in directions]
    derivative = together.tangent
    run = by_python(derivative.function)
    shadows = [several([d.get(n, np.zeros_like(check.value[n])) for d in directions]) for n in derivative.shadows]
    dots = [several([d[n] for d in directions]) for n in derivative.scalars]
    arguments = [a.copy() if isinstance(a, np.ndarray) else a for a in together.arguments]
    with np.errstate(all="ignore"):
        out = run(*arguments, *shadows, *dots)
    results = out[len(out) - sum(derivative.result_active) :] if any(derivative.result_active) else ()
    for n, each in enumerate([*shadows, *map(np.asarray, results)]):
        for k, expected in enumerate(alone):
            np.testing.assert_array_equal(each[..., k], expected[n], err_msg=f"{n} in direction {k}")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if k % 6 != 1 else []) for k, name in enumerate(REAL)]
)
def test_each_direction_has_the_tangent_that_it_has_alone(name):
    try:
        compare_tangents(name, np.float64)
    except NotInLanes as why:
        pytest.skip(f"once for each direction: {why}")


# ------------------------------------------------------------------------------------------------ on tapes


@ampi.kernel
def smoothed(a, b):
    for i in range(1, a.size - 1):
        b[i] += np.sin(a[i - 1]) * a[i + 1]
    return a.sum()


@ampi.kernel
def in_time(a, s):
    for _ in range(3):
        for i in range(a.size):
            a[i] = a[i] * s + np.cos(a[i - 1] * s)


@ampi.kernel
def turned(a, b):
    for i in range(a.size):
        b[a.size - 1 - i] = a[i] * a[i]


@ampi.kernel
def extremes(a, s):
    return np.max(a) * s, np.min(np.abs(a) + s)


@ampi.kernel
def iterated(a, s):
    x = s
    n = 0
    while abs(x) > 0.3 and n < 20:
        x = x * 0.7 + 0.01 * a[n % a.size]
        n += 1
    return np.exp(a) * x


@ampi.kernel
def chosen(a, b, index):
    for i in range(index.size):
        if a[index[i]] > 0.0:
            b[i % b.size] += a[index[i]] * b[(i + 1) % b.size]
        else:
            b[i % b.size] = 0.5
    return np.sqrt(np.abs(a))


class Calls:
    """A random program: calls of kernels, and NumPy functions between them, on parts of a few arrays."""

    def __init__(self, seed, dtype):
        self.rng = np.random.default_rng(seed)
        self.dtype = dtype
        self.plan = [self.rng.integers(0, 1 << 30, 6) for _ in range(7)]

    def part(self, array, number):
        forms = [
            lambda a: a,
            lambda a: a[1:-1],
            lambda a: a[::2],
            lambda a: a[::-1],
            lambda a: a[: number % 5],
            lambda a: a[number % 4 : number % 4 + 5],
        ]
        return forms[number % len(forms)](array)

    def __call__(self, *arrays):
        arrays, results = list(arrays), []
        for what, first, second, how, other, more in map(list, self.plan):
            x = arrays[first % len(arrays)]
            y = arrays[second % len(arrays)]
            if y is x:
                y = arrays[(second + 1) % len(arrays)]
            a, b = self.part(x, how), self.part(y, other)
            n = min(a.size, b.size)
            a, b = a[:n], b[:n]
            if not n:
                continue
            match what % 9:
                case 0:
                    results.append(smoothed(a, b))
                case 1:
                    in_time(a, self.dtype(0.5))
                case 2:
                    turned(a, b)
                case 3:
                    results += extremes(a, self.dtype(0.3))
                case 4:
                    results.append(iterated(a, anp.sum(b) * self.dtype(0.1)))
                case 5:
                    index = np.random.default_rng(more).integers(0, n, more % 7)
                    results.append(chosen(a, b, index))
                case 6:
                    b += anp.sin(a) * self.dtype(0.5)
                case 7:
                    b[...] = a * a[::-1]
                case 8:
                    arrays[second % len(arrays)] = y * self.dtype(1.5)
        return [*arrays, *results]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(
    "seed", [pytest.param(k, marks=[pytest.mark.slow] if k not in (1, 3) else []) for k in range(25)]
)
def test_random_programs(seed, dtype):
    program = Calls(seed, dtype)
    given = [np.linspace(-0.9, 1.1, n).astype(dtype) for n in (7, 9, 12)]
    with ampi.Tape() as tape:
        watched = [tape.watch(x) for x in given]
        outputs = program(*(x * dtype(1.0) for x in watched))
        outputs = [y for y in outputs if isinstance(y, ampi.ndarray) and tape.is_active(y)]
    assert outputs
    rounding = 1e-12 if dtype is np.float64 else 1e-4
    for k in (4, 5, 8, 9, 17)[seed % 5 :][:2]:
        check_seeds(tape, outputs, watched, k, seed=seed, rounding=rounding)

    def function(*given):
        return tuple(y for y in program(*(x * dtype(1.0) for x in given)) if isinstance(y, ampi.ndarray))

    check_tangents(function, given, (4, 9)[seed % 2], seed=seed, rounding=rounding)


def test_vectors_are_used(monkeypatch):
    """Each of these kernels has a program with vectors, which a sweep with as many seeds runs."""
    seen = collections.Counter()
    from ampi.kernel import lanes, vector

    def watching(call, sweep):
        done = lanes.sweep_together(call, sweep)
        seen[done] += 1
        return done

    monkeypatch.setattr(vector, "sweep_together", watching)
    with ampi.Tape() as tape:
        a, b = (tape.watch(np.linspace(0.2, 1.1, n)) for n in (7, 7))
        s = tape.watch(0.9)
        y = [smoothed(a, b), *extremes(a, s), iterated(a, s), chosen(a, b, np.arange(3))]
        in_time(a, s)
        turned(a, b)
        y += [a, b]
    check_seeds(tape, y, [a, b, s], 6, rounding=1e-12)
    assert seen == {True: 6}
    seen.clear()
    check_seeds(tape, y, [a, b, s], 3)
    assert set(seen) == {False}


@ampi.kernel
def largest_roots(a):
    best = np.sqrt(a[0])
    for i in range(1, a.size):
        best = max(best, np.sqrt(a[i]))
    return best, np.sqrt(a[1]) * 2.0


def test_zero_in_some_directions_only():
    """Directions with zero adjoints stay zero: zero is not multiplied by infinity."""
    with ampi.Tape() as tape:
        a = tape.watch(np.zeros(4))
        y = largest_roots(a)
    seeds = [np.array([1.0, 0.0, 2.0, 0.0, 0.0]), np.array([0.0, 1.0, 0.0, 0.0, 3.0])]
    together = tape.gradient(y, a, seeds=seeds)
    for k in range(5):
        alone = tape.gradient(y, a, seed=[s[k] for s in seeds])
        np.testing.assert_array_equal(together[k], alone)


def test_a_loop_with_checkpoints():
    def step(u):
        in_time(u, 0.9)
        u[1:] += u[:-1] * 0.1

    with ampi.Tape() as tape:
        x = tape.watch(np.linspace(0.2, 1.1, 7))
        y = ampi.timeloop(step, x * 1.0, 9, checkpoints=2)
    check_seeds(tape, [y], [x], 5, rounding=1e-12)


def test_memory_of_one_direction_is_not_lost():
    """Operations between two kernels that use the shadow of one direction read and update the kernels' shadows."""
    with ampi.Tape() as tape:
        x = tape.watch(np.linspace(0.2, 1.1, 7))
        y = x * 1.0
        in_time(y, 0.8)
        z = anp.sort(y[::-1]) + y
        in_time(y, 0.7)
        w = anp.concatenate([y, z])
        in_time(z, 0.6)
    check_seeds(tape, [y, z, w], [x], 4, rounding=1e-12)


@ampi.kernel
def mixed(a, b):
    for i in range(a.size):
        b[i] = a[i] * a[i]


def test_memory_of_two_dtypes():
    """Memory that holds numbers of two dtypes does not have shadows of several directions side by side."""
    with ampi.Tape() as tape:
        x = tape.watch(np.linspace(0.2, 1.1, 6))
        memory = anp.zeros(8)
        single, double = memory[:4].view(np.float32), memory[4:]
        single[:6] = x.astype(np.float32)
        mixed(double[:2], double[2:])
        mixed(single[:4], double)
        mixed(double, single[4:])
        y = [anp.sum(single) * 1.0, double * 1.0]
    check_seeds(tape, y, [x], 4, rounding=1e-5)
