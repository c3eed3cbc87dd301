"""A reaction-diffusion equation, implicit in time: Newton's method, conjugate gradients, and loops over elements."""

import sys

import numpy as np
from mpi4py import MPI


class Domain:
    """The rows of this rank."""

    def __init__(self, n, comm):
        self.comm = comm
        self.n = n
        self.rows = n // comm.size
        self.h = 1.0 / (n - 1)


def exchange(domain, u):
    """Fill the halo rows."""
    comm = domain.comm
    up = comm.rank + 1 if comm.rank + 1 < comm.size else MPI.PROC_NULL
    down = comm.rank - 1 if comm.rank else MPI.PROC_NULL
    comm.Sendrecv(u[-2], up, recvbuf=u[0], source=down)
    comm.Sendrecv(u[1], down, recvbuf=u[-1], source=up)


def dot(domain, x, y):
    """The dot product over all ranks."""
    result = np.zeros(1)
    for i in range(1, domain.rows + 1):
        for j in range(1, domain.n - 1):
            result[0] += x[i, j] * y[i, j]
    total = np.zeros(1)
    domain.comm.Allreduce(result, total)
    return total[0]


def residual(domain, u, old, dt, k, f):
    """The residual of an implicit step."""
    exchange(domain, u)
    h2 = domain.h * domain.h
    for i in range(1, domain.rows + 1):
        for j in range(1, domain.n - 1):
            lap = (u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1] - 4.0 * u[i, j]) / h2
            f[i, j] = u[i, j] - old[i, j] - dt * (k * lap + u[i, j] * (1.0 - u[i, j]))


def apply(domain, u, p, dt, k, q):
    """The Jacobian of the residual times a vector."""
    exchange(domain, p)
    h2 = domain.h * domain.h
    for i in range(1, domain.rows + 1):
        for j in range(1, domain.n - 1):
            lap = (p[i - 1, j] + p[i + 1, j] + p[i, j - 1] + p[i, j + 1] - 4.0 * p[i, j]) / h2
            q[i, j] = p[i, j] - dt * (k * lap + (1.0 - 2.0 * u[i, j]) * p[i, j])


def axpy(domain, a, x, y):
    """Add a multiple of one field to another."""
    for i in range(1, domain.rows + 1):
        for j in range(1, domain.n - 1):
            y[i, j] += a * x[i, j]


def solve(domain, u, b, dt, k):
    """Solve for a Newton step with conjugate gradients."""
    shape = u.shape
    x, r, p, q = np.zeros(shape), np.zeros(shape), np.zeros(shape), np.zeros(shape)
    for i in range(1, domain.rows + 1):
        for j in range(1, domain.n - 1):
            r[i, j] = -b[i, j]
            p[i, j] = r[i, j]
    rho = dot(domain, r, r)
    for _ in range(60):
        if rho < 1e-16:
            break
        apply(domain, u, p, dt, k, q)
        alpha = rho / dot(domain, p, q)
        axpy(domain, alpha, p, x)
        axpy(domain, -alpha, q, r)
        new = dot(domain, r, r)
        beta = new / rho
        for i in range(1, domain.rows + 1):
            for j in range(1, domain.n - 1):
                p[i, j] = r[i, j] + beta * p[i, j]
        rho = new
    return x


def run(n, steps, k):
    """The energy of the last state."""
    comm = MPI.COMM_WORLD
    domain = Domain(n, comm)
    u = np.zeros((domain.rows + 2, n))
    first = comm.rank * domain.rows
    for i in range(1, domain.rows + 1):
        for j in range(n):
            y, x = (first + i - 1) * domain.h, j * domain.h
            u[i, j] = 0.5 * np.exp(-30.0 * ((x - 0.5) ** 2 + (y - 0.5) ** 2))
    dt = 0.01
    f = np.zeros(u.shape)
    for _ in range(steps):
        old = u.copy()
        for _ in range(5):
            residual(domain, u, old, dt, k, f)
            if dot(domain, f, f) < 1e-12:
                break
            axpy(domain, 1.0, solve(domain, u, f, dt, k), u)
    return dot(domain, u, u)


k = 0.3
energy = run(int(sys.argv[1]), int(sys.argv[2]), k)
if MPI.COMM_WORLD.rank == 0:
    print("energy", float(energy))
