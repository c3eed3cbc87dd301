"""Parts of generated programs other than MPI, and the check of their gradients; see generated_programs.py.

A program is a function ``program(np, MPI, comm, x)`` of ampi.numpy or NumPy, of ampi's or mpi4py's namespace, of the
world communicator and of this rank's inputs.  It returns its outputs, what it wrote to files (outputs as well), and
what is to be freed after the sweeps.
A script that `scripts/fuzz` writes begins with this file, and finds `second_check` beside it.
"""

import contextlib
import gc
import math
import os
import sys
import tempfile

import numpy
from mpi4py import MPI as rebound
from mpi4py.util import pkl5  # noqa: F401  (for programs)
from second_check import products

import ampi
import ampi.numpy

MPI = sys.modules["ampi.mpi.original"]  # mpi4py's own
WORLD = MPI.Intracomm(MPI.COMM_WORLD)
LENGTH = 24  # of every array
FRESH = MPI.MODE_CREATE | MPI.MODE_RDWR | MPI.MODE_DELETE_ON_CLOSE
WIDE = [numpy.float64, numpy.float64, numpy.complex128, numpy.complex128]
NARROW = [numpy.float64, numpy.float32, numpy.complex128, numpy.complex64]
TOLERANCES = {numpy.float64: 1e-8, numpy.float32: 5e-4}
ROUNDING = {numpy.float64: 1e-12, numpy.float32: 1e-4}


# ------------------------------------------------------------------------------------------- what programs are made of


def smooth(u):
    """A function below 1 in size, smooth everywhere, for complex numbers as a function of their two parts."""
    return u / numpy.sqrt(1.0 + (u * numpy.conj(u)).real)


def fold(np, g):
    """A weighted sum of the rows of a table, one from each rank; the weights differ."""
    return np.sum(g / (1.0 + numpy.arange(len(g)))[:, None], axis=0)


def typeof(a):
    """The MPI datatype of an array's elements."""
    return MPI._typedict[a.dtype.char]


def pairs_of(np, u, location):
    """Values with a location, and their MPI datatype."""
    pairs = np.zeros(u.size, numpy.dtype([("value", u.dtype), ("location", "i4")], align=True))
    pairs["value"] = u
    pairs["location"] = location
    return [pairs, {4: MPI.FLOAT_INT, 8: MPI.DOUBLE_INT}[u.itemsize]]


def scratch(comm, name):
    """The path of a file for a communicator's ranks."""
    (leader,) = comm.Get_group().Translate_ranks([0], WORLD.Get_group())
    return os.path.join(tempfile.gettempdir(), f"ampi-{os.getppid()}-{leader}-{name}")


def turns(comm):
    """The ranks, one after another; all at once while a tape records, since it orders them."""
    return [None] if ampi.tape.current() else range(comm.size)


@ampi.kernel
def mix(a, b):
    """A local step."""
    for i in range(a.size):
        a[i] = a[i] * math.cos(b[i]) + 0.3 * math.sin(a[i] * b[i])


@ampi.kernel
def hypot(a, b):
    """A commutative reduction."""
    for i in range(b.size):
        b[i] = math.sqrt(1.0 + a[i] * a[i] + b[i] * b[i])


