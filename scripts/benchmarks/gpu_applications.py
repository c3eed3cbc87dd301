"""The applications of ``examples/gpu`` on a GPU: ``python gpu_applications.py SECONDS [--tiny]``.

Kernels and adjoints are compared with the lowered form on the processor, and their times with the limits of LIMITS.
What does not fit into so many seconds is left out, by name.  ``--tiny`` is for Numba's simulator.
"""

import sys
import time

import gpu_loops
import numpy

LIMITS = {"lbm": 3, "maxwell": 3, "docking": 5, "cross_sections": 6, "resonances": 6, "lulesh": 3}
"""How many times the kernels' time the adjoints may take."""


def launches(name, tiny):
    """The launches of an application, with their arguments."""
    if name == "lulesh":
        of = gpu_loops.example("blast")
        case = of.lulesh.Domain(of.lulesh.COMM_SELF, 2 if tiny else 60)
        of.lulesh.run(case, 3)
        yield from of.launches(case)
        return
    of = gpu_loops.example(name)
    if name == "resonances":
        given = of.data(20, 5) if tiny else of.data()
        launch, *arguments = of.launched(*given, *of.events(16 if tiny else 200_000))
    elif name == "docking" and tiny:
        launch, *arguments = of.launched(*of.made_up(4, 6, 2))
    elif name == "cross_sections" and tiny:
        grid, tables, *rest = of.data(points=20)
        launch, *arguments = of.launched(grid, tables, *rest, *of.events(16), numpy.zeros(16, numpy.int64))
    else:
        sizes = {"lbm": (4, 120), "maxwell": (1, 16), "docking": (0, 65_536), "cross_sections": (0, 1_000_000)}
        launch, _, arguments, _ = gpu_loops.CASES[name](sizes[name][not tiny])
    yield launch, tuple(arguments)


def main():
    begin, seconds, tiny = time.time(), float(sys.argv[1]), "--tiny" in sys.argv[2:]
    wrong = []
    for name, limit in LIMITS.items():
        total = dict.fromkeys(("kernel", "adjoint"), 0.0)
        for launch, arguments in launches(name, tiny):
            if time.time() - begin > 0.8 * seconds:
                print(f"{name}: no time left for {launch.kernel.__name__}")
                continue
            found = gpu_loops.example("device").compare(launch, *arguments, runs=1 if tiny else 5)
            total = {k: t + found["seconds"][k] for k, t in total.items()}
            tolerance = 1e-4 if any(getattr(a, "dtype", None) == numpy.float32 for a in arguments) else 1e-9
            if max(found["kernel"], found["adjoint"]) > tolerance:
                wrong.append(launch.kernel.__name__)
        if total["kernel"]:
            ratio = total["adjoint"] / total["kernel"]
            verdict = "in the simulator" if tiny else "as wanted" if ratio <= limit else "SLOWER than wanted"
            print(f"{name}: adjoints {ratio:.1f} times the kernels, at most {limit} is wanted: {verdict}", flush=True)
    if wrong:
        sys.exit(f"differ from the processor: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
