"""What pulls at a cloud of particles? Strengths of some centres from where the particles have gone.

mpiexec -n 4 python -m ampi.run examples/particles/particles.py --picture particles.png

Each rank has a strip of a periodic box, and the particles that are there; those that leave it migrate to other ranks
(Alltoall of how many, Alltoallv of the particles). Gradients migrate back. SciPy's L-BFGS-B looks for the strengths.
"""

import numpy
from scipy.optimize import minimize

import ampi
import ampi.numpy as np

comm = ampi.COMM_WORLD
DT = 0.02
CENTRES = numpy.array([[0.25, 0.3], [0.7, 0.25], [0.5, 0.75]])
TRUTH = numpy.array([0.8, -0.5, 0.6])  # strengths: of attraction, where they are positive


def cloud(count, seed=0):
    """All particles: number, position x and y, velocity x and y, one row for each."""
    rng = numpy.random.default_rng(seed)
    moving = 0.5 * rng.standard_normal((count, 2))
    return numpy.column_stack([numpy.arange(float(count)), rng.random((count, 2)), moving])


def owner(particles):
    """On which rank's strip of the box particles are."""
    x = ampi.value(particles)[:, 1] % 1.0
    return numpy.minimum((x * comm.size).astype(int), comm.size - 1)


def push(particles, strengths):
    """One step of the particles of this rank."""
    position, velocity = particles[:, 1:3], particles[:, 3:5]
    for strength, centre in zip(strengths, CENTRES):
        away = np.sin(numpy.pi * (position - centre)) / numpy.pi  # to the nearest image, and smooth
        toward = away * np.cos(numpy.pi * (position - centre))
        square = np.sum(away * away, axis=1)
        velocity -= DT * strength * toward / (square + 0.02)[:, None]
    position += DT * velocity


def migrate(particles):
    """The particles that are on this rank's strip now. Collective."""
    to = owner(particles)
    order = numpy.argsort(to, kind="stable")
    leaving = numpy.bincount(to, minlength=comm.size)
    coming = numpy.empty_like(leaving)
    comm.Alltoall(leaving, coming)
    arrived = np.empty((coming.sum(), 5))
    comm.Alltoallv([particles[order], 5 * leaving], [arrived, 5 * coming])
    return arrived


def run(strengths, start, steps):
    """This rank's particles after all steps, and how many have migrated to other ranks."""
    particles = np.array(start[owner(start) == comm.rank])
    moved = 0
    for _ in range(steps):
        push(particles, strengths)
        moved += int(numpy.sum(owner(particles) != comm.rank))
        particles = migrate(particles)
    return particles, moved


def misfit(strengths, start, steps, seen):
    """``seen``: positions of all particles, by their numbers."""
    particles, _ = run(strengths, start, steps)
    number = ampi.value(particles)[:, 0].astype(int)
    return np.sum((particles[:, 1:3] - seen[number]) ** 2)


def observe(strengths, start, steps):
    """The positions of all particles at the end, by their numbers, on all ranks; and how many have migrated."""
    particles, moved = run(strengths, start, steps)
    everything = numpy.concatenate(comm.allgather(ampi.value(particles)))
    return everything[numpy.argsort(everything[:, 0]), 1:3], comm.allreduce(moved)


def invert(start, steps, seen):
    local = ampi.value_and_grad(misfit)

    def function(strengths):
        value, gradient = local(strengths, start, steps, seen)
        return comm.allreduce(value), comm.allreduce(gradient)

    options = {"ftol": 0.0, "gtol": 1e-10}
    found = minimize(function, numpy.zeros(len(TRUTH)), jac=True, method="L-BFGS-B", options=options)
    return found.x, found


def draw(path, start, seen):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 4.6), layout="constrained")
    for ax, places, title in zip(axes, (start[:, 1:3], seen), ("at the beginning", "at the end")):
        ax.plot(*(places.T % 1.0), ".", color="grey", ms=4)
        for (x, y), strength in zip(CENTRES, TRUTH):
            ax.plot(x, y, "P" if strength > 0 else "X", color="C3" if strength > 0 else "C0", mec="w", ms=14)
        for k in range(1, comm.size):
            ax.axvline(k / comm.size, color="C0", linewidth=1, linestyle="--")
        ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xticks=[], yticks=[], title=title)
    figure.savefig(path, dpi=160)


def main():
    parser = ampi.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--particles", type=int, default=400)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--picture", metavar="FILE")
    options = parser.parse_args()
    start = cloud(options.particles)
    seen, moved = observe(TRUTH, start, options.steps)
    strengths, found = invert(start, options.steps, seen)
    if comm.rank == 0:
        print(f"{moved} migrations in a run; {found.nit} iterations, {found.nfev} runs, misfit {found.fun:.1e}")
        print("centre        strength   found      error")
        for centre, true, one in zip(CENTRES, TRUTH, strengths):
            print(f"{centre!s:<13} {true:<10.6f} {one:<10.6f} {abs(one - true):.1e}")
        if options.picture:
            draw(options.picture, start, seen)


if __name__ == "__main__":
    main()
