"""The conductivity of a plate from its temperature: distributed sparse conjugate gradients with an adjoint solve.

mpiexec -n 4 python -m ampi.run examples/sparse_cg/sparse_cg.py --picture conductivity.png

Each rank has rows of the matrix, and gets from the others what its columns need (Alltoallv of just these). The solver
has an adjoint of its own by ampi.custom_vjp: a solve with the same symmetric matrix, and not a sweep through all
iterations. SciPy's L-BFGS-B looks for the conductivity of each of some blocks.
"""

import numpy
import scipy.sparse
from scipy.optimize import minimize

import ampi
import ampi.numpy as np

comm = ampi.COMM_WORLD


class Plate:
    """This rank's rows of ``div (k grad u) = -1`` on ``n²`` cells, with k constant in each of ``blocks²`` squares."""

    def __init__(self, n, blocks):
        self.n, self.blocks = n, blocks
        starts = numpy.arange(comm.size + 1) * n * n // comm.size
        self.begin, self.end = starts[comm.rank], starts[comm.rank + 1]
        cells = numpy.arange(self.begin, self.end)
        self.rows = self.end - self.begin
        y, x = cells // n, cells % n
        self.links = []  # of each direction: which rows have a neighbour there, and which cell that is
        for dy, dx in ((-1, 0), (1, 0), (0, -1), (0, 1)):
            inside = (0 <= y + dy) & (y + dy < n) & (0 <= x + dx) & (x + dx < n)
            self.links.append((numpy.flatnonzero(inside), (cells + dy * n + dx)[inside]))
        row = numpy.concatenate([numpy.arange(self.rows)] + [r for r, _ in self.links])
        column = numpy.concatenate([cells] + [c for _, c in self.links])
        needed = numpy.unique(column)
        owner = numpy.searchsorted(starts, needed, side="right") - 1
        self.wanted = [needed[owner == rank] for rank in range(comm.size)]
        self.given = [cells - self.begin for cells in comm.alltoall(self.wanted)]  # what others want of this rank
        self.row, self.column = row, numpy.searchsorted(needed, column)
        self.sizes = [len(w) for w in self.given], [len(w) for w in self.wanted]
        self.b = numpy.full(self.rows, 1.0 / n**2)

    def gather(self, x):
        """The elements of a distributed vector that this rank's columns need. Collective."""
        found = numpy.empty(sum(self.sizes[1]))
        comm.Alltoallv([numpy.concatenate([x[w] for w in self.given]), self.sizes[0]], [found, self.sizes[1]])
        return found

    def conjugate_gradients(self, values, b, tolerance=1e-13):
        """Solve for this rank's part. Collective."""
        matrix = scipy.sparse.csr_array((values, (self.row, self.column)), (self.rows, sum(self.sizes[1])))
        dot = lambda a, b: comm.allreduce(float(a @ b))
        x, r = numpy.zeros(self.rows), numpy.array(b)
        p, rr = r.copy(), dot(r, r)
        stop = tolerance**2 * rr
        while rr > stop:
            q = matrix @ self.gather(p)
            alpha = rr / dot(p, q)
            x += alpha * p
            r -= alpha * q
            rr, before = dot(r, r), rr
            p = r + rr / before * p
        return x

    def matrix(self, log_k):
        """The values of this rank's rows: the diagonal, and the conductance to each neighbour; the edge is cold."""
        part = numpy.arange(self.n) * self.blocks // self.n
        k = np.exp(log_k)[(part[:, None] * self.blocks + part).ravel()]
        mine = k[self.begin : self.end]
        diagonal = np.zeros(self.rows)
        values = []
        for row, neighbour in self.links:
            conductance = 2.0 / (1.0 / mine[row] + 1.0 / k[neighbour])
            toward = 2.0 * mine  # half a cell to the edge, where there is no neighbour
            toward[row] = conductance
            diagonal += toward
            values.append(-conductance)
        return np.concatenate([diagonal, *values])

    def temperature(self, log_k):
        return solve(self, self.matrix(log_k))

    def misfit(self, log_k, seen):
        return np.sum((self.temperature(log_k) - seen) ** 2) * 1e4


@ampi.custom_vjp
def solve(plate, values):
    return plate.conjugate_gradients(values, plate.b)


def solve_forward(plate, values):
    x = plate.conjugate_gradients(values, plate.b)
    return x, (plate, values, x)


def solve_backward(residuals, x_bar):
    plate, values, x = residuals
    adjoint = plate.conjugate_gradients(values, x_bar)  # the matrix is symmetric
    return None, -adjoint[plate.row] * plate.gather(x)[plate.column]


solve.defvjp(solve_forward, solve_backward)


def invert(plate, seen):
    local = ampi.value_and_grad(plate.misfit)

    def function(log_k):
        value, gradient = local(log_k, seen)
        return comm.allreduce(value), comm.allreduce(gradient)

    start, options = numpy.zeros(plate.blocks**2), {"ftol": 0.0, "gtol": 1e-12, "maxcor": 30, "maxiter": 500}
    found = minimize(function, start, jac=True, method="L-BFGS-B", options=options)
    return found.x, found


def truth(blocks):
    return numpy.sin(1.7 * numpy.arange(blocks * blocks)) * 0.7


def draw(path, fields, blocks):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(fields), figsize=(7, 3), layout="constrained")
    for axis, (title, field) in zip(axes, fields.items()):
        image = axis.imshow(field.reshape(blocks, blocks), vmin=0.0, vmax=2.1)
        axis.set(title=title, xticks=[], yticks=[])
    figure.colorbar(image, ax=axes, label="conductivity")
    figure.savefig(path, dpi=160)


def main():
    parser = ampi.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, default=24, help="cells along an edge")
    parser.add_argument("--blocks", type=int, default=3, help="blocks of one conductivity along an edge")
    parser.add_argument("--picture", metavar="FILE")
    options = parser.parse_args()
    plate, true = Plate(options.n, options.blocks), truth(options.blocks)
    log_k, found = invert(plate, ampi.value(plate.temperature(true)))
    if comm.rank == 0:
        print("unknowns  iterations  misfit   largest error of log k")
        print(f"{len(log_k):<9} {found.nit:<11} {found.fun:.1e}  {numpy.abs(log_k - true).max():.1e}")
        if options.picture:
            draw(options.picture, {"true": numpy.exp(true), "found": numpy.exp(log_k)}, options.blocks)


if __name__ == "__main__":
    main()
