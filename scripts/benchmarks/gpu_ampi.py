"""The cases of scripts/bench_gpu in ampi; ``python gpu_ampi.py CASE SIZE [device]`` prints numbers as JSON."""

import json
import sys
import time

import numpy

import ampi
import ampi.cuda as cuda
import ampi.numpy as np

STEPS = 10
BLOCK = (16, 8)


@cuda.jit
def stencil(u, v):
    i, j = cuda.grid(2)
    if i < u.shape[0] and j < u.shape[1]:
        value = u[i, j]
        if i > 0 and i < u.shape[0] - 1 and j > 0 and j < u.shape[1] - 1:
            around = u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1] - 4.0 * u[i, j]
            value = value + 0.05 * (1.0 + u[i, j] * u[i, j]) * around
        v[i, j] = value + 0.1 * value * (1.0 - value)


@cuda.jit
def relaxed(old, new, cx, cy, weights, omega):
    """D2Q9: each cell takes what arrives from its neighbours, and relaxes it."""
    i, j = cuda.grid(2)
    n, m = old.shape[1], old.shape[2]
    if i < n and j < m:
        density, x, y = 0.0, 0.0, 0.0
        for q in range(9):
            f = old[q, (i - cx[q] + n) % n, (j - cy[q] + m) % m]
            density += f
            x += f * cx[q]
            y += f * cy[q]
        x, y = x / density, y / density
        for q in range(9):
            f = old[q, (i - cx[q] + n) % n, (j - cy[q] + m) % m]
            along = 3.0 * (cx[q] * x + cy[q] * y)
            equilibrium = weights[q] * density * (1.0 + along + 0.5 * along * along - 1.5 * (x * x + y * y))
            new[q, i, j] = f + omega * (equilibrium - f)


@cuda.jit
def squared(u):
    i, j = cuda.grid(2)
    if i < u.shape[0] and j < u.shape[1]:
        u[i, j] = u[i, j] * u[i, j]


@cuda.jit
def energy(u, total):
    i, j = cuda.grid(2)
    if i < u.shape[0] and j < u.shape[1]:
        cuda.atomic.add(total, 0, u[i, j] * u[i, j] * u[i, j])


CX = numpy.array([0, 1, 0, -1, 0, 1, -1, -1, 1])
CY = numpy.array([0, 0, 1, 0, -1, 1, 1, -1, -1])
WEIGHTS = numpy.array([4 / 9] + [1 / 9] * 4 + [1 / 36] * 4)


def start(case, size):
    """The input of a case, of about size² numbers."""
    i, j = numpy.indices((size, size)) / size
    field = 1.0 + 0.3 * numpy.sin(5 * i + 3 * j) + 0.1 * numpy.cos(17 * i * j)
    return (
        WEIGHTS[:, None, None] * field * (1 + 0.02 * CX[:, None, None] * numpy.cos(7 * i)) if case == "lbm" else field
    )


def direction(x):
    """The direction in which derivatives are compared."""
    return numpy.cos(numpy.arange(x.size) * 0.7).reshape(x.shape)


def grid_of(size):
    """The grid and the block for as many cells along two axes."""
    return tuple(-(-size // b) for b in BLOCK), BLOCK


def program(case, size, on_device):
    """The function of a case: of its input, to a number."""
    grid = grid_of(size)
    to = cuda.to_device if on_device else np.array
    back = (lambda d: d.copy_to_host()) if on_device else (lambda d: d)
    new = (lambda x: cuda.device_array(x.shape)) if on_device else np.empty_like
    constant = [cuda.to_device(c) if on_device else c for c in (CX, CY, WEIGHTS)]

    def run(x):
        u = to(x)
        if case == "stencil":
            v = new(u)
            stencil[grid](u, v)
            return np.sum(back(v) ** 2)
        if case == "lbm":
            v = new(u)
            relaxed[grid](u, v, *constant, 1.7)
            return np.sum(back(v) ** 2)
        if case == "in place":
            squared[grid](u)
            return np.sum(back(u))
        if case == "reduction":
            total = to(numpy.zeros(1))
            energy[grid](u, total)
            return back(total)[0]
        v = new(u)
        for _ in range(STEPS):
            stencil[grid](u, v)
            u, v = v, u
        return np.sum(back(u) ** 2)

    return run


def best(function, clock, seconds=1.0):
    """The shortest of several times."""
    function()
    times = []
    while len(times) < 5 or (sum(times) < seconds and len(times) < 50):
        begin = clock()
        function()
        times.append(clock() - begin)
    return min(times)


def measured(case, size, on_device=False):
    """Value, slope and times of a case: those of the processor if that computes."""
    x = start(case, size)
    run = program(case, size, on_device)
    gradient = ampi.grad(run)
    clock = time.perf_counter if on_device else time.process_time
    return {
        "value": float(run(x)),
        "slope": float(numpy.sum(gradient(x) * direction(x))),
        "primal": best(lambda: run(x), clock),
        "gradient": best(lambda: gradient(x), clock),
    }


def difference(case, size):
    """The slope by central differences of fourth order."""
    x, run = start(case, size), program(case, size, False)
    v, h = direction(x), 1e-4
    at = [float(run(x + k * h * v)) for k in (-2, -1, 1, 2)]
    return (at[0] - 8 * at[1] + 8 * at[2] - at[3]) / (12 * h)


if __name__ == "__main__":
    case, size = sys.argv[1], int(sys.argv[2])
    found = measured(case, size, "device" in sys.argv[3:])
    print(json.dumps({**found, "difference": difference(case, size)}))
