"""The search of `scripts/fuzz --numpy`: random NumPy programs, until the time is over or one has other results."""

import argparse
import collections
import pathlib
import random
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "helpers")]

EVERY = 500  # programs between two progress lines

SCRIPT = '''"""A NumPy program with which ampi computes something else, or a wrong gradient."""

import sys

sys.path[:0] = [{root!r}, {tests!r}]
from element_programs import helpers
from numpy_check import Alone, examine

LINES = """\\
{lines}
""".splitlines()

print(*examine(LINES, Alone(helpers())), sep="\\n")
'''


def problem(lines):
    """The problem of a program, and its kind; None if there is none, or if NumPy does not run it."""
    import numpy as np
    from element_programs import helpers
    from numpy_check import Alone, Refused, examine
    from numpy_programs import NARROW, run, starts

    try:
        run(lines, np, {**NARROW, **helpers()}, starts())
    except Exception:
        return None
    try:
        found = examine(lines, Alone(helpers()))
    except Refused as refusal:
        return refusal
    except Exception as error:
        return type(error).__name__, f"{type(error).__name__}: {error}"
    return (found[0].partition(":")[0], "\n".join(found)) if found else None


def minimised(lines, kind):
    """The program without lines that are not needed for the same failure."""
    position = len(lines) - 1
    while position >= 0:
        candidate = lines[:position] + lines[position + 1 :]
        found = problem(candidate)
        if isinstance(found, tuple) and found[0] == kind:
            lines = candidate
        position -= 1
    return lines


def main():
    parser = argparse.ArgumentParser(prog="scripts/fuzz --numpy", description=__doc__.splitlines()[0])
    parser.add_argument("minutes", type=float)
    parser.add_argument("--seed", type=int, default=None, help="seed of the first program (default: random)")
    parser.add_argument("--all", action="store_true", help="continue after a failure")
    parser.add_argument("--loops", action="store_true", help="programs of loops over single elements")
    options = parser.parse_args()
    from element_programs import ElementProgram
    from numpy_check import Refused
    from numpy_programs import Program

    draw = (lambda seed: ElementProgram(seed, 7)) if options.loops else Program
    deadline = time.monotonic() + 60 * options.minutes
    first = seed = random.randrange(10**8) if options.seed is None else options.seed
    refused = collections.Counter()
    failed = 0
    while time.monotonic() < deadline:
        lines = draw(seed).lines
        found = problem(lines)
        if isinstance(found, Refused):
            refused[str(found).replace("\n", " ")[:110]] += 1
        elif found is not None:
            failed += 1
            report(seed, minimised(lines, found[0]))
            if not options.all:
                return 1
        seed += 1
        if not (seed - first) % EVERY:
            print(time.strftime("%H:%M:%S"), f"seed {seed}: {seed - first} programs", flush=True)
    print(f"{seed - first} programs, {failed or 'none'} failed; {refused.total()} refused")
    for message, count in refused.most_common(40):
        print(f"    {count} {message}")
    return 1 if failed else 0


def report(seed, lines):
    file = pathlib.Path(f"fuzz-numpy-{seed}.py").resolve()
    text = "\n".join(lines)
    file.write_text(SCRIPT.format(root=str(ROOT), tests=str(ROOT / "tests" / "helpers"), lines=text), encoding="utf-8")
    print(f"\n{text}\n{problem(lines)[1]}\n\npython {file}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
