"""The search of ``scripts/fuzz --windows``: programs of one-sided accesses, on all ranks that run this."""

import argparse
import pathlib
import random
import sys
import time

TESTS = pathlib.Path(__file__).parent.parent / "tests"


def main() -> None:
    sys.path[:0] = [str(TESTS / "mpi" / "windows"), str(TESTS / "helpers")]
    from test_random_windows import check

    from ampi.mpi import COMM_WORLD

    parser = argparse.ArgumentParser(prog="scripts/fuzz --windows", description=__doc__.splitlines()[0])
    parser.add_argument("minutes", type=float)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="the first seed (default: random)")
    parser.add_argument("--parts", action="store_true", help="with collectives of some of the ranks")
    options = parser.parse_args()
    seed = COMM_WORLD.bcast(options.seed)
    end, drawn = time.monotonic() + 60 * options.minutes, 0
    while COMM_WORLD.bcast(time.monotonic() < end):
        check(seed + drawn, 10 + (seed + drawn) % 40, options.parts)
        drawn += 1
        if COMM_WORLD.rank == 0 and drawn % 50 == 0:
            print(f"{drawn} programs of windows from seed {seed}, none failed", flush=True)


if __name__ == "__main__":
    main()
