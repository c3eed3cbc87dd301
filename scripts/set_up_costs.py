"""The measurements of ``scripts/bench_mpi --set-up RANKS...``: what a tape and the set-up of its sweep hold on a rank.

A ring (two partners) and a halo on a square grid (eight at most), of many small ranks: far more than there are cores,
so times are those of the cores, shared by all records of all ranks.
"""

import argparse
import gc
import json
import os
import pathlib
import subprocess
import sys
import time
import tracemalloc

TURNS = 20


def neighbours(name, rank, size):
    """Partners of a rank in a ring, or in a grid of rows with all its diagonals."""
    if name == "ring":
        return [(rank - 1) % size, (rank + 1) % size]
    width = next(n for n in range(int(size**0.5), 0, -1) if not size % n)
    row, column = divmod(rank, width)
    around = [(row + a, column + b) for a in (-1, 0, 1) for b in (-1, 0, 1) if a or b]
    return [a * width + b for a, b in around if 0 <= a < size // width and 0 <= b < width]


def measure(name):
    """Bytes that this rank holds, and seconds: of the tape, of the set-up of its sweep, and of its records."""
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

    program(2)  # what is made once
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
    """Bytes of memory of this process, what it shares with others in parts."""
    for line in pathlib.Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return 1024 * int(line.split()[1])
    return 0


def main():
    """Start as many ranks as are asked for, one number after the other; print a line for each."""
    parser = argparse.ArgumentParser(prog="scripts/bench_mpi --set-up")
    parser.add_argument("ranks", type=int, nargs="+")
    parser.add_argument("--json", metavar="FILE", type=pathlib.Path)
    options = parser.parse_args()
    mpiexec = pathlib.Path(sys.executable).with_name("mpiexec")
    print(f"{'':6}  ranks partners  records      tape  + tables  a record us/record     MB")
    lines = []
    for name in ("ring", "grid"):
        for ranks in options.ranks:
            command = [str(mpiexec), "-n", str(ranks), sys.executable, __file__, "--on-ranks", name]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                print(f"{name:6} {ranks:6}: {done.stderr[-300:]}")
                continue
            line = json.loads(done.stdout.splitlines()[-1])
            lines.append({"program": name, "ranks": ranks, **line})
            print(
                f"{name:6} {ranks:6} {line['partners']:8} {line['records']:8} {line['tape']:9} {line['swept']:9} "
                f"{line['swept'] / line['records']:9.0f} {line['us']:9.1f} {line['resident'] / 1e6:6.0f}",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(lines, indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--on-ranks"]:
        on_ranks(sys.argv[2])
    else:
        main()
