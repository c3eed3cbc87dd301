"""Random wrong launches of CUDA kernels: grids, blocks, bytes of shared memory, and arguments that do not fit.

Each has to be a KernelError that names what is wrong, before anything runs.
"""

import decimal
import fractions
import random
import re

import numpy as np
from numba import complex128, float64

import ampi.cuda as cuda
from ampi import KernelError

SIZE = 24
POINT = np.dtype([("x", float), ("v", float)])


@cuda.jit
def plain(a, b):
    i = cuda.grid(1)
    b[i] = a[i] * a[i]


@cuda.jit
def planar(a, b, scale):
    i, j = cuda.grid(2)
    b[i, j] = scale * a[i, j]


@cuda.jit
def solid(a, b, n):
    i, j, k = cuda.grid(3)
    if i < n:
        b[i, j, k] = a[i, j, k] * a[0, 0, k]


@cuda.jit
def dynamic(a, b):
    shared = cuda.shared.array(0, float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    shared[t] = a[i]
    cuda.syncthreads()
    b[i] = shared[cuda.blockDim.x - 1 - t]


@cuda.jit
def tiled(a, b):
    shared = cuda.shared.array((4, 5), float64)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    i, j = cuda.grid(2)
    shared[x, y] = a[i, j]
    cuda.syncthreads()
    b[i, j] = shared[y, x]


@cuda.jit
def structured(points, b):
    i = cuda.grid(1)
    b[i] = points[i].x * points[i].v


@cuda.jit
def turned(z, b):
    shared = cuda.shared.array(8, complex128)
    shared[cuda.threadIdx.x] = z[cuda.grid(1)] * 1j
    cuda.syncthreads()
    b[cuda.grid(1)] = shared[cuda.threadIdx.x]


def points(n=SIZE):
    return np.ones(n, POINT)


LAUNCHES = {
    plain: ((3, 8), lambda: {"a": np.ones(SIZE), "b": np.zeros(SIZE)}),
    planar: (((2, 3), (4, 2)), lambda: {"a": np.ones((8, 6)), "b": np.zeros((8, 6)), "scale": 2.0}),
    solid: (((2, 1, 2), (2, 3, 2)), lambda: {"a": np.ones((4, 3, 4)), "b": np.zeros((4, 3, 4)), "n": 4}),
    dynamic: ((3, 8, 0, 64), lambda: {"a": np.ones(SIZE), "b": np.zeros(SIZE)}),
    tiled: (((2, 2), (4, 4)), lambda: {"a": np.ones((8, 8)), "b": np.zeros((8, 8))}),
    structured: ((3, 8), lambda: {"points": points(), "b": np.zeros(SIZE)}),
    turned: ((3, 8), lambda: {"z": np.ones(SIZE, complex), "b": np.zeros(SIZE, complex)}),
}
NO_SIZES = [0, -1, 1.5, "4", None, (), (1, 2, 3, 4), (1, 0), (1, -2), (2, 1.5), [0], np.float64(2.0), {1}, (None,), 1j]
NO_STREAMS = ["0", 1.5, -1, (0,), [1], {}, np.zeros(2), True, 1j, b"0"]
NO_BYTES = [-8, 1.5, "64", None, 10**9, (64,), np.float64(64.0), True]
NO_VALUES = [None, "x", b"x", [1.0], (1.0,), {"a": 1}, {1.0}, len, int, object(), range(3), fractions.Fraction(1, 2),
             decimal.Decimal("0.5"), np.datetime64("2020-01-01"), np.str_("x"), slice(3), Ellipsis, ...]  # fmt: skip


KINDS = ["grid", "block", "stream", "bytes", "count", "value", "array", "axes", "missing", "more", "unknown", "small",
         "large grid", "read-only", "number for an array", "array for a number", "forall"]  # fmt: skip


def no_arrays(array):
    """Arrays that no kernel takes, in the place of this one."""
    n = array.shape
    yield np.zeros(n, object)
    yield np.zeros(n, np.float16)
    yield np.zeros(n, "datetime64[s]")
    yield np.zeros(n, "U3")
    yield np.zeros(n, np.longdouble)
    yield np.zeros(n, ">f8")
    yield np.ma.masked_array(np.zeros(n), False)
    yield np.zeros(n, [("x", object)])


def grown(size, draw):
    """A launch with more blocks or threads along one axis."""
    items = list(size) if isinstance(size, tuple) else [size]
    k = draw.randrange(len(items))
    items[k] += draw.randint(1, 3)
    return tuple(items) if len(items) > 1 else items[0]


def wrong(seed):
    """A wrong launch: a function that makes it, what its message has to contain, and a description."""
    draw = random.Random(seed)
    kernel = draw.choice(list(LAUNCHES))
    configuration, given = LAUNCHES[kernel]
    configuration, given = list(configuration), given()
    configuration += [0] * (4 - len(configuration))
    if kernel is not dynamic and draw.random() < 0.5:
        configuration = configuration[:2]
    arrays = [n for n, v in given.items() if isinstance(v, np.ndarray)]
    kind = draw.choice(KINDS)
    name = draw.choice(list(given))
    argument = f"'{name}[.']"
    if kind in ("grid", "block"):
        value = draw.choice(NO_SIZES if kind == "grid" else [*NO_SIZES, 2048, (1024, 2), (1, 1, 65)])
        configuration[kind == "block"] = value
        argument = "blocks" if kind == "grid" else "threads"
    elif kind == "stream":
        configuration = [*configuration[:2], draw.choice(NO_STREAMS)]
        argument = "stream"
    elif kind == "bytes":
        choices = NO_BYTES if kernel is not dynamic else [*NO_BYTES, 0, 8, 56, 63]
        configuration = [*configuration[:2], 0, draw.choice(choices)]
        argument = "bytes"
    elif kind == "count":
        configuration = draw.choice([configuration[:1], [*configuration[:2], 0, 0, 0], []])
        argument = "configure a launch|blocks"
    elif kind == "value":
        given[name] = draw.choice(NO_VALUES)
    elif kind == "array":
        name = draw.choice(arrays)
        given[name], argument = draw.choice(list(no_arrays(given[name]))), f"'{name}'"
    elif kind == "axes":
        name = draw.choice(arrays)
        given[name] = draw.choice([given[name][None], given[name][0]])
        argument = f"'{name}'|{name}\\["
    elif kind == "missing":
        del given[name]
    elif kind == "more":
        name = "another"
        given[name], argument = 1.0, "another|too many"
    elif kind == "unknown":
        given["other"] = given.pop(name)
        argument = f"'{name}'|'other'"
    elif kind == "small":
        name = draw.choice(arrays)
        axis = draw.randrange(given[name].ndim)
        given[name] = np.ascontiguousarray(np.delete(given[name], draw.choice([0, [0, 1], slice(None)]), axis))
        argument = f"'{name}[.']"
    elif kind == "large grid":
        which = draw.randrange(2)
        configuration[which] = grown(configuration[which], draw)
        argument = "argument '|shared array '"
        if kernel is solid:  # a condition leaves out those along x
            configuration[which] = (2, 9, 2)
    elif kind == "read-only":
        written = "b"
        given[written].flags.writeable = False
        argument = "'b'"
    elif kind == "number for an array":
        name = draw.choice(arrays)
        given[name] = draw.choice([1.0, 2, 1j, True, np.float64(1.0), np.int32(3)])
        argument = f"'{name}'|{name}\\["
    elif kind == "array for a number":
        kernel = draw.choice([planar, solid])
        configuration, given = LAUNCHES[kernel]
        given = given()
        name = "scale" if kernel is planar else "n"
        given[name], argument = np.ones((2, 2)), f"'{name}'|{name} [*]|< {name}"
    elif kind == "forall":
        value = draw.choice([-1, 1.5, "3", None, (3,), 1j])
        return lambda: kernel.forall(value), "forall", f"seed {seed}: forall({value!r})"
    if kind in ("small", "large grid", "value", "missing", "more", "count", "bytes") and draw.random() < 0.3:
        given = {n: cuda.to_device(v) if type(v) is np.ndarray else v for n, v in given.items()}
    as_words = draw.random() < 0.3 or kind in ("unknown", "missing")
    text = f"seed {seed}, {kind}: {kernel.__name__}[{configuration}], {name}, expected {argument}"

    def launch():
        configured = kernel[tuple(configuration)]
        return configured(**given) if as_words else configured(*given.values())

    return launch, argument, text


def examine(seed):
    """Check that a wrong launch is a KernelError that names what is wrong, and what to write."""
    launch, argument, text = wrong(seed)
    try:
        launch()
    except KernelError as error:
        assert re.search(argument, str(error)), f"{text}\n{error}"
        return
    except Exception as error:
        raise AssertionError(f"{text}\n{type(error).__name__}: {error}") from error
    raise AssertionError(f"{text}\nit ran")
