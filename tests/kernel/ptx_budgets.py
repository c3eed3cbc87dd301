"""Registers and spills of emitted CUDA kernels, for which no GPU is needed: numba-cuda writes PTX, ptxas reads it."""

import functools
import importlib.util
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import warnings

BUDGETS = pathlib.Path(__file__).with_name("ptx.json")
ARCHITECTURES = ((8, 0), (9, 0))
MODES = ("primal", "adjoint", "tangent")


def ptxas():
    """The path of ptxas: of the wheel of nvidia-cuda-nvcc, or of the system."""
    for folder in sys.path:
        for found in pathlib.Path(folder).glob("nvidia/*/bin/ptxas"):
            return str(found)
    return shutil.which("ptxas")


def missing():
    """The reason why nothing can be compiled; empty if it can."""
    try:
        import numba_cuda  # noqa: F401
    except ImportError:
        return "numba-cuda is not installed: pip install ampi[cuda]"
    return "" if ptxas() else "ptxas is not installed: pip install nvidia-cuda-nvcc-cu12"


@functools.cache
def example(name):
    """A module of ``examples/gpu``; other examples have modules of the same names."""
    path = BUDGETS.parent.parent.parent / "examples" / "gpu" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"gpu_{name}", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def corpus():
    """Launches with their arguments, by name."""
    import numpy as np
    import test_cuda

    lbm, cross_sections, docking = map(example, ("lbm", "cross_sections", "docking"))
    skipped = {"largest"}  # atomic.max, which has no emitted adjoint
    found = {
        kernel.__name__: (kernel[launch], (np.ones(24), np.zeros(24)))
        for kernel, launch in test_cuda.LAUNCHES.items()
        if kernel.__name__ not in skipped
    }
    a, b, c = np.ones((7, 6)), np.ones((6, 8)), np.zeros((7, 8))
    found["product"] = test_cuda.product[(2, 2), (4, 4)], (a, b, c)
    state, flags = lbm.at_rest((8, 8, 8)), lbm.flags_of((8, 8, 8))
    found["lbm"] = lbm.step[(2, 2, 2), lbm.BLOCK], (state, state.copy(), flags, 1.95)
    molecules = docking.made_up(20, 30, 5)
    *given, protein_type, ligand_type = molecules
    arguments = given[0], protein_type, given[1], ligand_type, *given[2:], np.zeros(20)
    found["docking"] = docking.pose_energies[1, docking.THREADS], arguments
    grid, tables, *rest = cross_sections.data(points=50)
    energies, materials = cross_sections.events(100)
    arguments = energies, materials, grid, tables, *rest, np.zeros(5), np.zeros(100, np.int64)
    found["cross_sections"] = cross_sections.look_up[1, 128], arguments
    return found


def names():
    return list(corpus())


def measured(name):
    """``{"name adjoint": {"sm_80": [registers, bytes spilled]}}`` of the programs of a launch."""
    from numba import cuda

    from ampi.kernel.cuda import emission

    launch, given = corpus()[name]
    found = {}
    for mode in MODES:
        made = emission.emitted(launch, given, mode)
        space = {"__name__": "emitted"}
        exec(compile(made.text.replace("@cuda.jit\n", ""), f"<{name} {mode}>", "exec"), space)
        for kernel, signature in made.kernels.items():
            number = kernel.rpartition("_")[2]
            label = f"{name} {mode}" + (f" {number}" if number.isdigit() else "")
            for cc in ARCHITECTURES:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    ptx, _ = cuda.compile_ptx(space[kernel], signature, device=False, cc=cc)
                found.setdefault(label, {})[f"sm_{cc[0]}{cc[1]}"] = assembled(ptx, cc)
    return found


def assembled(ptx, cc):
    """Registers, and bytes of spills, of a kernel."""
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        command = [ptxas(), "-v", f"-arch=sm_{cc[0]}{cc[1]}", str(source), "-o", str(source.with_suffix(".cubin"))]
        run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    registers = max(map(int, re.findall(r"Used (\d+) registers", run.stderr)))
    spilled = max(map(int, re.findall(r"(\d+) bytes spill stores", run.stderr)), default=0)
    return [registers, spilled]


def stored():
    return json.loads(BUDGETS.read_text()) if BUDGETS.exists() else {}


def store(found):
    BUDGETS.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


def is_over(numbers, budget):
    """Whether registers or spills are a tenth above the budget."""
    return any(n > 1.1 * b + 2 for arch in budget for n, b in zip(numbers[arch], budget[arch]))
