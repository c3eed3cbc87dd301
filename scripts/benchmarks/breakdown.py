"""Where the processor time of LULESH's gradient goes: samples of what each rank executes, by kind of work.

``scripts/bench --breakdown 1 8`` starts for each number of ranks, and prints a table::

    mpiexec -n RANKS python -m ampi.run breakdown.py SIZE REPEAT [--lines]

A timer interrupts each process when it has used some processor time, so that other load does not count. A rank that
waits for messages polls: that is processor time as well, and has a line of its own.
"""

import collections
import json
import linecache
import signal
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
AMPI = str(ROOT / "ampi") + "/"
INTERVAL = 0.001  # seconds
PHASES = ("primal", "record", "sweep")
KINDS = ("compiled code", "waiting", "kernel calls", "messages", "agreement", "tape and memory", "the program")
COMPILED = ("entry(*args)", "entry(*given)", "self._forward(", "contract.adjoint(", "self.dispatcher(")
WAITING = {"attend", "Waitall", "wait", "pause", "told", "_going_on", "Barrier", "Allreduce"}


def rows(ranks: list[int], size: int = 15, turns: int = 400) -> None:
    """Print a table for each number of ranks, which are cubes."""
    from lulesh import start

    for count in ranks:
        found = start(count, size, max(turns // count, 20), script=__file__)
        print(f"\nLULESH, {count} x -s {size}: milliseconds of processor time per rank and cycle")
        print(f"{'':16}", *(f"{phase:>9}" for phase in PHASES))
        for kind, *times in zip(KINDS, *found["times"]):
            print(f"{kind:16}", *(f"{ms:9.2f}" for ms in times))
        print(f"{'all':16}", *(f"{sum(times):9.2f}" for times in found["times"]), flush=True)


def kind_of(frame) -> str:
    """The kind of work that a stack of frames does."""
    code = frame.f_code
    line = linecache.getline(code.co_filename, frame.f_lineno)
    if any(call in line for call in COMPILED):
        return "compiled code"
    if code.co_name in WAITING and (code.co_filename.startswith(AMPI) or code.co_filename == "<string>"):
        return "waiting"
    found = "the program"
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(AMPI):
            part = name[len(AMPI) :]
            if part.startswith(("mpi/log/agreement", "mpi/log/matching", "mpi/log/early")):
                return "agreement"
            if found in ("the program", "tape and memory"):
                room = {"kernel": "kernel calls", "mpi": "messages"}.get(part.split("/")[0], "tape and memory")
                found = found if room == "tape and memory" and found == room else room
        frame = frame.f_back
    return found


class Sampler:
    """Numbers of samples by phase and kind of work, and by line; none while ``phase`` is None."""

    def __init__(self) -> None:
        self.phase: str | None = None
        self.lines: collections.Counter = collections.Counter()
        signal.signal(signal.SIGPROF, self.note)
        signal.setitimer(signal.ITIMER_PROF, INTERVAL, INTERVAL)

    def note(self, _, frame) -> None:
        """Count what is executed now."""
        if self.phase is not None and frame is not None:
            file = frame.f_code.co_filename.removeprefix(str(ROOT))
            self.lines[self.phase, kind_of(frame), file, frame.f_lineno] += 1


def measure(size: int, repeat: int) -> dict:
    """Milliseconds of processor time per rank and cycle, by phase and kind, and of the lines that take most."""
    import lulesh
    from sedov import backend, hydro, sensitivity
    from sedov.domain import Domain

    import ampi

    lulesh.warm_up()
    comm = backend.COMM_WORLD
    domain = Domain(comm, size)
    for _ in range(lulesh.WARM_CYCLES):
        hydro.advance(domain)
    state = sensitivity.save(domain)
    sampler = Sampler()
    taken: collections.Counter = collections.Counter()

    def phase(name, work, *arguments):
        comm.Barrier()
        begin = time.process_time()
        sampler.phase = name
        result = work(*arguments)
        sampler.phase = None
        taken[name] += time.process_time() - begin
        return result

    def record():
        with ampi.Tape() as tape:
            watched = [tape.watch(getattr(domain, name)) for name in sensitivity.INDEPENDENTS]
            sensitivity.run_cycles(domain, 1)
            return tape, sensitivity.origin_energy(domain), watched

    def turn():
        sensitivity.restore(domain, state)
        phase("primal", sensitivity.run_cycles, domain, 1)
        sensitivity.restore(domain, state)
        tape, result, watched = phase("record", record)
        phase("sweep", tape.gradient, result, watched)

    for k in range(3 + repeat):
        if k == 3:
            sampler.lines.clear()
            taken.clear()
        turn()
    signal.setitimer(signal.ITIMER_PROF, 0.0)
    lines: collections.Counter = collections.Counter()
    for counts, seconds in comm.allgather((sampler.lines, taken)):
        for name in PHASES:
            mine = {key: n for key, n in counts.items() if key[0] == name}
            share = seconds[name] / repeat / comm.size * 1e3 / max(sum(mine.values()), 1)
            lines.update({key: n * share for key, n in mine.items()})
    times = [[sum(ms for key, ms in lines.items() if key[:2] == (name, kind)) for kind in KINDS] for name in PHASES]
    return {"times": times, "lines": [[*key, round(ms, 3)] for key, ms in lines.most_common(100)]}


def main() -> None:
    sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "examples" / "lulesh")]
    from ampi import COMM_WORLD

    size, repeat, *more = sys.argv[1:]
    found = measure(int(size), int(repeat))
    if COMM_WORLD.Get_rank() == 0:
        for line in found.pop("lines") if more else ():
            print(*line)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
