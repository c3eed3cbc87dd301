"""What lies below? A velocity model from seismograms, with the shots spread over the ranks.

mpiexec -n 4 python -m ampi.run examples/wave/wave.py --picture wave.png

The acoustic wave equation in two dimensions, one simulation for each shot; every rank does some of them, with a
loop over time that keeps a few states (ampi.timeloop). The model has a squared velocity at some knots, with linear
interpolation between them; SciPy's L-BFGS-B looks for them with the gradient of all shots together.
"""

import numpy
from scipy.optimize import minimize

import ampi
import ampi.numpy as np

comm = ampi.COMM_WORLD
RATE = 0.25  # squared time step times squared velocity of the guess by the square of the distance of grid points


@ampi.kernel
def propagate(before, now, model, after):
    for i in range(1, now.shape[0] - 1):
        for j in range(1, now.shape[1] - 1):
            around = now[i - 1, j] + now[i + 1, j] + now[i, j - 1] + now[i, j + 1]
            change = around - 4.0 * now[i, j]
            after[i, j] = 2.0 * now[i, j] - before[i, j] + RATE * model[i, j] * change


class Survey:
    """``n`` by ``n`` points, ``shots`` along the left side, and receivers on the other three."""

    def __init__(self, n, knots, shots, steps):
        self.n, self.knots, self.steps = n, knots, steps
        self.shots = [(2 + (2 * k + 1) * (n - 4) // (2 * shots), 2) for k in range(comm.rank, shots, comm.size)]
        places = numpy.arange(2, n - 2, 2)
        low, high = numpy.full(len(places), 2), numpy.full(len(places), n - 3)
        self.receivers = numpy.concatenate([low, places, high]), numpy.concatenate([places, high, places])
        at = numpy.linspace(0.0, knots - 1.0, n)
        self.weights = numpy.maximum(0.0, 1.0 - abs(at[:, None] - numpy.arange(knots)))  # (n, knots)

    def wavelet(self, step):
        t = (step - 12.0) / 4.0
        return (1.0 - 2.0 * t * t) * numpy.exp(-t * t)

    def seismograms(self, model):
        """What the receivers see of this rank's shots, (shots, steps, receivers)."""
        field = self.weights @ model.reshape(self.knots, self.knots) @ self.weights.T
        return [self.shoot(field, shot) for shot in self.shots]

    def shoot(self, field, shot):
        def step(state):
            after = np.zeros((self.n, self.n))
            propagate(state["before"], state["now"], field, after)
            after[shot] += self.wavelet(state["step"])
            state["before"], state["now"] = state["now"], after
            state["seen"][state["step"]] = after[self.receivers]
            state["step"] += 1
            return state

        quiet = {"before": np.zeros((self.n, self.n)), "now": np.zeros((self.n, self.n)), "step": 0}
        state = quiet | {"seen": np.zeros((self.steps, len(self.receivers[0])))}
        return ampi.timeloop(step, state, self.steps)["seen"]

    def misfit(self, model, seen):
        if not self.shots:
            return None  # there are more ranks than shots
        total = np.zeros(())
        for one, other in zip(self.seismograms(model), seen):
            total += np.sum((one - other) ** 2)
        return total


def invert(survey, seen, iterations=200):
    local = ampi.value_and_grad(survey.misfit)

    def function(model):
        value, gradient = local(model, seen)
        return comm.allreduce(float(value or 0.0)), comm.allreduce(gradient)

    options = {"ftol": 0.0, "gtol": 1e-7, "maxiter": iterations, "maxcor": 30}
    guess = numpy.ones(survey.knots**2)
    found = minimize(function, guess, jac=True, method="L-BFGS-B", bounds=[(0.5, 1.6)] * len(guess), options=options)
    return found.x, found


def truth(knots):
    """Faster and slower by up to 15 %."""
    return 1.0 + 0.15 * numpy.sin(2.3 * numpy.arange(knots * knots) + 1.0)


def draw(path, survey, true, model, seen):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(10, 3), layout="constrained")
    for axis, title, knots in zip(axes, ("squared velocity", "found"), (true, model)):
        field = survey.weights @ knots.reshape(survey.knots, -1) @ survey.weights.T
        image = axis.imshow(field, vmin=0.8, vmax=1.2, cmap="viridis")
        axis.plot(survey.receivers[1], survey.receivers[0], "w.", ms=2)
        axis.set(title=title, xticks=[], yticks=[])
    figure.colorbar(image, ax=axes[:2])
    axes[2].imshow(seen[0], aspect="auto", cmap="gray")
    axes[2].set(title="seismograms of one shot", xlabel="receiver", ylabel="step")
    figure.savefig(path, dpi=160)


def main():
    parser = ampi.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, default=40, help="grid points along an edge")
    parser.add_argument("--knots", type=int, default=4, help="knots of the model along an edge")
    parser.add_argument("--shots", type=int, default=4)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--picture", metavar="FILE")
    options = parser.parse_args()
    survey, true = Survey(options.n, options.knots, options.shots, options.steps), truth(options.knots)
    seen = [ampi.value(one) for one in survey.seismograms(true)]
    model, found = invert(survey, seen)
    if comm.rank == 0:
        print("shots  unknowns  iterations  misfit   largest error of the squared velocity")
        error = numpy.abs(model - true).max()
        print(f"{options.shots:<6} {len(model):<9} {found.nit:<11} {found.fun:.1e}  {error:.1e}")
        if options.picture:
            draw(options.picture, survey, true, model, seen)


if __name__ == "__main__":
    main()
