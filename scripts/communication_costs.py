"""Measurements of ``scripts/bench_mpi``: plain mpi4py, ampi without a tape, recording, and in forward mode.

A row is one way to exchange messages between two ranks. All of its variants run once per round, so that other load
affects them equally, and the medians over the rounds of the differences within a round are reported.
"""

import argparse
import gc
import json
import statistics
import time
import tracemalloc

import numpy
from mpi4py import MPI

PLAIN = MPI.Intracomm(MPI.COMM_WORLD)  # mpi4py's own: importing ampi rebinds the names of classes
PLAIN_REQUEST = MPI.Request

import growth  # noqa: E402

import ampi  # noqa: E402
import ampi.numpy as np  # noqa: E402

COMM = ampi.COMM_WORLD
PARTNER = 1 - PLAIN.rank
BARS = {"idle": 0.3, "record": 5.0, "sweep": 10.0, "large": 1.1, "forward": 2.0, "bytes": 500}


# ------------------------------------------------------------------------------ ways to exchange; one message per turn


def ping_pong(comm, request, x, y, turns):
    """Send and Recv in turn: the cost of a message from rank to rank."""
    for turn in range(turns):
        if turn % 2 == PLAIN.rank:
            comm.Send(x, PARTNER)
        else:
            comm.Recv(y, PARTNER)


def sendrecv(comm, request, x, y, turns):
    """Sendrecv: one message to each side per call."""
    for _ in range(turns):
        comm.Sendrecv(x, PARTNER, 0, y, PARTNER, 0)


def nonblocking(comm, request, x, y, turns):
    """Irecv, Isend, Waitall: one message to each side per three calls."""
    for _ in range(turns):
        request.Waitall([comm.Irecv(y, PARTNER), comm.Isend(x, PARTNER)])


def allreduce(comm, request, x, y, turns):
    """Allreduce(SUM)."""
    for _ in range(turns):
        comm.Allreduce(x, y)


WAYS = {
    # name: (function, calls of mpi4py per turn, messages per turn that a rank sends or receives)
    "Send, Recv": (ping_pong, 1, 1),
    "Sendrecv": (sendrecv, 1, 2),
    "Isend, Irecv, Waitall": (nonblocking, 3, 2),
    "Allreduce": (allreduce, 1, 1),
}


def timed(way, comm, request, x, y, turns):
    """Microseconds per turn, after two turns for set-up."""
    way(comm, request, x, y, 2)
    PLAIN.Barrier()
    start = time.perf_counter()
    way(comm, request, x, y, turns)
    return (time.perf_counter() - start) / turns * 1e6


def one_round(number, way, elements, turns):
    """Microseconds per turn of every variant, once; each round begins with another one."""
    took = {}
    variants = [plain, idle, recorded, forward]
    for variant in variants[number % 4 :] + variants[: number % 4]:
        gc.collect()
        variant(took, way, elements, turns)
    return took


def plain(took, way, elements, turns):
    """mpi4py alone."""
    x, y = numpy.ones(elements), numpy.ones(elements)
    took["plain"] = timed(way, PLAIN, PLAIN_REQUEST, x, y, turns)


def idle(took, way, elements, turns):
    """ampi with no tape."""
    x, y = numpy.ones(elements), numpy.ones(elements)
    took["idle"] = timed(way, COMM, ampi.Request, x, y, turns)


def recorded(took, way, elements, turns):
    """ampi recording, and the sweep."""
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(elements))
        y = np.zeros(elements)
        y[...] = x  # received into tracked memory from the first message on
        took["recorded"] = timed(way, COMM, ampi.Request, x, y, turns)
    PLAIN.Barrier()
    start = time.perf_counter()
    tape.gradient(y, x, seed=numpy.ones(elements))
    took["sweep"] = (time.perf_counter() - start) / turns * 1e6


def forward(took, way, elements, turns):
    """ampi in forward mode: a tangent beside each message."""

    def program(x):
        y = np.zeros(elements)
        y[...] = x
        took["forward"] = timed(way, COMM, ampi.Request, x, y, turns)
        return y

    ampi.jvp(program, numpy.ones(elements), numpy.ones(elements))


def median_of(rounds, quantity):
    """Median over the rounds, and over the two ranks the larger one."""
    return max(PLAIN.allgather(statistics.median(quantity(took) for took in rounds)))


