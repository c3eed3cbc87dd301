"""The measurement of ``scripts/bench_report``: gradients of LULESH with and without a tracer, in turn, in one run.

Pairs are interleaved, the first one of each by turns, so that what else the machine does hits both alike.
"""

import argparse
import pathlib
import statistics
import sys

import ampi

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "examples" / "lulesh"))

from lulesh import run
from sedov import sensitivity
from sedov.domain import Domain


def seconds(domain, state, cycles, traced):
    """What recording and sweep take on the slowest rank. Collective."""
    sensitivity.restore(domain, state)
    arguments = domain, sensitivity.FUNCTIONALS["origin"], list(sensitivity.INDEPENDENTS), cycles
    if not traced:
        return sensitivity.gradient(*arguments).seconds
    with ampi.tracing():
        return sensitivity.gradient(*arguments).seconds


def main():
    """Measure, and print medians and their quotient from the first rank."""
    parser = argparse.ArgumentParser(prog="scripts/bench_report")
    parser.add_argument("-s", dest="size", type=int, default=15, help="elements along an edge of a rank's cube (15)")
    parser.add_argument("-i", dest="cycles", type=int, default=10, help="cycles that are differentiated (10)")
    parser.add_argument("--pairs", type=int, default=20, help="how many (20)")
    options = parser.parse_args()
    domain = Domain(ampi.COMM_WORLD, options.size)
    run(domain, 5)
    state = sensitivity.save(domain)
    for traced in (False, True):
        seconds(domain, state, options.cycles, traced)  # compiles
    found = {False: [], True: []}
    for k in range(options.pairs):
        for traced in (k % 2 == 0, k % 2 == 1):
            found[traced].append(seconds(domain, state, options.cycles, traced))
    if domain.comm.Get_rank() == 0:
        plain, with_tracer = statistics.median(found[False]), statistics.median(found[True])
        pairs = statistics.median(b / a for a, b in zip(found[False], found[True]))
        print(f"LULESH on {domain.comm.Get_size()} ranks, -s {options.size}, {options.cycles} cycles:")
        print(f"   gradient, median of {options.pairs}    {plain:.4f} s, traced {with_tracer:.4f} s")
        print(f"   traced to plain        {with_tracer / plain:.3f}, median of the pairs {pairs:.3f}")


if __name__ == "__main__":
    main()
