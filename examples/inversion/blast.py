"""How strong was the blast, and in which gas? LULESH's energy deposit and gamma from velocities at the end.

mpiexec -n 8 python -m ampi.run examples/inversion/blast.py -s 5 -i 60 --picture blast.png

The gas at the origin has been given some energy; seen are the velocities of all nodes after some cycles. SciPy's
optimisers look for energy and gamma by gradients through all cycles (examples/lulesh, on 1, 8, 27, … ranks): L-BFGS-B,
and with ``--method trust-ncg`` or ``Newton-CG`` by products of the Hessian with vectors as well.
"""

import pathlib
import sys

import numpy
from scipy.optimize import minimize

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lulesh"))
from sedov import hydro, sensitivity
from sedov.domain import BLAST_ENERGY, GAMMA_MINUS_1, Domain

import ampi
import ampi.numpy as np

comm = ampi.COMM_WORLD


class Blast:
    """A mesh of ``size``³ elements per rank, and the run of ``cycles`` cycles as a function of two numbers.

    These are the energy in units of LULESH's, and gamma - 1. Time steps are fixed, so that what is seen is at one time:
    steps that LULESH chooses jump by a tenth when a parameter moves a little, and so would the misfit.
    """

    def __init__(self, size, cycles, checkpoints=None):
        self.domain, self.cycles, self.checkpoints = Domain(comm, size), cycles, checkpoints
        self.domain.dt[0] *= 0.5  # LULESH's first step is for its own energy
        self.start = sensitivity.save(self.domain)
        self.energy = BLAST_ENERGY * (size * self.domain.box.side / 45.0) ** 3
        self.owned = ampi.value(self.domain.owned_mass) > 0.0  # nodes that ranks share count once

    @staticmethod
    def cycle(domain):
        """One cycle of hydro.advance without the choice of a time step."""
        hydro.move_nodes(domain)
        hydro.update_elements(domain)
        domain.cycle += 1

    def velocities(self, parameters):
        """Of this rank's nodes at the end, (3, nodes)."""
        domain = self.domain
        sensitivity.restore(domain, self.start)
        if domain.box.place == (0, 0, 0):
            domain.energy[0] = parameters[0] * self.energy
        domain.gamma_minus_1[0] = parameters[1]
        ampi.timeloop(self.cycle, domain, self.cycles, checkpoints=self.checkpoints)
        return domain.v

    def misfit(self, parameters, seen, scale):
        return np.sum((self.velocities(parameters) - seen)[:, self.owned] ** 2) / scale

    def observe(self, parameters):
        """Velocities at the end, and the sum of their squares over all ranks, which is the unit of the misfit."""
        seen = numpy.array(ampi.value(self.velocities(parameters)))
        return seen, comm.allreduce(numpy.sum(seen[:, self.owned] ** 2))

    def value_and_gradient(self, seen, scale):
        """For an optimiser that all ranks run on the same numbers."""
        local = ampi.value_and_grad(self.misfit)

        def function(parameters):
            value, gradient = local(parameters, seen, scale)
            return comm.allreduce(value), comm.allreduce(gradient)

        return function

    def product(self, seen, scale):
        """The Hessian times a vector, likewise."""
        misfit = lambda parameters: self.misfit(parameters, seen, scale)
        return lambda parameters, v: comm.allreduce(ampi.hvp(misfit, parameters, v))


METHODS = {
    "L-BFGS-B": {"ftol": 0.0, "gtol": 1e-13, "maxls": 40},
    "trust-ncg": {"gtol": 1e-12, "initial_trust_radius": 0.1},
    "Newton-CG": {"xtol": 1e-12},
}


def invert(method, function, product, guess):
    """The parameters, SciPy's result, and the parameters of all iterations."""
    path = [guess]
    given = {"bounds": [(0.1, 10.0), (0.1, 2.0)]} if method == "L-BFGS-B" else {"hessp": product}
    given |= {"options": METHODS[method], "callback": lambda x: path.append(x.copy())}
    found = minimize(function, guess, jac=True, method=method, **given)
    return found.x, found, numpy.array(path)


def draw(picture, path, truth, method):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(5, 4))
    for k, name in enumerate(("energy", r"$\gamma - 1$")):
        error = numpy.abs(path[:, k] / truth[k] - 1.0)
        axes.semilogy(numpy.maximum(error, 1e-16), "o-", label=name)
    axes.axhline(1e-8, color="grey", linewidth=0.5)
    axes.set(xlabel=f"iteration of {method}", ylabel="relative error")
    axes.legend()
    figure.savefig(picture, dpi=160)


def main():
    parser = ampi.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-s", dest="size", type=int, default=5, help="elements along an edge of each rank's cube")
    parser.add_argument("-i", dest="cycles", type=int, default=60)
    parser.add_argument("--method", choices=METHODS, default="L-BFGS-B")
    parser.add_argument("--checkpoints", type=int, help="states that are kept (default: chosen by ampi.timeloop)")
    parser.add_argument("--picture", metavar="FILE")
    options = parser.parse_args()
    blast = Blast(options.size, options.cycles, options.checkpoints)
    truth, guess = numpy.array([1.0, GAMMA_MINUS_1]), numpy.array([0.8, 0.5])
    seen, scale = blast.observe(truth)
    if options.method == "Newton-CG":
        scale *= 1e-6  # it takes curvatures along gradients that are below 7e-16 for none
    function, product = blast.value_and_gradient(seen, scale), blast.product(seen, scale)
    parameters, found, path = invert(options.method, function, product, guess)
    if comm.rank == 0:
        products = f", {found.nhev} products" if options.method != "L-BFGS-B" else ""
        print(f"{found.nit} iterations, {found.nfev} runs and gradients{products}, misfit {found.fun:.1e}")
        print("           guess      truth              found              relative error")
        for name, first, true, one in zip(("energy", "gamma - 1"), guess, truth, parameters):
            print(f"{name:<10} {first:<10.3f} {true:<18.15f} {one:<18.15f} {abs(one / true - 1.0):.1e}")
        if options.picture:
            draw(options.picture, path, truth, options.method)


if __name__ == "__main__":
    main()
