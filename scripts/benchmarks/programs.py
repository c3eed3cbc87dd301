"""The small programs whose gradients are timed, written once: for ``numba.njit`` and NumPy, or for ampi.

A program is a function of a namespace (NumPy or ``ampi.numpy``), a decorator that compiles kernels, and its
independents; it returns the dependent array.  Kernels are plain functions here and compiled by either decorator.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy


@dataclass(frozen=True)
class Program:
    """One row of the table.

    Attributes: ``kernel`` (function to compile), ``run(np, kernel, *independents)``, ``independents`` (arrays),
    ``group`` (``"independent"`` or ``"recurrence"``), ``steps`` (of a recurrence) and ``live`` (bytes of its state).
    """

    name: str
    group: str
    kernel: Callable
    run: Callable
    independents: tuple
    steps: int = 0
    live: int = 0


PROGRAMS: dict[str, Callable[[], Program]] = {}


def program(make):
    """Register a function that makes a program."""
    PROGRAMS[make.__name__] = make
    return make


def random(*shape, low=0.5, high=1.5, seed=0):
    return numpy.random.default_rng(seed).uniform(low, high, shape)


def march(steps, *parameters):
    """A run of so many steps between two buffers, from the first independent; the others are fields that stay."""

    def run(np, step, u, *fields):
        v = u.copy()
        for _ in range(steps):
            step(u, v, *fields, *parameters)
            u, v = v, u
        return u

    return run


# --------------------------------------------------------------------------------------------------- stencils


@program
def heat_1d():
    def step(u, new, c):
        for i in range(1, u.shape[0] - 1):
            new[i] = u[i] + c * (u[i - 1] - 2.0 * u[i] + u[i + 1])

    return Program("heat 1D", "independent", step, march(50, 0.2), (random(200_000),))


@program
def heat_2d():
    def step(u, new, c):
        for i in range(1, u.shape[0] - 1):
            for j in range(1, u.shape[1] - 1):
                around = u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1]
                new[i, j] = u[i, j] + c * (around - 4.0 * u[i, j])

    return Program("heat 2D", "independent", step, march(50, 0.1), (random(500, 500),))


@program
def heat_3d():
    def step(u, new, c):
        for i in range(1, u.shape[0] - 1):
            for j in range(1, u.shape[1] - 1):
                for k in range(1, u.shape[2] - 1):
                    around = u[i - 1, j, k] + u[i + 1, j, k] + u[i, j - 1, k] + u[i, j + 1, k]
                    around += u[i, j, k - 1] + u[i, j, k + 1]
                    new[i, j, k] = u[i, j, k] + c * (around - 6.0 * u[i, j, k])

    return Program("heat 3D", "independent", step, march(50, 0.1), (random(64, 64, 64),))


@program
def wave():
    def step(old, now, new, speed):
        for i in range(1, now.shape[0] - 1):
            for j in range(1, now.shape[1] - 1):
                around = now[i - 1, j] + now[i + 1, j] + now[i, j - 1] + now[i, j + 1]
                pull = speed[i, j] * speed[i, j] * (around - 4.0 * now[i, j])
                new[i, j] = 2.0 * now[i, j] - old[i, j] + pull

    def run(np, step, u, speed):
        old, now, new = u.copy(), u, u.copy()
        for _ in range(20):
            step(old, now, new, speed)
            old, now, new = now, new, old
        return now

    independents = random(500, 500), random(500, 500, low=0.1, high=0.5, seed=1)
    return Program("wave 2D, with respect to the speed too", "independent", step, run, independents)


@program
def burgers():
    def step(u, new, c, nu):
        for i in range(1, u.shape[0] - 1):
            slope = u[i] - u[i - 1] if u[i] > 0.0 else u[i + 1] - u[i]
            new[i] = u[i] - c * u[i] * slope + nu * (u[i - 1] - 2.0 * u[i] + u[i + 1])

    return Program("Burgers 1D, upwind", "independent", step, march(20, 0.1, 0.2), (random(200_000, low=-1.0),))


@program
def shallow_water():
    def step(h, p, q, new_h, new_p, new_q, c):
        half_g = 0.5 * 9.81
        for i in range(1, h.shape[0] - 1):
            for j in range(1, h.shape[1] - 1):
                n, s, w, e = h[i - 1, j], h[i + 1, j], h[i, j - 1], h[i, j + 1]
                pn, ps, pw, pe = p[i - 1, j], p[i + 1, j], p[i, j - 1], p[i, j + 1]
                qn, qs, qw, qe = q[i - 1, j], q[i + 1, j], q[i, j - 1], q[i, j + 1]
                new_h[i, j] = 0.25 * (n + s + w + e) - c * (ps - pn + qe - qw)
                fluxes = ps * ps / s + half_g * s * s - pn * pn / n - half_g * n * n + pe * qe / e - pw * qw / w
                new_p[i, j] = 0.25 * (pn + ps + pw + pe) - c * fluxes
                fluxes = qe * qe / e + half_g * e * e - qw * qw / w - half_g * w * w + ps * qs / s - pn * qn / n
                new_q[i, j] = 0.25 * (qn + qs + qw + qe) - c * fluxes

    def run(np, step, h, p, q):
        now, new = (h, p, q), (h.copy(), p.copy(), q.copy())
        for _ in range(10):
            step(*now, *new, 0.01)
            now, new = new, now
        return now[0]

    shape = 400, 400
    independents = random(*shape, low=1.0), random(*shape, low=-0.2, high=0.2), random(*shape, low=-0.2, high=0.2)
    return Program("shallow water 2D", "independent", step, run, independents)


# --------------------------------------------------------------------------------------------------- others


@program
def spmv():
    rng = numpy.random.default_rng(0)
    rows = 50_000
    begin = numpy.concatenate([[0], numpy.cumsum(rng.integers(5, 15, rows))])
    near = numpy.repeat(numpy.arange(rows), numpy.diff(begin)) + rng.integers(-200, 200, begin[-1])
    column = numpy.clip(near, 0, rows - 1).astype(numpy.uint32)

    def multiply(value, x, y, begin, column):
        for i in range(y.shape[0]):
            s = 0.0
            for k in range(begin[i], begin[i + 1]):
                s += value[k] * x[column[k]]
            y[i] = s

    def run(np, multiply, value, x):
        for _ in range(5):
            y = np.empty(rows)
            multiply(value, x, y, begin, column)
            x = y
        return x

    independents = random(begin[-1], low=0.05, high=0.15), random(rows)
    return Program("sparse matrix times vector", "independent", multiply, run, independents)


@program
def n_body():
    def forces(x, y, z, m, fx, fy, fz):
        for i in range(x.shape[0]):
            sx = sy = sz = 0.0
            for j in range(x.shape[0]):
                dx, dy, dz = x[j] - x[i], y[j] - y[i], z[j] - z[i]
                squared = dx * dx + dy * dy + dz * dz + 1e-3
                w = m[j] / (squared * math.sqrt(squared))
                sx += w * dx
                sy += w * dy
                sz += w * dz
            fx[i] = m[i] * sx
            fy[i] = m[i] * sy
            fz[i] = m[i] * sz

    def run(np, forces, x, y, z, m):
        f = np.empty((3, x.shape[0]))
        forces(x, y, z, m, f[0], f[1], f[2])
        return f

    return Program("n-body", "independent", forces, run, tuple(random(1000, seed=k) for k in range(4)))


@program
def dense_network():
    def forward(x, w1, b1, w2, b2, y):
        hidden = numpy.empty(w1.shape[0])
        for s in range(x.shape[0]):
            for i in range(w1.shape[0]):
                t = b1[i]
                for j in range(w1.shape[1]):
                    t += w1[i, j] * x[s, j]
                hidden[i] = math.tanh(t)
            for i in range(w2.shape[0]):
                t = b2[i]
                for j in range(w2.shape[1]):
                    t += w2[i, j] * hidden[j]
                y[s, i] = t

    x = random(1000, 32)

    def run(np, forward, w1, b1, w2, b2):
        y = np.empty((x.shape[0], w2.shape[0]))
        forward(x, w1, b1, w2, b2, y)
        return y

    weights = random(64, 32, low=-0.5, high=0.5), random(64), random(10, 64, low=-0.5, high=0.5), random(10)
    return Program("dense network, 32-64-10", "independent", forward, run, weights)


# --------------------------------------------------------------------------------------------------- recurrences


@program
def rk4():
    steps = 100_000

    def integrate(y, result, h, steps):
        a, b = y[0], y[1]
        for _ in range(steps):
            ka, kb = b, (1.0 - a * a) * b - a
            p, q = a + 0.5 * h * ka, b + 0.5 * h * kb
            la, lb = q, (1.0 - p * p) * q - p
            p, q = a + 0.5 * h * la, b + 0.5 * h * lb
            ma, mb = q, (1.0 - p * p) * q - p
            p, q = a + h * ma, b + h * mb
            na, nb = q, (1.0 - p * p) * q - p
            a += h / 6.0 * (ka + 2.0 * la + 2.0 * ma + na)
            b += h / 6.0 * (kb + 2.0 * lb + 2.0 * mb + nb)
        result[0] = a
        result[1] = b

    def run(np, integrate, y):
        result = np.empty(2)
        integrate(y, result, 1e-4, steps)
        return result

    return Program("RK4 of van der Pol's equation", "recurrence", integrate, run, (random(2),), steps, 16)


@program
def cumulative_product():
    n = 200_000

    def multiply(x, y):
        product = 1.0
        for i in range(x.shape[0]):
            product *= x[i]
            y[i] = product

    def run(np, multiply, x):
        y = np.empty(n)
        multiply(x, y)
        return y

    return Program("cumulative product", "recurrence", multiply, run, (random(n, low=0.999, high=1.001),), n, 8)


@program
def heat_loop():
    n, steps = 1000, 1000

    def simulate(u, new, c, steps):
        for _ in range(steps):
            for i in range(1, u.shape[0] - 1):
                new[i] = u[i] + c * (u[i - 1] - 2.0 * u[i] + u[i + 1])
            for i in range(1, u.shape[0] - 1):
                u[i] = new[i]

    def run(np, simulate, u):
        now = u.copy()
        simulate(now, np.empty(n), 0.2, steps)
        return now

    return Program("heat 1D, time loop in the kernel", "recurrence", simulate, run, (random(n),), steps, 8 * n)


@program
def burgers_loop():
    n, steps = 1000, 1000

    def simulate(u, new, c, nu, steps):
        for _ in range(steps):
            for i in range(1, u.shape[0] - 1):
                slope = u[i] - u[i - 1] if u[i] > 0.0 else u[i + 1] - u[i]
                new[i] = u[i] - c * u[i] * slope + nu * (u[i - 1] - 2.0 * u[i] + u[i + 1])
            for i in range(1, u.shape[0] - 1):
                u[i] = new[i]

    def run(np, simulate, u):
        now = u.copy()
        simulate(now, np.empty(n), 0.1, 0.2, steps)
        return now

    return Program(
        "Burgers 1D, time loop in the kernel", "recurrence", simulate, run, (random(n, low=-1.0),), steps, 8 * n
    )
