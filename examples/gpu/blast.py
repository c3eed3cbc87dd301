"""LULESH's Sedov blast wave with kernels written for CUDA, on one or more ranks, and its gradient.

mpiexec -n 8 python examples/gpu/blast.py -s 6 -i 20 --gradient origin --check

The program of examples/lulesh, with its options, but all kernels of a cycle are those of blast_kernels.py.
"""

import sys

import blast_kernels
import device
import lulesh
import numpy
from sedov import domain, exchange, hydro


def use(kernels):
    """Let LULESH run with these kernels."""
    for module in (domain, exchange, hydro):
        module.kernels = kernels


def launches(case):
    """The kernels of an element with their arguments, each after those before it have run."""
    grid = blast_kernels.blocks(case.elements), blast_kernels.THREADS
    mesh = case.corner, case.reference_volume, case.relative_volume
    state = case.pressure, case.viscosity, case.force_at_corner, case.new_volume.copy()
    yield blast_kernels.stress_of_element[grid], (case.x, *mesh, *state)
    shape = [numpy.zeros((*n, case.elements)) for n in ((3, 8), (3, 4), (2,))]
    given = case.x, *mesh, case.sound_speed, *shape
    yield blast_kernels.shape_of_element[grid], given
    blast_kernels.shape_of_element[grid](*given)
    forces = case.v, case.corner, *shape, case.force_at_corner
    yield blast_kernels.hourglass_of_element[(grid[0], 3), (grid[1], 1)], forces
    found = case.new_volume, case.volume_change, case.length
    yield blast_kernels.volumes_of_element[grid], (case.x, *mesh, *found)
    given = case.x, case.v, case.dt, case.corner, case.reference_volume, case.new_volume
    rates = case.strain_rate, case.velocity_gradient, case.extent
    yield blast_kernels.kinematics_of_element[grid], (*given, *rates)


def main(arguments=None):
    parser = lulesh.ArgumentParser(add_help=False)
    device.add_option(parser)
    options, rest = parser.parse_known_args(arguments)
    use(blast_kernels)
    lulesh.main(rest)
    if options.device == "cuda":
        case = lulesh.Domain(lulesh.COMM_SELF, 4)
        lulesh.run(case, 10)
        for launch, given in launches(case):
            device.compare(launch, *given)


if __name__ == "__main__":
    sys.exit(main())
