"""Costs of gradients of LULESH.

``rows`` starts the measurements in separate processes, which run one of::

    mpiexec -n RANKS python lulesh.py cost SIZE REPEAT
    mpiexec -n RANKS python lulesh.py scaling SIZE REPEAT THREADS
    mpiexec -n RANKS python lulesh.py first SIZE
"""

import collections
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WARM_CYCLES = 20
CACHED_RUNS = 3
THREADS = 2

# --------------------------------------------------------------------------------------------- from outside


def rows(repeat: int) -> list[dict]:
    """Times per element and cycle on one rank, per cycle on eight, and memory."""
    one, eight = start(1, "cost", 45, repeat), start(8, "cost", 15, repeat)
    elements = 45**3
    bytes_ratio = one["gradient_bytes"] / one["primal_bytes"]
    note = f"{one['gradient_bytes'] / 2**20:.0f} MiB against {one['primal_bytes'] / 2**20:.0f} MiB"
    return [
        {
            "name": "lulesh_primal",
            "what": "LULESH primal, 1 rank -s 45, per element and cycle",
            "value": one["primal"] / elements * 1e6,
            "unit": "us",
            "bar": 0.6,
            "stretch": 0.4,
            "scale": "gather",
        },
        timed("lulesh_gradient", "LULESH gradient, 1 rank -s 45, per element and cycle", one, 1e6 / elements, "us")
        | {"bar": 2.0, "stretch": 1.5},
        timed(
            "lulesh_gradient_8", "LULESH gradient, 8 ranks -s 15 on this machine's cores, per cycle", eight, 1e3, "ms"
        )
        | {"bar": 26.0, "stretch": 20.0},
        {
            "name": "lulesh_memory",
            "what": "memory of LULESH's gradient of one cycle, arrays, 1 rank -s 45",
            "value": bytes_ratio,
            "unit": "x",
            "bar": 2.5,
            "stretch": 2.0,
            "note": note,
        },
    ]


def timed(name: str, what: str, cost: dict, factor: float, unit: str) -> dict:
    return {
        "name": name,
        "what": what,
        "primal": cost["primal"],
        "gradient": cost["gradient"],
        "value": cost["gradient"] * factor,
        "unit": unit,
        "scale": "gather",
        "note": f"{cost['gradient'] / cost['primal']:.2f} x its own primal",
    }


def threads(repeat: int) -> list[dict]:
    """Two threads against one."""
    found = start(1, "scaling", 45, repeat, THREADS, environment={"NUMBA_NUM_THREADS": str(THREADS)})
    return [
        {
            "name": f"lulesh_threads_{kind}",
            "what": f"LULESH {kind}, 1 rank -s 45: two threads against one",
            "value": found[kind][0] / found[kind][1],
            "unit": "/",
            "bar": 1.7,
            "stretch": 1.9,
            "note": f"{found[kind][0] * 1e3:.1f} and {found[kind][1] * 1e3:.1f} ms a cycle",
        }
        for kind in ("primal", "gradient")
    ]


def first_calls() -> list[dict]:
    """The whole of a program that computes one gradient, from its start: nothing cached, and cached.

    Python may keep compiled modules, as it does for users: the machine may forbid it.
    """
    found = []
    for ranks in (1, 8):
        with tempfile.TemporaryDirectory() as empty:
            environment = {"AMPI_CACHE_DIR": empty, "PYTHONDONTWRITEBYTECODE": ""}
            runs = [start(ranks, "first", 5, environment=environment) for _ in range(1 + CACHED_RUNS)]
        cold, cached = runs[0], sorted(runs[1:], key=lambda run: run["wall"])[CACHED_RUNS // 2]
        repeated = cold["compiled_twice"]
        compiled = f"{cold['compiled']} functions compiled, " + (
            "each once" if not repeated else f"more than once: {', '.join(repeated)}"
        )
        where = "1 rank" if ranks == 1 else f"{ranks} ranks"
        common = {"unit": "s", "scale": "gather"}
        found += [
            common
            | {
                "name": f"lulesh_first_{ranks}",
                "what": f"first gradient of LULESH, {where}, nothing cached",
                "value": cold["wall"],
                "bar": 90.0,
                "stretch": 45.0,
                "note": f"{compiled}; the call itself {cold['call']:.1f} s",
            },
            common
            | {
                "name": f"lulesh_cached_{ranks}",
                "what": f"first gradient of LULESH, {where}, cached",
                "value": cached["wall"],
                "bar": 5.0,
                "stretch": 3.0,
                "note": f"the call itself {cached['call']:.1f} s",
            },
        ]
    return found


def start(
    ranks: int, *arguments, environment: dict | None = None, script: str = __file__, options: tuple[str, ...] = ()
) -> dict:
    """Run this file, or another one, on so many ranks, with options of ``ampi.run``; what it reports, and the seconds
    that everything took."""
    command = ["mpiexec", "-n", str(ranks), sys.executable, "-m", "ampi.run", *options, script, *map(str, arguments)]
    begin = time.perf_counter()
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **(environment or {})}, stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1]) | {"wall": time.perf_counter() - begin}


