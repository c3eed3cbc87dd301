"""The temperature that a plate had at the beginning, from what it was later: a field that is spread over the ranks.

mpiexec -n 4 python -m ampi.run examples/inversion/field.py --picture field.png

Every rank has rows of the field, of its gradient, and of all vectors of the optimiser: NuMPI's L-BFGS for MPI
(pip install NuMPI), which adds up scalar products over the ranks. No rank ever has the whole.
"""

import numpy
from NuMPI.Optimization import l_bfgs
from NuMPI.Tools import Reduction

import ampi
import ampi.numpy as np

comm = ampi.COMM_WORLD
RATE = 0.1  # time step times diffusivity by the square of the distance of grid points
SEEN = (2, 4, 8)  # steps after which the whole plate is seen


@ampi.kernel
def diffuse(u, v):
    for i in range(1, u.shape[0] - 1):
        for j in range(1, u.shape[1] - 1):
            v[i, j] = u[i, j] + RATE * (u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1] - 4.0 * u[i, j])


def rows(n):
    """Where this rank's rows of ``n`` begin and end."""
    return n * comm.rank // comm.size, n * (comm.rank + 1) // comm.size


def step(u):
    """One step of a plate, with a halo around this rank's rows that is 0 at the edge of the plate."""
    up = comm.rank - 1 if comm.rank else ampi.MPI.PROC_NULL
    down = comm.rank + 1 if comm.rank < comm.size - 1 else ampi.MPI.PROC_NULL
    comm.Sendrecv(u[-2], down, recvbuf=u[0], source=up)
    comm.Sendrecv(u[1], up, recvbuf=u[-1], source=down)
    v = np.zeros(u.shape)
    diffuse(u, v)
    return v


def run(start):
    """This rank's rows after the steps of SEEN, (times, rows, n), from those at the beginning, (rows, n)."""
    u = np.zeros((start.shape[0] + 2, start.shape[1] + 2))
    u[1:-1, 1:-1] = start
    shown = []
    for k in range(1, SEEN[-1] + 1):
        u = step(u)
        if k in SEEN:
            shown.append(u[1:-1, 1:-1])
    return np.stack(shown)


def misfit(start, shown):
    return np.sum((run(start) - shown) ** 2)


def invert(shown, gtol=1e-9, callback=None):
    """This rank's rows of the field at the beginning. Collective."""
    both = ampi.value_and_grad(misfit)
    shape = shown.shape[1:]

    def function(start):
        value, gradient = both(start.reshape(shape), shown)
        return comm.allreduce(value), gradient.reshape(start.shape)

    start = numpy.zeros((shown[0].size, 1))
    return l_bfgs(
        function, start, jac=True, pnp=Reduction(ampi.MPI.COMM_WORLD), gtol=gtol, maxcor=20, callback=callback
    )


def truth(n):
    """This rank's rows of a letter and a spot."""
    begin, end = rows(n)
    y, x = (numpy.arange(begin, end)[:, None] + 0.5) / n, (numpy.arange(n)[None, :] + 0.5) / n
    letter = ((abs(x - 0.35) < 0.06) & (abs(y - 0.5) < 0.3)) | ((abs(x - 0.5) < 0.2) & (abs(y - 0.25) < 0.06))
    return letter + 0.8 * numpy.exp(-((x - 0.7) ** 2 + (y - 0.65) ** 2) / 0.02)


def draw(path, fields):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(fields), figsize=(9, 3), layout="constrained")
    for axis, (title, field) in zip(axes, fields.items()):
        image = axis.imshow(field, cmap="inferno", origin="lower", vmin=0.0, vmax=1.0)
        axis.set(title=title, xticks=[], yticks=[])
    figure.colorbar(image, ax=axes)
    figure.savefig(path, dpi=160)


def main():
    parser = ampi.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, default=40, help="grid points along an edge")
    parser.add_argument("--gtol", type=float, default=1e-9, help="largest component of the gradient at the end")
    parser.add_argument("--picture", metavar="FILE")
    options = parser.parse_args()
    if options.n < comm.size:
        parser.error(f"{options.n} rows are too few for {comm.size} ranks")
    true = truth(options.n)
    shown = ampi.value(run(true))
    found = invert(shown, options.gtol)
    field = found.x.reshape(true.shape)
    error = comm.allreduce(numpy.abs(field - true).max(), op=ampi.MPI.MAX)
    sizes = comm.gather(true.size)
    fields = {"at the beginning": true, f"after {SEEN[-1]} steps": shown[-1], "found": field}
    wholes = {title: comm.gather(field) for title, field in fields.items()}
    if comm.rank == 0:
        print("unknowns  on the ranks               iterations  misfit   largest error")
        print(f"{sum(sizes):<9} {sizes!s:<26} {found.nit:<11} {float(found.fun):.1e}  {error:.1e}")
        if options.picture:
            draw(options.picture, {title: numpy.concatenate(parts) for title, parts in wholes.items()})


if __name__ == "__main__":
    main()
