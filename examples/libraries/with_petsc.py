"""Solves of PETSc in a program: the adjoint of a solve is a solve with the transposed matrix.

mpiexec -n 2 python examples/libraries/with_petsc.py

The rod of length 1 is heated, and conducts heat by coefficients k, one for each cell, of which each rank has some. The
program prints the derivative of the mean temperature with respect to them. Any KSP and preconditioner will do.
"""

import numpy
from petsc4py import PETSc

import ampi
import ampi.numpy as np

comm = ampi.COMM_WORLD


def solver(size, rows, columns, kind="gmres", preconditioner="bjacobi"):
    """A function ``solve(values, b)`` of this rank's entries of a matrix, and of its part of the right-hand side.

    The entries are at the global places ``rows``, ``columns``; those at the same place are summed. Each rank has
    ``size`` elements of the vectors. The function is collective, and so are its derivatives: reverse and forward mode.
    """
    rows, columns = (numpy.asarray(places, PETSc.IntType) for places in (rows, columns))
    matrix = PETSc.Mat().create()
    matrix.setSizes(((size, None), (size, None)))
    matrix.setType("aij")
    matrix.setPreallocationCOO(rows.copy(), columns.copy())  # PETSc sorts them
    x, b = matrix.createVecs()
    ksp = PETSc.KSP().create()
    ksp.setOperators(matrix)
    ksp.setType(kind)
    ksp.getPC().setType(preconditioner)
    ksp.setTolerances(rtol=1e-12)
    ksp.setFromOptions()
    parts = []
    for places in (rows, columns):  # elements of vectors at the places of this rank's entries
        part = PETSc.Vec().createSeq(len(places))
        where = PETSc.IS().createGeneral(places, comm=PETSc.COMM_SELF)
        parts.append((part, PETSc.Scatter().create(x, where, part, None)))

    def at(which, array):
        part, scatter = parts[which]
        x.array[:] = array
        scatter.scatter(x, part)
        return part.array.copy()

    def solved(values, right, transposed=False):
        matrix.setValuesCOO(values)  # another solve may have set others
        b.array[:] = right
        (ksp.solveTranspose if transposed else ksp.solve)(b, x)
        if ksp.reason < 0:
            raise RuntimeError(f"PETSc has not solved the system: reason {ksp.reason}")
        return x.array.copy()

    @ampi.custom_vjp
    def solve(values, right):
        return solved(ampi.value(values), ampi.value(right))

    def forward(values, right):
        found = solve.f(values, right)
        return found, (ampi.value(values).copy(), found)

    def backward(kept, bar):
        values, found = kept
        right_bar = solved(values, bar, transposed=True)
        return -at(0, right_bar) * at(1, ampi.value(found)), right_bar

    @solve.defjvp
    def tangent(arguments, dots):
        values, right = map(ampi.value, arguments)
        found = solved(values, right)
        matrix.setValuesCOO(numpy.asarray(dots[0]))
        x.array[:] = found
        matrix.mult(x, b)
        return found, solved(values, dots[1] - b.array)

    solve.defvjp(forward, backward)
    return solve


def rod(k):
    """The mean temperature of a rod: this rank's part of it. Collective."""
    size = len(k)
    first = comm.scan(size) - size
    total = comm.allreduce(size)
    after = np.zeros(1)  # the coefficient of the next rank's first cell
    east, west = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    comm.Sendrecv(k[:1], west, recvbuf=after, source=east)
    right = np.concatenate([k[1:], after])
    cells = numpy.arange(first, first + size)
    inner = cells < total - 1
    rows = numpy.concatenate([cells, cells[inner] + 1, cells[inner], cells[inner] + 1, cells])
    columns = numpy.concatenate([cells, cells[inner] + 1, cells[inner] + 1, cells[inner], cells])
    faces = (k + right) / 2 * inner
    cold = k * (cells == 0)  # the rod's beginning is cold
    values = np.concatenate([faces, faces[inner], -faces[inner], -faces[inner], cold])
    temperature = solver(size, rows, columns)(values, np.full(size, 1.0 / total**2))
    return np.sum(temperature) / total


def main():
    k = 1.0 + 0.1 * numpy.arange(3.0) + comm.rank
    value, gradient = ampi.value_and_grad(rod)(k)
    print(comm.rank, float(value), gradient)


if __name__ == "__main__":
    main()
