"""Measurements of ``scripts/bench_report``: gradients of LULESH with and without a tracer, in one run.

Pairs run in random order, so that other load affects both equally. A tracer takes computing time, so CPU time of all
ranks is compared as well; disturbances only lengthen times, so lower quartiles are compared.
"""

import argparse
import contextlib
import pathlib
import random
import sys
import time

import numpy

import ampi
from ampi import MPI

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "examples" / "lulesh"))

from lulesh import run
from sedov import sensitivity
from sedov.domain import Domain

WARM = 4  # cycles of the first gradient


def costs(domain, state, cycles, traced):
    """The cost of a gradient: the longest time of a rank, and CPU time of all. Collective.

    It is the second of two, to exclude the set-up of tracing: ranks compare their clocks, and Python's method caches
    are rebuilt since those of MPI have been replaced.
    """
    comm = domain.comm
    arguments = domain, sensitivity.FUNCTIONALS["origin"], list(sensitivity.INDEPENDENTS)
    with ampi.tracing() if traced else contextlib.nullcontext():
        sensitivity.restore(domain, state)
        sensitivity.gradient(*arguments, WARM)
        sensitivity.restore(domain, state)
        comm.Barrier()
        begun, used = time.perf_counter(), time.process_time()
        sensitivity.gradient(*arguments, cycles)
        used = time.process_time() - used
        elapsed = time.perf_counter() - begun
    return comm.allreduce(elapsed, op=MPI.MAX), comm.allreduce(used)


def quotient(plain, traced):
    """The quotient of two lower quartiles, with a 95% interval (bootstrap over pairs)."""
    pairs = numpy.array([plain, traced])
    drawn = pairs[:, numpy.random.default_rng(0).integers(len(plain), size=(2000, len(plain)))]
    low, high = numpy.quantile(drawn, 0.25, axis=2)
    (before, after), between = numpy.quantile(pairs, 0.25, axis=1), numpy.quantile(high / low, (0.025, 0.975))
    return before, after, after / before, *between


def main():
    """Measure, and print medians and their quotients from the first rank."""
    parser = argparse.ArgumentParser(prog="scripts/bench_report")
    parser.add_argument("-s", dest="size", type=int, default=15, help="elements along an edge of a rank's cube (15)")
    parser.add_argument("-i", dest="cycles", type=int, default=10, help="cycles that are differentiated (10)")
    parser.add_argument("--pairs", type=int, default=20, help="number of pairs (20)")
    options = parser.parse_args()
    domain = Domain(ampi.COMM_WORLD, options.size)
    run(domain, 5)
    state = sensitivity.save(domain)
    for traced in (False, True):
        costs(domain, state, options.cycles, traced)  # compiles
    found = {False: [], True: []}
    order = random.Random(0)  # the same on all ranks
    for _ in range(options.pairs):
        for traced in order.sample((False, True), 2):
            found[traced].append(costs(domain, state, options.cycles, traced))
    if domain.comm.Get_rank() == 0:
        ranks = domain.comm.Get_size()
        print(
            f"LULESH on {ranks} ranks, -s {options.size}, {options.cycles} cycles, lower quartiles of {options.pairs}:"
        )
        for name, plain, traced in zip(("time", "CPU time, all ranks"), zip(*found[False]), zip(*found[True])):
            before, after, ratio, least, most = quotient(plain, traced)
            print(f"   {name:20} {before:.4f} s, traced {after:.4f} s: {ratio:.3f} ({least:.3f} to {most:.3f})")


if __name__ == "__main__":
    main()
