"""LULESH 2.0's Sedov blast wave in Python: ``mpiexec -n 8 python lulesh.py -s 15 -p``.

A point blast in the corner of a cube of gas, with planes of symmetry through the corner: Lagrangian hydrodynamics on an
unstructured mesh of hexahedra, over 1, 8, 27, … ranks. It takes LULESH's options and prints its closing lines.

The problem is LULESH's (https://asc.llnl.gov/codes/proxy-apps/lulesh, LLNL-TR-490254, LLNL-TR-641973); the program is
written from the published algorithm. :mod:`sedov.kernels` has the local work, :mod:`sedov.exchange` the messages,
:mod:`sedov.domain` mesh and state, :mod:`sedov.hydro` the cycle.
"""

import argparse
import sys
import time

import numpy
from sedov import hydro
from sedov.backend import COMM_SELF, COMM_WORLD, MPI, value
from sedov.domain import Domain


def parse_arguments(arguments=None):
    """LULESH's command line."""
    parser = argparse.ArgumentParser(description="The Sedov problem of LULESH 2.0.")
    parser.add_argument("-s", dest="size", type=positive, default=30, help="elements along an edge of each rank's cube")
    parser.add_argument("-i", dest="cycles", type=positive, default=9999999, help="stop after this many cycles")
    parser.add_argument("-r", dest="regions", type=positive, default=11, help="number of materials")
    parser.add_argument("-b", dest="balance", type=natural, default=1, help="how much the materials differ in size")
    parser.add_argument("-c", dest="cost", type=natural, default=1, help="extra cost of the dear materials")
    parser.add_argument("-p", dest="progress", action="store_true", help="print a line for each cycle")
    parser.add_argument("-q", dest="quiet", action="store_true", help="print nothing")
    return parser.parse_args(arguments)


def positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def natural(text):
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return number


def compile_kernels(comm):
    """Run a very small problem, first on one rank so that the others find what it has compiled."""
    if comm.Get_rank() == 0:
        hydro.advance(Domain(COMM_SELF, 2))
    comm.Barrier()
    if comm.Get_rank() != 0:
        hydro.advance(Domain(COMM_SELF, 2))
    comm.Barrier()


def run(domain, cycles=9999999, report=None):
    """Advance to the end of the simulated time or to cycle ``cycles``; ``report(domain)`` after each. Collective."""
    while domain.cycle < cycles and value(domain.time)[0] < hydro.END_TIME:
        hydro.advance(domain)
        if report is not None:
            report(domain)
    return domain


def print_progress(domain):
    print(f"cycle = {domain.cycle}, time = {value(domain.time)[0]:.6e}, dt={value(domain.dt)[0]:.6e}", flush=True)


def print_summary(domain, seconds):
    """LULESH's closing lines. Called on rank 0."""
    ranks = domain.comm.Get_size()
    grind = seconds * 1e6 / domain.cycle / domain.elements
    print("Run completed:")
    print(f"   Problem size        =  {domain.size}")
    print(f"   MPI tasks           =  {ranks}")
    print(f"   Iteration count     =  {domain.cycle}")
    print(f"   Final Origin Energy =  {value(domain.energy)[0]:12.6e}")
    absolute, total, relative = plane_asymmetry(domain)
    print("   Testing Plane 0 of Energy Array on rank 0:")
    print(f"        MaxAbsDiff   = {absolute:12.6e}")
    print(f"        TotalAbsDiff = {total:12.6e}")
    print(f"        MaxRelDiff   = {relative:12.6e}")
    print(f"\nElapsed time         = {seconds:10.2f} (s)")
    print(f"Grind time (us/z/c)  = {grind:10.8g} (per dom)  ({grind / ranks:10.8g} overall)")
    print(f"FOM                  = {1000.0 * ranks / grind:10.8g} (z/s)\n")


def plane_asymmetry(domain):
    """Asymmetry in x and y of the energy in the plane z = 0: largest and total absolute, largest relative."""
    size = domain.size
    plane = value(domain.energy)[: size * size].reshape(size, size)
    upper, lower = plane[numpy.triu_indices(size, 1)], plane.T[numpy.triu_indices(size, 1)]
    difference = numpy.abs(upper - lower)
    known = lower != 0.0
    relative = (difference[known] / lower[known]).max(initial=0.0)
    return difference.max(initial=0.0), difference.sum(), relative


def main(arguments=None):
    options = parse_arguments(arguments)
    comm = COMM_WORLD
    speaks = comm.Get_rank() == 0 and not options.quiet
    compile_kernels(comm)
    domain = Domain(comm, options.size, options.regions, options.balance, options.cost)
    if speaks:
        print(f"Running problem size {options.size}^3 per domain until completion")
        print(f"Num processors:      {comm.Get_size()}")
        print(f"Total number of elements: {comm.Get_size() * domain.elements}\n", flush=True)
    comm.Barrier()
    start = time.perf_counter()
    run(domain, options.cycles, print_progress if speaks and options.progress else None)
    seconds = comm.allreduce(time.perf_counter() - start, op=MPI.MAX)
    if speaks:
        print_summary(domain, seconds)


if __name__ == "__main__":
    try:
        main()
    except Exception as error:  # the other ranks wait for messages that will not come
        print(f"rank {COMM_WORLD.Get_rank()}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        COMM_WORLD.Abort(1)
