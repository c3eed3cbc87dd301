"""LULESH and miniBUDE in versions of different parallelism: time of a gradient over that of the version itself.

``rows`` starts each version in processes of its own, which run::

    mpiexec -n RANKS python -m ampi.run versions.py PROGRAM SIZE REPEAT THREADS TASKS KIND
"""

import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import lulesh

ROOT = Path(__file__).resolve().parents[2]
DECK = ROOT / "tests" / "data" / "bm1"  # some of its poses, taken several times
POSES, WARM_UP = 16384, 2
PROGRAMS = ("--also", "sedov", "--also", "docking")

SERIAL, PRANGE, TASKS, UNMODIFIED, CUDA = "serial", "prange", "tasks", "unmodified", "CUDA-style kernel"


@dataclasses.dataclass
class Version:
    """Ranks, threads of prange in each, threads of tasks in each, and what the program is written for."""

    name: str
    ranks: int = 1
    threads: int = 1
    tasks: int = 0
    kind: str = "ampi"


def versions(program: str) -> list[Version]:
    """The versions of a program; LULESH takes cubes of ranks."""
    ranks = 8 if program == "lulesh" else 2
    found = [
        Version("serial"),
        Version("prange, 2 threads", threads=2),
        Version("tasks, 2 threads", tasks=2),
        Version(f"MPI, {ranks} ranks", ranks),
        Version(f"MPI and prange, {ranks} ranks of 2 threads", ranks, threads=2),
        Version(f"MPI and tasks, {ranks} ranks of 2 threads", ranks, tasks=2),
        Version("unmodified (NumPy, Numba, mpi4py), serial", kind=UNMODIFIED),
    ]
    return found if program == "lulesh" else [*found, Version("CUDA-style kernel, on the processor", kind=CUDA)]


def rows(repeat: int) -> Iterator[dict]:
    """A row for each version of each program."""
    for program, size in (("lulesh", 30), ("minibude", POSES)):
        for version in versions(program):
            edge = size // 2 if version.ranks == 8 else size  # the same mesh
            cost = lulesh.start(
                version.ranks,
                program, edge, repeat, version.threads, version.tasks, version.kind,
                environment={"NUMBA_NUM_THREADS": "2"}, script=__file__, options=PROGRAMS,
            )  # fmt: skip
            yield {
                "name": f"{program}_{version.name}",
                "what": f"{program}, {version.name}",
                "primal": cost["primal"][0],
                "gradient": cost["gradient"][0],
                "value": cost["gradient"][0] / cost["primal"][0],
                "unit": "x",
                "note": f"{cost['gradient'][1] / cost['primal'][1]:.2f} x in processor time",
                "bar": 3.0,
                "stretch": 2.5,
            }


# --------------------------------------------------------------------------------------------- inside


def on_ranks(comm, works: list, repeat: int, before=lambda: None) -> list[tuple[float, float]]:
    """Medians of the seconds that the slowest rank takes, and of the processor time of all ranks; all in turn."""
    found: list[list[tuple[float, float]]] = [[] for _ in works]
    for n in range(WARM_UP + repeat):
        for work, taken in zip(works, found):
            before()
            comm.Barrier()
            begin, cpu = time.perf_counter(), time.process_time()
            work()
            cpu = comm.allreduce(time.process_time() - cpu)
            passed = comm.allreduce(time.perf_counter() - begin, op=max)
            if n >= WARM_UP:
                taken.append((passed, cpu))
    return [tuple(map(statistics.median, zip(*taken))) for taken in found]


def lulesh_cycle(size: int, repeat: int, threads: int, tasks: int) -> list[tuple[float, float]]:
    """One cycle after some others, and its gradient with respect to energy, coordinates and velocities."""
    import numba
    from sedov import backend, sensitivity
    from sedov.domain import Domain

    import ampi

    numba.set_num_threads(threads)
    lulesh.warm_up(tasks)
    domain = Domain(backend.COMM_WORLD, size, tasks=tasks)
    sensitivity.run_cycles(domain, lulesh.WARM_CYCLES)
    state = sensitivity.save(domain)

    def gradient():
        with ampi.Tape() as tape:
            watched = [tape.watch(getattr(domain, name)) for name in sensitivity.INDEPENDENTS]
            sensitivity.run_cycles(domain, 1)
            energy = sensitivity.origin_energy(domain)
        return tape.gradient(energy, watched)

    works = [lambda: sensitivity.run_cycles(domain, 1), gradient]
    return on_ranks(backend.COMM_WORLD, works, repeat, lambda: sensitivity.restore(domain, state))


def minibude_energies(poses: int, repeat: int, threads: int, tasks: int) -> list[tuple[float, float]]:
    """The energies of the poses, shared out over the ranks, and their gradient with respect to the poses."""
    import numba
    import numpy
    from docking import backend, energy
    from docking.deck import read_deck

    import ampi

    numba.set_num_threads(threads)
    comm = backend.COMM_WORLD
    deck = read_deck(DECK)
    deck = dataclasses.replace(deck, poses=numpy.resize(deck.poses.T, (poses, len(deck.poses))).T.copy())
    mine = energy.share_out(comm, deck)
    energies = backend.np.empty(mine.poses.shape[1], mine.poses.dtype)
    seed = numpy.ones(len(energies), energies.dtype)

    def gradient():
        with ampi.Tape() as tape:
            watched = tape.watch(mine.poses)
            y = energy.pose_energies(dataclasses.replace(mine, poses=watched), energies, tasks)
        return tape.gradient(y, watched, seed=seed)

    return on_ranks(comm, [lambda: energy.pose_energies(mine, energies, tasks), gradient], repeat)


def cuda_energies(poses: int, repeat: int) -> list[tuple[float, float]]:
    """The same energies from a kernel for CUDA, which ampi runs on the processor."""
    import ampi

    sys.path.insert(0, str(ROOT / "examples" / "gpu"))
    import docking as example

    *given, protein_type, ligand_type = example.made_up(938, 26, poses)
    of = lambda moved: example.total(*given[:-1], moved, protein_type, ligand_type)
    slope = ampi.grad(of)
    return on_ranks(ampi.COMM_WORLD, [lambda: of(given[-1]), lambda: slope(given[-1])], repeat)


def main() -> None:
    program, *numbers, kind = sys.argv[1:]
    size, repeat, threads, tasks = map(int, numbers)
    if kind == UNMODIFIED:
        import plain

        sys.modules["sedov.backend"] = sys.modules["docking.backend"] = plain
    sys.path[:0] = [str(ROOT / "examples" / name) for name in ("lulesh", "minibude") if kind != CUDA]
    if kind == CUDA:
        times = cuda_energies(size, repeat)
    elif program == "lulesh":
        times = lulesh_cycle(size, repeat, threads, tasks)
    else:
        times = minibude_energies(size, repeat, threads, tasks)
    from mpi4py import MPI

    if MPI.COMM_WORLD.Get_rank() == 0:
        print(json.dumps(dict(zip(("primal", "gradient"), times))), flush=True)


if __name__ == "__main__":
    main()
