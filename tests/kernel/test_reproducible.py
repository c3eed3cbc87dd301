"""Generated programs are identical in every process: on all ranks, in every run, whatever the order of sets."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("kernels", "seeds"), [("corpus", (1, 2, 3)), pytest.param("drawn", range(4), marks=pytest.mark.slow)]
)
def test_programs_do_not_depend_on_the_order_of_sets(kernels, seeds):
    """String hashes, and with them the order of sets of names, differ between processes."""
    running = [programs_with(seed, kernels) for seed in seeds]
    found = [process.communicate()[0].split("\f") for process in running]
    assert not any(process.returncode for process in running)
    assert len(found[0]) > 80
    for others in found[1:]:
        assert others == found[0]


def programs_with(seed, kernels):
    path = os.pathsep.join(map(str, (FOLDER, FOLDER.parent / "helpers", FOLDER.parents[1])))
    environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": path}
    return subprocess.Popen([sys.executable, __file__, kernels], env=environment, stdout=subprocess.PIPE, text=True)


def of_corpus():
    """The small named kernels, and kernels whose loops are split, with arguments."""
    import test_stages
    from kernel_cases import CASES
    from kernel_checks import make_arguments

    yield from ((case.function, make_arguments(name)) for name, case in CASES.items())
    yield from ((function, test_stages.arguments(name, 7)) for name, function in test_stages.KERNELS.items())


def drawn():
    """Random kernels of all kinds."""
    from random_carried import Carried
    from random_check import kernel_of
    from random_flow import Flow
    from random_kernels import Program
    from random_language import Language
    from random_recursion import MutualRecursion, Recursion

    for seed in range(12):
        wide = Program(seed, wide=True, functions=True)
        for program in (wide, Flow(seed), Language(seed), Carried(seed), Recursion(seed), MutualRecursion(seed)):
            yield kernel_of(program.source(), seed)


def main():
    """Print the adjoints of kernels, or why random ones have none."""
    from kernel_checks import activity_patterns, kernel_ir

    from ampi import KernelError
    from ampi.kernel import pipeline
    from ampi.kernel.ir.printer import printed
    from ampi.kernel.optimise import loop_distribution
    from ampi.kernel.options import Options

    loop_distribution.CYCLES_OF_A_DIVISION = 1
    loop_distribution.MAX_TAKEN = 100
    are_drawn = sys.argv[1] == "drawn"
    for function, arguments in drawn() if are_drawn else of_corpus():
        active = activity_patterns(function, arguments)[0]
        for options in (Options(reassociate=True), Options(threads=True, after=True, plain=True)):
            try:
                adjoint = pipeline.build_adjoint(kernel_ir(function, arguments), active, options)
                print(printed(adjoint.function), end="\f")
            except KernelError as problem:
                if not are_drawn:
                    raise
                print(problem, end="\f")


if __name__ == "__main__":
    main()
