"""A PyTorch network closes the equations of a solver on several ranks, and is trained through the solver.

mpiexec -n 2 python -m ampi.run examples/training/closure.py --picture closure.png

Heat in a rod, whose conductivity depends on the temperature in a way that the solver does not know: a network stands
for the law. It is trained by what a thermometer in each cell shows at the end. Each rank has a part of the rod, and all
have the same weights; the gradient comes back through the network, the halos and the time steps.
"""

import numpy
import torch
from scipy.optimize import minimize

import ampi
import ampi.numpy as np

comm = ampi.COMM_WORLD


def law(u):
    """The true conductivity at the temperatures u."""
    return 0.2 + 0.6 / (1.0 + numpy.exp(-8.0 * (u - 0.5)))


def network(width=6, seed=1):
    """A conductivity that is positive, as a function of arrays (n, 1) of temperatures."""
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(1, width), torch.nn.Tanh(), torch.nn.Linear(width, 1), torch.nn.Softplus()]
    return ampi.from_torch(torch.nn.Sequential(*layers).double())


def step(u, conductivity):
    """One step of time of this rank's cells u; the ends of the rod are insulated."""
    west, east = comm.rank - 1, comm.rank + 1
    left, right = u[:1] * 1.0, u[-1:] * 1.0
    if east < comm.size:
        comm.Sendrecv(u[-1:], east, recvbuf=right, source=east)
    if west >= 0:
        comm.Sendrecv(u[:1], west, recvbuf=left, source=west)
    padded = np.concatenate([left, u, right])
    flux = conductivity((padded[1:] + padded[:-1]) / 2) * (padded[1:] - padded[:-1])
    return u + 0.5 * (flux[1:] - flux[:-1])


def rod(cells, steps, conductivity):
    """The temperatures of this rank's cells at the end."""
    parts = [part.size for part in numpy.array_split(numpy.arange(cells), comm.size)]
    first = sum(parts[: comm.rank])
    u = np.cos(numpy.pi * np.arange(first, first + parts[comm.rank]) / (cells - 1)) ** 2
    for _ in range(steps):
        u = step(u, conductivity)
    return u


def split(weights, like):
    """One array of all weights, as the optimiser has it, as the network's dictionary."""
    ends = numpy.cumsum([x.size for x in like.values()])
    return {name: weights[end - x.size : end].reshape(x.shape) for (name, x), end in zip(like.items(), ends)}


def train(cells, steps, iterations):
    """The trained law as a function of temperatures, and what the optimiser says. Collective."""
    closure = network()
    like = closure.parameters()
    seen = ampi.value(rod(cells, steps, law))

    def misfit(weights):
        w = split(weights, like)
        end = rod(cells, steps, lambda u: closure(u[:, np.newaxis], parameters=w)[:, 0])
        return np.sum((end - seen) ** 2) * 1e4

    local = ampi.value_and_grad(misfit)

    def function(weights):
        value, gradient = local(weights)
        return comm.allreduce(value), comm.allreduce(gradient)

    begin = numpy.concatenate([x.ravel() for x in like.values()])
    found = minimize(function, begin, jac=True, method="L-BFGS-B", options={"maxiter": iterations, "maxcor": 20})
    learned = lambda u: ampi.value(closure(u[:, None], parameters=split(found.x, like)))[:, 0]
    return learned, found


def draw(path, learned):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    u = numpy.linspace(0.0, 1.0, 100)
    figure, axes = plt.subplots(figsize=(5, 3.2))
    axes.plot(u, law(u), label="true")
    axes.plot(u, learned(u), "--", label="learned")
    axes.set(xlabel="temperature", ylabel="conductivity")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=160)


def main():
    parser = ampi.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=30)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--picture", metavar="FILE")
    options = parser.parse_args()
    learned, found = train(options.cells, options.steps, options.iterations)
    if comm.rank == 0:
        u = numpy.linspace(0.05, 0.95, 19)
        error = numpy.max(numpy.abs(learned(u) - law(u)))
        print("cells  ranks  weights  iterations  misfit    largest error of the law")
        print(f"{options.cells:<6} {comm.size:<6} {found.x.size:<8} {found.nit:<11} {found.fun:.2e}  {error:.3f}")
        if options.picture:
            draw(options.picture, learned)


if __name__ == "__main__":
    main()