# --------------------------------------------------------------------------------------------- inside


def cost(size: int, repeat: int) -> dict:
    """Medians of one cycle's primal and gradient, in turn; peak memory of the one and of the other."""
    import resident
    from local import interleaved
    from sedov import backend

    warm_up()
    base = resident.settle()
    primal, gradient, kept = cycle(size)
    times = interleaved([primal, gradient], repeat)
    peaks = [resident.peak(work, base) - kept for work in (primal, gradient)]
    comm = backend.COMM_WORLD
    return {
        "primal": times[0],
        "gradient": times[1],
        "primal_bytes": comm.allreduce(peaks[0]),
        "gradient_bytes": comm.allreduce(peaks[1]),
    }


def scaling(size: int, repeat: int, threads: int) -> dict:
    """Medians of one cycle's primal and of its gradient, on one thread and on several, all in turn: where a machine's
    speed changes with time it is the same for all."""
    import numba
    from local import interleaved

    def on(count, work):
        def clock():
            numba.set_num_threads(count)
            return work()

        return clock

    for count in (1, threads):
        numba.set_num_threads(count)
        warm_up()
    primal, gradient, _ = cycle(size)
    times = interleaved([on(count, work) for work in (primal, gradient) for count in (1, threads)], repeat)
    return {"primal": times[:2], "gradient": times[2:]}


def warm_up(tasks: int = 0) -> None:
    """Compile the kernels and their adjoints, or load them."""
    from sedov import backend, hydro, sensitivity
    from sedov.domain import Domain

    small = Domain(backend.COMM_SELF, 2, tasks=tasks)
    hydro.advance(small)
    sensitivity.gradient(small, sensitivity.FUNCTIONALS["origin"], list(sensitivity.INDEPENDENTS), 1)
    backend.COMM_WORLD.Barrier()


def cycle(size: int, tasks: int = 0) -> tuple:
    """Two functions that give the seconds which one cycle's primal and gradient take, and the bytes of the state that
    they begin with, which is kept for that and no part of the program."""
    from sedov import backend, hydro, sensitivity
    from sedov.domain import Domain

    comm = backend.COMM_WORLD
    origin = sensitivity.FUNCTIONALS["origin"]
    independents = list(sensitivity.INDEPENDENTS)
    domain = Domain(comm, size, tasks=tasks)
    for _ in range(WARM_CYCLES):
        hydro.advance(domain)
    state = sensitivity.save(domain)

    def primal():
        sensitivity.restore(domain, state)
        comm.Barrier()
        start = time.perf_counter()
        sensitivity.run_cycles(domain, 1)
        return comm.allreduce(time.perf_counter() - start, op=backend.MPI.MAX)

    def gradient():
        sensitivity.restore(domain, state)
        return sensitivity.gradient(domain, origin, independents, 1).seconds

    return primal, gradient, sum(array.nbytes for array in state.values() if hasattr(array, "nbytes"))


def energy_of_a_cycle(domain, state: dict):
    """The kinetic energy after a cycle that begins with a saved state, as a function of energy, coordinates, ..."""
    from sedov import sensitivity

    def energy(*fields):
        sensitivity.restore(domain, state)
        for name, field in zip(sensitivity.INDEPENDENTS, fields):
            getattr(domain, name)[...] = field
        sensitivity.run_cycles(domain, 1)
        return sensitivity.kinetic_energy(domain)

    return energy


def first(size: int) -> dict:
    """The first gradient in this process, and what had to be compiled on all ranks for it."""
    from numba.core import event
    from sedov import backend, sensitivity
    from sedov.domain import Domain

    comm = backend.COMM_WORLD
    with event.install_recorder("numba:compile") as recorder:
        domain = Domain(comm, size)
        begin = time.perf_counter()
        sensitivity.gradient(domain, sensitivity.FUNCTIONALS["origin"], list(sensitivity.INDEPENDENTS), 1)
        call = comm.allreduce(time.perf_counter() - begin, op=backend.MPI.MAX)
    functions = [(e.data["dispatcher"].py_func, e.data["args"]) for _, e in recorder.buffer if e.is_start]
    mine = [(f.__code__.co_filename, f.__name__, str(args)) for f, args in functions if not is_numbas(f)]
    counts = collections.Counter(one for everyone in comm.allgather(mine) for one in everyone)
    return {
        "call": call,
        "compiled": len(counts),
        "compiled_twice": sorted({name for (_, name, _), count in counts.items() if count > 1}),
    }


def is_numbas(function) -> bool:
    """Return whether this is a part of Numba's own, which is compiled with each kernel that uses it."""
    return "numba" in Path(function.__code__.co_filename).parts


def main() -> None:
    sys.path[:0] = [str(ROOT / "examples" / "lulesh")]
    from ampi import COMM_WORLD

    what, *numbers = sys.argv[1:]
    found = {"cost": cost, "scaling": scaling, "first": first}[what](*map(int, numbers))
    if COMM_WORLD.Get_rank() == 0:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
