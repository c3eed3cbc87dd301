"""A picture of the memory of LULESH's gradients over time, and a table: ``scripts/bench_timeloop memory FILE``.

Each number of states runs in a separate process, in which a thread samples the resident memory.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).parent.parent
EVERY = 0.02  # seconds between two samples
MIB = 2**20
COLOURS = {None: "#444444", 30: "#d95f02", 10: "#1b9e77", 5: "#7570b3"}


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(size: int, cycles: int, kept: int | None) -> dict:
    """Seconds and resident memory beside that of the process before, over one gradient."""
    sys.path.insert(0, str(ROOT / "examples" / "lulesh"))
    from sedov import sensitivity
    from sedov.domain import Domain

    import ampi

    names, goal = list(sensitivity.INDEPENDENTS), sensitivity.origin_energy
    options = {} if kept is None else {"checkpoints": kept}
    small = Domain(ampi.COMM_SELF, 2)
    sensitivity.gradient(small, goal, names, 2, **options)  # compiles
    domain = Domain(ampi.COMM_WORLD, size)
    begin = sensitivity.save(domain)
    start = time.perf_counter()
    sensitivity.run_cycles(domain, 10)
    primal = (time.perf_counter() - start) / 10 * cycles
    sensitivity.restore(domain, begin)
    figures, samples, over = [], [], threading.Event()
    base, start = resident(), time.perf_counter()

    def look() -> None:
        while not over.wait(EVERY):
            samples.append((time.perf_counter() - start, (resident() - base) / MIB))

    thread = threading.Thread(target=look)
    thread.start()
    if options:
        options["progress"] = figures.append
    found = sensitivity.gradient(domain, goal, names, cycles, **options)
    over.set()
    thread.join()
    return {
        "kept": kept,
        "samples": samples,
        "seconds": found.seconds,
        "primal": primal,
        "executed": figures[-1].executed if figures else cycles,
        "memory": (figures[-1].memory_peak if figures else found.saved_bytes) / MIB,
        "most": max(value for _, value in samples),
    }


def draw(rows: list[dict], title: str, path: str) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for row in rows:
        name = "all cycles kept" if row["kept"] is None else f"{row['kept']} checkpoints"
        axes.plot(*zip(*row["samples"]), label=name, color=COLOURS.get(row["kept"]), linewidth=1.4)
    axes.set(
        title=title, xlabel="seconds", ylabel="MiB beside those of the process before", ylim=(0, None), xlim=(0, None)
    )
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", help="the file for the picture (PNG)")
    parser.add_argument("-s", dest="size", type=int, default=20, help="elements along an edge (20)")
    parser.add_argument("-i", dest="cycles", type=int, default=150, help="cycles (150)")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.size, options.cycles, json.loads(options.one))))
        return
    rows = []
    print(f"{'':18}{'executed':>10}{'states and records':>20}{'process, at most':>18}{'primal':>10}{'gradient':>10}")
    for kept in (None, 30, 10, 5):
        command = [sys.executable, __file__, options.file, "-s", str(options.size), "-i", str(options.cycles)]
        said = subprocess.run([*command, "--one", json.dumps(kept)], check=True, stdout=subprocess.PIPE).stdout
        row = json.loads(said.splitlines()[-1])
        rows.append(row)
        name = "all cycles kept" if kept is None else f"{kept} checkpoints"
        print(
            f"{name:18}{row['executed']:10}{row['memory']:16.1f} MiB{row['most']:14.1f} MiB{row['primal']:8.2f} s"
            f"{row['seconds']:8.2f} s",
            flush=True,
        )
    draw(rows, f"Gradient of {options.cycles} cycles of LULESH -s {options.size}, one rank", options.file)


if __name__ == "__main__":
    main()
