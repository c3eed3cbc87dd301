"""The search of `scripts/fuzz --kernels`: random kernels, until the time is over or one has wrong derivatives."""

import argparse
import collections
import contextlib
import functools
import os
import pathlib
import random
import signal
import sys
import time
import traceback
import warnings

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = [str(ROOT), str(ROOT / "tests" / "kernel"), str(ROOT / "tests" / "helpers")]
sys.path[:0] = FOLDERS

os.environ.setdefault("AMPI_VERIFY", "1")

PATIENCE = 60  # seconds of CPU time for one kernel
LONG = 2  # seconds after which one run in Python is slow
EVERY = 25  # kernels between two progress lines

SCRIPT = '''"""A kernel whose derivatives were found wrong."""

import sys

sys.path[:0] = {folders!r}
from random_check import examine_all

SOURCE = """
{source}"""

examine_all(SOURCE, {seed})
'''


class TooSlow(Exception):
    """The examination of a kernel did not end."""


class SlowKernel(Exception):
    """The same for a kernel that is slow itself."""


@contextlib.contextmanager
def limited():
    def end(*_):
        raise TooSlow(f"no end within {PATIENCE} s")

    signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def problem(text, seed):
    """The problem of a kernel, as an exception; None if there is none, or if the kernel itself cannot run."""
    from random_check import examine_all, run_by_python

    try:
        with limited():
            began = time.process_time()
            arguments, results = run_by_python(text, seed)
            taken = time.process_time() - began
        if not all(np.all(np.isfinite(x)) for x in (*arguments, *(np.ravel(results) if results is not None else ()))):
            return None
    except Exception:
        return None
    try:
        with limited():
            examine_all(text, seed)
    except TooSlow as error:
        return SlowKernel() if taken > LONG else error
    except Exception as error:
        return error
    return None


def minimised(text, seed, error):
    """The program without blocks and lines that are not needed for the failure."""
    lines = text.splitlines()
    changed = True
    while changed:
        changed = False
        position = 1
        while position < len(lines):
            for candidate in without(lines, position):
                found = problem("\n".join(candidate) + "\n", seed)
                if type(found) is type(error) and place_of(found) == place_of(error):
                    lines, changed = candidate, True
                    break
            else:
                position += 1
    return "\n".join(lines) + "\n"


def place_of(error):
    """The function that has raised an exception, in a list."""
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)[-1:]]


def depth(line):
    return len(line) - len(line.lstrip())


def without(lines, position):
    """The lines without a statement and its block; without the statement alone, its block moved out."""
    end = position + 1
    while end < len(lines) and depth(lines[end]) > depth(lines[position]):
        end += 1
    yield lines[:position] + lines[end:]
    if end > position + 1:
        yield lines[:position] + [line[4:] for line in lines[position + 1 : end]] + lines[end:]


def main():
    parser = argparse.ArgumentParser(prog="scripts/fuzz --kernels", description=__doc__.splitlines()[0])
    parser.add_argument("minutes", type=float)
    parser.add_argument("--seed", type=int, default=None, help="seed of the first kernel (default: random)")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    from random_carried import Carried
    from random_check import is_refusal
    from random_draws import FlowThatDraws, LanguageThatDraws
    from random_flow import Flow
    from random_kernels import Program
    from random_language import Language
    from random_lists import OfLists
    from random_recursion import MutualRecursion, Recursion

    kinds = (Flow, Language, functools.partial(Program, wide=True), Language)
    kinds += (Flow, Language, functools.partial(Program, wide=True, functions=True), Language)
    kinds += (FlowThatDraws, LanguageThatDraws, Recursion, OfLists, MutualRecursion, Carried)

    deadline = time.monotonic() + 60 * options.minutes
    first = seed = random.randrange(10**8) if options.seed is None else options.seed
    refused = collections.Counter()
    while time.monotonic() < deadline:
        text = kinds[seed % len(kinds)](seed).source()
        error = problem(text, seed)
        if is_refusal(error):  # says so, and computes nothing wrong
            refused[str(error).partition(": ")[2]] += 1
        elif isinstance(error, SlowKernel):
            refused[f"not examined within {PATIENCE} s, and slow in Python"] += 1
        elif isinstance(error, TooSlow):
            return report(text, seed, error)
        elif error is not None:
            return report(minimised(text, seed, error), seed, error)
        seed += 1
        if not (seed - first) % EVERY:
            print(time.strftime("%H:%M:%S"), f"seed {seed}: {seed - first} kernels", flush=True)
    print(f"{seed - first} kernels, none failed; {refused.total()} refused")
    for message, count in refused.most_common():
        print(f"    {count} {message}")
    return 0


def report(text, seed, error):
    file = pathlib.Path(f"fuzz-kernel-{seed}.py").resolve()
    file.write_text(SCRIPT.format(folders=FOLDERS, source=text, seed=seed), encoding="utf-8")
    print(f"\n{text}\n{type(error).__name__}: {str(error)[:2000]}\n\npython {file}", flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
