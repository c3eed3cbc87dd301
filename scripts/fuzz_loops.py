"""The search of `scripts/fuzz --loops`: functions with loops, compiled by `ampi.compiled_loops`, against Python.

Values, types, exceptions and arrays of each drawn function are compared with Python's while the kernels of its loops
run in Python, which is fast; every ``--every``-th function is also compiled, and its gradient compared with that of the
uncompiled loops on a tape.
"""

import argparse
import pathlib
import random
import sys
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "helpers"), str(ROOT)]


def main():
    import loop_programs

    parser = argparse.ArgumentParser(prog="scripts/fuzz --loops", description=__doc__.splitlines()[0])
    parser.add_argument("minutes", type=float, nargs="?", default=60.0)
    parser.add_argument("--seed", type=int, default=None, help="the first seed (default: random)")
    parser.add_argument("--programs", type=int, default=None, help="the largest number of programs")
    parser.add_argument("--every", type=int, default=50, help="compile one function in N")
    options = parser.parse_args()
    first = random.randrange(10**9) if options.seed is None else options.seed
    seed, compiled, loops, end = first, 0, 0, time.monotonic() + 60 * options.minutes
    while time.monotonic() < end and (options.programs is None or seed < first + options.programs):
        ways = [loop_programs.compared]
        if (seed - first) % options.every == 0:
            ways += [lambda seed: loop_programs.compared(seed, interpreted=False), loop_programs.gradients_compared]
        for way in ways:
            try:
                found, done, count, *_ = way(seed)
            except BaseException:
                found, done, count = traceback.format_exc(), 0, 0
            if found:
                print(loop_programs.Drawn(seed, smooth=way is loop_programs.gradients_compared).text)
                print(f"{found}\nFAILED: scripts/fuzz --loops --seed {seed} --programs 1")
                return 1
            compiled, loops = compiled + done, loops + count
        seed += 1
    print(f"{seed - first} functions from seed {first} on, {compiled} of {loops} loops compiled, none failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
