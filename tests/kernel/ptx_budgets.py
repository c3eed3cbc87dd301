"""Registers and spills of emitted CUDA kernels, measured without a GPU: numba-cuda writes PTX, ptxas compiles it."""

import functools
import importlib.util
import json
import pathlib
import sys

import numpy as np

from ampi.kernel.cuda.assembly import missing, resources  # noqa: F401

BUDGETS = pathlib.Path(__file__).with_name("ptx.json")
MODES = ("primal", "adjoint", "tangent")


@functools.cache
def example(name):
    """A module of ``examples/gpu``, imported by path, as other examples have modules of the same names."""
    path = BUDGETS.parent.parent.parent / "examples" / "gpu" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"gpu_{name}", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


def of_tests():
    """Kernels of the tests."""
    import test_cuda

    found = {
        kernel.__name__: (kernel[launch], (np.ones(24), np.zeros(24))) for kernel, launch in test_cuda.LAUNCHES.items()
    }
    a, b, c = np.ones((7, 6)), np.ones((6, 8)), np.zeros((7, 8))
    found["product"] = test_cuda.product[(2, 2), (4, 4)], (a, b, c)
    return found


def of_lbm():
    lbm = example("lbm")
    state, flags = lbm.at_rest((8, 8, 8)), lbm.flags_of((8, 8, 8))
    return {"lbm": (lbm.step[(2, 2, 2), lbm.BLOCK], (state, state.copy(), flags, 1.95))}


def of_docking():
    docking = example("docking")
    *given, protein_type, ligand_type = docking.made_up(20, 30, 5)
    arguments = given[0], protein_type, given[1], ligand_type, *given[2:], np.zeros(20)
    return {"docking": (docking.pose_energies[1, docking.THREADS], arguments)}


def of_cross_sections():
    cross_sections = example("cross_sections")
    grid, tables, *rest = cross_sections.data(points=50)
    energies, materials = cross_sections.events(100)
    arguments = energies, materials, grid, tables, *rest, np.zeros(5), np.zeros(100, np.int64)
    return {"cross_sections": (cross_sections.look_up[1, 128], arguments)}


def of_resonances():
    resonances = example("resonances")
    tables, others = resonances.data(20, 5)
    launch, *given = resonances.launched(tables, others, *resonances.events(100))
    return {"resonances": (launch, tuple(given))}


def of_maxwell():
    """Kernels of the discontinuous Galerkin method, in single precision."""
    maxwell = example("maxwell")
    mesh, one = maxwell.Mesh(1, np.float32), np.float32(1)
    q = maxwell.wave(mesh, 0.0)
    change, advance = maxwell.KERNELS[mesh.real]
    launch, rates = (len(q), maxwell.THREADS), np.zeros_like(q)
    given = q, np.ones(len(q), np.float32), *mesh.matrices, mesh.neighbour, maxwell.FACES, rates
    return {"change": (change[launch], given), "advance": (advance[launch], (q, rates, rates, one, one, one))}


def of_lulesh():
    """Kernels of LULESH for elements and nodes."""
    kernels = example("blast_kernels")
    elements, nodes = 8, 27
    e, shape = lambda: np.ones(elements), [np.ones((*n, elements)) for n in ((3, 8), (3, 4), (2,))]
    x, v, corner = np.ones((3, nodes)), np.ones((3, nodes)), np.zeros((elements, 8), np.uint32)
    corners, of_node, dt = np.ones((3, 8 * nodes)), np.zeros((nodes, 8), np.uint32), np.ones(1)
    field, extent, neighbor = np.ones((3, 30)), np.ones((3, elements)), np.zeros((elements, 6), np.uint32)
    own = np.ones((3, elements))
    grid = kernels.blocks(elements), kernels.THREADS
    wide = (grid[0], 3), (grid[1], 1)
    return {
        "stress": (kernels.stress_of_element[grid], (x, corner, e(), e(), e(), e(), corners, e())),
        "shape": (kernels.shape_of_element[grid], (x, corner, e(), e(), e(), *shape)),
        "hourglass": (kernels.hourglass_of_element[wide], (v, corner, *shape, corners)),
        "corners": (kernels.corners_of_node[wide], (corners, of_node, x)),
        "motion": (kernels.motion_of_node[wide], (x, x, dt, x, v)),
        "volumes": (kernels.volumes_of_element[grid], (x, corner, e(), e(), e(), e(), e())),
        "kinematics": (kernels.kinematics_of_element[grid], (x, v, dt, corner, e(), e(), e(), own, extent)),
        "viscosity": (kernels.viscosity_of_element[grid], (field, own, extent, neighbor, e(), e(), e(), e(), e())),
        "state": (kernels.state_of_element[grid], (*(e() for _ in range(6)), dt, *(e() for _ in range(7)))),
    }


LULESH = "stress shape hourglass corners motion volumes kinematics viscosity state"
GROUPS = {
    of_lbm: ["lbm"],
    of_docking: ["docking"],
    of_cross_sections: ["cross_sections"],
    of_resonances: ["resonances"],
    of_maxwell: ["change", "advance"],
    of_lulesh: LULESH.split(),
}
"""Kernels of the examples: functions that make their launches, which takes time, and the kernels' names."""


def names():
    return [*of_tests(), *(name for group in GROUPS.values() for name in group)]


@functools.cache
def launched(name):
    """A launch and its arguments."""
    group = next((g for g, members in GROUPS.items() if name in members), of_tests)
    return group()[name]


def measured(name):
    """``{"name adjoint": {"sm_80": [registers, bytes spilled]}, …}`` for the programs of a launch."""
    from ampi.kernel.cuda import emission

    launch, given = launched(name)
    found = {}
    for mode in MODES:
        for kernel, numbers in resources(emission.emitted(launch, given, mode)).items():
            number = kernel.rpartition("_")[2]
            found[f"{name} {mode}" + (f" {number}" if number.isdigit() else "")] = numbers
    return found


def stored():
    return json.loads(BUDGETS.read_text()) if BUDGETS.exists() else {}


def store(found):
    BUDGETS.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


def is_over(numbers, budget):
    """Return whether registers or spills exceed the budget by more than a tenth (plus two)."""
    return any(n > 1.1 * b + 2 for arch in budget for n, b in zip(numbers[arch], budget[arch]))
