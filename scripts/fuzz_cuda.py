"""The search of `scripts/fuzz --cuda`: random CUDA kernels, until the time is over or one is wrong.

Each is lowered and compared with an interpreter that runs thread after thread, its gradient with its tangent and with
differences.  Nothing is compiled, unless with --compiled.  With --emitted the source for a GPU is
interpreted, and compared with the lowered form; with --simulator it runs in Numba's simulator.
"""

import argparse
import os
import pathlib
import random
import sys
import time
import warnings

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), *(str(ROOT / "tests" / part) for part in ("kernel", "helpers", "."))]


def main():
    parser = argparse.ArgumentParser(prog="scripts/fuzz --cuda", description=__doc__.splitlines()[0])
    parser.add_argument("minutes", type=float)
    parser.add_argument("--seed", type=int, default=None, help="seed of the first kernel (default: random)")
    parser.add_argument("--compiled", action="store_true", help="compile the kernels: far slower")
    parser.add_argument("--emitted", action="store_true", help="examine the source for a GPU")
    parser.add_argument("--simulator", action="store_true", help="run that source in Numba's simulator: small grids")
    options = parser.parse_args()
    os.environ.setdefault("AMPI_VERIFY", "1")
    if not options.compiled:
        os.environ["NUMBA_DISABLE_JIT"] = "1"
    if options.simulator:
        os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
        sys.setswitchinterval(1e-4)  # the simulator polls its threads
        warnings.simplefilter("ignore", DeprecationWarning)
    if options.emitted or options.simulator:
        from emitted_cuda import examine
    else:
        from random_cuda import examine

    refused = 0
    deadline = time.monotonic() + 60 * options.minutes
    first = seed = random.randrange(10**8) if options.seed is None else options.seed
    while time.monotonic() < deadline:
        try:
            refused += bool(examine(seed))
        except Exception as error:
            print(f"seed {seed}: {type(error).__name__}: {error}")
            return 1
        seed += 1
        if not (seed - first) % 25:
            print(time.strftime("%H:%M:%S"), f"seed {seed}: {seed - first} kernels", flush=True)
    print(f"{seed - first} kernels, none failed" + (f", {refused} refused by name" if refused else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
