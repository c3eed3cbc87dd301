"""Costs of gradients of time loops; see ``scripts/bench_timeloop``."""

import gc
import pathlib
import sys
import time

import numpy
from checkpoint_schedules.mixed import optimal_steps_mixed

import ampi
import ampi.numpy as np

missed = []
ROOT = pathlib.Path(__file__).parent.parent


@ampi.kernel
def react(u, c):
    """One step of a reaction, in place."""
    for i in range(u.shape[0]):
        u[i] = u[i] + c * numpy.sin(u[i]) * numpy.exp(-u[i])


def step(u):
    react(u, 0.01)


def gradient(steps: int, x0: numpy.ndarray, **kept) -> tuple:
    """Gradient of a loop, its figures, and the seconds that it took."""
    figures = []
    start = time.perf_counter()
    found = ampi.grad(lambda x: np.sum(ampi.timeloop(step, x * 1.0, steps, progress=figures.append, **kept)))(x0)
    return found, figures[-1], time.perf_counter() - start


def row(what: str, value: float, bar: float, unit: str) -> None:
    fits = value <= bar
    if not fits:
        missed.append(what)
    print(f"{what:66}{value:12.3f}{bar:12.3f} {unit:6}{'' if fits else 'missed'}".rstrip(), flush=True)


def executed_steps() -> None:
    """Against the optimum of the mixed schedule, the first run included."""
    for steps, kept in ((100, 3), (1000, 5), (1000, 10), (1000, 20), (1000, 40)):
        _, figures, _ = gradient(steps, numpy.ones(8), checkpoints=kept)
        best = int(optimal_steps_mixed(steps, kept))
        row(f"{steps} steps, {kept} checkpoints: executed for each", figures.executed / steps, best / steps, "x")


def memory() -> None:
    """The most that was kept, against the budget."""
    for mib in (4, 8, 32):
        _, figures, _ = gradient(200, numpy.ones(2**16), memory=f"{mib}MiB")
        row(f"memory='{mib}MiB': the most that was kept", figures.memory_peak / 2**20, 1.1 * mib, "MiB")


def times(repeat: int) -> None:
    """Against executed steps, and one recording and sweep of all steps without a loop."""
    x0, steps = numpy.linspace(0.1, 1.0, 2**15), 100

    def plain(x):
        u = x * 1.0
        for _ in range(steps):
            step(u)
        return np.sum(u)

    def timed(call) -> float:
        found = []
        for _ in range(repeat + 1):
            start = time.perf_counter()
            call()
            found.append(time.perf_counter() - start)
        return min(found[1:])

    primal, whole = timed(lambda: plain(np.array(x0))), timed(lambda: ampi.grad(plain)(x0))
    expected = ampi.grad(plain)(x0)
    for kept in (5, 10, 30):
        found, figures, _ = gradient(steps, x0, checkpoints=kept)
        assert (found == expected).all()
        seconds = timed(lambda: gradient(steps, x0, checkpoints=kept))  # noqa: B023
        wanted = (figures.executed - steps) / steps * primal + whole
        row(f"{kept} checkpoints: seconds, and of executed steps and adjoints", seconds, 1.1 * wanted, "s")


def lulesh(repeat: int, size: int = 10, cycles: int = 231) -> None:
    """The same of LULESH, all cycles, in processor seconds of one rank; each in turn; the least counts."""
    sys.path.insert(0, str(ROOT / "examples" / "lulesh"))
    from sedov import sensitivity
    from sedov.domain import Domain

    names, goal = list(sensitivity.INDEPENDENTS), sensitivity.origin_energy
    domain = Domain(ampi.COMM_WORLD, size)
    begin = sensitivity.save(domain)
    figures: dict[int, list] = {kept: [] for kept in (5, 10, 30)}

    def gradient_of(**kept) -> None:
        sensitivity.gradient(domain, goal, names, cycles, **kept)

    work = {
        "primal": lambda: sensitivity.run_cycles(domain, cycles),
        "whole": gradient_of,
        **{k: lambda k=k: gradient_of(checkpoints=k, progress=figures[k].append) for k in figures},
    }
    seconds: dict = {what: [] for what in work}
    for _ in range(repeat + 1):
        for what, call in work.items():
            sensitivity.restore(domain, begin)
            gc.collect()
            start = time.process_time()
            call()
            seconds[what].append(time.process_time() - start)
    best = {what: min(found[1:]) for what, found in seconds.items()}
    print(f"LULESH -s {size}, {cycles} cycles: primal {best['primal']:.3f} s, gradient, all kept {best['whole']:.3f} s")
    for kept, seen in figures.items():
        executed = seen[-1].executed
        wanted = (executed - cycles) / cycles * best["primal"] + best["whole"]
        print(
            f"LULESH -s {size}, {kept} checkpoints: {executed} cycles executed, {best[kept]:.3f} s for {wanted:.3f} s"
        )
        row(f"LULESH -s {size}, {kept} checkpoints: to executed cycles and adjoints", best[kept] / wanted, 1.1, "x")


def main() -> None:
    print(f"{'':66}{'value':>12}{'bar':>12}")
    if sys.argv[1:2] == ["lulesh"]:
        lulesh(4, *map(int, sys.argv[2:4]))
        return
    executed_steps()
    memory()
    times(3)
    lulesh(4)
    print(f"missed: {', '.join(missed)}" if missed else "all within their bars")
    sys.exit(bool(missed) and "--strict" in sys.argv)


if __name__ == "__main__":
    main()