@ampi.kernel
def compose(a, b):
    """A reduction that is not commutative: b(a(t)) for the function t -> slope t + offset, in pairs."""
    for i in range(b.size // 2):
        b[2 * i + 1] = a[2 * i + 1] * b[2 * i] + b[2 * i + 1]
        b[2 * i] = a[2 * i] * b[2 * i]


class Asking:
    """Gradients requested in the middle of a program: on inner tapes always, and on the program's own tape while
    ``is_on``."""

    def __init__(self):
        self.is_on = False
        self.calls = None  # outside of checks

    def __enter__(self):
        self.is_on, self.calls = True, 0

    def __exit__(self, *_):
        self.is_on = False

    def __call__(self, np, x, arrays):
        """Request gradients at some of the calls, the first among them."""
        if self.calls is None or np is not ampi.numpy:
            return
        self.calls += 1
        if self.calls % 4 == 3:
            ampi.grad(lambda u: ampi.numpy.sum(u * u))(numpy.ones(2))
        if self.is_on and self.calls % 4 == 1:
            ampi.tape.current().gradient(arrays, x, seed=[numpy.ones_like(ampi.value(y)) for y in arrays])


ask = Asking()


def call(np, kernel, *arrays):
    (kernel if np is ampi.numpy else kernel.py_func)(*arrays)


def reduction(np, kernel, commute):
    """A reduction operation of ampi, or the same of mpi4py."""

    def combine(inbuf, inoutbuf, datatype):
        kernel.py_func(*(numpy.frombuffer(buffer, numpy.float64) for buffer in (inbuf, inoutbuf)))

    return ampi.Op.Create(kernel, commute) if np is ampi.numpy else MPI.Op.Create(combine, commute)


def between(MPI, comm, low):
    """An intercommunicator between the ranks below `low` and the others."""
    half = comm.Split(comm.rank < low)
    inter = half.Create_intercomm(0, comm, low if comm.rank < low else 0)
    half.Free()
    return inter


def root_of(MPI, inter, first):
    """The root argument that this rank passes if the last rank of one group of an intercommunicator is the root."""
    world = inter.Get_group().Translate_ranks([0], MPI.COMM_WORLD.Get_group())[0]
    other = inter.Get_remote_group().Translate_ranks([0], MPI.COMM_WORLD.Get_group())[0]
    if (world < other) != first:
        return inter.remote_size - 1
    return MPI.ROOT if inter.rank == inter.size - 1 else MPI.PROC_NULL


# ---------------------------------------------------------------------------------------------------------- the check


def inputs(dtypes, salt, shapes=None):
    generator = numpy.random.default_rng([WORLD.rank, salt])
    shapes = [(LENGTH,)] * len(dtypes) if shapes is None else shapes
    values = [generator.uniform(-1, 1, (*shape, 2)) @ [1, 1j] for shape in shapes]
    return [(v if numpy.dtype(t).kind == "c" else v.real).astype(t) for v, t in zip(values, dtypes)]


def inner(a, b):
    return sum(float(numpy.vdot(p, q).real) for p, q in zip(a, b))


def total(value):
    return WORLD.allreduce(value)


def plainly(program, np, namespace, comm, x):
    """The program's outputs without a tape."""
    outputs, written, leftover = program(np, namespace, comm, x)
    outputs = [numpy.array(ampi.value(y)) for y in outputs] + written
    free(leftover)
    return outputs


def free(leftover):
    for thing in leftover:
        thing.Free()
    leftover.clear()


def check(program, narrow=False, kept=0, every_mode=True):
    """Compare the sweep with differences and with a second sweep, and values with those without a tape; then several
    seeds at once and, with ``every_mode``, forward mode and second order.

    Collective.  ``kept``: run as a step of a time loop with that many checkpoints (0: no loop).  Returns the problems
    found on all ranks, the same list on every rank; empty if there are none.
    """
    ask.calls = 0
    try:
        return check_as_steps(program, narrow, kept) if kept else check_once(program, narrow, every_mode)
    finally:
        ask.calls = None


def check_once(program, narrow, every_mode):
    """`check` for a program that is not a step of a time loop."""
    dtypes = NARROW if narrow else WIDE
    single = numpy.float32 if narrow else numpy.float64
    ours = ampi.COMM_WORLD.Dup()
    x0 = inputs(dtypes, 0)
    expected = plainly(program, ampi.numpy, ampi.MPI, ours, [ampi.numpy.array(x) for x in x0])
    with ampi.Tape() as tape:
        x = [tape.watch(leaf) for leaf in x0]
        arrays, written, leftover = program(ampi.numpy, ampi.MPI, ours, x)
    values = [numpy.array(ampi.value(leaf)) for leaf in arrays] + written
    y = [*arrays, *tape.outputs]
    seed = inputs([leaf.dtype for leaf in values], 1, [leaf.shape for leaf in values])
    problems = [] if len(y) == len(values) else ["not everything that was written is an output"]
    try:
        x_bar = tape.gradient(y, x, seed=seed)
        again = tape.gradient(y, x, seed=seed)
        several = tape.gradient(y, x, seeds=[numpy.stack([2 * s, s]) for s in seed] if seed else 2)
    except Exception as error:
        problems.append(f"{type(error).__name__} in the sweep: {error}")
    after = [numpy.array(ampi.value(leaf)) for leaf in arrays] + written
    if not WORLD.allreduce(bool(problems), MPI.LOR):
        problems += compared("the values with a tape", values, expected, ROUNDING[single])
        problems += [] if same_bits(values, after) else ["the outputs are not the same after the sweep"]
        problems += [] if same_bits(x_bar, again) else ["a second sweep gives another gradient"]
        for k, factor in enumerate((2, 1)):
            mine = [bar[k] for bar in several]
            problems += compared("vector mode", mine, [factor * bar for bar in x_bar], ROUNDING[single])
        problems += against_differences(program, x0, x_bar, seed, expected, single)
        problems += again_with_gradients_between(program, ours, x0, x_bar, seed, single)
        if every_mode:
            x_bar = tape.gradient(arrays, x, seed=seed[: len(arrays)])  # without what was written to files
            problems += of_other_modes(program, ours, x0, x_bar, seed, single)
    del tape, x, y, arrays
    free([*leftover, ours])
    gc.collect()
    return agreed(problems)


def again_with_gradients_between(program, comm, x0, x_bar, seed, single):
    """Problems with the gradients of two tapes, both recorded before they are swept, the last one first; other
    gradients are requested while the first one records."""
    tapes, leftover = [], []
    for asking in (ask, contextlib.nullcontext()):
        with ampi.Tape() as tape, asking:
            x = [tape.watch(leaf) for leaf in x0]
            arrays, _, mine = program(ampi.numpy, ampi.MPI, comm, x)
        tapes.append((tape, [*arrays, *tape.outputs], x))
        leftover += mine
    problems = []
    for what, (tape, y, x) in zip(("the second tape", "with gradients between"), reversed(tapes)):
        problems += compared(what, tape.gradient(y, x, seed=seed), x_bar, ROUNDING[single])
    free(leftover)
    return problems


def check_as_steps(program, narrow, kept):
    """Compare the gradient of a time loop, whose steps are the program, with that of the same steps on one tape.

    Collective.  ``kept`` is the number of checkpoints.  Returns problems as `check` does.
    """
    single = numpy.float32 if narrow else numpy.float64
    ours = ampi.COMM_WORLD.Dup()
    leftover = []

    def step(state):
        outputs, _, later = program(ampi.numpy, ampi.MPI, ours, state)
        leftover.extend(later)
        following = []
        for x in state:
            alike = [y for y in outputs if y.shape == x.shape and y.dtype == x.dtype]
            following.append(smooth(sum(((0.3 + 0.1 * n) * y for n, y in enumerate(alike)), 0.5 * x)))
        return following

    def one_by_one(state):
        for _ in range(kept + 3):
            state = step(state)
        return state

    x0 = inputs(NARROW if narrow else WIDE, 0)
    found, problems = [], []
    for loop in (one_by_one, lambda state: ampi.timeloop(step, state, kept + 3, checkpoints=kept)):
        with ampi.Tape() as tape:
            x = [tape.watch(leaf) for leaf in x0]
            y = loop([leaf * 1 for leaf in x])
        values = [numpy.array(ampi.value(leaf)) for leaf in y]
        seed = inputs([leaf.dtype for leaf in values], 1, [leaf.shape for leaf in values])
        try:
            found.append([*values, *tape.gradient(y, x, seed=seed), *tape.gradient(y, x, seed=seed)])
        except Exception as error:
            problems.append(f"{type(error).__name__} in the sweep of {'the loop' if found else 'the steps'}: {error}")
        del tape, x, y
        if WORLD.allreduce(bool(problems), MPI.LOR):
            break
        free(leftover)
    else:
        problems += compared("values and gradients of a time loop", found[1], found[0], 10 * ROUNDING[single])
    free([*leftover, ours])
    gc.collect()
    return agreed(problems)


def agreed(problems):
    """The problems of all ranks, without repetitions."""
    found = WORLD.allgather(problems)
    return list(dict.fromkeys(f"rank {rank}: {text}" for rank, texts in enumerate(found) for text in texts))


def against_differences(program, x0, x_bar, seed, expected, single):
    problems = []
    wide = [a.astype(t) for a, t in zip(x0, WIDE)]
    x_dot = inputs(WIDE, 2)
    wide_seed = [numpy.asarray(s, complex) for s in seed]

    def value(h):
        return plainly(program, numpy, MPI, WORLD, [a + h * d for a, d in zip(wide, x_dot)])

    problems += compared("the values", expected, value(0.0), ROUNDING[single])
    rough = [total(inner(wide_seed, value(h)) - inner(wide_seed, value(-h))) / (2 * h) for h in (4e-4, 2e-4, 1e-4)]
    coarse, fine = extrapolated(rough)
    found = total(inner(x_bar, x_dot))
    scale = total(sum(float(numpy.sum(abs(g) * abs(d))) for g, d in zip(x_bar, x_dot)))
    scale = max(scale, abs(fine), 1.0)
    tolerance = TOLERANCES[single]
    if not abs(coarse - fine) <= 0.3 * tolerance * scale:
        return problems  # a kink, where MIN or MAX switches operands: nothing to compare with
    if not abs(found - fine) <= tolerance * scale:
        problems.append(
            f"the sweep gives {found:.12g} for the derivative in a direction, differences give {fine:.12g} "
            f"(scale {scale:.2g}, relative difference {abs(found - fine) / scale:.1e}, allowed {tolerance:.0e})"
        )
    return problems


def extrapolated(rough):
    """Two fourth-order differences, from three second-order ones whose steps are halved each time."""
    return (4 * rough[1] - rough[0]) / 3, (4 * rough[2] - rough[1]) / 3


def of_other_modes(program, comm, x0, x_bar, seed, single):
    """Problems with `ampi.jvp` and `ampi.hvp`: against the sweep's x̄, symmetry, and differences of gradients."""
    leftover = []

    def f(*x):
        arrays, _, mine = program(ampi.numpy, ampi.MPI, comm, list(x))
        leftover.extend(mine)
        return arrays

    def objective(*x):
        parts = [y * numpy.conj(y) / (2.0 + k) + (0.3 + k) * y for k, y in enumerate(f(*x))]
        return sum(ampi.numpy.sum(part.real) for part in parts) if parts else None

    def gradient(h):
        x = [(a + h * d).astype(a.dtype) for a, d in zip(x0, v)]
        bars = ampi.grad(objective, tuple(range(len(x))))(*x)
        free(leftover)
        return bars

    u, v = (inputs([a.dtype for a in x0], salt) for salt in (3, 4))
    problems, bars = [], {}
    try:
        _, y_dot = ampi.jvp(f, tuple(x0), tuple(v))
        free(leftover)
        _, several = ampi.jvp(f, tuple(x0), tuple(numpy.stack([2 * d, d]) for d in v), vectorised=True)
        free(leftover)
        y_dots = [("vector forward mode", numpy.stack([2 * dot, dot]), both) for dot, both in zip(y_dot, several)]
        try:
            y_dots += [("a walk", dot, along) for dot, along in zip(y_dot, walked(f, x0, v))]
        except ampi.ActivityError as error:
            if "its communicator has been freed" not in str(error):  # walks along topologies that are gone are refused
                raise
        free(leftover)
        hu, hv = products(objective, x0, u, v, between=lambda: free(leftover))
        free(leftover)
        if single is numpy.float64:
            bars = {h: gradient(h) for size in (4e-4, 2e-4, 1e-4) for h in (size, -size)}
    except Exception as error:
        problems.append(f"{type(error).__name__} in another mode: {error}")
    if WORLD.allreduce(bool(problems), MPI.LOR):
        return problems
    for what, expected, found in y_dots:
        problems += compared(what, [found], [expected], ROUNDING[single])
    problems += same_sum("forward mode", [(seed, y_dot)], [(x_bar, v)], ROUNDING[single])
    problems += same_sum("H in second order", [(u, hv)], [(hu, v)], 10 * ROUNDING[single])
    if bars:
        rough = [(total(inner(u, bars[h])) - total(inner(u, bars[-h]))) / (2 * h) for h in (4e-4, 2e-4, 1e-4)]
        coarse, fine = extrapolated(rough)
        scale = max(size_of_sum([(u, hv)]), 1.0)
        wrong = abs(total(inner(u, hv)) - fine)
        if wrong > 1e-9 * scale and abs(coarse - fine) <= 3e-10 * scale:  # otherwise a kink is near
            problems.append(f"second order differs from differences of gradients by {wrong:.1e} (of {scale:.1e})")
    return problems


def walked(f, x0, v):
    """Tangents by a walk over a tape."""
    _, push = ampi.linearize(f, *x0)
    return [dot / 2 for dot in push(*(2 * d for d in v))]


def same_sum(what, found, expected, tolerance):
    """Require that two sums of inner products, over all ranks, agree."""
    a, b = (total(sum(inner(*pair) for pair in pairs)) for pairs in (found, expected))
    scale = max(size_of_sum(found), size_of_sum(expected), 1.0)
    if abs(a - b) <= tolerance * scale:
        return []
    return [f"{what}: {a:.15g} is not {b:.15g} (scale {scale:.2g}, relative difference {abs(a - b) / scale:.1e})"]


def size_of_sum(pairs):
    """The sum of the absolute terms of such a sum."""
    return total(sum(float(numpy.sum(abs(p) * abs(q))) for a, b in pairs for p, q in zip(a, b)))


def compared(what, found, expected, tolerance):
    for k, (a, b) in enumerate(zip(found, expected)):
        size = max(1.0, float(numpy.max(abs(b))))
        if not numpy.max(abs(a - b)) <= tolerance * size:
            return [f"{what}: output {k} differs by {numpy.max(abs(a - b)):.1e} where its size is {size:.1e}"]
    return []


def same_bits(a, b):
    return all(p.tobytes() == q.tobytes() for p, q in zip(a, b))


def attach_buffer():
    """Attach a buffer for buffered sends."""
    rebound.Attach_buffer(rebound.Alloc_mem(1 << 20))
