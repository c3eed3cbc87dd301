"""Cost of ``deterministic=True``: gradients of two kernels on two threads, relative to those without it."""

import numba
import numpy
from local import interleaved, seconds
from programs import random

import ampi
import ampi.numpy

THREADS = 2


def edge_lengths(x, node, length):
    for e in numba.prange(node.shape[0]):
        d = x[node[e, 0]] - x[node[e, 1]]
        length[e] = numpy.sqrt(d * d + 0.1) * x[node[e, 2]]


def mean_energy(x):
    s = 0.0
    for i in numba.prange(x.shape[0]):
        s += numpy.exp(-x[i]) * numpy.sin(x[i])
    return s / x.shape[0]


def rows(repeat: int) -> list[dict]:
    before = numba.get_num_threads()
    numba.set_num_threads(min(THREADS, numba.config.NUMBA_NUM_THREADS))
    try:
        nodes, edges = 20_000, 200_000
        node = numpy.random.default_rng(4).integers(0, nodes, (edges, 3))

        def lengths(kernel, x):
            length = ampi.numpy.zeros(edges)
            kernel(x, node, length)
            return ampi.numpy.sum(length)

        return [
            row("scattered", "shared elements", edge_lengths, lengths, nodes, repeat),
            row("sum", "a sum", mean_energy, lambda kernel, x: kernel(x), 1_000_000, repeat),
        ]
    finally:
        numba.set_num_threads(before)


def row(name: str, what: str, function, program, size: int, repeat: int) -> dict:
    """The gradient's time with it, and how it compares to that without."""
    x = random(size, seed=6)
    kernels = [ampi.kernel(function, parallel=True, deterministic=wanted) for wanted in (False, True)]
    gradients = [ampi.grad(lambda x, kernel=kernel: program(kernel, x)) for kernel in kernels]
    numpy.testing.assert_allclose(*(gradient(x) for gradient in gradients), rtol=1e-10)
    without, with_ = interleaved([lambda g=g: seconds(lambda: g(x)) for g in gradients], repeat)
    return {
        "name": f"deterministic_{name}",
        "what": f"deterministic=True, {THREADS} threads: {what}",
        "gradient": with_,
        "value": with_ / without,
        "unit": "x",
        "note": f"{without * 1e3:.3f} ms without",
    }
