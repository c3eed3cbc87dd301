"""Where are the heaters of a plate? Positions and strengths from what a few thermometers have shown.

mpiexec -n 4 python -m ampi.run examples/heat/heat.py --picture heat.png

The heat equation with explicit steps on a square, cold at its edge. Ranks have rows of it and exchange halos with their
neighbours; the loop over time keeps a few states (ampi.timeloop) and not all of them. SciPy's L-BFGS-B looks for the
heaters, with the gradient of all ranks together.
"""

import numpy
from scipy.optimize import minimize

import ampi
import ampi.numpy as np

comm = ampi.COMM_WORLD
PROC_NULL = ampi.MPI.PROC_NULL
RATE = 0.2  # time step times diffusivity by the square of the distance of grid points
WIDTH = 0.1  # of a heater
TRUTH = numpy.array([[0.30, 0.35, 1.0], [0.65, 0.70, 0.6]])  # x, y, strength
GUESS = numpy.array([[0.40, 0.40, 0.7], [0.55, 0.55, 0.7]])


@ampi.kernel
def diffuse(u, source, v):
    for i in range(1, u.shape[0] - 1):
        for j in range(1, u.shape[1] - 1):
            around = u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1]
            v[i, j] = u[i, j] + RATE * (around - 4.0 * u[i, j]) + source[i - 1, j - 1]


class Plate:
    """This rank's rows of a plate of ``n`` by ``n`` points, and the thermometers among them."""

    def __init__(self, n, steps, every=5):
        self.n, self.steps = n, steps
        self.begin, self.end = n * comm.rank // comm.size, n * (comm.rank + 1) // comm.size
        self.up = comm.rank - 1 if comm.rank else PROC_NULL
        self.down = comm.rank + 1 if comm.rank < comm.size - 1 else PROC_NULL
        row, column = numpy.meshgrid(numpy.arange(2, n, every), numpy.arange(2, n, every), indexing="ij")
        mine = (self.begin <= row) & (row < self.end)
        self.thermometers = row[mine] - self.begin + 1, column[mine] + 1
        points = (numpy.arange(n) + 1.0) / (n + 1)
        self.x, self.y = points[self.begin : self.end, None], points[None, :]

    def step(self, state):
        u = state["u"]
        comm.Sendrecv(u[-2], self.down, recvbuf=u[0], source=self.up)
        comm.Sendrecv(u[1], self.up, recvbuf=u[-1], source=self.down)
        v = np.zeros(u.shape)
        diffuse(u, state["source"], v)
        state["u"] = v
        state["shown"][state["step"]] = v[self.thermometers]
        state["step"] += 1
        return state

    def run(self, heaters):
        """What this rank's thermometers show: an array (steps, thermometers)."""
        source = np.zeros((self.end - self.begin, self.n))
        for x, y, strength in heaters:
            source += strength * np.exp(-((self.x - x) ** 2 + (self.y - y) ** 2) / (2.0 * WIDTH**2)) / self.n
        state = {
            "u": np.zeros((self.end - self.begin + 2, self.n + 2)),
            "source": source,
            "shown": np.zeros((self.steps, len(self.thermometers[0]))),
            "step": 0,
        }
        return ampi.timeloop(self.step, state, self.steps)

    def misfit(self, heaters, shown):
        return np.sum((self.run(heaters)["shown"] - shown) ** 2)


def value_and_gradient(plate, shown):
    """The misfit of all ranks, and its gradient, for an optimiser that each rank runs on the same numbers."""
    local = ampi.value_and_grad(plate.misfit)

    def function(heaters):
        value, gradient = local(heaters.reshape(-1, 3), shown)
        return comm.allreduce(value), comm.allreduce(gradient).ravel()

    return function


def invert(plate, shown, guess=GUESS):
    function = value_and_gradient(plate, shown)
    found = minimize(function, guess.ravel(), jac=True, method="L-BFGS-B", options={"ftol": 0.0, "gtol": 1e-12})
    return found.x.reshape(-1, 3), found


def draw(path, plate, heaters):
    """The plate at the end, with thermometers and heaters. Collective."""
    with ampi.passive():
        rows = comm.gather(ampi.value(plate.run(heaters)["u"])[1:-1, 1:-1])
    if comm.rank == 0:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(figsize=(5, 4))
        image = axes.imshow(numpy.concatenate(rows), origin="lower", extent=(0, 1, 0, 1), cmap="inferno")
        figure.colorbar(image, label="temperature at the end")
        axes.plot(TRUTH[:, 1], TRUTH[:, 0], "wo", mfc="none", ms=12, label="heaters")
        axes.plot(GUESS[:, 1], GUESS[:, 0], "w.", label="guess")
        axes.plot(heaters[:, 1], heaters[:, 0], "c+", ms=10, label="found")
        axes.legend(loc="lower right", labelcolor="white", frameon=False)
        figure.savefig(path, dpi=160)


def main():
    parser = ampi.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, default=48, help="grid points along an edge")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--picture", metavar="FILE")
    options = parser.parse_args()
    if options.n < comm.size:
        parser.error(f"{options.n} rows are too few for {comm.size} ranks")
    plate = Plate(options.n, options.steps)
    shown = ampi.value(plate.run(TRUTH)["shown"])
    heaters, found = invert(plate, shown)
    if comm.rank == 0:
        print(f"{found.nit} iterations, {found.nfev} runs, misfit {found.fun:.1e}")
        print("         x          y          strength   error")
        for true, one in zip(TRUTH, heaters):
            print("heater  ", *(f"{number:<10.6f}" for number in one), f"{numpy.abs(one - true).max():.1e}")
    if options.picture:
        draw(options.picture, plate, heaters)


if __name__ == "__main__":
    main()
