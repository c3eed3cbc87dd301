"""Generated programs are the same in every process: on all ranks, in every run, whatever the order of sets."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


@pytest.mark.timeout(300)
def test_programs_do_not_depend_on_the_order_of_sets():
    """The hashes of strings, and with them the order of sets of names, differ from process to process."""
    found = [programs_with(seed) for seed in (1, 2)]
    assert len(found[0]) > 80 and found[0] == found[1]


def programs_with(seed):
    path = os.pathsep.join(map(str, (FOLDER, FOLDER.parent, FOLDER.parent.parent)))
    environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": path}
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split("\f")


def main():
    """Print the adjoints of the corpus and those of loops that are cut in several."""
    import test_stages
    from kernel_cases import CASES, activity_patterns, kernel_ir, make_arguments

    from ampi.kernel import pipeline
    from ampi.kernel.ir.printer import printed
    from ampi.kernel.optimise import loop_distribution
    from ampi.kernel.options import Options

    loop_distribution.CYCLES_OF_A_DIVISION = 1
    loop_distribution.MOST_TAKEN = 100
    kernels = [(case.function, make_arguments(name)) for name, case in CASES.items()]
    kernels += [(function, test_stages.arguments(name, 7)) for name, function in test_stages.KERNELS.items()]
    for function, arguments in kernels:
        active = activity_patterns(function, arguments)[0]
        for options in (Options(reassociate=True), Options(threads=True, after=True, plain=True)):
            adjoint = pipeline.build_adjoint(kernel_ir(function, arguments), active, options)
            print(printed(adjoint.function), end="\f")


if __name__ == "__main__":
    main()
