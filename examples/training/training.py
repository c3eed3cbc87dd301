"""A small network learns two spirals, its data spread over ranks.

mpiexec -n 4 python -m ampi.run examples/training/training.py --picture training.png

Each rank has a part of the points, and all have the same weights. The loss is the mean over all points; its gradient is
the sum of what the ranks find, as in any data-parallel training. The optimiser is SciPy's L-BFGS-B on all the points.
"""

import numpy
from scipy.optimize import minimize

import ampi
import ampi.numpy as np

comm = ampi.COMM_WORLD


def spirals(points, seed=0):
    """Points (points, 2) on two spirals, and labels 0 and 1: the same on every rank."""
    rng = numpy.random.default_rng(seed)
    label = numpy.arange(points) % 2
    turn = numpy.sqrt(rng.random(points)) * 1.5 * numpy.pi
    angle = turn + numpy.pi * label
    radius = turn / (1.5 * numpy.pi)
    return numpy.stack([radius * numpy.cos(angle), radius * numpy.sin(angle)], 1), label.astype(float)


def shapes(width):
    return [(2, width), (width,), (width, width), (width,), (width, 1), (1,)]


def begin(width, seed=1):
    """Weights of all layers, one after the other in one array."""
    rng = numpy.random.default_rng(seed)
    parts = [rng.standard_normal(s) / numpy.sqrt(s[0]) if len(s) == 2 else numpy.zeros(s) for s in shapes(width)]
    return numpy.concatenate([part.ravel() for part in parts])


def network(weights, x, width):
    """What the network says of points (n, 2): the log of the odds that they are on spiral 1, (n,)."""
    at = 0
    layers = []
    for shape in shapes(width):
        size = int(numpy.prod(shape))
        layers.append(weights[at : at + size].reshape(shape))
        at += size
    for k in (0, 2):
        x = np.tanh(4.0 * (x @ layers[k] + layers[k + 1]))
    return (x @ layers[4] + layers[5])[:, 0]


def loss(weights, x, label, width, total):
    """This rank's part of the mean cross entropy, with a small penalty of large weights."""
    odds = network(weights, x, width)
    # log(1 + exp(odds)) without overflow
    entropy = np.sum(np.logaddexp(0.0, odds) - label * odds) / total
    return entropy + 1e-5 * np.sum(weights * weights) / comm.size


def train(points, width, steps, seed=0):
    """Weights after training, and what the optimiser says. Collective."""
    x, label = spirals(points, seed)
    mine = slice(comm.rank, None, comm.size)
    local = ampi.value_and_grad(loss)

    def function(weights):
        value, gradient = local(weights, x[mine], label[mine], width, points)
        whole = numpy.empty_like(gradient)
        comm.Allreduce(gradient, whole)
        return comm.allreduce(value), whole

    found = minimize(function, begin(width), jac=True, method="L-BFGS-B", options={"maxiter": steps, "maxcor": 30})
    return found.x, found


def accuracy(weights, width, points=400, seed=99):
    """The share of points that it has not seen of which it says the right thing."""
    x, label = spirals(points, seed)
    return float(numpy.mean((ampi.value(network(weights, x, width)) > 0) == (label > 0.5)))


def draw(path, weights, width, points):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    ticks = numpy.linspace(-1.1, 1.1, 150)
    grid = numpy.stack(numpy.meshgrid(ticks, ticks), -1).reshape(-1, 2)
    odds = ampi.value(network(weights, grid, width)).reshape(150, 150)
    x, label = spirals(points)
    figure, axes = plt.subplots(figsize=(5, 4), layout="constrained")
    image = axes.contourf(
        ticks, ticks, 1 / (1 + numpy.exp(-numpy.clip(odds, -30, 30))), levels=numpy.linspace(0, 1, 21), cmap="RdBu"
    )
    figure.colorbar(image, label="probability of spiral 1", ticks=[0.0, 0.25, 0.5, 0.75, 1.0])
    axes.scatter(x[:, 0], x[:, 1], c=label, s=14, cmap="RdBu", edgecolors="w", linewidths=0.6)
    axes.set(xticks=[], yticks=[], aspect="equal")
    figure.savefig(path, dpi=160)


def main():
    parser = ampi.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=400)
    parser.add_argument("--width", type=int, default=12, help="width of the two hidden layers")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--picture", metavar="FILE")
    options = parser.parse_args()
    weights, found = train(options.points, options.width, options.steps)
    if comm.rank == 0:
        print("points  ranks  weights  iterations  loss      right of unseen points")
        right = accuracy(weights, options.width)
        print(f"{options.points:<7} {comm.size:<6} {len(weights):<8} {found.nit:<11} {found.fun:.2e}  {right:.1%}")
        if options.picture:
            draw(options.picture, weights, options.width, options.points)


if __name__ == "__main__":
    main()
