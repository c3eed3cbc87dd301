"""One cycle of Lagrangian hydrodynamics.

Forces move the nodes, the moved nodes change the elements, and the elements say how long the next time step may be.
What is computed is divided into blocks of elements and nodes, for which there may be tasks.
"""

from . import kernels
from .backend import MPI, value
from .blocks import BELOW, NEXT, OWN, Tasks

END_TIME = 1e-2
VISCOSITY_STOP = 1e12


class SimulationError(RuntimeError):
    """The mesh or the shock got out of hand: a volume is not positive, or the viscosity is beyond all bounds."""


def advance(domain):
    """Take ``domain`` through one cycle. Collective.

    Raises :class:`SimulationError` on the rank where an element has turned inside out.
    """
    choose_time_step(domain)
    update_elements(domain, move_nodes(domain))
    domain.cycle += 1


def choose_time_step(domain):
    domain.comm.Allreduce(domain.step_limit, domain.common_limit, op=MPI.MIN)
    kernels.advance_time(domain.common_limit, domain.time, domain.dt, END_TIME)


def move_nodes(d):
    """Returns the tasks that may still move nodes, for :func:`update_elements`."""
    tasks = Tasks(d)
    d.force_sum.post()
    forces = tasks.each(push_corners)
    if tasks.pool and not tasks.has_ranks_beside:
        return tasks.each(sum_and_accelerate, forces, BELOW)
    sums = tasks.each(sum_corners, forces, BELOW)
    tasks.exchange(sums, (d.force_sum.send, d.force), (d.force_sum.finish, d.force))

    d.motion_copy.post()
    moved = tasks.each(accelerate, sums, OWN)
    tasks.exchange(moved, (d.motion_copy.send, d.x, d.v), (d.motion_copy.finish, d.x, d.v))
    return moved


def push_corners(d, b):
    smallest = kernels.element_forces(
        b.near_x,
        b.near_v,
        b.corner,
        b.reference_volume,
        b.relative_volume,
        b.pressure,
        b.viscosity,
        b.sound_speed,
        b.force_at_corner,
    )
    check_volume(d, smallest)


def sum_corners(d, b):
    kernels.sum_corners(b.near_force_at_corner, b.node_corner, b.force)


def accelerate(d, b):
    kernels.move_nodes(b.force, b.mobility, d.dt, b.x, b.v)


def sum_and_accelerate(d, b):
    """Nothing is exchanged between the two if there is one rank."""
    sum_corners(d, b)
    accelerate(d, b)


def update_elements(d, moved=()):
    tasks = Tasks(d)
    d.gradient_ghosts.post()
    gradients = tasks.each(measure, moved, NEXT)
    tasks.exchange(gradients, (d.gradient_ghosts.send,), (d.gradient_ghosts.finish,))
    tasks.wait(tasks.each(apply_equation_of_state, gradients))
    kernels.limit_step(d.limits, d.step_limit)


def measure(d, b):
    smallest = kernels.element_kinematics(
        b.near_x,
        b.near_v,
        d.dt,
        b.corner,
        b.reference_volume,
        b.relative_volume,
        b.new_volume,
        b.volume_change,
        b.length,
        b.strain_rate,
        b.own_gradient,
        b.extent,
    )
    check_volume(d, smallest)


def apply_equation_of_state(d, b):
    kernels.artificial_viscosity(
        d.velocity_gradient,
        b.own_gradient,
        b.extent,
        b.neighbor,
        b.strain_rate,
        b.reference_volume,
        b.new_volume,
        b.linear,
        b.quadratic,
    )
    evaluate_expensive_materials(d, b)
    largest = kernels.update_elements(
        b.linear,
        b.quadratic,
        b.new_volume,
        b.volume_change,
        b.length,
        b.strain_rate,
        d.gamma_minus_1,
        b.energy,
        b.pressure,
        b.viscosity,
        b.sound_speed,
        b.relative_volume,
        b.limits,
    )
    if value(largest) > VISCOSITY_STOP:
        raise SimulationError(f"cycle {d.cycle + 1}: artificial viscosity {float(value(largest)):.3e} in an element")


def evaluate_expensive_materials(d, b):
    """The work that an expensive material costs. It starts from the same state each time; results are not used."""
    for material in b.materials:
        for _ in range(material.extra_evaluations):
            kernels.evaluate_again(
                material.element,
                b.energy,
                b.pressure,
                b.viscosity,
                b.new_volume,
                b.volume_change,
                b.linear,
                b.quadratic,
                d.gamma_minus_1,
                material.result,
            )


def check_volume(domain, smallest):
    if not value(smallest) > 0.0:
        raise SimulationError(f"cycle {domain.cycle + 1}: an element has the volume {float(value(smallest)):.3e}")
