"""A wave that steepens, and how it began: Burgers' equation with one-sided halo exchange.

mpiexec -n 4 python -m ampi.run examples/one_sided/one_sided.py --picture burgers.png

Each rank has a piece of a ring, in memory that a window shows to its neighbours; between two fences every rank puts its
ends into their halos. In the sweep a Put becomes a Get of adjoints. SciPy's L-BFGS-B looks for the amplitudes of the
waves at the beginning, from the state at the end.
"""

import numpy
from scipy.optimize import minimize

import ampi
import ampi.numpy as np

comm = ampi.COMM_WORLD
VISCOSITY = 0.02
TRUTH = numpy.array([0.5, -0.2, 0.3, 0.1])  # of sin, cos of the first wave, and of the second


@ampi.kernel
def burgers(u, dt, dx, v):
    """One explicit step of u_t + u u_x = ν u_xx, conservative, with a halo of one point."""
    for i in range(1, len(u) - 1):
        flux = (u[i + 1] * u[i + 1] - u[i - 1] * u[i - 1]) / (4.0 * dx)
        v[i] = u[i] + dt * (VISCOSITY * (u[i + 1] - 2.0 * u[i] + u[i - 1]) / (dx * dx) - flux)


def piece(n):
    """The places of this rank's points of ``n`` on a ring of length 1."""
    return numpy.arange(n * comm.rank // comm.size, n * (comm.rank + 1) // comm.size) / n


def begin(amplitudes, x):
    k = 2.0 * numpy.pi
    waves = [numpy.sin(k * x), numpy.cos(k * x), numpy.sin(2.0 * k * x), numpy.cos(2.0 * k * x)]
    return sum(amplitude * wave for amplitude, wave in zip(amplitudes, waves))


def run(amplitudes, n, steps):
    """This rank's piece at the end."""
    x = piece(n)
    u = np.zeros(len(x) + 2)
    u[1:-1] = begin(amplitudes, x)
    v = np.zeros(u.shape)
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    ends = comm.allgather(len(u) - 1)  # where the other ranks' upper halo is
    dx = 1.0 / n
    window = ampi.Win.Create(u, disp_unit=u.itemsize, comm=comm)
    for _ in range(steps):
        window.Fence()
        window.Put(u[1:2], left, target=ends[left])
        window.Put(u[-2:-1], right, target=0)
        window.Fence()
        burgers(u, 0.2 * dx, dx, v)
        u[1:-1] = v[1:-1]
    window.Fence()
    window.Free()
    return u[1:-1]


def misfit(amplitudes, n, steps, seen):
    return np.sum((run(amplitudes, n, steps) - seen) ** 2)


def invert(n, steps, seen):
    local = ampi.value_and_grad(misfit)

    def function(amplitudes):
        value, gradient = local(amplitudes, n, steps, seen)
        return comm.allreduce(value), comm.allreduce(gradient)

    options = {"ftol": 0.0, "gtol": 1e-10}
    found = minimize(function, numpy.zeros(len(TRUTH)), jac=True, method="L-BFGS-B", options=options)
    return found.x, found


def draw(path, n, amplitudes, seen, found):
    """Collective."""
    start = begin(TRUTH, piece(n)), begin(amplitudes, piece(n))
    pieces = comm.gather((piece(n), *start, seen, found))
    if comm.rank == 0:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        x, true, one, seen, found = (numpy.concatenate(parts) for parts in zip(*pieces))
        figure, axes = plt.subplots(figsize=(5, 4))
        axes.plot(x, true, "C0", label="at the beginning")
        axes.plot(x, one, "C1--", label="found")
        axes.plot(x, seen, "k", label="at the end (seen)")
        axes.set(xlabel="x", ylabel="u")
        axes.legend()
        figure.savefig(path, dpi=160)


def main():
    parser = ampi.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, default=64, help="points on the ring")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--picture", metavar="FILE")
    options = parser.parse_args()
    n, steps = options.n, options.steps
    seen = ampi.value(run(TRUTH, n, steps))
    amplitudes, found = invert(n, steps, seen)
    if comm.rank == 0:
        print(f"{found.nit} iterations, {found.nfev} runs, misfit {found.fun:.1e}")
        print("wave   amplitude  found      error")
        for name, true, one in zip(("sin x", "cos x", "sin 2x", "cos 2x"), TRUTH, amplitudes):
            print(f"{name:<6} {true:<10.6f} {one:<10.6f} {abs(one - true):.1e}")
    if options.picture:
        draw(options.picture, n, amplitudes, seen, ampi.value(run(amplitudes, n, steps)))


if __name__ == "__main__":
    main()
