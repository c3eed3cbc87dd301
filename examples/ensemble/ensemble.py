"""Damping and length of pendulums, from an ensemble whose members are tasks on the threads of each rank.

mpiexec -n 2 python -m ampi.run examples/ensemble/ensemble.py --tasks 2 --picture ensemble.png

Each member of the ensemble is let go at another angle, and its swings are measured. The members are shared out over the
ranks, and on each of them over ``--tasks`` threads of a ``ThreadPoolExecutor``: a task integrates a member by a kernel,
which releases the GIL, into a row of one array; another one, which needs the first, compares it with what was measured.
With ``--tasks 0`` rank 0 hands the members one by one to other ranks that are free, by an ``MPICommExecutor``. In the
sweep the tasks run backwards. The optimiser is SciPy's L-BFGS-B, on all ranks alike.
"""

import numpy
from scipy.optimize import minimize

import ampi
import ampi.numpy as np
from ampi.futures import MPICommExecutor, ThreadPoolExecutor

MPI, comm = ampi.MPI, ampi.COMM_WORLD
TRUTH = numpy.array([0.25, 1.3])  # damping and length
GUESS = numpy.array([0.1, 1.0])
END = 4.0
TIMES = 40


@ampi.kernel
def swing(damping, length, angle, steps, dt, angles):
    """Angles of a pendulum over time, by Heun's method."""
    a, v = angle, 0.0
    for m in range(len(angles)):
        for _ in range(steps):
            f = -9.81 / length * np.sin(a) - damping * v
            b, w = a + dt * v, v + dt * f
            g = -9.81 / length * np.sin(b) - damping * w
            a, v = a + 0.5 * dt * (v + w), v + 0.5 * dt * (f + g)
        angles[m] = a


def members(count):
    """The angles at which this rank's members are let go."""
    return numpy.linspace(0.2, 2.6, count)[comm.rank :: comm.size]


def run(parameters, starts, steps, tasks, measured=None):
    """The angles of this rank's members, and the sum of their squared misfits (None where nothing was measured)."""
    angles = np.zeros((len(starts), TIMES))

    def integrate(k):
        swing(parameters[0], parameters[1], starts[k], steps, END / TIMES / steps, angles[k])

    def compare(k, integrated):
        integrated.result()
        return np.sum((angles[k] - measured[k]) ** 2)

    with ThreadPoolExecutor(tasks) as pool:
        integrated = [pool.submit(integrate, k) for k in range(len(starts))]
        if measured is None:
            return angles, None
        compared = [pool.submit(compare, k, future) for k, future in enumerate(integrated)]
        return angles, sum((future.result() for future in compared), np.zeros(()))


def misfit(parameters, starts, steps, tasks, measured):
    """That of all ranks' members together."""
    mine, total = np.zeros(1), np.zeros(1)
    mine[0] = run(parameters, starts, steps, tasks, measured)[1]
    comm.Allreduce(mine, total, MPI.SUM)
    return total[0]


def member(parameters, start, steps, measured):
    """The misfit of one member, on whichever rank."""
    angles = np.zeros(TIMES)
    swing(parameters[0], parameters[1], start, steps, END / TIMES / steps, angles)
    return np.sum((angles - measured) ** 2)


def handed_out(parameters, parts, steps):
    """The misfit of all members, which rank 0 hands to ranks that are free; ``parts`` has those of each rank there."""
    total = np.zeros(())
    with MPICommExecutor(comm, root=0) as executor:
        if executor is not None:
            tasks = [(parameters, start, steps, angles) for part in parts for start, angles in part]
            total = sum(executor.starmap(member, tasks), total)
    return comm.bcast(total)


def both(parameters, starts, steps, tasks, measured):
    """The misfit and its gradient: each rank's is that of what it did with the parameters, which all of them have."""
    if tasks:
        differentiated = ampi.value_and_grad(misfit, objective="replicated")
        value, mine = differentiated(parameters, starts, steps, tasks, measured)
    else:
        parts = comm.gather(list(zip(starts, measured)))
        value, mine = ampi.value_and_grad(handed_out, objective="replicated")(parameters, parts, steps)
    gradient = numpy.zeros(2)
    comm.Allreduce(mine, gradient, MPI.SUM)
    return float(value), gradient


def invert(starts, steps, tasks, measured, guess=GUESS):
    """Damping and length, and the optimiser's result."""
    function = lambda parameters: both(parameters, starts, steps, tasks, measured)
    options = {"ftol": 0.0, "gtol": 1e-9}
    found = minimize(function, guess, jac=True, method="L-BFGS-B", bounds=[(0.0, 2.0), (0.3, 4.0)], options=options)
    return found.x, found


def draw(path, starts, measured, angles):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4))
    times = numpy.linspace(0.0, END, TIMES + 1)[1:]
    for k in range(len(starts)):
        axes.plot(times, measured[k], ".", color=f"C{k}", markersize=5, label="measured" if k == 0 else None)
        axes.plot(times, angles[k], color=f"C{k}", linewidth=1, label="found" if k == 0 else None)
    axes.set(xlabel="time", ylabel="angle")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=160)


def main():
    parser = ampi.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--members", type=int, default=16)
    parser.add_argument("--steps", type=int, default=500, help="time steps between two measurements")
    parser.add_argument(
        "--tasks", type=int, default=2, metavar="N", help="threads for tasks on each rank (0: no tasks)"
    )
    parser.add_argument("--picture", metavar="FILE")
    options = parser.parse_args()
    starts = members(options.members)
    measured = ampi.value(run(TRUTH, starts, options.steps, options.tasks or 1)[0])
    parameters, found = invert(starts, options.steps, options.tasks, measured)
    if comm.rank == 0:
        print(f"{found.nit} iterations, {found.nfev} runs, misfit {found.fun:.1e}")
        print("           truth     found     error")
        for name, true, one in zip(("damping", "length"), TRUTH, parameters):
            print(f"{name:<10} {true:<9.6f} {one:<9.6f} {abs(one - true):.1e}")
        if options.picture:
            angles = ampi.value(run(parameters, starts, options.steps, options.tasks or 1)[0])
            draw(options.picture, starts, measured, angles)


if __name__ == "__main__":
    main()
