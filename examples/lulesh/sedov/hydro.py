"""One cycle of Lagrangian hydrodynamics.

Forces move the nodes, the moved nodes change the elements, and the elements say how long the next time step may be.
"""

from . import kernels
from .backend import MPI, value

END_TIME = 1e-2
VISCOSITY_STOP = 1e12


class SimulationError(RuntimeError):
    """The mesh or the shock got out of hand: a volume is not positive, or the viscosity is beyond all bounds."""


def advance(domain):
    """Take ``domain`` through one cycle. Collective.

    Raises :class:`SimulationError` on the rank where an element has turned inside out.
    """
    choose_time_step(domain)
    move_nodes(domain)
    update_elements(domain)
    domain.cycle += 1


def choose_time_step(domain):
    domain.comm.Allreduce(domain.step_limit, domain.common_limit, op=MPI.MIN)
    kernels.advance_time(domain.common_limit, domain.time, domain.dt, END_TIME)


def move_nodes(d):
    d.force_sum.post()
    smallest = kernels.element_forces(
        d.x,
        d.v,
        d.corner,
        d.reference_volume,
        d.relative_volume,
        d.pressure,
        d.viscosity,
        d.sound_speed,
        d.force_at_corner,
    )
    check_volume(d, smallest)
    kernels.sum_corners(d.force_at_corner, d.node_corner, d.force)
    d.force_sum.send(d.force)
    d.force_sum.finish(d.force)

    d.motion_copy.post()
    kernels.move_nodes(d.force, d.mobility, d.dt, d.x, d.v)
    d.motion_copy.send(d.x, d.v)
    d.motion_copy.finish(d.x, d.v)


def update_elements(d):
    d.gradient_ghosts.post()
    smallest = kernels.element_kinematics(
        d.x,
        d.v,
        d.dt,
        d.corner,
        d.reference_volume,
        d.relative_volume,
        d.new_volume,
        d.volume_change,
        d.length,
        d.strain_rate,
        d.velocity_gradient,
        d.extent,
    )
    check_volume(d, smallest)
    d.gradient_ghosts.send()
    d.gradient_ghosts.finish()
    kernels.artificial_viscosity(
        d.velocity_gradient,
        d.extent,
        d.neighbor,
        d.strain_rate,
        d.reference_volume,
        d.new_volume,
        d.linear,
        d.quadratic,
    )
    evaluate_dear_materials(d)
    largest = kernels.update_elements(
        d.linear,
        d.quadratic,
        d.new_volume,
        d.volume_change,
        d.length,
        d.strain_rate,
        d.gamma_minus_1,
        d.energy,
        d.pressure,
        d.viscosity,
        d.sound_speed,
        d.relative_volume,
        d.step_limit,
    )
    if value(largest) > VISCOSITY_STOP:
        raise SimulationError(f"cycle {d.cycle + 1}: artificial viscosity {float(value(largest)):.3e} in an element")


def evaluate_dear_materials(d):
    """The work that a dear material costs. It starts from the same state each time and its results are not used."""
    for material in d.materials:
        for _ in range(material.extra_evaluations):
            kernels.evaluate_again(
                material.element,
                d.energy,
                d.pressure,
                d.viscosity,
                d.new_volume,
                d.volume_change,
                d.linear,
                d.quadratic,
                d.gamma_minus_1,
                material.result,
            )


def check_volume(domain, smallest):
    if not value(smallest) > 0.0:
        raise SimulationError(f"cycle {domain.cycle + 1}: an element has the volume {float(value(smallest)):.3e}")
