"""Kill gradients of a time loop at random moments, on one rank or all: ``scripts/fuzz --kills``.

Each gradient is restarted by the same command until it completes, and must be bitwise identical to one that was not
killed.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

PROGRAM = """
import os, sys, numpy, ampi, ampi.numpy as np
folder, seed = sys.argv[1], int(sys.argv[2])
comm = ampi.COMM_WORLD
open(os.path.join(folder, f"pid-{comm.rank}"), "w").write(str(os.getpid()))
noise = numpy.random.default_rng([seed, comm.rank])
def step(s):
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    comm.Sendrecv(s["u"][-2:-1].copy(), after, recvbuf=s["u"][:1], source=before)
    s["u"][1:] += 0.1 * s["k"] * (s["u"][:-1] - s["u"][1:]) * s["noise"].uniform(0.9, 1.1)
    scratch[...] = s["u"] * s["u"]
    s["v"] = s["v"] * 0.9 + 0.1 * scratch
    s["n"] += 1
def final(k):
    global scratch
    scratch = np.zeros(40)
    s = {"u": np.array(numpy.linspace(0.5, 1.0, 40)) * 1.0, "v": np.zeros(40), "k": k, "n": 0, "noise": noise}
    how = [{}, {"per": "node"}, {"compression": "gzip"}, {"per": "node", "compression": "lzf"}][seed % 4]
    storage = ampi.Storage(os.path.join(folder, "s"), **how)
    s = ampi.timeloop(step, s, steps=60 + seed % 7, checkpoints=3, storage=storage, resume=True)
    return np.sum(s["u"] ** 2) + np.sum(s["v"])
found = ampi.grad(final)(numpy.linspace(0.1, 0.4, 39))
numpy.save(os.path.join(folder, f"result-{comm.rank}.npy"), found)
"""


def start(folder: Path, seed: int, ranks: int) -> subprocess.Popen:
    command = ["mpiexec", "-n", str(ranks), sys.executable, str(folder.parent / "program.py"), str(folder), str(seed)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)


def kill(folder: Path, ranks: int, draw: random.Random) -> str | None:
    """Kill one rank or all of them; returns when and which, or None if none was running."""
    victims = [draw.randrange(ranks)] if draw.random() < 0.5 else list(range(ranks))
    killed = 0
    for rank in victims:
        try:
            os.kill(int((folder / f"pid-{rank}").read_text()), signal.SIGKILL)
            killed += 1
        except (OSError, ValueError):
            pass
    if not killed:
        return None
    when = "in the sweep" if any(folder.glob("s/loop-0/*/final-*.h5")) else "in the steps"
    return f"{when}, {'all ranks' if len(victims) == ranks else 'one rank'}"


def wait_in_loop(process: subprocess.Popen, folder: Path, draw: random.Random) -> int | None:
    """Wait until a few more files exist, and a moment longer, or until the end."""

    def files() -> set[str]:
        return {str(path) for path in folder.glob("s/*/*/*.h5")}

    before, left, end = files(), draw.randint(0, 5), time.monotonic() + 120
    while time.monotonic() < end:
        code = process.poll()
        if code is not None:
            return code
        if len(files() ^ before) > left:
            time.sleep(draw.uniform(0.0, 0.03))
            return process.poll()
        time.sleep(0.001)
    raise SystemExit(f"{folder}: no progress")


def case(seed: int, top: Path) -> Counter[str]:
    """Compute one gradient; the numbers of kills by time and victim."""
    draw = random.Random(seed)
    ranks = draw.choice([1, 2, 2, 3])
    whole, killed = top / f"whole-{seed}", top / f"killed-{seed}"
    whole.mkdir()
    killed.mkdir()
    process = start(whole, seed, ranks)
    if process.wait(120):
        raise SystemExit(process.stderr.read().decode())
    kills, failed = Counter(), 0
    while True:
        for path in killed.glob("pid-*"):
            path.unlink()
        process = start(killed, seed, ranks)
        code = wait_in_loop(process, killed, draw)
        if code is None:
            found = kill(killed, ranks, draw)
            kills[found] += found is not None
            process.wait(120)
            continue
        if not code:
            break
        failed += 1
        if failed > 3:
            raise SystemExit(f"seed {seed}: {process.stderr.read().decode()}")
    for rank in range(ranks):
        name = f"result-{rank}.npy"
        if (whole / name).read_bytes() != (killed / name).read_bytes():
            raise SystemExit(f"seed {seed}, rank {rank} of {ranks}: after {kills.total()} kills the gradient differs")
    return +kills


def main(minutes: float, seed: int) -> None:
    end = time.monotonic() + 60 * minutes
    kills, cases = Counter(), 0
    with tempfile.TemporaryDirectory() as top:
        (Path(top) / "program.py").write_text(PROGRAM)
        while time.monotonic() < end:
            kills += case(seed + cases, Path(top))
            cases += 1
            each = "; ".join(f"{count} {name}" for name, count in sorted(kills.items()))
            print(f"{cases} gradients, {kills.total()} kills: {each}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="scripts/fuzz --kills", description=__doc__.splitlines()[0])
    parser.add_argument("minutes", type=float)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="the first seed (default: random)")
    options = parser.parse_args()
    print(f"from seed {options.seed}", flush=True)
    main(options.minutes, options.seed)
