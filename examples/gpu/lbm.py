"""Flow past an obstacle by a lattice Boltzmann method (D3Q19), with kernels written for CUDA, and its derivatives.

python examples/gpu/lbm.py --size 24 20 28 --steps 10

The model of the benchmark LBM of SPEC CPU 2006 and Parboil: one relaxation time (BGK), cells of an obstacle that bounce
back what arrives, and cells in which the velocity is given.  `step` is a kernel as one writes it for ``numba.cuda``, in
which each thread computes one cell; here it runs on the processor.  The program prints the kinetic energy after some
steps and its derivatives with respect to the relaxation rate and to the initial state, beside difference quotients.
"""

import math

import device
import numpy

import ampi
import ampi.cuda as cuda
import ampi.numpy as np

FLUID, OBSTACLE, DRIVEN = 0, 1, 2
SPEED = (0.005, 0.002, 0.0)  # of the cells that drive the flow
AXES = [numpy.array([x, y, z]) for x in (-1, 0, 1) for y in (-1, 0, 1) for z in (-1, 0, 1)]
DIRECTIONS = numpy.array(sorted((d for d in AXES if abs(d).sum() <= 2), key=lambda d: (abs(d).sum(), *d)))
OPPOSITE = numpy.array([next(k for k, d in enumerate(DIRECTIONS) if (d == -e).all()) for e in DIRECTIONS])
WEIGHTS = numpy.array([(1 / 3, 1 / 18, 1 / 36)[abs(d).sum()] for d in DIRECTIONS])
BLOCK = (4, 4, 4)


@cuda.jit
def step(old, new, flags, omega):
    """Distributions after one step: each cell takes what arrives from its neighbours, and relaxes it."""
    i, j, k = cuda.grid(3)
    n, m, l = flags.shape
    if i >= n or j >= m or k >= l:
        return
    f = cuda.local.array(19, np.float64)
    for q in range(19):
        d = DIRECTIONS[q]
        f[q] = old[(i - d[0]) % n, (j - d[1]) % m, (k - d[2]) % l, q]
    if flags[i, j, k] == OBSTACLE:
        for q in range(19):
            new[i, j, k, q] = f[OPPOSITE[q]]
        return
    density, u, v, w = 0.0, 0.0, 0.0, 0.0
    for q in range(19):
        d = DIRECTIONS[q]
        density += f[q]
        u += f[q] * d[0]
        v += f[q] * d[1]
        w += f[q] * d[2]
    u, v, w = u / density, v / density, w / density
    if flags[i, j, k] == DRIVEN:
        u, v, w = SPEED
    square = 1.5 * (u * u + v * v + w * w)
    for q in range(19):
        d = DIRECTIONS[q]
        along = 3.0 * (d[0] * u + d[1] * v + d[2] * w)
        equilibrium = WEIGHTS[q] * density * (1.0 + along + 0.5 * along * along - square)
        new[i, j, k, q] = f[q] + omega * (equilibrium - f[q])


def flags_of(shape):
    """A layer of cells that drive the flow, and a ball in the middle."""
    places = numpy.indices(shape).reshape(3, *shape)
    centre = numpy.array(shape).reshape(3, 1, 1, 1) / 2
    flags = numpy.where(((places + 0.5 - centre) ** 2).sum(0) < (min(shape) / 4) ** 2, OBSTACLE, FLUID)
    flags[0] = DRIVEN
    return flags


def at_rest(shape):
    """The distributions of a fluid at rest."""
    return numpy.broadcast_to(WEIGHTS, (*shape, 19)).copy()


def grid_of(flags):
    """The blocks of a launch."""
    return tuple(math.ceil(n / b) for n, b in zip(flags.shape, BLOCK))


def run(distributions, omega, flags, steps):
    """Distributions after so many steps."""
    for _ in range(steps):
        after = np.empty(distributions.shape)
        step[grid_of(flags), BLOCK](distributions, after, flags, omega)
        distributions = after
    return distributions


def energy(distributions, flags):
    """The kinetic energy of the fluid."""
    density = np.sum(distributions, axis=-1)
    momentum = distributions @ DIRECTIONS.astype(float)
    return 0.5 * np.sum((np.sum(momentum**2, axis=-1) / density)[flags != OBSTACLE])


def objective(omega, distributions, flags, steps):
    return energy(run(distributions, omega, flags, steps), flags)


def draw(picture, distributions, by_start, flags):
    """Draw a slice: the speed at the end, and how much the energy then depends on the density at the start."""
    import matplotlib.pyplot as plt

    middle = flags.shape[1] // 2
    distributions = ampi.value(distributions)
    velocity = distributions @ DIRECTIONS / distributions.sum(axis=-1, keepdims=True)
    shown = numpy.linalg.norm(velocity, axis=-1), numpy.asarray(by_start).sum(axis=-1) / 19
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    titles = "speed at the end", "derivative of the energy by the density at the start"
    for ax, field, title in zip(axes, shown, titles):
        cut = numpy.where(flags == OBSTACLE, numpy.nan, field)[:, middle].T
        figure.colorbar(ax.imshow(cut, origin="lower"), ax=ax)
        ax.set(title=title, xlabel="x", ylabel="z")
    figure.savefig(picture, dpi=160)


def main():
    parser = ampi.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, nargs=3, default=(24, 20, 28), metavar="N", help="cells along each axis")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--omega", type=float, default=1.95, help="the relaxation rate")
    parser.add_argument("--picture", metavar="FILE")
    device.add_option(parser)
    options = parser.parse_args()
    flags, start = flags_of(tuple(options.size)), at_rest(tuple(options.size))
    given = options.omega, start, flags, options.steps
    value, (by_omega, by_start) = device.timed(objective, *given, argnums=(0, 1))
    direction = numpy.random.default_rng(1).standard_normal(start.shape) * start
    differences = {
        "omega": lambda h: objective(options.omega + h, start, flags, options.steps),
        "start": lambda h: objective(options.omega, start + h * direction, flags, options.steps),
    }
    print(f"kinetic energy after {options.steps} steps: {float(value):.6e}")
    print("with respect to   adjoint              difference quotient")
    for name, adjoint in (("omega", by_omega), ("start", numpy.sum(by_start * direction))):
        shifted, h = differences[name], 1e-5
        print(f"{name:<17} {float(adjoint):+.12e}  {float(shifted(h) - shifted(-h)) / (2 * h):+.12e}")
    if options.device == "cuda":
        device.compare(step[grid_of(flags), BLOCK], start, start.copy(), flags, options.omega)
    if options.picture:
        draw(options.picture, run(start, options.omega, flags, options.steps), by_start, flags)


if __name__ == "__main__":
    main()