def measure(name, elements, turns, rounds):
    """One row of the table."""
    way, calls, messages = WAYS[name]
    one_round(0, way, elements, turns)
    taken = [one_round(number, way, elements, turns) for number in range(rounds)]
    return {
        "way": name,
        "bytes": 8 * elements,
        "plain": median_of(taken, lambda took: took["plain"]),
        "idle_per_call": median_of(taken, lambda took: (took["idle"] - took["plain"]) / calls),
        "record_per_message": median_of(taken, lambda took: (took["recorded"] - took["plain"]) / messages),
        "sweep_per_message": median_of(taken, lambda took: (took["sweep"] - took["plain"]) / messages),
        "recorded_to_plain": median_of(taken, lambda took: took["recorded"] / took["plain"]),
        "forward_per_message": median_of(taken, lambda took: (took["forward"] - took["plain"]) / messages),
        "forward_to_plain": median_of(taken, lambda took: took["forward"] / took["plain"]),
        "sweep_to_plain": median_of(taken, lambda took: took["sweep"] / took["plain"]),
    }


def tape_bytes(name, turns=2000):
    """Bytes of a tape per message, without saved values (none are needed here)."""
    way, _, messages = WAYS[name]
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(1))
        y = np.zeros(1)
        y[...] = x
        way(COMM, ampi.Request, x, y, 100)  # grows buffers that are allocated once
        gc.collect()
        tracemalloc.start()
        way(COMM, ampi.Request, x, y, turns)
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    tape.gradient(y, x, seed=numpy.ones(1))
    return max(PLAIN.allgather(held / turns / messages))


def main():
    parser = argparse.ArgumentParser(prog="scripts/bench_mpi", allow_abbrev=False)
    parser.add_argument("--rounds", type=int, default=15, help="medians are taken over this many (15)")
    parser.add_argument("--json", help="write the table to this file as well")
    parser.add_argument("--growth", action="store_true", help="only how the costs of items grow with their number")
    options = parser.parse_args()
    if PLAIN.size != 2:
        parser.error("runs on 2 ranks")
    if options.growth:
        growth.report(COMM, PARTNER)
        return

    small = [measure(name, 1, 1000, options.rounds) for name in WAYS]
    large = [measure(name, 1 << 17, 60, options.rounds) for name in WAYS]
    memory = {name: tape_bytes(name) for name in WAYS}
    if PLAIN.rank == 0:
        report(small, large, memory)
    grown = growth.report(COMM, PARTNER)
    if PLAIN.rank == 0 and options.json:
        found = {"small": small, "large": large, "tape_bytes": memory, "growth": grown, "bars": BARS}
        with open(options.json, "w") as file:
            json.dump(found, file, indent=1)


def report(small, large, memory):
    """Print the table."""
    print(f"{MPI.Get_library_version().splitlines()[0].split(',')[0]}, 2 ranks; µs over plain mpi4py\n")
    print(f"{'one double':24}{'plain':>9}{'idle':>10}{'recording':>12}{'sweep':>12}{'tape':>13}{'forward':>13}")
    per = f"{'per message':>12}" * 2 + f"{'per message':>13}" * 2
    print(f"{'':24}{'per turn':>9}{'per call':>10}{per}")
    for row in small:
        print(
            f"{row['way']:24}{row['plain']:9.2f}{row['idle_per_call']:10.2f}{row['record_per_message']:12.2f}"
            f"{row['sweep_per_message']:12.2f}{memory[row['way']]:8.0f} bytes"
            f"{row['forward_per_message']:13.2f}"
        )
    print(f"{'bar':24}{'':9}{BARS['idle']:10.2f}{BARS['record']:12.2f}{BARS['sweep']:12.2f}{BARS['bytes']:8.0f} bytes")
    print(f"\n{'1 MB':24}{'plain':>9}{'recorded/plain':>16}{'sweep/plain':>13}{'forward/plain':>15}")
    for row in large:
        print(
            f"{row['way']:24}{row['plain']:9.1f}{row['recorded_to_plain']:16.3f}{row['sweep_to_plain']:13.3f}"
            f"{row['forward_to_plain']:15.3f}"
        )
    print(f"{'bar':24}{'':9}{BARS['large']:16.3f}{'':13}{BARS['forward']:15.3f}")


if __name__ == "__main__":
    main()
