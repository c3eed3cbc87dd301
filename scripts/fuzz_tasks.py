"""The search of `scripts/fuzz --tasks`: graphs of tasks in threads, against the serial run and a complex step.

Each seed is a program, and another one with a planted race, which has to be found.  One that fails is printed, as
lists of its operations; ``--seed N --programs 1`` runs it again.
"""

import argparse
import faulthandler
import pathlib
import pprint
import random
import sys
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "helpers"), str(ROOT)]

PATIENCE = 300  # seconds for one program


def main():
    import task_programs

    parser = argparse.ArgumentParser(prog="scripts/fuzz --tasks", description=__doc__.splitlines()[0])
    parser.add_argument("minutes", type=float, nargs="?", default=60.0)
    parser.add_argument("--seed", type=int, default=None, help="the first seed (default: random)")
    parser.add_argument("--programs", type=int, default=None, help="the largest number of programs")
    options = parser.parse_args()
    first = random.randrange(10**9) if options.seed is None else options.seed
    seed, races, end = first, 0, time.monotonic() + 60 * options.minutes
    while time.monotonic() < end and (options.programs is None or seed < first + options.programs):
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        try:
            task_programs.check(seed)
            races += bool(task_programs.check_race(seed))
        except BaseException:
            traceback.print_exc()
            pprint.pprint(task_programs.Program(seed).body, width=120)
            print(f"FAILED: scripts/fuzz --tasks --seed {seed} --programs 1")
            return 1
        faulthandler.cancel_dump_traceback_later()
        seed += 1
    print(f"{seed - first} programs from seed {first} on, {races} races, none failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
