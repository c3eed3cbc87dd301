"""Measurements of ``scripts/bench_mpi --set-up RANKS...``: memory of a tape and of the set-up of its sweep on a rank.

A ring (two partners) and a halo on a square grid (at most eight), with far more ranks than cores: times are those of
the cores, shared by all records of all ranks.
"""

import argparse
import contextlib
import gc
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import tracemalloc

import preloaded_ranks

TURNS = 20
LEAN = {
    "MPIR_CVAR_CH4_NETMOD": "ofi",  # UCX takes 5 MB more on each rank
    "MALLOC_ARENA_MAX": "1",
    "MPIR_CVAR_CH4_PROGRESS_THROTTLE": "1",
    "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1",  # ranks that wait sleep
}
"""Settings of MPICH (and malloc) for many ranks on few cores."""
LEAST = 2 << 30
"""Bytes of memory that stay free: with less, ranks are ended."""


def neighbours(name, rank, size):
    """Partners of a rank in a ring, or in a grid of rows with all its diagonals."""
    if name == "ring":
        return [(rank - 1) % size, (rank + 1) % size]
    width = next(n for n in range(int(size**0.5), 0, -1) if not size % n)
    row, column = divmod(rank, width)
    around = [(row + a, column + b) for a in (-1, 0, 1) for b in (-1, 0, 1) if a or b]
    return [a * width + b for a, b in around if 0 <= a < size // width and 0 <= b < width]


def measure(name):
    """Bytes of this rank, and seconds: of the tape, of the set-up of its sweep, and of its records."""
    import numpy

    import ampi
    import ampi.numpy as np

    comm = ampi.COMM_WORLD
    others = neighbours(name, comm.rank, comm.size)
    moments = {}

    def program(turns, traced=False):
        held = [tracemalloc.get_traced_memory()[0]] if traced else []
        with ampi.Tape() as tape:
            tape.at_sweep_start("begins", lambda sweep: moments.update(begin=time.perf_counter()))
            x = tape.watch(numpy.ones(1))
            y = np.zeros(len(others))
            for _ in range(turns):
                requests = [comm.Irecv(y[k : k + 1], other) for k, other in enumerate(others)]
                requests += [comm.Isend(x, other) for other in others]
                ampi.Request.Waitall(requests)
            total = np.sum(y)
            del requests
        tape.at_sweep_start("set up", lambda sweep: moments.update(ready=time.perf_counter()))
        comm.Barrier()
        if traced:
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
        tape.gradient(total, x)
        if traced:
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
        return held, len(tape)

    program(2)  # makes objects that are made once
    comm.Barrier()
    _, records = program(TURNS)
    took = moments["ready"] - moments["begin"]
    comm.Barrier()
    tracemalloc.start()
    (before, closed, swept), _ = program(TURNS, traced=True)
    tracemalloc.stop()
    return {
        "partners": len(others),
        "records": records,
        "tape": closed - before,
        "swept": swept - before,
        "seconds": took,
    }


def on_ranks(name):
    """Measure, and print the largest of all ranks from the first one."""
    import ampi

    mine = measure(name)
    mine["resident"] = own_memory()
    every = ampi.MPI.COMM_WORLD.gather(mine)
    if every is not None:
        line = {key: max(rank[key] for rank in every) for key in mine}
        cores = len(os.sched_getaffinity(0))
        line["us"] = 1e6 * line["seconds"] * min(cores, len(every)) / sum(rank["records"] for rank in every)
        print(json.dumps(line), flush=True)


def own_memory():
    """Bytes of memory of this process, with shared memory in proportion."""
    for line in pathlib.Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return 1024 * int(line.split()[1])
    return 0


def imported():
    """Modules that a measurement imports."""
    before = set(sys.modules)
    measure("ring")
    found = [name for name in sys.modules if name not in before and name != "ampi" and not name.startswith("ampi.mpi")]
    return [name for name in found if getattr(sys.modules[name], "__spec__", None)]  # not what Cython enters by itself


def started(mpiexec, ranks, command, spared):
    """Run a command on ranks, as long as there is memory; its status, what it printed, and its errors."""
    hosts = ["-launcher", "fork", "-hosts", "localhost,127.0.0.1", "-ppn", str(-(-ranks // 2))] if ranks > 256 else []
    segments = Segments()
    process = subprocess.Popen(
        [str(mpiexec), *hosts, "-n", str(ranks), *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while True:
            try:
                printed, said = process.communicate(timeout=0.2)
                return process.returncode, printed, said
            except subprocess.TimeoutExpired:
                segments.look()
                free = available()
                spared.append(free)
                if free < LEAST:
                    return 1, "", f"ended: {free / 2**20:.0f} MiB of memory were left"
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
        segments.remove()


class Segments:
    """Files in /dev/shm that MPICH makes for our ranks: those of killed ranks remain."""

    def __init__(self):
        self.before = self._there()
        self.own = set()

    @staticmethod
    def _there():
        return set(pathlib.Path("/dev/shm").glob("mpich_shm_*"))

    def look(self):
        """Find the new files that are mapped by descendants of this process."""
        if new := self._there() - self.before - self.own:
            for maps in _of_descendants("maps"):
                self.own |= {path for path in new if str(path) in maps}
            self.before |= new - self.own if self.own else set()

    def remove(self):
        """Delete ours, after the end of all ranks."""
        for path in self.own:
            path.unlink(missing_ok=True)


def _of_descendants(name):
    """A file of /proc of each process that descends from this one."""
    parents = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    ours = {os.getpid()}
    while found := {child for child, parent in parents.items() if parent in ours} - ours:
        ours |= found
    for number in ours:
        with contextlib.suppress(OSError):
            yield pathlib.Path(f"/proc/{number}/{name}").read_text()


def available():
    """Bytes of available memory."""
    (line,) = (
        line for line in pathlib.Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable")
    )
    return 1024 * int(line.split()[1])


def main():
    """Measure for each of the given numbers of ranks, and print a line for each."""
    parser = argparse.ArgumentParser(prog="scripts/bench_mpi --set-up")
    parser.add_argument("ranks", type=int, nargs="+")
    parser.add_argument("--preload", action="store_true", help="ranks are forks of one process (preloaded_ranks.py)")
    parser.add_argument("--programs", nargs="+", default=["ring", "grid"], choices=["ring", "grid"], metavar="NAME")
    parser.add_argument("--json", metavar="FILE", type=pathlib.Path)
    options = parser.parse_args()
    os.environ.update({**LEAN, **os.environ})
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # through what cleans up
    mpiexec = pathlib.Path(sys.executable).with_name("mpiexec")
    with contextlib.ExitStack() as stack:
        command = [sys.executable, __file__, "--on-ranks"]
        if options.preload:
            names = subprocess.run([sys.executable, __file__, "--imported"], capture_output=True, text=True, check=True)
            imported = ["mpi4py.MPI", *names.stdout.split(), "set_up_costs"]
            command = [*stack.enter_context(preloaded_ranks.server(*imported)), "set_up_costs:on_ranks"]
        lines = list(measured(mpiexec, command, options.programs, options.ranks))
    if options.json:
        options.json.write_text(json.dumps(lines, indent=1))


def measured(mpiexec, command, names, numbers):
    """The measurements of all programs, for one number of ranks after the other."""
    print(f"{'':6}  ranks partners  records      tape  + tables  a record us/record  MB each  MB in all  seconds")
    for name in names:
        for ranks in numbers:
            spared = [available()]
            begun = time.perf_counter()
            status, printed, said = started(mpiexec, ranks, [*command, name], spared)
            if status:
                print(f"{name:6} {ranks:6}: {said[-300:]}", flush=True)
                continue
            line = json.loads(printed.splitlines()[-1])
            line["all"], line["took"] = spared[0] - min(spared), time.perf_counter() - begun
            yield {"program": name, "ranks": ranks, **line}
            print(
                f"{name:6} {ranks:6} {line['partners']:8} {line['records']:8} {line['tape']:9} {line['swept']:9} "
                f"{line['swept'] / line['records']:9.0f} {line['us']:9.1f} {line['resident'] / 1e6:8.0f} "
                f"{line['all'] / 1e6:10.0f} {line['took']:8.0f}",
                flush=True,
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--on-ranks"]:
        on_ranks(sys.argv[2])
    elif sys.argv[1:2] == ["--imported"]:
        print(*imported())
    else:
        main()
