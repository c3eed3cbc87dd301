"""Rates of a chemical reaction from several experiments, which a master gives to whichever worker is free.

mpiexec -n 4 python -m ampi.run examples/master_worker/master_worker.py --picture rates.png

Experiments differ in how long they take to compute. Rank 0 receives from ANY_SOURCE, and sends the next experiment to
whom the result came from: in every run another order. In the sweep the adjoint of a result goes to the rank that has
computed it in that run. Rank 0 alone has the parameters and the optimiser (SciPy's L-BFGS-B).
"""

import numpy
from scipy.optimize import minimize

import ampi
import ampi.numpy as np

MPI, comm = ampi.MPI, ampi.COMM_WORLD
TRUTH = numpy.log([0.8, 0.3, 0.15])  # of A + B -> C, C -> A + B, C -> D
GUESS = numpy.log([0.4, 0.4, 0.4])
STOP = 0  # a tag; that of experiment k is k + 1
TIMES = 6  # at which the amount of D is measured


@ampi.kernel
def react(log_rates, start, steps, dt, measured):
    """Amounts of D over time, by Heun's method."""
    k1 = np.exp(log_rates[0])
    k2 = np.exp(log_rates[1])
    k3 = np.exp(log_rates[2])
    a, b, c, d = start[0], start[1], 0.0, 0.0
    for m in range(len(measured)):
        for _ in range(steps):
            r = k1 * a * b - k2 * c
            s = k3 * c
            a1, b1, c1 = a - dt * r, b - dt * r, c + dt * (r - s)
            r = 0.5 * (r + k1 * a1 * b1 - k2 * c1)
            t = 0.5 * (s + k3 * c1)
            a, b, c, d = a - dt * r, b - dt * r, c + dt * (r - t), d + dt * t
        measured[m] = d


def experiments(count, steps):
    """Amounts of A and B at the beginning, and steps between measurements: some take longer than others."""
    return [(numpy.array([1.0 + 0.3 * k, 2.0 - 0.2 * k]), steps * (1 + k % 3)) for k in range(count)]


def perform(log_rates, start, steps):
    measured = np.zeros(TIMES)
    react(log_rates, start, steps, 2.0 / steps, measured)
    return measured


def work(tasks, log_rates):
    """A worker: experiments until the master says stop."""
    status = MPI.Status()
    while True:
        comm.Recv(log_rates, source=0, status=status)
        if status.Get_tag() == STOP:
            return
        start, steps = tasks[status.Get_tag() - 1]
        comm.Send(perform(log_rates, start, steps), dest=0, tag=status.Get_tag())


def lead(tasks, log_rates):
    """The master: what all experiments have measured, (experiments, times)."""
    if comm.size == 1:
        return np.stack([perform(log_rates, *task) for task in tasks])
    measured = np.zeros((len(tasks), TIMES))
    waiting, free, busy = list(range(len(tasks))), list(range(1, comm.size)), 0
    status, result = MPI.Status(), np.zeros(TIMES)
    while waiting or busy:
        while waiting and free:
            comm.Send(log_rates, dest=free.pop(0), tag=waiting.pop(0) + 1)
            busy += 1
        comm.Recv(result, source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=status)
        measured[status.Get_tag() - 1] = result
        free.append(status.Get_source())
        busy -= 1
    for worker in range(1, comm.size):
        comm.Send(log_rates, dest=worker, tag=STOP)
    return measured


def run(log_rates, tasks):
    """The measurements on rank 0, None on the others. Collective."""
    if comm.rank == 0:
        return lead(tasks, log_rates)
    return work(tasks, np.zeros(3))


def misfit(log_rates, tasks, measured):
    found = run(log_rates, tasks)
    return np.sum((found - measured) ** 2) if comm.rank == 0 else None


def invert(tasks, measured, guess=GUESS):
    """Log rates and the optimiser's result on rank 0; the other ranks compute for it until it has ended."""
    both = ampi.value_and_grad(misfit, objective="root")

    def function(log_rates):
        comm.bcast(True)
        return both(log_rates, tasks, measured)

    if comm.rank == 0:
        found = minimize(function, guess, jac=True, method="L-BFGS-B", options={"ftol": 0.0, "gtol": 1e-11})
        comm.bcast(False)
        return found.x, found
    while comm.bcast(None):
        both(guess, tasks, None)
    return None, None


def draw(path, tasks, measured, log_rates):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(5, 4))
    times = 2.0 * numpy.arange(1, TIMES + 1)
    for k, (start, steps) in enumerate(tasks):
        axes.plot(times, measured[k], "o", ms=4, color=f"C{k}", label="measured" if k == 0 else None)
        axes.plot(times, ampi.value(perform(log_rates, start, steps)), color=f"C{k}", label="found" if k == 0 else None)
    axes.set(xlabel="time", ylabel="amount of D")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=160)


def main():
    parser = ampi.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--experiments", type=int, default=8)
    parser.add_argument(
        "--steps", type=int, default=2000, help="the smallest number of time steps between two measurements"
    )
    parser.add_argument("--picture", metavar="FILE")
    options = parser.parse_args()
    tasks = experiments(options.experiments, options.steps)
    measured = ampi.value(run(TRUTH, tasks))
    log_rates, found = invert(tasks, measured)
    if comm.rank == 0:
        print(f"{found.nit} iterations, {found.nfev} runs, misfit {found.fun:.1e}")
        print("rate of     truth     found     error")
        for name, true, one in zip(("A + B -> C", "C -> A + B", "C -> D"), numpy.exp(TRUTH), numpy.exp(log_rates)):
            print(f"{name:<11} {true:<9.6f} {one:<9.6f} {abs(one - true):.1e}")
        if options.picture:
            draw(options.picture, tasks, measured, log_rates)


if __name__ == "__main__":
    main()
