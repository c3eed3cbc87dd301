"""A user's program with annotations, which ``mypy --strict`` and pyright accept (``scripts/package``)."""

from __future__ import annotations

from typing import Any

import numpy
from numpy.typing import NDArray

import ampi
import ampi.numpy as np
from ampi import MPI

Array = NDArray[numpy.float64]

comm = ampi.COMM_WORLD


@ampi.kernel
def relax(u: Array, v: Array) -> None:
    for i in range(1, len(u) - 1):
        v[i] = 0.5 * (u[i - 1] + u[i + 1])


@ampi.kernel(parallel=True)
def square(u: Array, v: Array) -> None:
    for i in ampi.prange(len(u)):
        v[i] = u[i] * u[i]


def energy(x: ampi.ndarray) -> Any:
    left = np.zeros(1, dtype=np.float64)
    right, previous = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    comm.Sendrecv(x[-1:], right, recvbuf=left, source=previous)
    again = np.zeros(1)
    requests = [comm.Irecv(again, comm.rank, tag=3), comm.Isend(left, comm.rank, tag=3)]
    MPI.Request.Waitall(requests)
    y, z = np.empty_like(x), np.zeros(len(x))
    square(x, y)
    relax(y, z)
    total = np.zeros(1)
    comm.Allreduce(np.sum(np.diff(np.concatenate([again, x])) ** 2 + np.sin(np.pi * z)), total, op=MPI.SUM)
    return total[0]


def halve(u: ampi.ndarray) -> ampi.ndarray:
    return 0.5 * u + u**2 - (-u) / 4.0


@ampi.custom_vjp
def cube(x: ampi.ndarray) -> Any:
    return x**3


cube.defvjp(lambda x: (numpy.asarray(x) ** 3, x), lambda x, g: (3 * numpy.asarray(x) ** 2 * g,))
cube.defjvp(lambda given, dots: (given[0] ** 3, 3 * given[0] ** 2 * dots[0]))


def program(x: ampi.ndarray) -> Any:
    state = ampi.timeloop(halve, x, steps=3, checkpoints=2)
    return energy(cube(state))


def main() -> None:
    x0: Array = numpy.arange(3.0) / 8
    gradient: Array = ampi.grad(program, objective="replicated")(x0)
    value, again = ampi.value_and_grad(program, objective="replicated")(x0)
    with ampi.Tape() as tape:
        x = tape.watch(x0)
        y = program(x)
    x_bar: Array = tape.gradient(y, x, seed=1.0 / comm.size)
    y, pullback = ampi.vjp(program, x0)
    y, y_dot = ampi.jvp(program, x0, numpy.ones(3))
    product: Array = ampi.hvp(halve_sum, (x0,), (numpy.ones(3),))[0]
    assert numpy.allclose(gradient, again) and numpy.allclose(gradient, x_bar), (gradient, again, x_bar)
    try:
        ampi.testing.taylor_test(program, x0)
    except ampi.AmpiError as error:
        print(error)
    print(comm.Get_rank(), float(ampi.value(value)), pullback(1.0), y_dot, product.shape)


def halve_sum(x: ampi.ndarray) -> Any:
    return np.sum(halve(x))


if __name__ == "__main__":
    main()
