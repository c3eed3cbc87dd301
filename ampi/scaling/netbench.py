"""Measurement of LogGP parameters between two ranks: ``mpiexec -n 2 python -m ampi.scaling.netbench > network.toml``.

Half a round trip of n bytes is L + 2 o + (n - 1) G (a ping-pong); o is the time until a send returns; g is the time per
message in a long sequence (saturation).  Medians over rounds; G is the slope of the Theil-Sen line through the
larger sizes.  Cf. Culler et al., *Assessing fast network interfaces* (1996), and Hoefler et al., *Netgauge* (2007).
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import numpy as np
from mpi4py import MPI
from scipy import stats

from ampi.scaling.loggp import Network

SIZES = tuple(4**k for k in range(12))
"""Bytes: 1 to 4 MiB."""
LONG = 1 << 14
ROW = 200
"""Messages in a row."""


def ping_pong(comm: Any, nbytes: int, rounds: int) -> float:
    """Half the median round trip between ranks 0 and 1, in seconds; undefined on other ranks."""
    data, took = np.zeros(nbytes, np.uint8), []
    for _ in range(rounds + 2):
        began = time.perf_counter()
        if comm.Get_rank() == 0:
            comm.Send(data, 1)
            comm.Recv(data, 1)
        elif comm.Get_rank() == 1:
            comm.Recv(data, 0)
            comm.Send(data, 0)
        took.append(time.perf_counter() - began)
    return statistics.median(took[2:]) / 2


def saturated(comm: Any, nbytes: int, rounds: int) -> tuple[float, float]:
    """Seconds until a send returns, and seconds between messages in a long row."""
    data, overheads, gaps = np.zeros(nbytes, np.uint8), [], []
    for _ in range(rounds + 1):
        comm.Barrier()
        began = time.perf_counter()
        if comm.Get_rank() == 0:
            requests = [comm.Isend(data, 1) for _ in range(ROW)]
            overheads.append((time.perf_counter() - began) / ROW)
            MPI.Request.Waitall(requests)
            comm.Recv(data, 1)
        elif comm.Get_rank() == 1:
            for _ in range(ROW):
                comm.Recv(data, 0)
            comm.Send(data, 0)
        gaps.append((time.perf_counter() - began) / ROW)
    return statistics.median(overheads[1:] or [0.0]), statistics.median(gaps[1:])


def measure(comm: Any, rounds: int = 50) -> tuple[Network, dict[int, float]] | None:
    """The network between ranks 0 and 1, and the times of ping-pongs by size; None on other ranks. Collective."""
    times = {nbytes: ping_pong(comm, nbytes, max(rounds // (1 + nbytes // (1 << 18)), 5)) for nbytes in SIZES}
    overhead, gap = saturated(comm, 1, max(rounds // 5, 3))
    if comm.Get_rank():
        return None
    return fitted(times, overhead, gap), times


def fitted(times: dict[int, float], overhead: float, gap: float) -> Network:
    """Parameters from times of ping-pongs by size, overhead and gap.

    Examples
    --------
    >>> from ampi.scaling.netbench import fitted
    >>> network = fitted({n: 3e-6 + 1e-9 * (n - 1) for n in (1, 4, 16384, 65536, 262144)}, 5e-7, 8e-7)
    >>> f"{network.L:.2g} {network.G:.2g}"
    '2e-06 1e-09'
    """
    large = [nbytes for nbytes in times if nbytes >= LONG]
    slope = float(stats.theilslopes([times[nbytes] for nbytes in large], large)[0])
    least = min(times.values())
    overhead = min(overhead, least / 2)  # sends without a posted receive cost more
    return Network(max(least - 2 * overhead, 0.0), overhead, max(gap, overhead), max(slope, 0.0))


def main() -> int:
    """Print the network between the first two ranks as a file for ``model``."""
    comm = MPI.Intracomm(MPI.COMM_WORLD)
    if comm.Get_size() < 2:
        print(
            "ampi.scaling: netbench measures between ranks: mpiexec -n 2 python -m ampi.scaling netbench",
            file=sys.stderr,
        )
        return 1
    comm = comm.Dup()
    found = measure(comm)
    if found is not None:
        network, times = found
        print(f"# {MPI.Get_processor_name()}, {MPI.Get_library_version().splitlines()[0].strip()}")
        print(
            "".join(f"# {nbytes:8} bytes {1e6 * took:10.2f} us\n" for nbytes, took in times.items()) + network.text(),
            end="",
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
